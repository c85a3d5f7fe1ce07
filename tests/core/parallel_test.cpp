// parallel_for runs every item once, gives each thread its own number and passes exceptions on.
#include "cpu/parallel.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace octavo::cpu {
namespace {

TEST(ParallelFor, RunsEveryItemOnce) {
  for (const int threads : {1, 2, 5, 64}) {
    for (const std::int64_t items : {std::int64_t{0}, std::int64_t{1}, std::int64_t{3}, std::int64_t{1000}}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(items));
      std::vector<std::atomic<int>> busy(static_cast<std::size_t>(threads));
      std::atomic<bool> shared{false};
      parallel_for(threads, items, [&](std::int64_t item, int thread) {
        if (++busy[static_cast<std::size_t>(thread)] != 1) shared = true;
        ++runs[static_cast<std::size_t>(item)];
        --busy[static_cast<std::size_t>(thread)];
      });
      for (const auto& n : runs) EXPECT_EQ(n.load(), 1);
      EXPECT_FALSE(shared);
    }
  }
}

TEST(ParallelFor, RethrowsAfterAllHaveStopped) {
  for (const int threads : {1, 4}) {
    EXPECT_THROW(parallel_for(threads, 100,
                              [](std::int64_t item, int) {
                                if (item == 7) throw std::runtime_error("seven");
                              }),
                 std::runtime_error);
  }
}

}  // namespace
}  // namespace octavo::cpu
