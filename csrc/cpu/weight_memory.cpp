#include "weight_memory.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <optional>

#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/core/ScalarType.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace pyengine {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Untouched, the rest of a chunk takes no memory. Of at least this size (malloc's largest threshold
// for it is 32 MiB), a chunk is a mapping of its own, whose pages nobody has touched yet.
constexpr int64_t kChunkBytes = int64_t{64} << 20;
// Not worth a place in a chunk, which they would keep alive.
constexpr int64_t kMinBytes = int64_t{64} << 10;
constexpr int64_t kAlignment = 128;  // two cache lines, which processors fetch together

// Where the system has no huge pages, or none to spare, nothing changes.
void ask_for_huge_pages(const Tensor& chunk) {
#if defined(__linux__)
  constexpr uintptr_t kPage = 4096;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(chunk.mutable_data_ptr());
  const uintptr_t first = (begin + kPage - 1) / kPage * kPage;
  const uintptr_t last = (begin + static_cast<uintptr_t>(chunk.numel())) / kPage * kPage;
  madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

class WeightMemory {
 public:
  // num_bytes uint8.
  Tensor take(const Tensor& like, int64_t num_bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!chunk_ || num_bytes > chunk_->numel() - used_) {
      chunk_ = torch::stable::new_empty(like, {std::max(kChunkBytes, num_bytes + kAlignment)},
                                        ScalarType::Byte);
      ask_for_huge_pages(*chunk_);
      const auto address = reinterpret_cast<uintptr_t>(chunk_->mutable_data_ptr());
      used_ = static_cast<int64_t>(-address % kAlignment);
    }
    Tensor taken = torch::stable::narrow(*chunk_, 0, used_, num_bytes);
    used_ += (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
    return taken;
  }

 private:
  std::mutex mutex_;
  std::optional<Tensor> chunk_;  // the one that has room
  int64_t used_ = 0;             // bytes of it
};

Tensor view_as(const Tensor& bytes, ScalarType dtype) {
  std::array<StableIValue, 2> stack{torch::stable::detail::from(bytes),
                                    torch::stable::detail::from(dtype)};
  STABLE_TORCH_ERROR_CODE_CHECK(
      torch_call_dispatcher("aten::view", "dtype", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace

Tensor new_weight(const Tensor& like, std::initializer_list<int64_t> sizes) {
  static WeightMemory* memory = new WeightMemory;  // outlives every thread
  int64_t num_bytes = static_cast<int64_t>(like.element_size());
  for (const int64_t size : sizes) num_bytes *= size;
  if (num_bytes < kMinBytes) return torch::stable::new_empty(like, sizes);
  return torch::stable::view(view_as(memory->take(like, num_bytes), like.scalar_type()), sizes);
}

}  // namespace pyengine
