#include "../op_checks.h"
#include "../ops.h"
#include "row_ops.h"
#include "tensor_data.h"
#include "value_checks.h"

#include <torch/csrc/stable/library.h>

namespace pyengine {

void rope_and_cache(const Tensor& query, const Tensor& key, const Tensor& value,
                    const Tensor& positions, const Tensor& cos_sin, const Tensor& key_cache,
                    const Tensor& value_cache, const Tensor& slot_mapping) {
  check_rope_and_cache(query, key, value, positions, cos_sin, key_cache, value_cache, slot_mapping);
  const int64_t num_slots = key_cache.size(0) * key_cache.size(2);
  check_range("positions", data<int64_t>(positions), query.size(0), 0, cos_sin.size(0));
  check_range("slot_mapping", data<int64_t>(slot_mapping), query.size(0), -1, num_slots);
  const int64_t num_tokens = query.size(0), num_heads = query.size(1);
  const int64_t num_kv_heads = key.size(1), head_size = query.size(2);
  dispatch_cache(query.scalar_type(), key_cache.scalar_type(), [&](auto type, auto cached) {
    using T = decltype(type);
    using C = decltype(cached);
    const RopeAndCacheArgs<T, C> args{
        .query = mutable_data<T>(query),
        .key = data<T>(key),
        .value = data<T>(value),
        .positions = data<int64_t>(positions),
        .cos_sin = data<float>(cos_sin),
        .key_cache = mutable_data<C>(key_cache),
        .value_cache = mutable_data<C>(value_cache),
        .slot_mapping = data<int64_t>(slot_mapping),
        .query_stride = query.stride(0),
        .key_stride = key.stride(0),
        .value_stride = value.stride(0),
        .block_stride = key_cache.stride(0),
        .num_heads = num_heads,
        .num_kv_heads = num_kv_heads,
        .head_size = head_size,
        .rotary_dim = cos_sin.size(1),
        .block_size = key_cache.size(2),
    };
    run_rope_and_cache(args, num_tokens);
  });
}

}  // namespace pyengine

STABLE_TORCH_LIBRARY_IMPL(pyengine, CPU, m) {
  m.impl("rope_and_cache", TORCH_BOX(&pyengine::rope_and_cache));
}
