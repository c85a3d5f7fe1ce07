// Logits at and beyond what the kernels' constants hold: a row comes out right or NaN, never as one that sees
// no key, and every kernel ends.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "cuda/attend_case.hpp"

namespace octavo::test {
namespace {

/// Rows that are neither NaN nor what their keys give.
void expect_right_or_nan(AttendCase& c, const std::string& name) {
  const AttendResult got = c.run(c.make_plan(gpu_recipe(name)));
  const AttendResult want = c.exact({});
  const std::int64_t dim = c.shape().head_dim;
  std::int64_t empty = 0;
  std::int64_t wrong = 0;
  c.each_row({}, [&](std::int64_t line, const Sequence&, std::int64_t, std::int64_t) {
    const float lse = got.lse[static_cast<std::size_t>(line)];
    empty += std::isinf(lse) && lse < 0 ? 1 : 0;
    for (std::int64_t d = line * dim; d < (line + 1) * dim; ++d) {
      const float o = got.o[static_cast<std::size_t>(d)];
      // Rounding of e4m3 values, and of a few weights beside one that dominates.
      wrong += std::isnan(o) || std::fabs(o - want.o[static_cast<std::size_t>(d)]) < 0.5F ? 0 : 1;
    }
  });
  EXPECT_EQ(empty, 0) << name << ": rows look as if they saw no key";
  EXPECT_EQ(wrong, 0) << name;
}

TEST(AttendLimits, ScoresFarBelowF16AreNoHiddenKeys) {
  OCTAVO_NEEDS_HOPPER();
  // Keys of two opposite kinds, so that smoothing takes nothing; every row sees one key alone.
  for (const char* name : {"turbo16", "turbo", "turbo8"}) {
    for (const float size : {2.0F, 20.0F}) {
      AttendCase c({.window = {0, 0}, .scale = 0.5F, .k_mean = 0.0F});
      change(c.q(), [&](float, auto, auto, auto) { return size; });
      change(c.k(), [&](float, auto, auto token, auto) { return token < 32 ? -size : size; });
      c.send();
      expect_right_or_nan(c, name);
    }
  }
}

TEST(AttendLimits, KernelsEndWhateverTheLogits) {
  OCTAVO_NEEDS_HOPPER();
  for (const char* name : {"turbo16", "turbo", "turbo8", "sage2-8+8", "fp8-head", "half"}) {
    for (const float size : {40.0F, 400.0F, 1300.0F}) {
      for (const float sign : {-1.0F, 1.0F}) {
        AttendCase c({.q_len = 1, .kv_len = 384, .k_mean = 0.0F});
        change(c.q(), [&](float, auto, auto, auto) { return size; });
        change(c.k(),
               [&](float, auto, auto token, auto) { return (token < 192) == (sign < 0) ? -size : size; });
        c.send();
        expect_right_or_nan(c, name);
      }
    }
  }
}

// A bias may be all there is of a logit, lie far above or below the others', or jump along the keys: by -1e9,
// say, which stands for hidden in many a model.
TEST(AttendLimits, BiasesOfAnySize) {
  OCTAVO_NEEDS_HOPPER();
  struct Biased {
    const char* name;
    std::optional<float> scale;
    std::function<float(float, std::int64_t)> of;  ///< (N(0, 1), key)
  };
  const std::vector<Biased> cases = {
      {"nothing else", 0.0F, [](float x, std::int64_t) { return x; }},
      {"next to nothing else", 1e-4F, [](float x, std::int64_t) { return 4.0F * x; }},
      {"large", {}, [](float x, std::int64_t) { return 1000.0F * x; }},
      {"a common one", {}, [](float x, std::int64_t) { return 2000.0F + x; }},
      {"a common low one", {}, [](float x, std::int64_t) { return -2000.0F + x; }},
      {"falls", {}, [](float x, std::int64_t j) { return x - 10.0F * static_cast<float>(j); }},
      {"grows", {}, [](float x, std::int64_t j) { return x + 10.0F * static_cast<float>(j); }},
      {"first keys as good as hidden", {}, [](float x, std::int64_t j) { return j < 400 ? -1e9F : x; }},
      {"last keys as good as hidden", {}, [](float x, std::int64_t j) { return j > 400 ? -1e9F : x; }},
      {"all keys as good as hidden", {}, [](float x, std::int64_t) { return -1e9F + x; }},
      {"lower still", {}, [](float x, std::int64_t j) { return j < 400 ? -1e30F : x; }},
  };
  for (const Biased& biased : cases) {
    for (const char* name : {"turbo", "turbo-icl", "turbo16", "turbo8", "sage2-8+8", "half"}) {
      for (const std::int64_t dim : {64, 128}) {
        AttendShape s{
            .q_len = 100, .kv_len = 700, .head_dim = dim, .scale = biased.scale, .bias = Extra::full};
        s.absmax = needs_absmax(name);
        AttendCase c(s);
        change(c.bias(),
               [&](float x, auto, auto, auto key) { return std::isinf(x) ? x : biased.of(x, key); });
        c.send();
        const Plan plan = c.make_plan(gpu_recipe(name));
        const AttendResult got = c.run(plan);
        const AttendResult want = c.emulate(plan.recipe(), {});
        const Difference d = difference(c, {}, got, want);
        SCOPED_TRACE(std::string(biased.name) + ", " + name + ", " + to_text(s));
        EXPECT_EQ(d.not_finite, 0);
        // As docs/numerics.md allows; a weight whose rounding flips moves its row by up to 0.15.
        EXPECT_LE(d.l2, 2e-2 + 0.15 / std::sqrt(static_cast<double>(d.rows))) << d.worst;
      }
    }
  }
}

TEST(AttendLimits, NaNShowsBesideHiddenKeys) {
  OCTAVO_NEEDS_HOPPER();
  for (const std::string& name : gpu_presets()) {
    if (needs_absmax(name)) continue;
    AttendCase c({.q_len = 40, .kv_len = 200, .mask = Extra::full});
    const MutableHeadsView at = heads_view(c.q(), Layout::hnd);
    write_element(at.data, at.dtype, at.offset(0, 1, 7), std::numeric_limits<float>::quiet_NaN());
    c.send();
    const AttendResult got = c.run(c.make_plan(gpu_recipe(name)));
    const std::int64_t line = c.line(c.problem(false).sequences[0], 1, 7);
    EXPECT_TRUE(std::isnan(got.o[static_cast<std::size_t>(line * 64)])) << name;
  }
}

}  // namespace
}  // namespace octavo::test
