// Logits at and beyond what the kernels' constants hold: a row comes out right or NaN, never as one that sees
// no key, and every kernel ends.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "core/rows.hpp"
#include "cuda/attend_case.hpp"

namespace octavo::test {
namespace {

/// Every element of a tensor becomes value(token, channel).
void set(const MutableTensorView& t, Layout layout, std::int64_t tokens,
         const std::function<float(std::int64_t, std::int64_t)>& value) {
  const MutableHeadsView at = heads_view(t, layout);
  for (std::int64_t head = 0; head < 2; ++head) {
    for (std::int64_t token = 0; token < tokens; ++token) {
      for (std::int64_t d = 0; d < 64; ++d) {
        write_element(at.data, at.dtype, at.offset(0, head, token) + d * at.channel_stride, value(token, d));
      }
    }
  }
}

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
      set(c.q(), Layout::hnd, 64, [&](std::int64_t, std::int64_t) { return size; });
      set(c.k(), Layout::hnd, 64,
          [&](std::int64_t token, std::int64_t) { return token < 32 ? -size : size; });
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
        set(c.q(), Layout::hnd, 1, [&](std::int64_t, std::int64_t) { return size; });
        set(c.k(), Layout::hnd, 384,
            [&](std::int64_t token, std::int64_t) { return (token < 192) == (sign < 0) ? -size : size; });
        c.send();
        expect_right_or_nan(c, name);
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
