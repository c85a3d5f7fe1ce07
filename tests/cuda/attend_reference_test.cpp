// Weights are taken against a row's running maximum, or one that lags: whatever the logits do along the keys
// (grow, jump by more octaves than a weight has, fall, stay equal), the output is the emulator's.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/attend_compare.hpp"

namespace octavo::test {
namespace {

struct Course {
  const char* name;
  std::function<float(std::int64_t)> key;  ///< what key `token` is multiplied by
  float query = 1.0F;
};

TEST(AttendReferences, FollowAnyCourseOfTheLogits) {
  OCTAVO_NEEDS_HOPPER();
  const std::vector<Course> courses = {
      {"grow", [](std::int64_t j) { return 0.2F + 0.01F * static_cast<float>(j); }},
      {"jump", [](std::int64_t j) { return j < 300 ? 0.1F : 20.0F; }},
      {"jumps", [](std::int64_t j) { return std::exp2(static_cast<float>(j / 100) - 4.0F); }},
      {"fall", [](std::int64_t j) { return j < 100 ? 8.0F : 0.5F; }},
      {"one key", [](std::int64_t j) { return j == 517 ? 60.0F : 0.5F; }},
      {"equal", [](std::int64_t) { return 1.0F; }, 0.0F},
      {"nearly equal", [](std::int64_t) { return 1.0F; }, 0.01F},
  };
  const std::vector<std::pair<const char*, double>> recipes = {
      {"sage2-8+8", 2e-3}, {"sage2-4+8", 2e-3},  {"sage2++-8+8", 2e-3}, {"int8-icl", 2e-3},
      {"fp8-head", 2e-2},  {"turbo8", 2e-2},     {"turbo", 2e-2},       {"turbo16", 2e-2},
      {"half", 2e-3},      {"turbo.wide", 2e-2},
  };
  double worst = 0.0;
  for (const Course& course : courses) {
    for (const auto& [name, most] : recipes) {
      for (const std::int64_t dim : {64, 128}) {
        for (const Causal causal : {Causal::none, Causal::bottom_right}) {
          AttendShape s{.q_len = 150, .kv_len = 900, .head_dim = dim, .causal = causal, .k_mean = 0.0F};
          AttendCase c(s);
          change(c.k(), [&](float x, auto, auto token, auto) { return x * course.key(token); });
          change(c.q(), [&](float x, auto, auto, auto) { return x * course.query; });
          c.send();
          const Plan plan = c.make_plan(gpu_recipe(name));
          const AttendResult got = c.run(plan);
          const reference::RowLists rows = c.sample_rows(100'000);
          const AttendResult want = c.emulate(plan.recipe(), rows);
          const Difference d = difference(c, rows, got, want);
          const AttendResult exact = c.exact(rows);
          const double own = difference(c, rows, got, exact).l1;
          const double emulated = difference(c, rows, want, exact).l1;
          SCOPED_TRACE(std::string(course.name) + ", " + name + ", " + to_text(s));
          EXPECT_EQ(d.not_finite, 0);
          // A weight on the border of two e4m3 values may fall to either: where few keys matter that moves a
          // row by up to 3%, half a step.
          const double flip = 0.03 / std::sqrt(static_cast<double>(d.rows));
          EXPECT_LE(d.l2, most + flip) << d.worst;
          EXPECT_LE(own, 1.05 * emulated + 1e-3);
          if (most <= 2e-3) worst = std::max(worst, d.l2);
          if (HasFailure()) return;
        }
      }
    }
  }
  std::printf("largest relative L2 of integer and 16-bit scores %.2e\n", worst);
}

}  // namespace
}  // namespace octavo::test
