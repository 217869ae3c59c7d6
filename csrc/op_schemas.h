// The schema of every operator: one definition, for all backends.
#pragma once

#include <torch/csrc/stable/library.h>

namespace pyengine {

inline void define_ops(torch::stable::detail::StableLibrary& m) {
  m.def("isa_name() -> str");
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("fused_add_rms_norm_(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps) -> ()");
  m.def(
      "rope_and_cache(Tensor(a!) query, Tensor key, Tensor value, Tensor positions, "
      "Tensor cos_sin, Tensor(b!) key_cache, Tensor(c!) value_cache, Tensor slot_mapping) -> ()");
  m.def(
      "paged_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_tables, "
      "Tensor query_start_loc, Tensor seq_lens, float scale, int sliding_window, "
      "float soft_cap) -> Tensor");
  m.def("silu_and_mul(Tensor x) -> Tensor");
  m.def("embedding(Tensor token_ids, Tensor weight) -> Tensor");
  m.def(
      "packed_embedding(Tensor token_ids, Tensor packed_weight, int num_rows, int row_size) -> "
      "Tensor");
  m.def("pack_linear_weight(Tensor weight) -> Tensor");
  m.def(
      "linear(Tensor x, Tensor packed_weight, Tensor? bias, int num_outputs, bool float32_out) -> "
      "Tensor");
  m.def("pack_quantized_weight(Tensor blocks, int ggml_type) -> Tensor");
  m.def(
      "quantized_linear(Tensor x, Tensor packed_weight, int ggml_type, Tensor? bias, "
      "int num_outputs, bool float32_out) -> Tensor");
  m.def(
      "quantized_embedding(Tensor token_ids, Tensor packed_weight, int ggml_type, int num_rows, "
      "int row_size, ScalarType dtype) -> Tensor");
  m.def(
      "decoder_create(Tensor cos_sin, Tensor[] norms, int num_heads, int num_kv_heads, "
      "int head_size, int intermediate_size, float scale, int sliding_window, float eps) -> int");
  m.def(
      "decoder_add_projection(int decoder, Tensor[] weights, int[] num_outputs, int[] ggml_types, "
      "Tensor? bias) -> ()");
  m.def(
      "decoder_run(int decoder, Tensor(a!) residual, Tensor positions, Tensor slot_mapping, "
      "Tensor block_tables, Tensor query_start_loc, Tensor seq_lens, Tensor(b!) key_cache, "
      "Tensor(c!) value_cache, Tensor? num_logits, int num_rows) -> Tensor");
  m.def("decoder_destroy(int decoder) -> ()");
  m.def(
      "gather_logits(Tensor hidden, Tensor query_start_loc, Tensor num_logits, int num_rows) -> "
      "Tensor");
  m.def(
      "apply_penalties_(Tensor(a!) logits, Tensor token_ids, Tensor token_start_loc, "
      "Tensor num_prompt_tokens, Tensor repetition, Tensor presence, Tensor frequency) -> ()");
  m.def(
      "sample(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, "
      "Tensor seeds, Tensor output_indices) -> Tensor");
  m.def(
      "token_logprobs(Tensor logits, Tensor token_ids, int num_top) -> "
      "(Tensor logprob, Tensor rank, Tensor top_ids, Tensor top_logprobs)");
  m.def("dequantize(Tensor data, int ggml_type, ScalarType dtype) -> Tensor");
  m.def("quantize(Tensor weight, int ggml_type) -> Tensor");
}

}  // namespace pyengine
