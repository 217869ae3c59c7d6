// RMSNorm, alone and with the addition to the residual stream before it. A block a row.
//
// A thread sums the squares of every kThreads-th vector of the row, then the block adds up its
// threads: the order follows from the row's size alone, whatever the alignment. What it has summed
// it keeps in registers: a row of up to kHeldElements is read once.
#include "launch.h"
#include "warp.h"

namespace pyengine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHeldElements = 8192;

template <typename T>
struct RmsNormArgs {
  Pointer<const T> x;   // [T, size]
  Pointer<T> residual;  // the same, if it is added
  Pointer<const T> weight;
  Pointer<T> out;  // may be x
  int64_t size;
  float eps;
};

template <typename T, bool kAddsResidual, bool kIsAligned>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(RmsNormArgs<T> args) {
  constexpr int kSize = Vector<T>::kSize, kHeld = kHeldElements / (kThreads * kSize);
  SharedMemory shared;
  const Pointer<float> sums = shared.take<float>(kThreads / kWarpSize);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * args.size;
  const int64_t begin = static_cast<int64_t>(threadIdx.x) * kSize, step = kThreads * kSize;
  // Aligned rows are of whole vectors.
  const auto size_at = [&](int64_t i) { return kIsAligned ? kSize : args.size - i; };
  const auto load = [&](Pointer<const T> p, int64_t i) {
    return load_vector(p + i, size_at(i), kIsAligned);
  };

  float sum = 0;
  const auto take = [&](int64_t i, Vector<T>& x, const Vector<T>& residual) {
    if constexpr (kAddsResidual) {
      PYENGINE_UNROLL
      for (int k = 0; k < kSize; ++k) {
        x.elements[k] = from_float<T>(to_float(residual.elements[k]) + to_float(x.elements[k]));
      }
      store_vector(args.residual + (row + i), x, size_at(i), kIsAligned);
    }
    PYENGINE_UNROLL
    for (int k = 0; k < kSize; ++k) sum += to_float(x.elements[k]) * to_float(x.elements[k]);
  };
  const auto put = [&](int64_t i, Vector<T> x, const Vector<T>& weight, float scale) {
    PYENGINE_UNROLL
    for (int k = 0; k < kSize; ++k) {
      x.elements[k] = from_float<T>(to_float(x.elements[k]) * scale * to_float(weight.elements[k]));
    }
    store_vector(args.out + (row + i), x, size_at(i), kIsAligned);
  };

  // All loads are on their way before the first is waited for.
  Vector<T> held[kHeld], residuals[kHeld], weights[kHeld];
  PYENGINE_UNROLL
  for (int h = 0; h < kHeld; ++h) {
    const int64_t i = begin + h * step;
    if (i >= args.size) continue;
    held[h] = load(args.x + row, i);
    if constexpr (kAddsResidual) residuals[h] = load(args.residual + row, i);
    weights[h] = load(args.weight, i);
  }
  PYENGINE_UNROLL
  for (int h = 0; h < kHeld; ++h) {
    const int64_t i = begin + h * step;
    if (i < args.size) take(i, held[h], residuals[h]);
  }
  for (int64_t i = begin + kHeld * step; i < args.size; i += step) {
    Vector<T> x = load(args.x + row, i), residual;
    if constexpr (kAddsResidual) residual = load(args.residual + row, i);
    take(i, x, residual);
  }
  sum = reduce_block(sum, sums, Add{});
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(args.size) + args.eps);
  PYENGINE_UNROLL
  for (int h = 0; h < kHeld; ++h) {
    const int64_t i = begin + h * step;
    if (i < args.size) put(i, held[h], weights[h], scale);
  }
  for (int64_t i = begin + kHeld * step; i < args.size; i += step) {
    Pointer<const T> from = args.x;
    if constexpr (kAddsResidual) from = args.residual;  // this thread's own part
    put(i, load(from + row, i), load(args.weight, i), scale);
  }
}

template <bool kAddsResidual, typename T>
void launch_rms_norm(const RmsNormArgs<T>& args, const Tensor& x, bool is_aligned) {
  launch(x,
         is_aligned ? rms_norm_kernel<T, kAddsResidual, true>
                    : rms_norm_kernel<T, kAddsResidual, false>,
         {grid_size(x.size(0)), 1, 1}, kThreads, SharedMemory::bytes<float>(kThreads / kWarpSize),
         args);
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check_rms_norm(x, weight, eps);
  const int64_t size = x.size(1);
  const Tensor out = new_tensor(x, {x.size(0), size}, x.scalar_type());
  dispatch_activation(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const RmsNormArgs<T> args{
        .x = pointer<const T>(x),
        .residual = {},
        .weight = pointer<const T>(weight),
        .out = pointer<T>(out),
        .size = size,
        .eps = static_cast<float>(eps),
    };
    launch_rms_norm<false>(args, x, is_aligned(x, size) && is_aligned(weight, size));
  });
  return out;
}

void fused_add_rms_norm_(const Tensor& x, const Tensor& residual, const Tensor& weight,
                         double eps) {
  check_fused_add_rms_norm_(x, residual, weight, eps);
  const int64_t size = x.size(1);
  dispatch_activation(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const RmsNormArgs<T> args{
        .x = pointer<const T>(x),
        .residual = pointer<T>(residual),
        .weight = pointer<const T>(weight),
        .out = pointer<T>(x),
        .size = size,
        .eps = static_cast<float>(eps),
    };
    const bool are_aligned =
        is_aligned(x, size) && is_aligned(residual, size) && is_aligned(weight, size);
    launch_rms_norm<true>(args, x, are_aligned);
  });
}

}  // namespace pyengine::cuda

PYENGINE_CUDA_OPS(m) {
  m.impl("rms_norm", TORCH_BOX(&pyengine::cuda::rms_norm));
  m.impl("fused_add_rms_norm_", TORCH_BOX(&pyengine::cuda::fused_add_rms_norm_));
}
