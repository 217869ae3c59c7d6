#include "decoder.h"

#include "../op_checks.h"
#include "gather_rows.h"
#include "linear.h"
#include "paged_attention.h"
#include "quantized_linear.h"
#include "row_ops.h"
#include "tensor_data.h"
#include "value_checks.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <numeric>
#include <utility>

namespace pyengine {
namespace {

// Working memory, kept from step to step: the system would zero fresh pages each time.
class Workspace {
 public:
  // Begins a step that takes at most so many bytes.
  void reset(const Tensor& like, int64_t num_bytes) {
    if (!memory_ || memory_->numel() < num_bytes) {
      memory_ = torch::stable::new_empty(like, {num_bytes}, ScalarType::Byte);
    }
    next_ = mutable_data<uint8_t>(*memory_);
  }

  template <typename U>
  U* take(int64_t size) {
    U* const at = reinterpret_cast<U*>(next_);
    next_ += bytes_for<U>(size);
    return at;
  }

  // In whole cache lines.
  template <typename U>
  static int64_t bytes_for(int64_t size) {
    return (size * static_cast<int64_t>(sizeof(U)) + 63) / 64 * 64;
  }

 private:
  std::optional<Tensor> memory_;
  uint8_t* next_ = nullptr;
};

// The rows whose hidden states are wanted, and where each sequence's begin among them.
struct WantedRows {
  std::vector<int64_t> rows;
  std::vector<int32_t> query_start_loc;

  WantedRows(const DecoderStep& step, const AttentionShape& shape, int64_t num_rows)
      : query_start_loc(shape.query_start_loc, shape.query_start_loc + shape.num_seqs + 1) {
    std::vector<int32_t> num_logits(static_cast<size_t>(shape.num_seqs));
    if (step.num_logits) {
      std::copy_n(data<int32_t>(*step.num_logits), num_logits.size(), num_logits.begin());
    } else {
      std::transform(query_start_loc.begin() + 1, query_start_loc.end(), query_start_loc.begin(),
                     num_logits.begin(), std::minus<>());
    }
    rows = rows_with_logits(shape.query_start_loc, num_logits.data(), shape.num_seqs, num_rows);
    std::partial_sum(num_logits.begin(), num_logits.end(), query_start_loc.begin() + 1);
  }
};

template <typename T>
class DecoderOf : public Decoder {
 public:
  explicit DecoderOf(DecoderConfig config) : config_(std::move(config)) {}

  void add_projection(Projection projection) override {
    const size_t kind = projections_.size() % 4;
    STD_TORCH_CHECK(static_cast<int64_t>(projections_.size()) < 4 * config_.num_layers(),
                    "the decoder has all projections of its ", config_.num_layers(), " layers");
    check_projection(projection, num_inputs_[kind], num_outputs_[kind]);
    projections_.push_back(std::move(projection));
  }

  void run(const Tensor& residual, const Tensor& out, const DecoderStep& step) override {
    if (step.key_cache.scalar_type() == ScalarType::Char) {
      run_with_cache<int8_t>(residual, out, step);
    } else {
      run_with_cache<T>(residual, out, step);
    }
  }

 private:
  // For a KV cache of elements C.
  template <typename C>
  void run_with_cache(const Tensor& residual, const Tensor& out, const DecoderStep& step) {
    STD_TORCH_CHECK(static_cast<int64_t>(projections_.size()) == 4 * config_.num_layers(),
                    "the decoder lacks projections: it has ", projections_.size(), " for ",
                    config_.num_layers(), " layers");
    check_decoder_run(config_.norms[0], config_.num_layers(), config_.num_kv_heads,
                      config_.head_size, residual, step.positions, step.slot_mapping,
                      step.block_tables, step.query_start_loc, step.seq_lens, step.key_cache,
                      step.value_cache);
    if (step.num_logits) {
      check_vector(*step.num_logits, "num_logits", ScalarType::Int, step.seq_lens.size(0));
    }
    const std::lock_guard lock(mutex_);
    const int64_t num_tokens = residual.size(0), num_wanted = out.size(0);
    const AttentionShape shape{
        .num_heads = config_.num_heads,
        .num_kv_heads = config_.num_kv_heads,
        .head_size = config_.head_size,
        .sliding_window = config_.sliding_window,
        .query_start_loc = data<int32_t>(step.query_start_loc),
        .seq_lens = data<int32_t>(step.seq_lens),
        .num_seqs = step.seq_lens.size(0),
    };
    check_values(step, shape, num_tokens);
    const AttentionPlan plan = plan_attention(shape);
    const WantedRows wanted(step, shape, out.size(0));
    AttentionShape wanted_shape = shape;
    wanted_shape.query_start_loc = wanted.query_start_loc.data();
    const AttentionPlan wanted_plan = plan_attention(wanted_shape);

    const int64_t hidden = config_.hidden_size(), mlp_size = config_.intermediate_size;
    const int64_t query_size = num_inputs_[1], qkv_size = num_outputs_[0];
    const int64_t kv_size = (qkv_size - query_size) / 2;
    const int64_t attention_floats = std::max(attention_scratch_floats(shape, plan),
                                              attention_scratch_floats(wanted_shape, wanted_plan));
    // The widest input, should its projection be quantized.
    const int64_t quantized_groups =
        num_tokens * (*std::ranges::max_element(num_inputs_) / kQuantizedGroup);
    workspace_.reset(residual, Workspace::bytes_for<T>(num_tokens * qkv_size) +
                                   Workspace::bytes_for<T>(num_tokens * query_size) +
                                   Workspace::bytes_for<T>(num_tokens * 2 * mlp_size) +
                                   Workspace::bytes_for<T>(num_tokens * mlp_size) +
                                   Workspace::bytes_for<T>(num_tokens * hidden) +
                                   Workspace::bytes_for<T>(num_wanted * query_size) +
                                   Workspace::bytes_for<float>(attention_floats) +
                                   Workspace::bytes_for<ActivationGroup>(quantized_groups));
    T* const qkv = workspace_.take<T>(num_tokens * qkv_size);
    T* const attended = workspace_.take<T>(num_tokens * query_size);
    T* const gate_up = workspace_.take<T>(num_tokens * 2 * mlp_size);
    T* const activated = workspace_.take<T>(num_tokens * mlp_size);
    float* const attention_scratch = workspace_.take<float>(attention_floats);
    quantized_ = workspace_.take<ActivationGroup>(quantized_groups);
    T* const x = workspace_.take<T>(num_tokens * hidden);  // of the projections: input and output
    T* const wanted_query = workspace_.take<T>(num_wanted * query_size);
    T* const sum = mutable_data<T>(residual);

    const int64_t layer_stride = step.key_cache.stride(1);
    RopeAndCacheArgs<T, C> rope{
        .query = qkv,
        .key = qkv + query_size,
        .value = qkv + query_size + kv_size,
        .positions = data<int64_t>(step.positions),
        .cos_sin = data<float>(config_.cos_sin),
        .key_cache = mutable_data<C>(step.key_cache),
        .value_cache = mutable_data<C>(step.value_cache),
        .slot_mapping = data<int64_t>(step.slot_mapping),
        .query_stride = qkv_size,
        .key_stride = qkv_size,
        .value_stride = qkv_size,
        .block_stride = step.key_cache.stride(0),
        .num_heads = config_.num_heads,
        .num_kv_heads = config_.num_kv_heads,
        .head_size = config_.head_size,
        .rotary_dim = config_.cos_sin.size(1),
        .block_size = step.key_cache.size(3),
    };
    AttentionArgs<T, C> attention{
        .query = qkv,
        .key_cache = rope.key_cache,
        .value_cache = rope.value_cache,
        .out = attended,
        .block_tables = data<int32_t>(step.block_tables),
        .query_stride = qkv_size,
        .block_stride = rope.block_stride,
        .max_blocks = step.block_tables.size(1),
        .block_size = rope.block_size,
        .num_heads = config_.num_heads,
        .num_kv_heads = config_.num_kv_heads,
        .head_size = config_.head_size,
        .sliding_window = config_.sliding_window,
        .scale = config_.scale,
        .soft_cap = 0,
    };

    run_rms_norm<T>({sum, norm(0), x, hidden, config_.eps}, num_tokens);
    // A layer from its attention on, where a token sees no other any more.
    const auto finish_layer = [&](int64_t layer, int64_t num_rows, T* row_x, T* row_sum) {
      const Projection* const projection = &projections_[static_cast<size_t>(4 * layer)];
      const auto add_norm = [&](int64_t index) {
        run_fused_add_rms_norm<T>({row_x, row_sum, norm(index), hidden, config_.eps}, num_rows);
      };
      project(projection[1], attended, query_size, num_rows, row_x, hidden);
      add_norm(2 * layer + 1);
      project(projection[2], row_x, hidden, num_rows, gate_up, 2 * mlp_size);
      run_silu_and_mul<T>({gate_up, activated, mlp_size}, num_rows);
      project(projection[3], activated, mlp_size, num_rows, row_x, hidden);
      add_norm(2 * layer + 2);
    };
    for (int64_t layer = 0; layer < config_.num_layers(); ++layer) {
      project(projections_[static_cast<size_t>(4 * layer)], x, hidden, num_tokens, qkv, qkv_size);
      run_rope_and_cache(rope, num_tokens);
      if (layer + 1 == config_.num_layers()) {
        // No layer comes that would see the others: the wanted rows go on alone, side by side.
        gather_rows<T>(qkv, qkv_size, query_size, wanted.rows, wanted_query);
        gather_rows<T>(sum, hidden, hidden, wanted.rows, x);
        attention.query = wanted_query;
        attention.query_stride = query_size;
        run_paged_attention(attention, wanted_shape, wanted_plan, attention_scratch);
        finish_layer(layer, num_wanted, mutable_data<T>(out), x);
        return;
      }
      run_paged_attention(attention, shape, plan, attention_scratch);
      finish_layer(layer, num_tokens, x, sum);
      rope.key_cache += layer_stride;
      rope.value_cache += layer_stride;
      attention.key_cache += layer_stride;
      attention.value_cache += layer_stride;
    }
  }

  const T* norm(int64_t index) const { return data<T>(config_.norms[static_cast<size_t>(index)]); }

  void project(const Projection& projection, const T* x, int64_t num_inputs, int64_t num_rows, T* y,
               int64_t y_stride) const {
    const T* bias = projection.bias ? data<T>(*projection.bias) : nullptr;
    if (std::ranges::any_of(projection.ggml_types, is_quantized)) {
      quantize_activations<T>({x, quantized_, num_inputs, num_inputs}, num_rows);
    }
    for (size_t i = 0; i < projection.weights.size(); ++i) {
      const Tensor& weight = projection.weights[i];
      const int64_t ggml_type = projection.ggml_types[i], num_outputs = projection.num_outputs[i];
      if (is_quantized(ggml_type)) {
        run_quantized_linear(QuantizedLinearArgs<T, T>{
            .ggml_type = ggml_type,
            .x = quantized_,
            .weight = data<uint8_t>(weight),
            .bias = bias,
            .y = y,
            .num_rows = num_rows,
            .num_inputs = num_inputs,
            .num_outputs = num_outputs,
            .y_stride = y_stride,
        });
      } else {
        run_linear(LinearArgs<T, T>{
            .x = x,
            .weight = data<T>(weight),
            .bias = bias,
            .y = y,
            .num_rows = num_rows,
            .num_inputs = num_inputs,
            .num_outputs = num_outputs,
            .x_stride = num_inputs,
            .y_stride = y_stride,
        });
      }
      y += num_outputs;
      if (bias != nullptr) bias += num_outputs;
    }
  }

  static bool is_quantized(int64_t ggml_type) { return ggml_type != kNotQuantized; }

  void check_values(const DecoderStep& step, const AttentionShape& shape,
                    int64_t num_tokens) const {
    const int64_t num_blocks = step.key_cache.size(0), block_size = step.key_cache.size(3);
    check_range("positions", data<int64_t>(step.positions), num_tokens, 0, config_.cos_sin.size(0));
    check_range("slot_mapping", data<int64_t>(step.slot_mapping), num_tokens, -1,
                num_blocks * block_size);
    check_query_start_loc(shape, num_tokens);
    check_contexts(shape, data<int32_t>(step.block_tables), step.block_tables.size(1), num_blocks,
                   block_size);
  }

  static void check_projection(const Projection& projection, int64_t num_inputs,
                               int64_t num_outputs) {
    const auto& parts = projection.num_outputs;
    STD_TORCH_CHECK(projection.weights.size() == parts.size(), "num_outputs must be given for all ",
                    projection.weights.size(), " weights, got ", parts.size());
    STD_TORCH_CHECK(projection.ggml_types.size() == parts.size(),
                    "ggml_types must be given for all ", parts.size(), " weights, got ",
                    projection.ggml_types.size());
    STD_TORCH_CHECK(std::accumulate(parts.begin(), parts.end(), int64_t{0}) == num_outputs,
                    "num_outputs must add up to ", num_outputs);
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t ggml_type = projection.ggml_types[i];
      if (is_quantized(ggml_type)) {
        check_whole_blocks(ggml_type, "the number of inputs", num_inputs);
        check_packed_quantized_weight(projection.weights[i], num_packed_panels(parts[i]),
                                      packed_panel_bytes(ggml_type, num_inputs));
      } else {
        check_packed_weight(projection.weights[i], kScalarType<T>, num_inputs, parts[i],
                            kLinearPanel, kLinearStep<T>);
      }
    }
    check_bias(projection.bias, kScalarType<T>, num_outputs);
  }

  const DecoderConfig config_;
  // Of a layer's projections in the order of use: q|k|v, output, gate|up, down.
  const std::array<int64_t, 4> num_inputs_{config_.hidden_size(),
                                           config_.num_heads * config_.head_size,
                                           config_.hidden_size(), config_.intermediate_size};
  const std::array<int64_t, 4> num_outputs_{
      (config_.num_heads + 2 * config_.num_kv_heads) * config_.head_size, config_.hidden_size(),
      2 * config_.intermediate_size, config_.hidden_size()};
  std::vector<Projection> projections_;
  Workspace workspace_;
  ActivationGroup* quantized_ = nullptr;  // in the workspace: of the projection that runs
  std::mutex mutex_;                      // of the workspace
};

}  // namespace

std::unique_ptr<Decoder> make_decoder(DecoderConfig config) {
  std::unique_ptr<Decoder> decoder;
  dispatch_activation(config.norms[0].scalar_type(), [&](auto type) {
    decoder = std::make_unique<DecoderOf<decltype(type)>>(std::move(config));
  });
  return decoder;
}

}  // namespace pyengine
