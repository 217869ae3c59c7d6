// Attention over the paged cache on plain memory: what the op paged_attention runs, and whoever runs
// all layers of a step with one plan. Knows no tensors and checks nothing.
#pragma once

#include "kernels.h"

namespace pyengine {

// The plan of a step for the threads of this process; every layer of one shape can use it.
AttentionPlan plan_attention(const AttentionShape& shape);

// Floats of working memory that run_paged_attention takes; layers may use the same, in turn.
int64_t attention_scratch_floats(const AttentionShape& shape, const AttentionPlan& plan);

// One layer's attention: args.out from all else in `args`. `plan` was made of `shape`, whose sizes
// are those in `args`; scratch holds attention_scratch_floats(shape, plan).
template <typename T, typename C>
void run_paged_attention(const AttentionArgs<T, C>& args, const AttentionShape& shape,
                         const AttentionPlan& plan, float* scratch);

extern template void run_paged_attention(const AttentionArgs<float, float>&, const AttentionShape&,
                                         const AttentionPlan&, float*);
extern template void run_paged_attention(const AttentionArgs<float, int8_t>&, const AttentionShape&,
                                         const AttentionPlan&, float*);
extern template void run_paged_attention(const AttentionArgs<bfloat16, bfloat16>&,
                                         const AttentionShape&, const AttentionPlan&, float*);
extern template void run_paged_attention(const AttentionArgs<bfloat16, int8_t>&,
                                         const AttentionShape&, const AttentionPlan&, float*);

}  // namespace pyengine
