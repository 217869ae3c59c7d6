#include "linear.h"

#include "launch.h"

#include <algorithm>

namespace pyengine::cuda {
namespace {

// Few rows: the time is that of reading W.
template <int kOctets, typename T, typename Out>
void run_stream(const LinearArgs<T, Out>& args, const Tensor& x) {
  using Block = StreamBlock<T, Out, kOctets>;
  // As few warps as take no more turns than the most would.
  const int num_chunks = std::max(1, ceil_div(args.num_inputs, kChunk));
  const int num_warps = ceil_div(num_chunks, ceil_div(num_chunks, Block::kMaxWarps));
  launch(x, stream_kernel<T, Out, kOctets>,
         {grid_size(ceil_div(args.num_outputs, Block::kColumns)), 1, 1},
         static_cast<unsigned>(num_warps * kWarpSize), Block::shared_bytes(num_warps), args);
}

template <int kSide, typename T, typename Out>
void run_tiles(const LinearArgs<T, Out>& args, const Tensor& x) {
  using Block = TileBlock<T, Out, kSide>;
  launch(
      x, tile_kernel<T, Out, kSide>,
      {grid_size(ceil_div(args.num_rows, kSide)), grid_size(ceil_div(args.num_outputs, kSide)), 1},
      Block::kThreads, Block::shared_bytes(), args);
}

// All of these give the same bits.
template <typename T, typename Out>
void run_linear(const LinearArgs<T, Out>& args, const Tensor& x) {
  if (args.num_rows == 0) return;
  if (args.num_rows <= 8) return run_stream<1>(args, x);
  if (args.num_rows <= 16) return run_stream<2>(args, x);
  if (args.num_rows <= 32) return run_stream<4>(args, x);
  if (args.num_rows <= 64) return run_stream<8>(args, x);
  // Large tiles read less; small ones are enough for all of a GPU sooner.
  if (args.num_rows <= 512) return run_tiles<64>(args, x);
  run_tiles<128>(args, x);
}

// Whole vectors of kVectorSize elements make up a row, and rows begin where a vector may.
void check_vectors(const Tensor& t, const char* name) {
  STD_TORCH_CHECK(t.size(1) % kVectorSize == 0, name, " must have a multiple of ", kVectorSize,
                  " inputs on a GPU, got ", t.size(1));
  const bool is_aligned =
      t.numel() == 0 || (reinterpret_cast<uintptr_t>(t.const_data_ptr()) % sizeof(uint4) == 0 &&
                         (t.size(0) == 1 || t.stride(0) % kVectorSize == 0));
  STD_TORCH_CHECK(is_aligned, name, " must have rows that begin at multiples of 16 bytes on a GPU");
}

}  // namespace

Tensor pack_linear_weight(const Tensor& weight) {
  check_pack_linear_weight(weight);
  check_tensor_core_dtype(weight, "weight");
  const Tensor packed = torch::stable::clone(weight);
  check_vectors(packed, "weight");
  return torch::stable::view(packed, {weight.size(0), weight.size(1), 1, 1});
}

Tensor linear(const Tensor& x, const Tensor& packed_weight, const std::optional<Tensor>& bias,
              int64_t num_outputs, bool float32_out) {
  check_linear(x, packed_weight, bias, num_outputs, 1, 1);
  check_tensor_core_dtype(x, "x");
  check_vectors(x, "x");
  check_vectors(packed_weight, "packed_weight");
  const ScalarType dtype = float32_out ? ScalarType::Float : x.scalar_type();
  const Tensor out = new_tensor(x, {x.size(0), num_outputs}, dtype);
  dispatch_tensor_core(x.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const auto run = [&](auto out_type) {
      using Out = decltype(out_type);
      const LinearArgs<T, Out> args{
          .x = pointer<const T>(x),
          .weight = pointer<const T>(packed_weight),
          .bias = bias ? pointer<const T>(*bias) : Pointer<const T>{},
          .out = pointer<Out>(out),
          .x_stride = x.stride(0),
          .num_rows = static_cast<int>(x.size(0)),
          .num_inputs = static_cast<int>(x.size(1)),
          .num_outputs = static_cast<int>(num_outputs),
      };
      run_linear(args, x);
    };
    if (float32_out) {
      run(float{});
    } else {
      run(T{});
    }
  });
  return out;
}

}  // namespace pyengine::cuda

PYENGINE_CUDA_OPS(m) {
  m.impl("pack_linear_weight", TORCH_BOX(&pyengine::cuda::pack_linear_weight));
  m.impl("linear", TORCH_BOX(&pyengine::cuda::linear));
}
