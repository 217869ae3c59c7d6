// The table of CPU kernels, filled once per instruction set (kernels_<isa>.cpp) and chosen at
// run time (isa.h). Arguments are plain structs of pointers and sizes; a kernel handles the
// half-open range of work items [begin, end) that a thread was given. Nothing here knows torch.
#pragma once

#include <cstdint>

#include "../dispatch.h"
#include "attention_plan.h"
#include "quantized_format.h"

namespace pyengine {

template <typename T>
struct SiluAndMulArgs {
  const T* x;  // [rows, 2 * size]
  T* out;      // [rows, size]
  int64_t size;
};

template <typename T>
struct RmsNormArgs {
  const T* x;       // [rows, size]
  const T* weight;  // [size]
  T* out;           // [rows, size]
  int64_t size;
  float eps;
};

template <typename T>
struct FusedAddRmsNormArgs {
  T* x;             // [rows, size], becomes the norm
  T* residual;      // [rows, size], becomes the sum
  const T* weight;  // [size]
  int64_t size;
  float eps;
};

// A row of the KV cache, elements of C. One of int8 ends in a float32 that all others are times of.
template <typename C>
constexpr bool kIsScaled = sizeof(C) == 1;
template <typename C>
constexpr int64_t cache_row_size(int64_t head_size) {
  return head_size + (kIsScaled<C> ? static_cast<int64_t>(sizeof(float)) : 0);
}

template <typename T, typename C = T>
struct RopeAndCacheArgs {
  T* query;                     // [tokens, num_heads, head_size], rotated in place
  const T* key;                 // [tokens, num_kv_heads, head_size]
  const T* value;               // [tokens, num_kv_heads, head_size]
  const int64_t* positions;     // [tokens]
  const float* cos_sin;         // [max_position, rotary_dim], rows of [cos | sin]
  C* key_cache;                 // [blocks, num_kv_heads, block_size, cache_row_size]
  C* value_cache;               // [blocks, num_kv_heads, block_size, cache_row_size]
  const int64_t* slot_mapping;  // [tokens], block * block_size + offset or -1
  int64_t query_stride, key_stride, value_stride;  // elements from token to token
  int64_t block_stride;                            // ... from block to block of a cache
  int64_t num_heads, num_kv_heads, head_size, rotary_dim, block_size;
};

template <typename T, typename C = T>
struct AttentionArgs {
  const T* query;               // [tokens, num_heads, head_size]
  const C* key_cache;           // [blocks, num_kv_heads, block_size, cache_row_size]
  const C* value_cache;         // [blocks, num_kv_heads, block_size, cache_row_size]
  T* out;                       // [tokens, num_heads, head_size]
  const int32_t* block_tables;  // [seqs, max_blocks]
  int64_t query_stride;         // elements from token to token
  int64_t block_stride;         // ... from block to block of a cache
  int64_t max_blocks, block_size, num_heads, num_kv_heads, head_size;
  int64_t sliding_window;  // 0: none
  float scale, soft_cap;   // 0: none
};

template <typename T>
struct DequantizeArgs {
  int64_t ggml_type;    // one of kGgmlTypes
  const uint8_t* data;  // [rows, row_bytes]
  int64_t row_bytes;
  T* out;  // [rows, row_size]
  int64_t row_size;
};

template <typename T>
struct QuantizeArgs {
  int64_t ggml_type;  // Q4_0, Q4_1 or Q8_0
  const T* weight;    // [blocks, 32]
  uint8_t* out;       // [blocks, bytes of a block]
};

// Outputs that lie side by side in packed weights, and the inputs that one step of T takes.
constexpr int64_t kLinearPanel = 32;
// Panels that are worth giving to one thread together, as a tile of few rows takes so many.
constexpr int64_t kLinearPanelGroup = 4;
template <typename T>
constexpr int64_t kLinearStep = sizeof(T) == 2 ? 2 : 1;

template <typename T, typename Out>
struct LinearArgs {
  const T* x;       // [num_rows, num_inputs], rows x_stride apart
  const T* weight;  // [panels, steps, kLinearPanel, kLinearStep<T>]
  const T* bias;    // [num_outputs], or null
  Out* y;           // [num_rows, num_outputs], rows y_stride apart
  int64_t num_rows;
  int64_t num_inputs;
  int64_t num_outputs;
  int64_t x_stride;
  int64_t y_stride;
};

template <typename T>
struct QuantizeActivationsArgs {
  const T* x;            // [rows, num_inputs], rows x_stride apart
  ActivationGroup* out;  // [rows, num_inputs / kQuantizedGroup]
  int64_t num_inputs;
  int64_t x_stride;
};

template <typename T, typename Out>
struct QuantizedLinearArgs {
  int64_t ggml_type;         // of a packed format
  const ActivationGroup* x;  // [num_rows, num_inputs / kQuantizedGroup]
  const uint8_t* weight;     // [panels, panel_bytes(num_inputs)] of the format
  const T* bias;             // [num_outputs], or null
  Out* y;                    // [num_rows, num_outputs], rows y_stride apart
  int64_t num_rows;
  int64_t num_inputs;
  int64_t num_outputs;
  int64_t y_stride;
};

// Tokens of a row of logits are looked at in blocks of this size.
constexpr int64_t kLogitsBlock = 128;

// The weight of a token is exp((logit - max) / temperature) if its logit is greater than
// `threshold`, or equal to it and the token comes before `end_of_ties`; else 0.
struct SoftmaxArgs {
  float max;
  float temperature;
  float threshold;
  int64_t end_of_ties;  // an index into the run of tokens; may lie outside of it
};

// Kernels that exist for each activation type T and element type C of its KV cache: T or int8.
template <typename T, typename C>
struct CacheKernels {
  void (*rope_and_cache)(const RopeAndCacheArgs<T, C>&, int64_t begin_token, int64_t end_token);
  // scratch: attention_scratch_size floats; partials: plan.partial_size floats.
  void (*attend)(const AttentionArgs<T, C>&, const AttentionItem* begin, const AttentionItem* end,
                 float* scratch, float* partials);
  void (*merge_attention)(const AttentionArgs<T, C>&, const AttentionItem&, float* scratch,
                          float* partials);
};

// Kernels that exist for each activation type T.
template <typename T>
struct TypedKernels {
  void (*rms_norm)(const RmsNormArgs<T>&, int64_t begin_row, int64_t end_row);
  void (*fused_add_rms_norm)(const FusedAddRmsNormArgs<T>&, int64_t begin_row, int64_t end_row);
  CacheKernels<T, T> same_cache;
  CacheKernels<T, int8_t> int8_cache;
  void (*silu_and_mul)(const SiluAndMulArgs<T>&, int64_t begin_row, int64_t end_row);
  void (*linear)(const LinearArgs<T, T>&, int64_t begin_panel, int64_t end_panel);
  void (*linear_to_float)(const LinearArgs<T, float>&, int64_t begin_panel, int64_t end_panel);
  void (*quantize_activations)(const QuantizeActivationsArgs<T>&, int64_t begin_row,
                               int64_t end_row);
  void (*quantized_linear)(const QuantizedLinearArgs<T, T>&, int64_t begin_panel,
                           int64_t end_panel);
  void (*quantized_linear_to_float)(const QuantizedLinearArgs<T, float>&, int64_t begin_panel,
                                    int64_t end_panel);
  void (*dequantize)(const DequantizeArgs<T>&, int64_t begin_row, int64_t end_row);
  // Returns whether all elements are finite; the others have no meaning in `out`.
  bool (*quantize)(const QuantizeArgs<T>&, int64_t begin_block, int64_t end_block);

  template <typename C>
  const CacheKernels<T, C>& cached() const {
    if constexpr (kIsScaled<C>) {
      return int8_cache;
    } else {
      return same_cache;
    }
  }
};

struct Kernels {
  TypedKernels<float> f32;
  TypedKernels<bfloat16> bf16;
  // The greatest logit of each block of kLogitsBlock, -inf if it holds only NaN.
  void (*block_maxima)(const float* logits, int64_t size, float* maxima);
  // Weights of `size` tokens; returns their sum.
  double (*softmax_weights)(const SoftmaxArgs&, const float* logits, int64_t size, float* weights);

  template <typename T>
  const TypedKernels<T>& typed() const;
};

template <>
inline const TypedKernels<float>& Kernels::typed<float>() const {
  return f32;
}

template <>
inline const TypedKernels<bfloat16>& Kernels::typed<bfloat16>() const {
  return bf16;
}

extern const Kernels kKernelsPortable;
#if defined(__x86_64__)
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
#endif

}  // namespace pyengine
