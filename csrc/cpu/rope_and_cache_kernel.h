// Rotary position embedding (Su et al. 2021) in the half-split layout: element i of a head's first
// half turns with element i of its second half. Fused with the write of the rotated keys and of the
// values into the paged cache. Included by kernel_table.inc inside a namespace.

// out[i], out[half + i] = x[i] * cos - x[half + i] * sin, x[half + i] * cos + x[i] * sin, in
// float32, rounded once; elements from 2 * half to head_size are copied. `out` may be `x`.
template <typename T>
void rotate_head(const T* x, T* out, const float* cos, const float* sin, int64_t half,
                 int64_t head_size) {
  int64_t i = 0;
  for (; i + kVecSize <= half; i += kVecSize) {
    const Vec a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(out + i, a * c - b * s);
    store(out + half + i, b * c + a * s);
  }
  if (i < half) {
    const int64_t n = half - i;
    const Vec a = load_n(x + i, n), b = load_n(x + half + i, n);
    const Vec c = load_n(cos + i, n), s = load_n(sin + i, n);
    store_n(out + i, a * c - b * s, n);
    store_n(out + half + i, b * c + a * s, n);
  }
  if (out != x) {
    std::memcpy(out + 2 * half, x + 2 * half,
                static_cast<size_t>(head_size - 2 * half) * sizeof *x);
  }
}

template <typename T>
void rope_and_cache(const RopeAndCacheArgs<T>& args, int64_t begin_token, int64_t end_token) {
  const int64_t half = args.rotary_dim / 2, head_size = args.head_size;
  for (int64_t token = begin_token; token < end_token; ++token) {
    const float* cos = args.cos_sin + args.positions[token] * args.rotary_dim;
    const float* sin = cos + half;
    T* query = args.query + token * args.query_stride;
    for (int64_t head = 0; head < args.num_heads; ++head) {
      T* x = query + head * head_size;
      rotate_head(x, x, cos, sin, half, head_size);
    }
    const int64_t slot = args.slot_mapping[token];
    if (slot < 0) continue;
    const int64_t block = slot / args.block_size, offset = slot % args.block_size;
    for (int64_t head = 0; head < args.num_kv_heads; ++head) {
      const int64_t at =
          ((block * args.num_kv_heads + head) * args.block_size + offset) * head_size;
      rotate_head(args.key + token * args.key_stride + head * head_size, args.key_cache + at, cos,
                  sin, half, head_size);
      std::memcpy(args.value_cache + at, args.value + token * args.value_stride + head * head_size,
                  static_cast<size_t>(head_size) * sizeof(T));
    }
  }
}
