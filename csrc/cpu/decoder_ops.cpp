// The decoder as operators: what a caller may get wrong is checked here, weights once and for all.
#include "../op_checks.h"
#include "../ops.h"
#include "decoder.h"
#include "kernels.h"

#include <torch/csrc/stable/ops.h>

#include <torch/csrc/stable/library.h>

#include <map>
#include <mutex>

namespace pyengine {
namespace {

// The decoders of the process, by number.
class Registry {
 public:
  int64_t add(std::shared_ptr<Decoder> decoder) {
    const std::lock_guard lock(mutex_);
    decoders_[++last_] = std::move(decoder);
    return last_;
  }

  std::shared_ptr<Decoder> find(int64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = decoders_.find(number);
    STD_TORCH_CHECK(found != decoders_.end(), "decoder ", number, " doesn't exist");
    return found->second;
  }

  void remove(int64_t number) {
    const std::lock_guard lock(mutex_);
    decoders_.erase(number);
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<Decoder>> decoders_;
  int64_t last_ = 0;
};

Registry& registry() {
  static Registry* registry = new Registry;  // outlives whoever destroys a decoder at exit
  return *registry;
}

}  // namespace

int64_t decoder_create(const Tensor& cos_sin, const std::vector<Tensor>& norms, int64_t num_heads,
                       int64_t num_kv_heads, int64_t head_size, int64_t intermediate_size,
                       double scale, int64_t sliding_window, double eps) {
  check_decoder_create(cos_sin, norms, num_heads, num_kv_heads, head_size, intermediate_size, scale,
                       sliding_window, eps);
  return registry().add(make_decoder({
      .num_heads = num_heads,
      .num_kv_heads = num_kv_heads,
      .head_size = head_size,
      .intermediate_size = intermediate_size,
      .sliding_window = sliding_window,
      .scale = static_cast<float>(scale),
      .eps = static_cast<float>(eps),
      .cos_sin = cos_sin,
      .norms = norms,
  }));
}

void decoder_add_projection(int64_t decoder, const std::vector<Tensor>& weights,
                            const std::vector<int64_t>& num_outputs,
                            const std::vector<int64_t>& ggml_types,
                            const std::optional<Tensor>& bias) {
  registry().find(decoder)->add_projection({weights, num_outputs, ggml_types, bias});
}

Tensor decoder_run(int64_t decoder, const Tensor& residual, const Tensor& positions,
                   const Tensor& slot_mapping, const Tensor& block_tables,
                   const Tensor& query_start_loc, const Tensor& seq_lens, const Tensor& key_cache,
                   const Tensor& value_cache, const std::optional<Tensor>& num_logits,
                   int64_t num_rows) {
  STD_TORCH_CHECK(num_rows >= 0 && num_rows <= residual.size(0), "num_rows must be in [0, ",
                  residual.size(0), "], the tokens of residual, got ", num_rows);
  Tensor out = torch::stable::new_empty(residual, {num_rows, residual.size(1)});
  registry().find(decoder)->run(residual, out,
                                {positions, slot_mapping, block_tables, query_start_loc, seq_lens,
                                 key_cache, value_cache, num_logits});
  return out;
}

void decoder_destroy(int64_t decoder) { registry().remove(decoder); }

}  // namespace pyengine

STABLE_TORCH_LIBRARY_IMPL(pyengine, CPU, m) {
  m.impl("decoder_create", TORCH_BOX(&pyengine::decoder_create));
  m.impl("decoder_add_projection", TORCH_BOX(&pyengine::decoder_add_projection));
  m.impl("decoder_run", TORCH_BOX(&pyengine::decoder_run));
}

STABLE_TORCH_LIBRARY_IMPL(pyengine, CompositeExplicitAutograd, m) {
  m.impl("decoder_destroy", TORCH_BOX(&pyengine::decoder_destroy));  // takes no tensor
}
