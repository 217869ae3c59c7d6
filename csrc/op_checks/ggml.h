// Checks of ggml's quantized blocks.
#pragma once

#include "../ggml_types.h"
#include "tensors.h"

namespace pyengine {

// The type's description, of one whose blocks linear layers compute with.
inline const GgmlType& check_block_type(int64_t ggml_type) {
  const GgmlType* type = find_ggml_type(ggml_type);
  const auto has_blocks = [](const GgmlType& t) { return t.block_size > 1; };
  STD_TORCH_CHECK(type != nullptr && has_blocks(*type), "ggml_type must be one of ",
                  list_ggml_types(has_blocks), ", got ", ggml_type);
  return *type;
}

inline void check_whole_blocks(int64_t ggml_type, const char* name, int64_t size) {
  const GgmlType& type = check_block_type(ggml_type);
  STD_TORCH_CHECK(size > 0 && size % type.block_size == 0, name, " must be a multiple of ",
                  type.block_size, ", the size of a ", type.name, " block, got ", size);
}

inline void check_dequantize(const Tensor& data, int64_t ggml_type, ScalarType dtype) {
  check_dim(data, "data", 2);
  check_dtype(data, "data", ScalarType::Byte);
  check_contiguous(data, "data");
  const GgmlType* type = find_ggml_type(ggml_type);
  STD_TORCH_CHECK(type != nullptr, "ggml_type must be one of ",
                  list_ggml_types([](const GgmlType&) { return true; }), ", got ", ggml_type);
  STD_TORCH_CHECK(data.size(1) % type->block_bytes == 0, "data must have rows of whole ",
                  type->name, " blocks of ", type->block_bytes, " bytes, got rows of ",
                  data.size(1), " bytes");
  check_float_or_bfloat16(dtype);
}

inline void check_quantize(const Tensor& weight, int64_t ggml_type) {
  check_dim(weight, "weight", 2);
  check_activation_dtype(weight, "weight");
  check_contiguous(weight, "weight");
  const GgmlType* type = find_ggml_type(ggml_type);
  STD_TORCH_CHECK(type != nullptr && type->is_quantizable, "ggml_type must be one of ",
                  list_ggml_types([](const GgmlType& t) { return t.is_quantizable; }), ", got ",
                  ggml_type);
  STD_TORCH_CHECK(weight.size(1) % type->block_size == 0, "weight must have rows of whole ",
                  type->name, " blocks of ", type->block_size, " elements, got rows of ",
                  weight.size(1));
}

}  // namespace pyengine
