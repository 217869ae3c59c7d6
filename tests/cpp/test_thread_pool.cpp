#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "check.h"
#include "cpu/thread_pool.h"

namespace {

using pyengine::ThreadPool;

template <typename Body>
void run(ThreadPool& pool, int64_t num_items, int64_t num_workers, const Body& body) {
  pool.run(
      num_items, num_workers,
      [](const void* context, int64_t item, int64_t worker) {
        (*static_cast<const Body*>(context))(item, worker);
      },
      &body);
}

TEST(every_item_of_every_job_is_done_exactly_once_before_run_returns) {
  ThreadPool& pool = ThreadPool::global();
  for (int64_t job = 0; job < 3000; ++job) {
    const int64_t num_items = job % 17;
    std::vector<int> counts(static_cast<size_t>(num_items), 0);  // not atomic: run orders them
    run(pool, num_items, 1 + job % 5, [&](int64_t item, int64_t) { ++counts[item]; });
    CHECK_EQ(counts, std::vector<int>(static_cast<size_t>(num_items), 1));
  }
}

TEST(no_two_threads_have_one_worker_number_at_a_time) {
  ThreadPool& pool = ThreadPool::global();
  for (int64_t num_workers : {1, 2, 3, 8}) {
    std::vector<std::atomic<int>> busy(static_cast<size_t>(num_workers));
    std::atomic<bool> is_shared{false};
    for (int job = 0; job < 200; ++job) {
      run(pool, 40, num_workers, [&](int64_t, int64_t worker) {
        if (worker < 0 || worker >= num_workers || busy[worker]++ != 0) is_shared = true;
        --busy[worker];
      });
    }
    CHECK(!is_shared);
  }
}

TEST(a_job_within_a_job_is_done_by_its_caller) {
  ThreadPool& pool = ThreadPool::global();
  std::atomic<int> num_done{0};
  run(pool, 8, 4, [&](int64_t, int64_t) {
    run(pool, 5, 4, [&](int64_t, int64_t worker) { num_done += worker == 0; });
  });
  CHECK_EQ(num_done.load(), 40);
}

TEST(several_callers_do_not_mix_their_jobs) {
  ThreadPool& pool = ThreadPool::global();
  std::atomic<int> num_wrong{0};
  const auto call = [&] {
    for (int job = 0; job < 500; ++job) {
      std::vector<int> counts(11, 0);
      run(pool, 11, 3, [&](int64_t item, int64_t) { ++counts[item]; });
      num_wrong += counts != std::vector<int>(11, 1);
    }
  };
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) callers.emplace_back(call);
  for (std::thread& caller : callers) caller.join();
  CHECK_EQ(num_wrong.load(), 0);
}

TEST(a_forked_child_can_run_jobs) {
  run(ThreadPool::global(), 4, 4, [](int64_t, int64_t) {});
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> num_done{0};
    run(ThreadPool::global(), 100, 3, [&](int64_t, int64_t) { ++num_done; });
    _exit(num_done == 100 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK_EQ(WEXITSTATUS(status), 0);
}

}  // namespace

int main() { return pyengine::testing::run_tests(); }
