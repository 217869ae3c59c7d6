// Every operator, declared once. Schemas are in ops.cpp, argument checks in op_checks/,
// implementations in cpu/ (and, later, cuda/).
//
// Letters in shapes: T tokens in the flat batch, S sequences, H query heads, K key/value heads,
// D head size, B blocks in the cache, P block size (tokens), V vocabulary, R rows of logits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

namespace pyengine {

using torch::stable::Tensor;

// x [T, N], weight [N], float32 or bfloat16 -> [T, N]: x / sqrt(mean(x^2) + eps) * weight.
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps);

// x, residual [T, N], weight [N]: residual += x, then x = rms_norm(residual), both in place.
void fused_add_rms_norm_(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps);

// query [T, H, D] is rotated in place; key (rotated) and value [T, K, D] are written to the slots
// (block * P + offset; -1 writes nothing) of key_cache and value_cache [B, K, P, D], of the same
// dtype or int8: then a row of D ends in four bytes more, the float32 that it is times of. positions,
// slot_mapping [T] int64; cos_sin [max_position, rotary_dim] float32, a row is [cos | sin].
void rope_and_cache(const Tensor& query, const Tensor& key, const Tensor& value,
                    const Tensor& positions, const Tensor& cos_sin, const Tensor& key_cache,
                    const Tensor& value_cache, const Tensor& slot_mapping);

// Causal attention of query [T, H, D] over the keys and values in the cache [B, K, P, D] ->
// [T, H, D]. block_tables [S, max_blocks], query_start_loc [S + 1], seq_lens [S] int32. Query i of
// sequence s stands at position seq_lens[s] - query_len + i; it sees keys at up to its own
// position, the last sliding_window of them when that isn't 0. soft_cap c > 0 turns a score x into
// c * tanh(x / c).
Tensor paged_attention(const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
                       const Tensor& block_tables, const Tensor& query_start_loc,
                       const Tensor& seq_lens, double scale, int64_t sliding_window,
                       double soft_cap);

// x [T, 2N] float32 or bfloat16 -> [T, N]: silu(x[:, :N]) * x[:, N:].
Tensor silu_and_mul(const Tensor& x);

// The rows token_ids int64 [T] of `weight` [V, N] -> [T, N].
Tensor embedding(const Tensor& token_ids, const Tensor& weight);

// The same for a weight [V, N] that lies packed for `linear`.
Tensor packed_embedding(const Tensor& token_ids, const Tensor& packed_weight, int64_t num_rows,
                        int64_t row_size);

// weight [N, K] float32 or bfloat16 -> the same numbers in the order in which `linear` reads them,
// [panels, steps, outputs of a panel, inputs of a step]; see cpu/linear_kernel.h. On a GPU bfloat16
// or float16 with K a multiple of 8, in the same order: [N, K, 1, 1].
Tensor pack_linear_weight(const Tensor& weight);

// x [T, K], weight [N, K] packed, bias [N] -> x W^T + b [T, N], in x's dtype or in float32. Sums
// are in float32, in an order that depends on nothing but K.
Tensor linear(const Tensor& x, const Tensor& packed_weight, const std::optional<Tensor>& bias,
              int64_t num_outputs, bool float32_out);

// Rows of ggml blocks of W [N, K], uint8 [N, row_bytes], of a type that linear layers compute with
// (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K) -> the same numbers in the order in which
// `quantized_linear` reads them, uint8 [panels, bytes of a panel]; see cpu/quantized_format.h.
Tensor pack_quantized_weight(const Tensor& blocks, int64_t ggml_type);

// As `linear`, with a weight from pack_quantized_weight. x is rounded, in each row and group of 32
// inputs, to integers of magnitude 127 at most times a scale; products with the weights' integers
// are exact.
Tensor quantized_linear(const Tensor& x, const Tensor& packed_weight, int64_t ggml_type,
                        const std::optional<Tensor>& bias, int64_t num_outputs, bool float32_out);

// The rows token_ids int64 [T] of a weight [V, K] from pack_quantized_weight -> [T, K] in float32
// or bfloat16, with the values of `dequantize`.
Tensor quantized_embedding(const Tensor& token_ids, const Tensor& packed_weight, int64_t ggml_type,
                           int64_t num_rows, int64_t row_size, torch::headeronly::ScalarType dtype);

// The layers of a Llama-like decoder in one call; see cpu/decoder.h. decoder_create takes what all
// layers share and their norms [hidden], 2 * layers + 1 of them in the order of use;
// decoder_add_projection the linear layers in the order of use, each as packed weights whose
// num_outputs lie side by side, and a bias for all of them (ggml_types: of quantized weights, -1
// for others). decoder_run adds up the layers' outputs
// in residual [T, hidden], which is overwritten, and returns the norm of the sum [num_rows, hidden],
// for all T rows or, given num_logits, for those that gather_logits would take: the last layer does
// no more than these need. Inputs as for rope_and_cache and paged_attention,
// caches [B, layers, K, P, D]. A decoder is named by a number, until decoder_destroy.
int64_t decoder_create(const Tensor& cos_sin, const std::vector<Tensor>& norms, int64_t num_heads,
                       int64_t num_kv_heads, int64_t head_size, int64_t intermediate_size,
                       double scale, int64_t sliding_window, double eps);
void decoder_add_projection(int64_t decoder, const std::vector<Tensor>& weights,
                            const std::vector<int64_t>& num_outputs,
                            const std::vector<int64_t>& ggml_types,
                            const std::optional<Tensor>& bias);
Tensor decoder_run(int64_t decoder, const Tensor& residual, const Tensor& positions,
                   const Tensor& slot_mapping, const Tensor& block_tables,
                   const Tensor& query_start_loc, const Tensor& seq_lens, const Tensor& key_cache,
                   const Tensor& value_cache, const std::optional<Tensor>& num_logits,
                   int64_t num_rows);
void decoder_destroy(int64_t decoder);

// The rows of `hidden` [T, N] that need logits: the last num_logits[s] (int32 [S]) of the rows
// query_start_loc[s]..query_start_loc[s + 1] (int32 [S + 1]) of each sequence, in order
// -> [num_rows, N], where num_rows = sum(num_logits).
Tensor gather_logits(const Tensor& hidden, const Tensor& query_start_loc, const Tensor& num_logits,
                     int64_t num_rows);

// Penalizes, in place, the tokens of each row's history in `logits` float32 [R, V]. Row r's history
// is token_ids[token_start_loc[r]..token_start_loc[r + 1]] (int64 [sum], int32 [R + 1]): first
// num_prompt_tokens[r] (int32 [R]) tokens of the prompt, then those of the output. Once for each
// distinct token: a positive logit is divided by repetition[r], another multiplied by it (Keskar et
// al. 2019); then, of output tokens, frequency[r] times their count and presence[r] are subtracted.
void apply_penalties_(const Tensor& logits, const Tensor& token_ids, const Tensor& token_start_loc,
                      const Tensor& num_prompt_tokens, const Tensor& repetition,
                      const Tensor& presence, const Tensor& frequency);

// One token id per row of `logits` float32 [R, V] -> int64 [R], given per row: temperature
// (float32; not above 0 is greedy), top_k (int32; not above 0 is off), top_p (float32; 1 is off),
// min_p (float32; 0 is off), and seeds, output_indices (int64), which alone determine the noise.
// Filters: min_p, then top_k, then top_p on what remains, renormalized. Ties go to the lowest id.
// NaN counts as -inf. A row with +inf, or with nothing above -inf, is sampled greedily.
Tensor sample(const Tensor& logits, const Tensor& temperature, const Tensor& top_k,
              const Tensor& top_p, const Tensor& min_p, const Tensor& seeds,
              const Tensor& output_indices);

// Log-softmax of `logits` float32 [R, V] at token_ids int64 [R] -> float32 [R]; rank int32 [R]:
// 1 + the number of greater logits; ids int64 [R, num_top] and log-probabilities
// float32 [R, num_top] of the likeliest tokens in order, ties by ascending id.
std::tuple<Tensor, Tensor, Tensor, Tensor> token_logprobs(const Tensor& logits,
                                                          const Tensor& token_ids, int64_t num_top);

// Rows of ggml blocks, uint8 [rows, row_bytes], of the type with number `ggml_type` (ggml_types.h)
// -> [rows, row_size] in float32 or bfloat16.
Tensor dequantize(const Tensor& data, int64_t ggml_type, torch::headeronly::ScalarType dtype);

// weight [N, K] float32 or bfloat16, finite -> rows of ggml blocks, uint8 [N, row_bytes], of the
// type with number `ggml_type`: Q4_0, Q4_1 or Q8_0. See cpu/quantize_kernel.h for the rounding.
Tensor quantize(const Tensor& weight, int64_t ggml_type);

}  // namespace pyengine
