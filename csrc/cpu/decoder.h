// All layers of a Llama-like decoder (pre-norm attention and gated MLP around a residual stream) in
// one call. It runs the kernels that the operators run, on the same numbers in the same order, so
// the results are the same bits; what it saves is the way through the framework, some microseconds
// for each of the hundreds of operators of a step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/csrc/stable/tensor.h>

namespace pyengine {

using torch::stable::Tensor;

// The type of a weight from pack_linear_weight, among ggml types of quantized ones.
constexpr int64_t kNotQuantized = -1;

// A linear layer whose outputs lie side by side: packed weights, one after another.
struct Projection {
  std::vector<Tensor> weights;
  std::vector<int64_t> num_outputs;  // of each weight
  std::vector<int64_t> ggml_types;   // of each weight, or kNotQuantized
  std::optional<Tensor> bias;        // of all outputs
};

struct DecoderConfig {
  int64_t num_heads, num_kv_heads, head_size, intermediate_size, sliding_window;
  float scale, eps;
  Tensor cos_sin;             // float32 [max_position, rotary_dim]
  std::vector<Tensor> norms;  // two a layer, before attention and before MLP; one after the last

  int64_t num_layers() const { return static_cast<int64_t>(norms.size()) / 2; }
  int64_t hidden_size() const { return norms[0].size(0); }
};

// What is fed in a step, as the operators take it. Caches are [B, layers, K, P, D].
struct DecoderStep {
  const Tensor &positions, &slot_mapping, &block_tables, &query_start_loc, &seq_lens;
  const Tensor &key_cache, &value_cache;
  const std::optional<Tensor>& num_logits;  // none: the hidden states of all tokens are wanted
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Projections come in the order of use: of each layer q|k|v, output, gate|up, down.
  virtual void add_projection(Projection projection) = 0;
  // Adds the layers' outputs up in residual [T, hidden]; `out` becomes the norm of the sum, for the
  // rows that are wanted.
  virtual void run(const Tensor& residual, const Tensor& out, const DecoderStep& step) = 0;
};

std::unique_ptr<Decoder> make_decoder(DecoderConfig config);

}  // namespace pyengine
