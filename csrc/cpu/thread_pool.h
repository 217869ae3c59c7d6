// Threads for the kernels' loops.
//
// Why not OpenMP: its parallel regions end in a barrier, which waits for every thread of the team,
// also for one that has not got a core yet. A server shares its cores with its event loop and with
// its clients; there, a barrier for each of the hundreds of small loops of a step made a step 10 to
// 100 times as long. Here the caller begins at once, a helper takes part when it comes, and nobody
// waits for one that has taken nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace pyengine {

class ThreadPool {
 public:
  // body(context, item, worker): must not throw. 0 <= worker < num_workers, the caller being 0; no
  // two run with one worker number at the same time. It runs in the default float environment.
  using Body = void (*)(const void* context, int64_t item, int64_t worker);

  // Runs body for each item of [0, num_items), the next one on whichever thread is free; returns
  // when all are done. At most num_workers threads take part, the caller among them. While another
  // thread's call runs, and within a body, the caller does all the work itself.
  void run(int64_t num_items, int64_t num_workers, Body body, const void* context);

  // The process's pool; a forked child gets a new one. Its threads are never joined: they hold
  // nothing that exit must wait for.
  static ThreadPool& global();

 private:
  void start_helpers(int64_t num_helpers);
  void help(int64_t worker);
  void work(uint32_t job, int64_t worker);

  // The upper half numbers the job, the lower counts the items that were claimed. To claim an item
  // is to increment the lower half of the very job that one has seen: if another job came between,
  // the exchange fails, and what was read of the old one is never used.
  std::atomic<uint64_t> claims_{0};
  std::atomic<uint32_t> num_jobs_{0};  // the number of the last job; helpers sleep on it
  std::atomic<int64_t> num_done_{0};
  std::atomic<int64_t> num_items_{0};
  std::atomic<int64_t> num_workers_{0};
  std::atomic<Body> body_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::mutex caller_;  // held by the thread whose job runs
  int64_t num_helpers_ = 0;
};

}  // namespace pyengine
