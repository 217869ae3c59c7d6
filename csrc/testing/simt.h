// CUDA on a CPU, for tests: what a kernel's source says of blocks, threads, barriers, warps and
// shared memory, carried out by fibers. Blocks run one after another, a block's warps in turn: each
// runs until it has to wait for others, and in it a thread until it has to wait for other lanes.
//
// It is stricter than a GPU. Pointers into buffers and shared memory know their bounds; shared
// memory starts as NaNs; an asynchronous copy happens no sooner than it is waited for; threads that
// wait for one another for ever are reported, and so are lanes of a warp that meet in different
// operations. Threads run in ascending or in descending order (set_descending), so that a missing
// barrier shows in one of the two. Any of it ends the launch with a std::runtime_error.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __restrict__

struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

struct alignas(8) uint2 {
  uint32_t x, y;
};

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

struct alignas(8) float2 {
  float x, y;
};

struct alignas(16) float4 {
  float x, y, z, w;
};

using std::isfinite, std::max, std::min;

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

namespace simt {

constexpr int kWarpSize = 32;
constexpr size_t kStackBytes = 128 << 10;
constexpr size_t kMaxExchangeBytes = 64;

[[noreturn]] inline void fail(const std::string& what) {
  const auto show = [](const auto& i) {
    return "(" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " + std::to_string(i.z) +
           ")";
  };
  throw std::runtime_error("thread " + show(threadIdx) + " of block " + show(blockIdx) + " " +
                           what);
}

// A pointer that may go anywhere and be read or written within [begin, end) only.
template <typename T>
class Pointer {
 public:
  Pointer() = default;
  Pointer(T* at, T* begin, T* end) : at_(at), begin_(begin), end_(end) {}
  operator Pointer<const T>() const
    requires(!std::is_const_v<T>)
  {
    return {at_, begin_, end_};
  }

  T& operator*() const { return (*this)[0]; }
  T* operator->() const { return &(*this)[0]; }
  T& operator[](int64_t i) const {
    const auto bytes = reinterpret_cast<uintptr_t>(at_) + static_cast<uintptr_t>(i) * sizeof(T);
    if (bytes < reinterpret_cast<uintptr_t>(begin_) ||
        bytes + sizeof(T) > reinterpret_cast<uintptr_t>(end_)) {
      const auto first = (static_cast<int64_t>(bytes) - reinterpret_cast<int64_t>(begin_)) /
                         static_cast<int64_t>(sizeof(T));
      fail("reaches for element " + std::to_string(first) + " of " + std::to_string(end_ - begin_) +
           " elements of " + std::to_string(sizeof(T)) + " bytes");
    }
    if (bytes % alignof(T) != 0) {
      fail("reaches for " + std::to_string(sizeof(T)) + " bytes at an address that is no multiple");
    }
    return *reinterpret_cast<T*>(bytes);
  }

  Pointer operator+(int64_t n) const { return moved(n); }
  Pointer operator-(int64_t n) const { return moved(-n); }
  Pointer& operator+=(int64_t n) { return *this = moved(n); }
  explicit operator bool() const { return at_ != nullptr; }

  template <typename Other>
  Pointer<Other> as() const {
    return {reinterpret_cast<Other*>(at_), reinterpret_cast<Other*>(begin_),
            reinterpret_cast<Other*>(end_)};
  }

 private:
  Pointer moved(int64_t n) const {
    const auto bytes = reinterpret_cast<uintptr_t>(at_) + static_cast<uintptr_t>(n) * sizeof(T);
    return {reinterpret_cast<T*>(bytes), begin_, end_};
  }

  T* at_ = nullptr;
  T* begin_ = nullptr;
  T* end_ = nullptr;
};

// What the lanes of a warp hand to each other. One round may be read while the next is filled.
struct Warp {
  alignas(16) unsigned char values[2][kWarpSize][kMaxExchangeBytes];
  int64_t round = 0;
  int num_arrived = 0;
  const char* operation = nullptr;
  int line = 0;
};

struct Fiber {
  uint3 thread;
  Warp* warp = nullptr;
  int lane = 0;
  bool is_done = false;
  bool has_started = false;
  std::jmp_buf place;
  ucontext_t start;
  std::unique_ptr<char[]> stack;
  std::vector<std::function<void()>> copies;  // asynchronous ones of the open group
  std::vector<std::vector<std::function<void()>>> groups;
};

// The block that runs. There is one at a time, on one thread.
class Block {
 public:
  static Block& current() {
    static Block block;
    return block;
  }

  void set_descending(bool is_descending) { is_descending_ = is_descending; }

  template <typename Body>
  void launch(dim3 grid, dim3 block, size_t shared_bytes, const Body& body) {
    blockDim = block;
    gridDim = grid;
    body_ = body;
    shared_.resize((shared_bytes + sizeof(uint4) - 1) / sizeof(uint4));
    for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z) {
      for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y) {
        for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) run();
      }
    }
  }

  void barrier() {
    const int64_t round = round_;
    if (++num_arrived_ == num_live_) {
      open_barrier();
    } else {
      wait([&] { return round_ != round; });
    }
  }

  // Every lane's value, once all lanes of the warp have given theirs.
  template <typename T>
  const unsigned char (*exchange(const T& value, const char* operation, int line))
      [kMaxExchangeBytes] {
        static_assert(sizeof(T) <= kMaxExchangeBytes && std::is_trivially_copyable_v<T>);
        Fiber& fiber = *running_;
        Warp& warp = *fiber.warp;
        const int64_t round = warp.round;
        if (warp.num_arrived == 0) {
          warp.operation = operation;
          warp.line = line;
        } else if (warp.operation != operation || warp.line != line) {
          fail("is at " + std::string(operation) + " where another lane of its warp is at " +
               warp.operation);
        }
        auto* const values = warp.values[round % 2];
        std::memcpy(values[fiber.lane], &value, sizeof value);
        if (++warp.num_arrived == kWarpSize) {
          warp.num_arrived = 0;
          ++warp.round;
          has_progressed_ = true;
        } else {
          wait([&] { return warp.round != round; });
        }
        return values;
      }

  void copy_later(std::function<void()> copy) {
    running_->copies.push_back(std::move(copy));
  }

  void commit_copies() {
    running_->groups.push_back(std::move(running_->copies));
    running_->copies.clear();
  }

  // Carries out what was committed, but for the last `num_pending` groups.
  void wait_for_copies(size_t num_pending) {
    auto& groups = running_->groups;
    while (groups.size() > num_pending) {
      for (const auto& copy : groups.front()) copy();
      groups.erase(groups.begin());
    }
  }

  int lane() const { return running_->lane; }

  unsigned char* shared_begin() { return reinterpret_cast<unsigned char*>(shared_.data()); }
  size_t shared_bytes() const { return shared_.size() * sizeof(uint4); }

 private:
  void run() {
    const size_t num_threads = size_t{blockDim.x} * blockDim.y * blockDim.z;
    if (num_threads % kWarpSize != 0 || num_threads > 1024) {
      fail("has a block of " + std::to_string(num_threads) + " threads, not of whole warps");
    }
    std::memset(shared_.data(), 0xff, shared_bytes());
    while (fibers_.size() < num_threads) fibers_.push_back(std::make_unique<Fiber>());
    warps_.resize(num_threads / kWarpSize);
    for (auto& warp : warps_) {
      warp = std::make_unique<Warp>();
      std::memset(warp->values, 0xff, sizeof warp->values);
    }
    num_live_ = static_cast<int>(num_threads);
    num_arrived_ = 0;
    error_ = nullptr;
    for (size_t i = 0; i < num_threads; ++i) prepare(*fibers_[i], i);
    while (num_live_ > 0 && !error_) {
      bool has_any_progressed = false;
      for (size_t w = 0; w < warps_.size(); ++w) {
        has_any_progressed |= run_warp(is_descending_ ? warps_.size() - 1 - w : w);
      }
      if (!has_any_progressed && num_live_ > 0 && !error_) {
        threadIdx = {};
        fail("and others wait for each other: not all reach a barrier, or a warp's operation");
      }
    }
    if (error_) std::rethrow_exception(error_);
  }

  // As far as it gets without the other warps: what these have not written yet, it doesn't find.
  bool run_warp(size_t warp) {
    bool has_ever_progressed = false;
    do {
      has_progressed_ = false;
      for (int i = 0; i < kWarpSize && !error_; ++i) {
        const int lane = is_descending_ ? kWarpSize - 1 - i : i;
        Fiber& fiber = *fibers_[warp * kWarpSize + static_cast<size_t>(lane)];
        if (!fiber.is_done) resume(fiber);
      }
      has_ever_progressed |= has_progressed_;
    } while (has_progressed_ && !error_);
    return has_ever_progressed;
  }

  void prepare(Fiber& fiber, size_t index) {
    const auto i = static_cast<unsigned>(index);
    fiber.thread = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    fiber.warp = warps_[index / kWarpSize].get();
    fiber.lane = static_cast<int>(index % kWarpSize);
    fiber.is_done = false;
    fiber.has_started = false;
    fiber.copies.clear();
    fiber.groups.clear();
    if (!fiber.stack) fiber.stack.reset(new char[kStackBytes]);
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = kStackBytes;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, &Block::enter, 0);
  }

  // Runs a fiber until it waits or ends.
  void resume(Fiber& fiber) {
    running_ = &fiber;
    threadIdx = fiber.thread;
    if (_setjmp(scheduler_) != 0) return;
    if (fiber.has_started) _longjmp(fiber.place, 1);
    fiber.has_started = true;
    setcontext(&fiber.start);
  }

  static void enter() {
    Block& block = current();
    try {
      block.body_();
    } catch (...) {
      block.error_ = std::current_exception();
    }
    block.running_->is_done = true;
    block.has_progressed_ = true;
    // A thread that has ended keeps nobody at a barrier.
    if (--block.num_live_ > 0 && block.num_arrived_ == block.num_live_) block.open_barrier();
    _longjmp(block.scheduler_, 1);
  }

  void open_barrier() {
    num_arrived_ = 0;
    ++round_;
    has_progressed_ = true;
  }

  template <typename Condition>
  void wait(const Condition& is_met) {
    Fiber& fiber = *running_;
    while (!is_met()) {
      if (_setjmp(fiber.place) == 0) _longjmp(scheduler_, 1);
    }
    has_progressed_ = true;
  }

  std::function<void()> body_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<std::unique_ptr<Warp>> warps_;
  std::vector<uint4> shared_;
  Fiber* running_ = nullptr;
  std::jmp_buf scheduler_;
  std::exception_ptr error_;
  int num_live_ = 0, num_arrived_ = 0;
  int64_t round_ = 0;
  bool has_progressed_ = false;
  bool is_descending_ = false;
};

// The value that lane `from` gave; `values` is what exchange() returned.
template <typename T>
T value_of(const unsigned char (*values)[kMaxExchangeBytes], int from) {
  T value;
  std::memcpy(&value, values[from], sizeof value);
  return value;
}

inline void check_full_mask(uint32_t mask) {
  if (mask != 0xffffffffu) fail("names some lanes of its warp; the emulation knows whole warps");
}

}  // namespace simt

inline void __syncthreads() { simt::Block::current().barrier(); }

inline void __syncwarp(uint32_t mask = 0xffffffffu) {
  simt::check_full_mask(mask);
  simt::Block::current().exchange(0, "__syncwarp", 0);
}

template <typename T>
T __shfl_sync(uint32_t mask, T value, int from, int width = simt::kWarpSize) {
  simt::check_full_mask(mask);
  auto& block = simt::Block::current();
  const auto* values = block.exchange(value, "__shfl_sync", 0);
  return simt::value_of<T>(values, block.lane() / width * width + from % width);
}

template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int lane_mask, int width = simt::kWarpSize) {
  simt::check_full_mask(mask);
  auto& block = simt::Block::current();
  const auto* values = block.exchange(value, "__shfl_xor_sync", 0);
  const int from = block.lane() ^ lane_mask;
  return simt::value_of<T>(values, from / width == block.lane() / width ? from : block.lane());
}

template <typename T>
T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = simt::kWarpSize) {
  simt::check_full_mask(mask);
  auto& block = simt::Block::current();
  const auto* values = block.exchange(value, "__shfl_down_sync", 0);
  const int from = block.lane() + static_cast<int>(delta);
  return simt::value_of<T>(values, from / width == block.lane() / width ? from : block.lane());
}

template <typename T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = simt::kWarpSize) {
  simt::check_full_mask(mask);
  auto& block = simt::Block::current();
  const auto* values = block.exchange(value, "__shfl_up_sync", 0);
  const int from = block.lane() - static_cast<int>(delta);
  const bool is_inside = from >= 0 && from / width == block.lane() / width;
  return simt::value_of<T>(values, is_inside ? from : block.lane());
}

inline uint32_t __ballot_sync(uint32_t mask, int predicate) {
  simt::check_full_mask(mask);
  const auto* values = simt::Block::current().exchange(predicate, "__ballot_sync", 0);
  uint32_t ballot = 0;
  for (int lane = 0; lane < simt::kWarpSize; ++lane) {
    ballot |= uint32_t{simt::value_of<int>(values, lane) != 0} << lane;
  }
  return ballot;
}

inline int __any_sync(uint32_t mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }

inline int __all_sync(uint32_t mask, int predicate) {
  return __ballot_sync(mask, predicate) == 0xffffffffu;
}

inline int __popc(uint32_t x) { return std::popcount(x); }
inline int __ffs(uint32_t x) { return x == 0 ? 0 : std::countr_zero(x) + 1; }
inline int __clz(uint32_t x) { return std::countl_zero(x); }

inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }

// The upper half of the product.
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(a) * b >> 64);
}

// No atomics on floating-point numbers: the order of a sum is part of the result.
template <std::integral T>
T atomicAdd(T* at, T value) {
  const T before = *at;
  *at = static_cast<T>(before + value);
  return before;
}

template <std::integral T>
T atomicMax(T* at, T value) {
  const T before = *at;
  *at = std::max(before, value);
  return before;
}

template <std::integral T>
T atomicMin(T* at, T value) {
  const T before = *at;
  *at = std::min(before, value);
  return before;
}

template <std::integral T>
T atomicCAS(T* at, T expected, T value) {
  const T before = *at;
  if (before == expected) *at = value;
  return before;
}
