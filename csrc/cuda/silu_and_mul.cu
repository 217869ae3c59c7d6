// The gate of an MLP: silu(gate) * up, element by element.
#include "launch.h"

namespace pyengine::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
struct SiluAndMulArgs {
  Pointer<const T> x;  // [T, 2 * size]: gate, then up
  Pointer<T> out;      // [T, size]
  int64_t size;
  bool is_aligned;
};

// A block computes kThreads vectors of a row.
template <typename T>
__global__ void __launch_bounds__(kThreads) silu_and_mul_kernel(SiluAndMulArgs<T> args) {
  constexpr int kSize = Vector<T>::kSize;
  const int64_t row = blockIdx.x;
  const int64_t i = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kSize;
  const int64_t n = args.size - i;
  if (n <= 0) return;
  const Pointer<const T> x = args.x + (row * 2 * args.size + i);
  Vector<T> gate = load_vector(x, n, args.is_aligned);
  const Vector<T> up = load_vector(x + args.size, n, args.is_aligned);
  PYENGINE_UNROLL
  for (int k = 0; k < kSize; ++k) {
    const float g = to_float(gate.elements[k]);
    gate.elements[k] = from_float<T>(g / (1.0f + expf(-g)) * to_float(up.elements[k]));
  }
  store_vector(args.out + (row * args.size + i), gate, n, args.is_aligned);
}

}  // namespace

Tensor silu_and_mul(const Tensor& x) {
  check_silu_and_mul(x);
  const int64_t rows = x.size(0), size = x.size(1) / 2;
  const Tensor out = new_tensor(x, {rows, size}, x.scalar_type());
  dispatch_activation(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const SiluAndMulArgs<T> args{pointer<const T>(x), pointer<T>(out), size, is_aligned(x, size)};
    const int64_t blocks = ceil_div<int64_t>(size, kThreads * Vector<T>::kSize);
    launch(x, silu_and_mul_kernel<T>, {grid_size(rows), grid_size(blocks), 1}, kThreads, 0, args);
  });
  return out;
}

}  // namespace pyengine::cuda

PYENGINE_CUDA_OPS(m) { m.impl("silu_and_mul", TORCH_BOX(&pyengine::cuda::silu_and_mul)); }
