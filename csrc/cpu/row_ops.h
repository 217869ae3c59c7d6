// The loops over rows that operators and the decoder share.
#pragma once

#include "isa.h"
#include "parallel.h"

namespace pyengine {

template <typename T>
void run_rms_norm(const RmsNormArgs<T>& args, int64_t num_rows) {
  parallel_items(num_rows, 2 * args.size, [&](int64_t begin, int64_t end) {
    kernels().typed<T>().rms_norm(args, begin, end);
  });
}

template <typename T>
void run_fused_add_rms_norm(const FusedAddRmsNormArgs<T>& args, int64_t num_rows) {
  parallel_items(num_rows, 4 * args.size, [&](int64_t begin, int64_t end) {
    kernels().typed<T>().fused_add_rms_norm(args, begin, end);
  });
}

template <typename T>
void run_silu_and_mul(const SiluAndMulArgs<T>& args, int64_t num_rows) {
  parallel_items(num_rows, 3 * args.size, [&](int64_t begin, int64_t end) {
    kernels().typed<T>().silu_and_mul(args, begin, end);
  });
}

template <typename T, typename C>
void run_rope_and_cache(const RopeAndCacheArgs<T, C>& args, int64_t num_tokens) {
  const int64_t cost_per_token = 2 * (args.num_heads + 2 * args.num_kv_heads) * args.head_size;
  parallel_items(num_tokens, cost_per_token, [&](int64_t begin, int64_t end) {
    kernels().typed<T>().template cached<C>().rope_and_cache(args, begin, end);
  });
}

}  // namespace pyengine
