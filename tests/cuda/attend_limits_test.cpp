// Logits at and beyond what the kernels' constants hold: a row comes out right or NaN, never as one that sees
// no key, and every kernel ends.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <optional>

#include "cuda/attend_compare.hpp"

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
  for (const char* name : {"turbo16", "turbo", "turbo.wide", "turbo8"}) {
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
  for (const char* name : {"turbo16", "turbo", "turbo.wide", "turbo8", "sage2-8+8", "fp8-head", "half"}) {
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
    double size;                                   ///< of the biases that matter
    std::function<float(float, std::int64_t)> of;  ///< (N(0, 1), key)
    std::optional<float> scale{};
  };
  const std::vector<Biased> cases = {
      {"nothing else", 5, [](float x, std::int64_t) { return x; }, 0.0F},
      {"next to nothing else", 20, [](float x, std::int64_t) { return 4.0F * x; }, 1e-4F},
      {"large", 5000, [](float x, std::int64_t) { return 1000.0F * x; }},
      {"a common one", 2005, [](float x, std::int64_t) { return 2000.0F + x; }},
      {"a common low one", 2005, [](float x, std::int64_t) { return -2000.0F + x; }},
      {"falls", 7000, [](float x, std::int64_t j) { return x - 10.0F * static_cast<float>(j); }},
      {"grows", 7000, [](float x, std::int64_t j) { return x + 10.0F * static_cast<float>(j); }},
      {"first keys as good as hidden", 5, [](float x, std::int64_t j) { return j < 400 ? -1e9F : x; }},
      {"last keys as good as hidden", 5, [](float x, std::int64_t j) { return j > 400 ? -1e9F : x; }},
      {"lower still", 5, [](float x, std::int64_t j) { return j < 400 ? -1e30F : x; }},
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
        const Difference d = difference(c, {}, c.run(plan), c.emulate(plan.recipe(), {}));
        SCOPED_TRACE(std::string(biased.name) + ", " + name + ", " + to_text(s));
        EXPECT_EQ(d.not_finite, 0);
        // Five roundings of a logit to f32 on either side, in octaves; they flip roundings of e4m3 weights,
        // of which a step is an eighth.
        const double logit = 2 * 5 * 0x1p-24 * std::numbers::log2e * biased.size;
        const bool rounded = plan.recipe().p_format == Format::e4m3;
        const Tolerance t = tolerance_of(plan.recipe(), s);
        const double flips = rounded ? std::sqrt(logit / 8) : logit;
        EXPECT_LE(d.l2, t.l2 + t.flip / std::sqrt(static_cast<double>(d.rows)) + flips) << d.worst;
        EXPECT_LE(d.lse_max, t.lse + t.lse_flips + 0x1p-10 * c.largest_logit() + logit) << d.worst;
      }
    }
  }
}

// Of such a size nothing is left of the scores, neither here nor in the emulator's f32.
TEST(AttendLimits, BiasesThatLeaveNothingOfTheScores) {
  OCTAVO_NEEDS_HOPPER();
  for (const char* name : {"turbo", "turbo.wide", "turbo16", "turbo8", "sage2-8+8", "half"}) {
    for (const std::int64_t one : {-1, 0, 350, 699}) {  // the key far above the others, or none
      for (const float size : {-1e9F, 1e9F}) {
        AttendShape s{.q_len = 100, .kv_len = 700, .bias = Extra::full};
        AttendCase c(s);
        change(c.bias(), [&](float, auto, auto, auto key) { return key == one ? 3e9F : size; });
        c.send();
        const Plan plan = c.make_plan(gpu_recipe(name));
        const AttendResult got = c.run(plan);
        const Difference d = difference(c, {}, got, c.emulate(plan.recipe(), {}));
        SCOPED_TRACE(std::string(name) + ", " + std::to_string(size) + ", key " + std::to_string(one));
        EXPECT_EQ(d.not_finite, 0);
        // Equal weights, or one; what is left is what FP8 accumulators cut from sums of 700 values around 0.
        EXPECT_LE(d.l2, 1e-2) << d.worst;
        for (const float lse : got.lse) EXPECT_NEAR(lse, one < 0 ? size : 3e9F, 0x1p-20F * 3e9F);
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
