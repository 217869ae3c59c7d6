// RMSNorm (Zhang and Sennrich 2019): out = x / sqrt(mean(x^2) + eps) * weight, in float32, rounded
// once. Included by kernel_table.inc inside a namespace.

// The sum of squares takes lane i of every vector in order, then the lanes: an order that only
// `size` decides.
template <typename T>
void normalize_row(const T* x, const T* weight, T* out, int64_t size, float eps) {
  Vec squares = broadcast(0.0f);
  int64_t i = 0;
  for (; i + kVecSize <= size; i += kVecSize) {
    const Vec v = load(x + i);
    squares = fma(v, v, squares);
  }
  if (i < size) {
    const Vec v = load_n(x + i, size - i);
    squares = fma(v, v, squares);
  }
  const Vec scale = broadcast(1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + eps));
  for (i = 0; i + kVecSize <= size; i += kVecSize) {
    store(out + i, load(x + i) * scale * load(weight + i));
  }
  if (i < size) {
    const int64_t n = size - i;
    store_n(out + i, load_n(x + i, n) * scale * load_n(weight + i, n), n);
  }
}

template <typename T>
void rms_norm(const RmsNormArgs<T>& args, int64_t begin_row, int64_t end_row) {
  for (int64_t row = begin_row; row < end_row; ++row) {
    const int64_t offset = row * args.size;
    normalize_row(args.x + offset, args.weight, args.out + offset, args.size, args.eps);
  }
}

// residual += x, rounded to T; x = rms_norm(residual).
template <typename T>
void fused_add_rms_norm(const FusedAddRmsNormArgs<T>& args, int64_t begin_row, int64_t end_row) {
  for (int64_t row = begin_row; row < end_row; ++row) {
    T* x = args.x + row * args.size;
    T* residual = args.residual + row * args.size;
    int64_t i = 0;
    for (; i + kVecSize <= args.size; i += kVecSize) {
      store(residual + i, load(residual + i) + load(x + i));
    }
    if (i < args.size) {
      const int64_t n = args.size - i;
      store_n(residual + i, load_n(residual + i, n) + load_n(x + i, n), n);
    }
    normalize_row(residual, args.weight, x, args.size, args.eps);
  }
}
