#include "thread_pool.h"

#include "float_environment.h"

#include <chrono>
#include <limits>
#include <system_error>
#include <thread>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace pyengine {
namespace {

// How long a helper looks for the next job before it sleeps: the loops of a step follow each other
// within microseconds, the steps of a stream within a few hundred, and to wake a sleeper takes tens
// of them. Meanwhile whoever wants the core gets it.
constexpr std::chrono::microseconds kSpin{1000};

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

constexpr uint64_t first_claim(uint32_t job) { return static_cast<uint64_t>(job) << 32; }

}  // namespace

ThreadPool& ThreadPool::global() {
  static ThreadPool* pool = new ThreadPool;
#if defined(__unix__) || defined(__APPLE__)
  // A forked child has none of the helpers, and a lock that a thread of the parent may hold.
  static const int registered = pthread_atfork(nullptr, nullptr, [] { pool = new ThreadPool; });
  static_cast<void>(registered);
#endif
  return *pool;
}

void ThreadPool::run(int64_t num_items, int64_t num_workers, Body body, const void* context) {
  const DefaultFloatEnvironment environment;
  constexpr int64_t kMaxItems = std::numeric_limits<uint32_t>::max();
  std::unique_lock<std::mutex> lock(caller_, std::defer_lock);
  if (num_items < 2 || num_workers < 2 || num_items > kMaxItems || !lock.try_lock()) {
    for (int64_t item = 0; item < num_items; ++item) body(context, item, 0);
    return;
  }
  start_helpers(num_workers - 1);
  const uint32_t job = num_jobs_.load(std::memory_order_relaxed) + 1;
  // Ends the claims of the last job before its fields are overwritten.
  claims_.store(first_claim(job) + static_cast<uint64_t>(kMaxItems), std::memory_order_seq_cst);
  num_items_.store(num_items, std::memory_order_relaxed);
  num_workers_.store(num_workers, std::memory_order_relaxed);
  body_.store(body, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  num_done_.store(0, std::memory_order_relaxed);
  claims_.store(first_claim(job), std::memory_order_release);
  num_jobs_.store(job, std::memory_order_release);
  num_jobs_.notify_all();
  work(job, 0);
  // What is left is in the hands of helpers that run: a spin ends soon, unless one of them has
  // lost its core, which a yield gives back.
  for (int64_t spins = 0; num_done_.load(std::memory_order_acquire) < num_items; ++spins) {
    if (spins < 1000) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::work(uint32_t job, int64_t worker) {
  uint64_t claim = claims_.load(std::memory_order_acquire);
  while (true) {
    const int64_t num_items = num_items_.load(std::memory_order_relaxed);
    const int64_t num_workers = num_workers_.load(std::memory_order_relaxed);
    const Body body = body_.load(std::memory_order_relaxed);
    const void* context = context_.load(std::memory_order_relaxed);
    const int64_t item = static_cast<int64_t>(claim & std::numeric_limits<uint32_t>::max());
    if (claim >> 32 != job || item >= num_items || worker >= num_workers) return;
    if (!claims_.compare_exchange_weak(claim, claim + 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    body(context, item, worker);
    num_done_.fetch_add(1, std::memory_order_release);
    claim = claims_.load(std::memory_order_acquire);
  }
}

void ThreadPool::help(int64_t worker) {
  const DefaultFloatEnvironment environment;  // a thread inherits that of its creator
  uint32_t seen = 0;
  while (true) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    uint32_t job = num_jobs_.load(std::memory_order_acquire);
    while (job == seen && std::chrono::steady_clock::now() < deadline) {
      for (int i = 0; i < 32; ++i) pause();
      std::this_thread::yield();
      job = num_jobs_.load(std::memory_order_acquire);
    }
    if (job == seen) {
      num_jobs_.wait(seen, std::memory_order_acquire);
      job = num_jobs_.load(std::memory_order_acquire);
    }
    seen = job;
    work(job, worker);
  }
}

void ThreadPool::start_helpers(int64_t num_helpers) {
  try {
    for (; num_helpers_ < num_helpers; ++num_helpers_) {
      std::thread(&ThreadPool::help, this, num_helpers_ + 1).detach();
    }
  } catch (const std::system_error&) {
    // No more threads to be had: the work gets done by those that there are.
  }
}

}  // namespace pyengine
