// What the emulation of CUDA must find in kernels that are wrong, and leave alone in right ones. Not
// run under the sanitizers, which don't know its fibers.
#include "cuda/tensor_core.h"
#include "cuda/warp.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "check.h"

namespace {

using pyengine::kAllLanes;
using pyengine::lane_index;
using pyengine::Pointer;
using pyengine::SharedMemory;
using pyengine::warp_index;

// Runs one block, its threads in one order or the other.
void run(unsigned num_threads, bool is_descending, const std::function<void()>& kernel) {
  auto& block = simt::Block::current();
  block.set_descending(is_descending);
  block.launch({1, 1, 1}, {num_threads, 1, 1}, 4096, kernel);
}

// The error of a kernel that must not pass; in the orders in which it doesn't.
std::vector<std::string> errors(unsigned num_threads, const std::function<void()>& kernel) {
  std::vector<std::string> found;
  for (const bool is_descending : {false, true}) {
    try {
      run(num_threads, is_descending, kernel);
    } catch (const std::runtime_error& error) {
      found.push_back(error.what());
    }
  }
  return found;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

template <typename T>
Pointer<T> pointer_to(std::vector<T>& values) {
  return {values.data(), values.data(), values.data() + values.size()};
}

TEST(a_sum_over_a_block_is_that_of_all_threads) {
  for (const bool is_descending : {false, true}) {
    std::vector<int> sums(96);
    run(96, is_descending, [&] {
      SharedMemory shared;
      const auto partial = shared.take<int>(3);
      const int value = static_cast<int>(threadIdx.x);
      pointer_to(sums)[threadIdx.x] = pyengine::reduce_block(value, partial, pyengine::Add{});
    });
    for (const int sum : sums) CHECK_EQ(sum, 95 * 96 / 2);
  }
}

TEST(an_element_beyond_a_buffer_is_named) {
  std::vector<float> values(33);
  const auto found = errors(64, [&] { pointer_to(values)[threadIdx.x] = 1; });
  CHECK_EQ(found.size(), size_t{2});
  CHECK_EQ(found[0],
           std::string("thread (33, 0, 0) of block (0, 0, 0) reaches for element 33 of 33 elements "
                       "of 4 bytes"));
}

TEST(a_vector_must_lie_at_a_multiple_of_its_size) {
  std::vector<float> values(64);
  const auto found =
      errors(32, [&] { (void)*pyengine::cast<const uint4>(pointer_to(values) + 1); });
  CHECK_EQ(found.size(), size_t{2});
  CHECK(contains(found[0], "at an address that is no multiple"));
}

TEST(shared_memory_is_not_zero_before_it_is_written) {
  float read = 0;
  run(32, false, [&] {
    SharedMemory shared;
    read = shared.take<float>(1)[0];
  });
  CHECK(read != read);
}

TEST(more_shared_memory_than_was_asked_for_is_an_error) {
  const auto found = errors(32, [] {
    SharedMemory shared;
    shared.take<float>(1025);
  });
  CHECK_EQ(found.size(), size_t{2});
  CHECK(contains(found[0], "takes more shared memory"));
}

// The first warp reads what the last one writes, or the last one what the first one writes.
TEST(a_missing_barrier_shows_in_one_of_the_orders) {
  for (const int from : {0, 1}) {
    int num_wrong = 0;
    for (const bool is_descending : {false, true}) {
      run(64, is_descending, [&] {
        SharedMemory shared;
        const auto values = shared.take<float>(2);
        __syncwarp();  // is none for the other warp
        if (lane_index() == 0) values[warp_index()] = 1;
        __syncwarp();
        if (threadIdx.x == 32u * (1 - from)) num_wrong += values[from] == 1 ? 0 : 1;
      });
    }
    CHECK_EQ(num_wrong, 1);
  }
}

TEST(threads_that_wait_for_ever_are_an_error) {
  const auto found = errors(64, [] {
    if (threadIdx.x != 5) __syncthreads();
    // Thread 5 has ended, which keeps nobody waiting; but thread 7 waits for its warp.
    if (threadIdx.x == 7) __shfl_sync(kAllLanes, 1, 0);
  });
  CHECK_EQ(found.size(), size_t{2});
  CHECK(contains(found[0], "wait for each other"));
}

TEST(lanes_that_meet_in_different_operations_are_an_error) {
  const auto found = errors(32, [] {
    if (lane_index() < 9) {
      __ballot_sync(kAllLanes, 1);
    } else {
      __syncwarp();
    }
  });
  CHECK_EQ(found.size(), size_t{2});
  CHECK(contains(found[0], "__syncwarp where another lane of its warp is at __ballot_sync"));
}

TEST(a_copy_that_is_not_waited_for_has_not_happened) {
  std::vector<float> source(128, 3.0f);
  std::vector<float> early(32), late(32);
  run(32, false, [&] {
    SharedMemory shared;
    const auto target = shared.take<float>(128);
    const auto lane = static_cast<int>(threadIdx.x);
    pyengine::copy_async(pyengine::cast<uint4>(target) + lane,
                         pyengine::cast<const uint4>(pointer_to(source)) + lane, true);
    pyengine::commit_copies();
    pointer_to(early)[lane] = target[4 * lane];
    pyengine::wait_for_copies<0>();
    pointer_to(late)[lane] = target[4 * lane];
  });
  for (int i = 0; i < 32; ++i) {
    CHECK(early[static_cast<size_t>(i)] != 3.0f);
    CHECK_EQ(late[static_cast<size_t>(i)], 3.0f);
  }
}

// C = A B for A [16, 16] and B [16, 8] of small whole numbers, through the layouts of their pieces.
TEST(a_product_is_that_of_the_matrices_in_the_layout_of_lanes) {
  const auto a_at = [](int row, int k) { return static_cast<float>((row * 3 + k * 5) % 7 - 3); };
  const auto b_at = [](int k, int n) { return static_cast<float>((k * 2 + n * 11) % 5 - 2); };
  std::vector<float> product(16 * 8);
  run(32, false, [&] {
    using T = pyengine::bfloat16;
    const int group = lane_index() / 4, pair = lane_index() % 4 * 2;
    uint32_t a[4], b[2];
    for (int i = 0; i < 4; ++i) {
      const int row = group + i % 2 * 8, k = pair + i / 2 * 8;
      a[i] = pyengine::pack<T>(a_at(row, k), a_at(row, k + 1));
    }
    for (int i = 0; i < 2; ++i) {
      const int k = pair + i * 8;
      b[i] = pyengine::pack<T>(b_at(k, group), b_at(k + 1, group));
    }
    float c[4] = {};
    pyengine::multiply_add<T>(c, a, b);
    for (int i = 0; i < 4; ++i) {
      pointer_to(product)[(group + i / 2 * 8) * 8 + pair + i % 2] = c[i];
    }
  });
  for (int row = 0; row < 16; ++row) {
    for (int n = 0; n < 8; ++n) {
      float want = 0;
      for (int k = 0; k < 16; ++k) want += a_at(row, k) * b_at(k, n);
      CHECK_EQ(product[static_cast<size_t>(row * 8 + n)], want);
    }
  }
}

}  // namespace

int main() { return pyengine::testing::run_tests(); }
