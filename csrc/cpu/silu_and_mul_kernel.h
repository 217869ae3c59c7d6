// out = silu(gate) * up, where silu(x) = x / (1 + exp(-x)) (Elfwing et al. 2017); rows of
// [gate | up]. Included by kernel_table.inc inside a namespace.

template <typename T>
void silu_and_mul(const SiluAndMulArgs<T>& args, int64_t begin_row, int64_t end_row) {
  const auto activate = [](Vec gate, Vec up) {
    const Vec one = broadcast(1.0f);
    return gate / (one + exp(broadcast(0.0f) - gate)) * up;
  };
  for (int64_t row = begin_row; row < end_row; ++row) {
    const T* gate = args.x + row * 2 * args.size;
    const T* up = gate + args.size;
    T* out = args.out + row * args.size;
    int64_t i = 0;
    for (; i + kVecSize <= args.size; i += kVecSize) {
      store(out + i, activate(load(gate + i), load(up + i)));
    }
    if (i < args.size) {
      const int64_t n = args.size - i;
      store_n(out + i, activate(load_n(gate + i, n), load_n(up + i, n)), n);
    }
  }
}
