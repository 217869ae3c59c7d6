// Rotary position embedding (Su et al. 2021) in the half-split layout, and the write of rotated keys
// and of values into the paged cache. A block a token; a thread turns a vector of a head's first
// half with that of its second half, in float32, rounded once.
#include "launch.h"

namespace pyengine::cuda {
namespace {

constexpr int kThreads = 128;

template <typename T>
struct RopeAndCacheArgs {
  Pointer<T> query;             // [T, num_heads, D], query_stride from token to token
  Pointer<const T> key, value;  // [T, num_kv_heads, D], likewise
  Pointer<const int64_t> positions, slot_mapping;  // [T]
  Pointer<const float> cos_sin;                    // [max_position, rotary_dim]
  Pointer<T> key_cache, value_cache;  // [B, num_kv_heads, P, D], block_stride from block to block
  int64_t query_stride, key_stride, value_stride, block_stride;
  int64_t num_slots, max_position;
  int num_heads, num_kv_heads, head_size, rotary_dim, block_size;
  bool is_aligned;
};

// Calls body(i) for this thread's part of `num_items`.
template <typename Body>
__device__ __forceinline__ void for_each_item(int num_items, const Body& body) {
  for (int i = static_cast<int>(threadIdx.x); i < num_items; i += kThreads) body(i);
}

// A vector of both halves of a head, from element i of the first one on. `out` may be `x`.
template <typename T>
__device__ __forceinline__ void rotate_vector(Pointer<const T> x, Pointer<T> out,
                                              Pointer<const float> cos, int half, int i,
                                              bool is_aligned) {
  constexpr int kSize = Vector<T>::kSize, kFloats = Vector<float>::kSize;
  const int n = half - i;
  Vector<float> c[kSize / kFloats], s[kSize / kFloats];
  PYENGINE_UNROLL
  for (int k = 0; k < kSize; k += kFloats) {
    c[k / kFloats] = load_vector(cos + (i + k), n - k, is_aligned);
    s[k / kFloats] = load_vector(cos + (half + i + k), n - k, is_aligned);
  }
  Vector<T> a = load_vector(x + i, n, is_aligned);
  Vector<T> b = load_vector(x + (half + i), n, is_aligned);
  PYENGINE_UNROLL
  for (int k = 0; k < kSize; ++k) {
    const float first = to_float(a.elements[k]), second = to_float(b.elements[k]);
    const float cosine = c[k / kFloats].elements[k % kFloats];
    const float sine = s[k / kFloats].elements[k % kFloats];
    a.elements[k] = from_float<T>(first * cosine - second * sine);
    b.elements[k] = from_float<T>(second * cosine + first * sine);
  }
  store_vector(out + i, a, n, is_aligned);
  store_vector(out + (half + i), b, n, is_aligned);
}

template <typename T>
__device__ __forceinline__ void copy_vector(Pointer<const T> x, Pointer<T> out, int i, int size,
                                            bool is_aligned) {
  store_vector(out + i, load_vector(x + i, size - i, is_aligned), size - i, is_aligned);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) rope_and_cache_kernel(RopeAndCacheArgs<T> args) {
  constexpr int kSize = Vector<T>::kSize;
  const int64_t token = blockIdx.x;
  const int head_size = args.head_size, half = args.rotary_dim / 2;
  const int64_t position = args.positions[token];
  if (position < 0 || position >= args.max_position) return;
  const Pointer<const float> cos = args.cos_sin + position * args.rotary_dim;
  const int vectors_of_half = ceil_div(half, kSize);
  const int vectors_of_rest = ceil_div(head_size - args.rotary_dim, kSize);
  const int vectors_of_head = ceil_div(head_size, kSize);

  const Pointer<T> query = args.query + token * args.query_stride;
  for_each_item(args.num_heads * vectors_of_half, [&](int item) {
    const Pointer<T> x = query + item / vectors_of_half * head_size;
    rotate_vector<T>(x, x, cos, half, item % vectors_of_half * kSize, args.is_aligned);
  });

  const int64_t slot = args.slot_mapping[token];
  if (slot < 0 || slot >= args.num_slots) return;
  const int64_t block = slot / args.block_size * args.block_stride;
  const int64_t offset = slot % args.block_size;
  const auto row_of = [&](int head) {
    return block + (head * args.block_size + offset) * head_size;
  };
  const Pointer<const T> key = args.key + token * args.key_stride;
  for_each_item(args.num_kv_heads * vectors_of_half, [&](int item) {
    const int head = item / vectors_of_half;
    rotate_vector<T>(key + head * head_size, args.key_cache + row_of(head), cos, half,
                     item % vectors_of_half * kSize, args.is_aligned);
  });
  for_each_item(args.num_kv_heads * vectors_of_rest, [&](int item) {
    const int head = item / vectors_of_rest, first = args.rotary_dim;
    copy_vector<T>(key + (head * head_size + first), args.key_cache + (row_of(head) + first),
                   item % vectors_of_rest * kSize, head_size - first, args.is_aligned);
  });
  const Pointer<const T> value = args.value + token * args.value_stride;
  for_each_item(args.num_kv_heads * vectors_of_head, [&](int item) {
    const int head = item / vectors_of_head;
    copy_vector<T>(value + head * head_size, args.value_cache + row_of(head),
                   item % vectors_of_head * kSize, head_size, args.is_aligned);
  });
}

}  // namespace

void rope_and_cache(const Tensor& query, const Tensor& key, const Tensor& value,
                    const Tensor& positions, const Tensor& cos_sin, const Tensor& key_cache,
                    const Tensor& value_cache, const Tensor& slot_mapping) {
  check_rope_and_cache(query, key, value, positions, cos_sin, key_cache, value_cache, slot_mapping);
  check_float_cache(key_cache);
  const int64_t half = cos_sin.size(1) / 2;
  bool are_aligned = true;
  for (const Tensor* t : {&query, &key, &value, &key_cache, &value_cache, &cos_sin}) {
    are_aligned = are_aligned && is_aligned(*t, half);
  }
  dispatch_activation(query.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const RopeAndCacheArgs<T> args{
        .query = pointer<T>(query),
        .key = pointer<const T>(key),
        .value = pointer<const T>(value),
        .positions = pointer<const int64_t>(positions),
        .slot_mapping = pointer<const int64_t>(slot_mapping),
        .cos_sin = pointer<const float>(cos_sin),
        .key_cache = pointer<T>(key_cache),
        .value_cache = pointer<T>(value_cache),
        .query_stride = query.stride(0),
        .key_stride = key.stride(0),
        .value_stride = value.stride(0),
        .block_stride = key_cache.stride(0),
        .num_slots = key_cache.size(0) * key_cache.size(2),
        .max_position = cos_sin.size(0),
        .num_heads = static_cast<int>(query.size(1)),
        .num_kv_heads = static_cast<int>(key_cache.size(1)),
        .head_size = static_cast<int>(query.size(2)),
        .rotary_dim = static_cast<int>(cos_sin.size(1)),
        .block_size = static_cast<int>(key_cache.size(2)),
        .is_aligned = are_aligned,
    };
    launch(query, rope_and_cache_kernel<T>, {grid_size(query.size(0)), 1, 1}, kThreads, 0, args);
  });
}

}  // namespace pyengine::cuda

PYENGINE_CUDA_OPS(m) { m.impl("rope_and_cache", TORCH_BOX(&pyengine::cuda::rope_and_cache)); }
