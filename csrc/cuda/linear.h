// out = x W^T + b by tensor cores: one kernel that streams W for few rows, one in tiles for many.
//
// Exactness: a sum depends on K alone. Inputs come in chunks of kChunk. In a chunk, one accumulator
// takes steps of kStep inputs in ascending order; the sums of chunks are added to 0 in ascending
// order, then the bias is. Tensor cores compute an element of a product from its row and column
// alone. So all kernels give the same bits: they differ in who computes what, not in what.
//
// A step is two products of tensor cores. Of its 32 inputs, a lane reads 8 neighbours, 16 bytes, of
// a row: with pair = lane % 4 those from 8 * pair on. The first four go to the first product, the
// others to the second one, in the places 2 * pair, 2 * pair + 1, 2 * pair + 8 and 2 * pair + 9.
#pragma once

#include "tensor_core.h"
#include "warp.h"

namespace pyengine::cuda {

constexpr int kVectorSize = 8;  // inputs that a lane reads at once
constexpr int kStep = 32;
constexpr int kChunk = 256;
constexpr int kChunkSteps = kChunk / kStep;

// M rows, K inputs, a multiple of kVectorSize, and N outputs.
template <typename T, typename Out>
struct LinearArgs {
  Pointer<const T> x;       // [M, K], x_stride from row to row
  Pointer<const T> weight;  // [N, K]
  Pointer<const T> bias;    // [N], or none
  Pointer<Out> out;         // [M, N]
  int64_t x_stride;
  int num_rows, num_inputs, num_outputs;

  __device__ __forceinline__ Out result(int n, float sum) const {
    return from_float<Out>(bias ? sum + to_float(bias[n]) : sum);
  }
};

// c += x w^T for 16 rows, 8 outputs and a step. A lane has inputs of row lane / 4 (upper) and of
// the 8th after it (lower), and of output lane / 4.
template <typename T>
__device__ __forceinline__ void multiply_step(float (&c)[4], const uint4& upper, const uint4& lower,
                                              const uint4& weight) {
  multiply_add<T>(c, {upper.x, lower.x, upper.y, lower.y}, {weight.x, weight.y});
  multiply_add<T>(c, {upper.z, lower.z, upper.w, lower.w}, {weight.z, weight.w});
}

// Reads 16 bytes. Stays where it is among products, so that loads begin as early as the source says.
// What no other block needs isn't kept in the L1 cache.
template <bool kIsKept>
__device__ __forceinline__ uint4 read_vector(Pointer<const uint4> from) {
#ifdef __CUDACC__
  uint4 v;
  if constexpr (kIsKept) {
    asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(__cvta_generic_to_global(from)));
  } else {
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(__cvta_generic_to_global(from)));
  }
  return v;
#else
  return *from;
#endif
}

// For up to 8 * kOctets rows: a block has all of them and few outputs, and its warps share the
// chunks of K. A warp always has kDepth steps on their way from memory.
template <typename T, typename Out, int kOctets>
class StreamBlock {
 public:
  static constexpr int kMaxWarps = 8;
  static constexpr int kRows = kOctets * 8;
  static constexpr int kRowTiles = (kOctets + 1) / 2;
  static constexpr int kColumnTiles = kRowTiles;  // so that x is read twice as much as W at most
  static constexpr int kColumns = kColumnTiles * 8;

  static constexpr int64_t shared_bytes(int num_warps) {
    return SharedMemory::bytes<float>((1 + num_warps) * kElements);
  }

  __device__ __forceinline__ explicit StreamBlock(const LinearArgs<T, Out>& args)
      : args_(args),
        num_warps_(static_cast<int>(blockDim.x) / kWarpSize),
        first_output_(static_cast<int>(blockIdx.x) * kColumns) {
    SharedMemory shared;
    totals_ = shared.take<float>((1 + num_warps_) * kElements);
    chunk_sums_ = totals_ + kElements;
    read_begin_ = warp_index() * kChunk;
    const int group = lane_index() / 4, begin = read_begin_ + lane_input();
    PYENGINE_UNROLL
    for (int o = 0; o < kOctets; ++o) {
      const int row = min(o * 8 + group, args.num_rows - 1);
      x_[o] = args.x + (row * args.x_stride + begin);
    }
    PYENGINE_UNROLL
    for (int t = 0; t < kColumnTiles; ++t) {
      const int n = min(first_output_ + t * 8 + group, args.num_outputs - 1);
      weight_[t] = args.weight + (static_cast<int64_t>(n) * args.num_inputs + begin);
    }
  }

  __device__ __forceinline__ void run() {
    const int num_chunks = (args_.num_inputs + kChunk - 1) / kChunk;
    for_each_element([&](int i) { totals_[i] = 0; });
    PYENGINE_UNROLL
    for (int i = 0; i < kDepth; ++i) load_step(i);
    for (int first = 0; first < num_chunks; first += num_warps_) {
      sum_chunk((first + warp_index()) * kChunk);
      __syncthreads();
      const int num_sums = min(num_warps_, num_chunks - first);
      for_each_element([&](int i) {
        float total = totals_[i];
        for (int w = 0; w < num_sums; ++w) total += chunk_sums_[w * kElements + i];
        totals_[i] = total;
      });
      __syncthreads();
    }
    for_each_element([&](int i) {
      const int row = i / kColumns, n = first_output_ + i % kColumns;
      if (row >= args_.num_rows || n >= args_.num_outputs) return;
      args_.out[static_cast<int64_t>(row) * args_.num_outputs + n] = args_.result(n, totals_[i]);
    });
  }

 private:
  static constexpr int kElements = kRows * kColumns;
  static constexpr int kDepth = kOctets > 2 ? 16 / kOctets : kChunkSteps;  // as registers allow

  // A lane's part of the operands of a step.
  struct Step {
    uint4 x[kOctets];
    uint4 weight[kColumnTiles];
  };

  // Each element of the block's results has a thread.
  template <typename Body>
  __device__ __forceinline__ void for_each_element(const Body& body) const {
    for (int i = static_cast<int>(threadIdx.x); i < kElements; i += num_warps_ * kWarpSize) {
      body(i);
    }
  }

  // The first of its inputs of a step that a lane reads.
  __device__ __forceinline__ static int lane_input() { return lane_index() % 4 * kVectorSize; }

  // Begins to read step i of the chunk that is to be read.
  __device__ __forceinline__ void load_step(int i) {
    if (read_begin_ + kChunk <= args_.num_inputs) {
      load_step(steps_[i % kDepth], i * kStep, [] { return true; });
    } else {
      const bool is_inside = read_begin_ + i * kStep + lane_input() < args_.num_inputs;
      load_step(steps_[i % kDepth], i * kStep, [=] { return is_inside; });
    }
  }

  // The step from the chunk's k-th input on: what of it isn't inside of K are zeros.
  template <typename IsInside>
  __device__ __forceinline__ void load_step(Step& step, int k, const IsInside& is_inside) const {
    constexpr uint4 kZeros{0, 0, 0, 0};
    PYENGINE_UNROLL
    for (int t = 0; t < kColumnTiles; ++t) {
      const auto from = cast<const uint4>(weight_[t] + k);
      step.weight[t] = is_inside() ? read_vector<false>(from) : kZeros;
    }
    PYENGINE_UNROLL
    for (int o = 0; o < kOctets; ++o) {
      const auto from = cast<const uint4>(x_[o] + k);
      step.x[o] = is_inside() ? read_vector<true>(from) : kZeros;
    }
  }

  // Goes on to read the warp's next chunk.
  __device__ __forceinline__ void read_next_chunk() {
    read_begin_ += num_warps_ * kChunk;
    PYENGINE_UNROLL
    for (auto& x : x_) x += num_warps_ * kChunk;
    PYENGINE_UNROLL
    for (auto& weight : weight_) weight += num_warps_ * kChunk;
  }

  // Sums the chunk from input `begin` on, to the warp's place. Each step makes room for another one.
  __device__ __forceinline__ void sum_chunk(int begin) {
    float sums[kRowTiles][kColumnTiles][4] = {};
    PYENGINE_UNROLL
    for (int i = 0; i < kChunkSteps; ++i) {
      if (begin + i * kStep < args_.num_inputs) add_step(sums, steps_[i % kDepth]);
      if (i + kDepth == kChunkSteps) read_next_chunk();
      load_step((i + kDepth) % kChunkSteps);
    }
    const int row = lane_index() / 4, column = lane_index() % 4 * 2;
    const Pointer<float> to = chunk_sums_ + warp_index() * kElements;
    PYENGINE_UNROLL
    for (int o = 0; o < kOctets; ++o) {
      PYENGINE_UNROLL
      for (int t = 0; t < kColumnTiles; ++t) {
        const auto& c = sums[o / 2][t];
        const int half = o % 2 * 2;
        *cast<float2>(to + ((o * 8 + row) * kColumns + t * 8 + column)) = {c[half], c[half + 1]};
      }
    }
  }

  __device__ __forceinline__ static void add_step(float (&sums)[kRowTiles][kColumnTiles][4],
                                                  const Step& step) {
    PYENGINE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      const uint4 lower = 2 * r + 1 < kOctets ? step.x[(2 * r + 1) % kOctets] : uint4{0, 0, 0, 0};
      PYENGINE_UNROLL
      for (int t = 0; t < kColumnTiles; ++t) {
        multiply_step<T>(sums[r][t], step.x[2 * r], lower, step.weight[t]);
      }
    }
  }

  const LinearArgs<T, Out>& args_;
  const int num_warps_, first_output_;
  Pointer<float> totals_;      // [kRows, kColumns]
  Pointer<float> chunk_sums_;  // a warp each: [warps, kRows, kColumns]
  // Where the lane reads, in the chunk that is to be read. Rows and outputs that there aren't stand
  // for the last ones; nobody asks for their results.
  Pointer<const T> x_[kOctets], weight_[kColumnTiles];
  int read_begin_;  // of that chunk
  Step steps_[kDepth];
};

// For many rows: a block has a square of kSide by kSide results, a warp kSide / 2 by 32 of them.
template <typename T, typename Out, int kSide>
class TileBlock {
 public:
  static constexpr int kThreads = 2 * kSide;

  static constexpr int64_t shared_bytes() {
    return SharedMemory::bytes<uint4>(kStages * 2 * kVectors);
  }

  __device__ __forceinline__ explicit TileBlock(const LinearArgs<T, Out>& args)
      : args_(args),
        first_row_(static_cast<int>(blockIdx.x) * kSide),
        first_output_(static_cast<int>(blockIdx.y) * kSide),
        warp_row_(warp_index() % 2 * (kSide / 2)),
        warp_output_(warp_index() / 2 * (kColumnTiles * 8)) {
    SharedMemory shared;
    stages_ = shared.take<uint4>(kStages * 2 * kVectors);
    const int input = vector_input();
    PYENGINE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = min(first_row_ + vector_row(half), args.num_rows - 1);
      const int n = min(first_output_ + vector_row(half), args.num_outputs - 1);
      x_[half] = args.x + (row * args.x_stride + input);
      weight_[half] = args.weight + (static_cast<int64_t>(n) * args.num_inputs + input);
    }
  }

  __device__ __forceinline__ void run() {
    const int num_steps = (args_.num_inputs + kStep - 1) / kStep;
    const bool is_empty = first_row_ + warp_row_ >= args_.num_rows ||
                          first_output_ + warp_output_ >= args_.num_outputs;
    float totals[kRowTiles][kColumnTiles][4] = {}, sums[kRowTiles][kColumnTiles][4] = {};
    for (int step = 0; step < kStages - 1; ++step) load_step(step);
    for (int step = 0; step < num_steps; ++step) {
      wait_for_copies<kStages - 2>();
      __syncthreads();
      load_step(step + kStages - 1);  // in place of the one before, which all are done with
      if (is_empty) continue;
      add_step(sums, stages_ + step % kStages * 2 * kVectors);
      if ((step + 1) % kChunkSteps != 0 && step + 1 != num_steps) continue;
      PYENGINE_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        PYENGINE_UNROLL
        for (int t = 0; t < kColumnTiles; ++t) {
          PYENGINE_UNROLL
          for (int i = 0; i < 4; ++i) {
            totals[r][t][i] += sums[r][t][i];
            sums[r][t][i] = 0;
          }
        }
      }
    }
    PYENGINE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      PYENGINE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = first_row_ + warp_row_ + r * 16 + half * 8 + lane_index() / 4;
        PYENGINE_UNROLL
        for (int t = 0; t < kColumnTiles; ++t) {
          const int n = first_output_ + warp_output_ + t * 8 + lane_index() % 4 * 2;
          store_pair(row, n, totals[r][t][2 * half], totals[r][t][2 * half + 1]);
        }
      }
    }
  }

 private:
  static constexpr int kStages = 4;
  static constexpr int kRowTiles = kSide / 32;
  static constexpr int kColumnTiles = 4;
  static constexpr int kRowVectors = kStep / kVectorSize;
  static constexpr int kVectors = kSide * kRowVectors;  // of one operand in a step: two a thread

  // The vectors that a thread copies: of two rows, kSide / 2 apart.
  __device__ __forceinline__ static int vector_row(int half) {
    return static_cast<int>(threadIdx.x) / kRowVectors + half * (kSide / 2);
  }
  __device__ __forceinline__ static int vector_input() {
    return static_cast<int>(threadIdx.x) % kRowVectors * kVectorSize;
  }

  // Begins to copy a step's operands: [kSide, kStep] of x, then of W.
  __device__ __forceinline__ void load_step(int step) const {
    const int k = step * kStep;
    const bool is_inside = k + vector_input() < args_.num_inputs;
    const Pointer<uint4> to = stages_ + (step % kStages * 2 * kVectors + threadIdx.x);
    PYENGINE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const bool is_row = first_row_ + vector_row(half) < args_.num_rows;
      const bool is_output = first_output_ + vector_row(half) < args_.num_outputs;
      copy_async(to + half * kThreads, cast<const uint4>(x_[half] + k), is_inside && is_row);
      copy_async(to + (kVectors + half * kThreads), cast<const uint4>(weight_[half] + k),
                 is_inside && is_output);
    }
    commit_copies();
  }

  // Eight rows of a step are 32 vectors in the order of the lanes that need them.
  __device__ __forceinline__ void add_step(float (&sums)[kRowTiles][kColumnTiles][4],
                                           Pointer<const uint4> stage) const {
    const Pointer<const uint4> x = stage + (warp_row_ * kRowVectors + lane_index());
    const Pointer<const uint4> w = stage + (kVectors + warp_output_ * kRowVectors + lane_index());
    uint4 weight[kColumnTiles];
    PYENGINE_UNROLL
    for (int t = 0; t < kColumnTiles; ++t) weight[t] = w[t * kWarpSize];
    PYENGINE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      const uint4 upper = x[2 * r * kWarpSize], lower = x[(2 * r + 1) * kWarpSize];
      PYENGINE_UNROLL
      for (int t = 0; t < kColumnTiles; ++t) {
        multiply_step<T>(sums[r][t], upper, lower, weight[t]);
      }
    }
  }

  __device__ __forceinline__ void store_pair(int row, int n, float first, float second) const {
    struct alignas(2 * sizeof(Out)) Pair {
      Out first, second;
    };
    const int size = args_.num_outputs;
    if (row >= args_.num_rows || n >= size) return;
    const Pointer<Out> out = args_.out + (static_cast<int64_t>(row) * size + n);
    if (size % 2 == 0) {
      *cast<Pair>(out) = {args_.result(n, first), args_.result(n + 1, second)};
    } else {
      out[0] = args_.result(n, first);
      if (n + 1 < size) out[1] = args_.result(n + 1, second);
    }
  }

  const LinearArgs<T, Out>& args_;
  const int first_row_, first_output_;  // the block's
  const int warp_row_, warp_output_;    // the warp's, in the block's
  Pointer<uint4> stages_;               // [kStages, 2, kSide, kRowVectors]
  Pointer<const T> x_[2], weight_[2];   // from where the thread copies
};

template <typename T, typename Out, int kOctets>
__global__ void __launch_bounds__(StreamBlock<T, Out, kOctets>::kMaxWarps* kWarpSize)
    stream_kernel(LinearArgs<T, Out> args) {
  StreamBlock<T, Out, kOctets>(args).run();
}

template <typename T, typename Out, int kSide>
__global__ void __launch_bounds__(TileBlock<T, Out, kSide>::kThreads)
    tile_kernel(LinearArgs<T, Out> args) {
  TileBlock<T, Out, kSide>(args).run();
}

}  // namespace pyengine::cuda
