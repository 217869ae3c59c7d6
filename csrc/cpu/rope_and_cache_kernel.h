// Rotary position embedding (Su et al. 2021) in the half-split layout: element i of a head's first
// half turns with element i of its second half. Fused with the write of the rotated keys and of the
// values into the paged cache. Included by kernel_table.inc inside a namespace.

// Calls body(i, n, vector of x[i], ..., x[i + n - 1]) for all of x.
template <typename T, typename Body>
void for_each_vector(const T* x, int64_t size, const Body& body) {
  int64_t i = 0;
  for (; i + kVecSize <= size; i += kVecSize) body(i, kVecSize, load(x + i));
  if (i < size) body(i, size - i, load_n(x + i, size - i));
}

// out[i] = x[i]. `out` may be `x`.
template <typename T, typename Out>
void copy_row(const T* x, int64_t size, Out* out) {
  if constexpr (sizeof(T) == sizeof(Out)) {
    std::memmove(out, x, static_cast<size_t>(size) * sizeof(T));
  } else {
    for_each_vector(x, size, [&](int64_t i, int64_t n, Vec v) {
      n == kVecSize ? store(out + i, v) : store_n(out + i, v, n);
    });
  }
}

// out[i], out[half + i] = x[i] * cos - x[half + i] * sin, x[half + i] * cos + x[i] * sin, in
// float32, rounded once; elements from 2 * half to head_size are copied. `out` may be `x`.
template <typename T, typename Out>
void rotate_head(const T* x, Out* out, const float* cos, const float* sin, int64_t half,
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
  copy_row(x + 2 * half, head_size - 2 * half, out + 2 * half);
}

// Writes a row of an int8 cache: whole numbers of at most 127 in magnitude, then the scale that they
// are to be multiplied by, a NaN if the row isn't finite.
inline void quantize_row(const float* x, int64_t size, int8_t* out) {
  Vec largest = broadcast(0.0f), zeros = largest;
  for_each_vector(x, size, [&](int64_t /*i*/, int64_t /*n*/, Vec v) {
    largest = max(largest, max(v, broadcast(0.0f) - v));
    zeros = zeros + (v - v);
  });
  // So small a row has no reciprocal, and is nothing beside others.
  constexpr float kSmallest = 1e-30f;
  const float magnitude = max_of(largest);
  const bool is_small = magnitude < kSmallest;
  const Vec inverse = broadcast(is_small ? 0.0f : 127.0f / magnitude);
  for_each_vector(x, size, [&](int64_t i, int64_t n, Vec v) {
    n == kVecSize ? store(out + i, v * inverse) : store_n(out + i, v * inverse, n);
  });
  const float scale = (is_small ? 0.0f : magnitude / 127.0f) + sum(zeros);
  std::memcpy(out + size, &scale, sizeof scale);
}

template <typename T, typename C>
void rope_and_cache(const RopeAndCacheArgs<T, C>& args, int64_t begin_token, int64_t end_token) {
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
      const int64_t row = head * args.block_size + offset;
      const int64_t at = block * args.block_stride + row * cache_row_size<C>(head_size);
      const T* const key = args.key + token * args.key_stride + head * head_size;
      const T* const value = args.value + token * args.value_stride + head * head_size;
      if constexpr (kIsScaled<C>) {
        float wide[kMaxHeadSize];
        rotate_head(key, wide, cos, sin, half, head_size);
        quantize_row(wide, head_size, args.key_cache + at);
        copy_row(value, head_size, wide);
        quantize_row(wide, head_size, args.value_cache + at);
      } else {
        rotate_head(key, args.key_cache + at, cos, sin, half, head_size);
        copy_row(value, head_size, args.value_cache + at);
      }
    }
  }
}
