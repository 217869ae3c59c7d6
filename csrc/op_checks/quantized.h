// Checks of linear layers and embeddings in the integers of packed ggml blocks.
#pragma once

#include "ggml.h"
#include "linear_layers.h"

namespace pyengine {

inline void check_pack_quantized_weight(const Tensor& blocks, int64_t ggml_type) {
  check_dim(blocks, "blocks", 2);
  check_dtype(blocks, "blocks", ScalarType::Byte);
  check_contiguous(blocks, "blocks");
  const GgmlType& type = check_block_type(ggml_type);
  STD_TORCH_CHECK(blocks.size(1) > 0 && blocks.size(1) % type.block_bytes == 0,
                  "blocks must have rows of whole ", type.name, " blocks of ", type.block_bytes,
                  " bytes, got rows of ", blocks.size(1), " bytes");
}

// x [T, K] of `quantized_linear`, whose K inputs are whole blocks of the type.
inline void check_quantized_input(const Tensor& x, int64_t ggml_type) {
  check_dim(x, "x", 2);
  check_activation_dtype(x, "x");
  STD_TORCH_CHECK(x.stride(1) == 1, "x must have contiguous rows");
  check_whole_blocks(ggml_type, "the number of inputs of x", x.size(1));
}

// The packed numbers take panel_bytes in each panel.
inline void check_packed_quantized_weight(const Tensor& packed_weight, int64_t num_panels,
                                          int64_t panel_bytes) {
  check_dtype(packed_weight, "packed_weight", ScalarType::Byte);
  check_shape(packed_weight, "packed_weight", {num_panels, panel_bytes});
  check_contiguous(packed_weight, "packed_weight");
}

inline void check_quantized_embedding(const Tensor& token_ids, int64_t ggml_type, int64_t row_size,
                                      ScalarType dtype) {
  check_dim(token_ids, "token_ids", 1);
  check_vector(token_ids, "token_ids", ScalarType::Long, token_ids.size(0));
  check_whole_blocks(ggml_type, "row_size", row_size);
  check_float_or_bfloat16(dtype);
}

}  // namespace pyengine
