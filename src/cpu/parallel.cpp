// Threads are made for each call and joined before it returns: no pool, no global state, nothing to
// fork-proof. Making one costs about 20 us, so a call with one item, or one thread, makes none.
#include "cpu/parallel.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace octavo::cpu {

int default_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));  // more than 1,024 processors
}

void parallel_for(int threads, std::int64_t items,
                  const std::function<void(std::int64_t item, int thread)>& body) {
  const int workers = static_cast<int>(std::min<std::int64_t>(threads, items));
  if (workers <= 1) {
    for (std::int64_t i = 0; i < items; ++i) body(i, 0);
    return;
  }
  std::atomic<std::int64_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&](int thread) {
    try {
      for (std::int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < items;
           i = next.fetch_add(1, std::memory_order_relaxed)) {
        body(i, thread);
      }
    } catch (...) {
      const std::lock_guard<std::mutex> lock(failure_mutex);
      if (failure == nullptr) failure = std::current_exception();
      next.store(items, std::memory_order_relaxed);
    }
  };
  {
    std::vector<std::jthread> others;
    others.reserve(static_cast<std::size_t>(workers - 1));
    try {
      for (int t = 1; t < workers; ++t) others.emplace_back(work, t);
    } catch (const std::system_error&) {
      // The system gives no more threads: those there are do all the work, with the same result.
    }
    work(0);
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace octavo::cpu
