#include "paged_attention.h"

#include "../op_checks.h"
#include "../ops.h"
#include "isa.h"
#include "parallel.h"
#include "tensor_data.h"
#include "value_checks.h"

#include <torch/csrc/stable/library.h>

namespace pyengine {

AttentionPlan plan_attention(const AttentionShape& shape) {
  AttentionPlan plan = plan_attention(shape, torch::stable::get_num_threads());
  plan.num_workers = workers_for(plan.cost);
  return plan;
}

int64_t attention_scratch_floats(const AttentionShape& shape, const AttentionPlan& plan) {
  return plan.num_workers * attention_scratch_size(shape) + plan.partial_size;
}

template <typename T, typename C>
void run_paged_attention(const AttentionArgs<T, C>& args, const AttentionShape& shape,
                         const AttentionPlan& plan, float* scratch) {
  const auto& kernel = kernels().typed<T>().template cached<C>();
  const int64_t worker_size = attention_scratch_size(shape);
  float* const partials = scratch + plan.num_workers * worker_size;
  parallel_dynamic(static_cast<int64_t>(plan.runs.size()) - 1, plan.num_workers,
                   [&](int64_t run, int64_t worker) {
                     const int64_t* const begin = plan.runs.data() + run;
                     kernel.attend(args, plan.items.data() + begin[0], plan.items.data() + begin[1],
                                   scratch + worker * worker_size, partials);
                   });
  parallel_dynamic(static_cast<int64_t>(plan.merges.size()), plan.num_workers,
                   [&](int64_t item, int64_t worker) {
                     kernel.merge_attention(args, plan.merges[static_cast<size_t>(item)],
                                            scratch + worker * worker_size, partials);
                   });
}

template void run_paged_attention(const AttentionArgs<float, float>&, const AttentionShape&,
                                  const AttentionPlan&, float*);
template void run_paged_attention(const AttentionArgs<float, int8_t>&, const AttentionShape&,
                                  const AttentionPlan&, float*);
template void run_paged_attention(const AttentionArgs<bfloat16, bfloat16>&, const AttentionShape&,
                                  const AttentionPlan&, float*);
template void run_paged_attention(const AttentionArgs<bfloat16, int8_t>&, const AttentionShape&,
                                  const AttentionPlan&, float*);

Tensor paged_attention(const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
                       const Tensor& block_tables, const Tensor& query_start_loc,
                       const Tensor& seq_lens, double scale, int64_t sliding_window,
                       double soft_cap) {
  check_paged_attention(query, key_cache, value_cache, block_tables, query_start_loc, seq_lens,
                        scale, sliding_window, soft_cap);
  const AttentionShape shape{
      .num_heads = query.size(1),
      .num_kv_heads = key_cache.size(1),
      .head_size = query.size(2),
      .sliding_window = sliding_window,
      .query_start_loc = data<int32_t>(query_start_loc),
      .seq_lens = data<int32_t>(seq_lens),
      .num_seqs = seq_lens.size(0),
  };
  check_query_start_loc(shape, query.size(0));
  check_contexts(shape, data<int32_t>(block_tables), block_tables.size(1), key_cache.size(0),
                 key_cache.size(2));
  const AttentionPlan plan = plan_attention(shape);
  const Tensor scratch =
      torch::stable::new_empty(query, {attention_scratch_floats(shape, plan)}, ScalarType::Float);
  Tensor out = torch::stable::new_empty(query, {query.size(0), query.size(1), query.size(2)});
  dispatch_cache(query.scalar_type(), key_cache.scalar_type(), [&](auto type, auto cached) {
    using T = decltype(type);
    using C = decltype(cached);
    const AttentionArgs<T, C> args{
        .query = data<T>(query),
        .key_cache = data<C>(key_cache),
        .value_cache = data<C>(value_cache),
        .out = mutable_data<T>(out),
        .block_tables = data<int32_t>(block_tables),
        .query_stride = query.stride(0),
        .block_stride = key_cache.stride(0),
        .max_blocks = block_tables.size(1),
        .block_size = key_cache.size(2),
        .num_heads = shape.num_heads,
        .num_kv_heads = shape.num_kv_heads,
        .head_size = shape.head_size,
        .sliding_window = sliding_window,
        .scale = static_cast<float>(scale),
        .soft_cap = static_cast<float>(soft_cap),
    };
    run_paged_attention(args, shape, plan, mutable_data<float>(scratch));
  });
  return out;
}

}  // namespace pyengine

STABLE_TORCH_LIBRARY_IMPL(pyengine, CPU, m) {
  m.impl("paged_attention", TORCH_BOX(&pyengine::paged_attention));
}
