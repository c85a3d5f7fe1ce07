// The emulator's first half, seen through its logits: groups, formats, q_absmax, smoothing and rotation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "numerics/e4m3.hpp"
#include "numerics/float16.hpp"
#include "reference/emulate.hpp"
#include "reference/problems.hpp"

namespace octavo::testing {
namespace {

constexpr double kLog2e = 1.4426950408889634;

/// The logits a recipe gives, [q_heads][q_len][k_len] of batch entry 0.
std::vector<float> logits_of(const Case& c, const Recipe& recipe, const AttentionOptions& options) {
  std::vector<float> logits(static_cast<std::size_t>(c.q_heads * c.q_len * c.k_len));
  const Result<Problem> problem = make_problem(c.q_view(), c.k_view(), c.v_view(), options);
  EXPECT_TRUE(problem.ok()) << problem.status().message();
  std::vector<float> o(c.q.size());
  reference::EmulateHooks hooks;
  hooks.logits_out = [&](std::int64_t, std::int64_t head) {
    return logits.data() + head * c.q_len * c.k_len;
  };
  const Status s = reference::emulate_rows(
      *problem, recipe, c.q_view(), c.k_view(), c.v_view(), {},
      MutableTensorView(o.data(), DType::f32, {1, c.q_heads, c.q_len, c.channels}), {}, hooks);
  EXPECT_TRUE(s.ok()) << s.message();
  return logits;
}

/// Rows with the same number share a scale; docs/numerics.md, "Groups".
std::int64_t group(Granularity g, bool query, std::int64_t n) {
  switch (g) {
    case Granularity::per_block:
      return n / (query ? 128 : 64);
    case Granularity::per_warp:
      return n / (query ? 32 : 64);
    case Granularity::per_thread:
      return query ? n / 32 * 1000 + n % 8 : n / 64 * 1000 + (n % 8) / 2;
    case Granularity::per_token:
      return n;
    default:
      return 0;
  }
}

/// x quantized and multiplied back, by the definition: amax of the group over `range`, nearest grid value.
std::vector<double> dequantized(const float* x, std::int64_t rows, std::int64_t channels, Granularity g,
                                bool query, Format format, float range) {
  std::vector<double> y(static_cast<std::size_t>(rows * channels));
  for (std::int64_t i = 0; i < rows; ++i) {
    float amax = 0.0F;
    for (std::int64_t other = 0; other < rows; ++other) {
      if (group(g, query, other) != group(g, query, i)) continue;
      for (std::int64_t d = 0; d < channels; ++d) amax = std::max(amax, std::abs(x[other * channels + d]));
    }
    const float delta = amax / range;
    for (std::int64_t d = 0; d < channels; ++d) {
      const float scaled = x[i * channels + d] / delta;
      const float grid = format == Format::e4m3 ? numerics::round_to_e4m3(scaled) : std::nearbyint(scaled);
      y[static_cast<std::size_t>(i * channels + d)] = static_cast<double>(grid) * static_cast<double>(delta);
    }
  }
  return y;
}

TEST(Groups, LogitsAreThoseOfOperandsQuantizedByTheDefinition) {
  Case c{.name = "plain", .q_heads = 4, .kv_heads = 2, .q_len = 150, .k_len = 140, .channels = 24};
  c.fill();
  for (std::size_t i = 0; i < c.q.size(); ++i) c.q[i] *= 1.0F + static_cast<float>(i % 997) / 200.0F;
  struct Kind {
    Format format;
    float range;
    QkAccumulator accumulator;
  };
  const Kind kinds[] = {{Format::int8, 127.0F, QkAccumulator::s32},
                        {Format::int4, 7.0F, QkAccumulator::s32},
                        {Format::e4m3, 448.0F, QkAccumulator::f32},
                        {Format::e4m3, 22.0F, QkAccumulator::f32}};
  const Granularity all[] = {Granularity::per_head, Granularity::per_block, Granularity::per_warp,
                             Granularity::per_thread, Granularity::per_token};
  for (const Kind& kind : kinds) {
    for (const Granularity g : all) {
      SCOPED_TRACE(::testing::Message() << "format " << static_cast<int>(kind.format) << " range "
                                        << kind.range << " group " << static_cast<int>(g));
      Recipe r = preset("sage2-8+8");
      r.smooth_k = false;
      r.qk_format = kind.format;
      r.qk_accumulator = kind.accumulator;
      r.q_range = r.k_range = kind.range;
      r.q_group = g;
      r.k_group = g == Granularity::per_token ? Granularity::per_block : g;  // the two are independent
      const std::vector<float> logits = logits_of(c, r, c.options());
      double worst = 0.0;
      double largest = 0.0;
      for (std::int64_t h = 0; h < c.q_heads; ++h) {
        const std::vector<double> q = dequantized(c.q.data() + h * c.q_len * c.channels, c.q_len, c.channels,
                                                  r.q_group, true, kind.format, kind.range);
        const std::vector<double> k = dequantized(c.k.data() + h / 2 * c.k_len * c.channels, c.k_len,
                                                  c.channels, r.k_group, false, kind.format, kind.range);
        for (std::int64_t i = 0; i < c.q_len; ++i) {
          for (std::int64_t j = 0; j < c.k_len; ++j) {
            double want = 0.0;
            for (std::int64_t d = 0; d < c.channels; ++d)
              want += q[static_cast<std::size_t>(i * c.channels + d)] *
                      k[static_cast<std::size_t>(j * c.channels + d)];
            want *= kLog2e / std::sqrt(static_cast<double>(c.channels));
            largest = std::max(largest, std::abs(want));
            worst = std::max(
                worst,
                std::abs(want - static_cast<double>(
                                    logits[static_cast<std::size_t>((h * c.q_len + i) * c.k_len + j)])));
          }
        }
      }
      // Codes equal, so only the f32 scales and e4m3's f32 sums differ: a few units of 2^-24 (24 of them in
      // the sums).
      EXPECT_LE(worst, 2e-6 * largest);
    }
  }
}

TEST(F16Accumulator, RoundsOnceAfterEachTensorCoreStep) {
  for (const Format format : {Format::f16, Format::e4m3}) {
    Case c{.name = "plain", .q_heads = 1, .kv_heads = 1, .q_len = 40, .k_len = 50, .channels = 72};
    c.fill();
    // Values on the operand's grid with amax 16 = R, so that delta is 1 and the codes are the values.
    for (std::vector<float>* x : {&c.q, &c.k}) {
      for (float& value : *x)
        value = format == Format::f16 ? numerics::round_to_f16(value) : numerics::round_to_e4m3(2.0F * value);
      x->front() = 16.0F;
    }
    Recipe r = preset("turbo16");
    r.smooth_k = false;
    r.qk_format = format;
    if (format == Format::e4m3) {
      r.q_group = r.k_group = Granularity::per_head;
      r.q_range = r.k_range = 16.0F;
    }
    const std::int64_t step = format == Format::e4m3 ? 32 : 16;  // channels of one product instruction
    const std::vector<float> logits = logits_of(c, r, c.options());
    const double unit = kLog2e / std::sqrt(static_cast<double>(c.channels));
    for (std::int64_t i = 0; i < c.q_len; ++i) {
      for (std::int64_t j = 0; j < c.k_len; ++j) {
        double acc = 0.0;
        for (std::int64_t d = 0; d < c.channels; ++d) {
          acc += static_cast<double>(c.q[static_cast<std::size_t>(i * c.channels + d)]) *
                 static_cast<double>(c.k[static_cast<std::size_t>(j * c.channels + d)]);
          if ((d + 1) % step == 0 || d + 1 == c.channels) acc = numerics::round_to_f16(acc);
        }
        // The accumulator itself is equal; its scaling is f32.
        ASSERT_NEAR(static_cast<double>(logits[static_cast<std::size_t>(i * c.k_len + j)]), acc * unit,
                    3e-7 * std::abs(acc * unit));
      }
    }
  }
}

TEST(QAbsmax, SetsTheScaleAndClampsTheQueries) {
  Case c{.name = "plain", .q_heads = 2, .kv_heads = 1, .q_len = 40, .k_len = 50};
  c.fill();
  c.q[5] = 9.0F;  // beyond the given range, head 0
  const std::vector<float> given{2.5F, 1.5F};
  AttentionOptions options = c.options();
  options.q_absmax = TensorView(given.data(), DType::f32, {2});

  Case clamped = c;
  for (std::size_t i = 0; i < c.q.size(); ++i) {
    const float limit = given[i / static_cast<std::size_t>(c.q_len * c.channels)];
    clamped.q[i] = std::clamp(c.q[i], -limit, limit);
  }
  // One query of each head reaches the range, so a scale per head is the given one.
  clamped.q[0] = given[0];
  c.q[0] = 100.0F;
  clamped.q[static_cast<std::size_t>(c.q_len * c.channels)] = -given[1];
  c.q[static_cast<std::size_t>(c.q_len * c.channels)] = -7.0F;
  for (const char* name : {"fp8-icl", "int8-icl"}) {
    SCOPED_TRACE(name);
    Recipe r = preset(name);
    r.q_group = Granularity::per_head;
    const Answer want = run(clamped, r, "reference.emulate");
    r.q_group = preset(name).q_group;
    const Answer got = run(c, r, "reference.emulate", options);
    ASSERT_TRUE(got.status.ok()) << got.status.message();
    EXPECT_EQ(got.o, want.o);
    EXPECT_EQ(got.lse, want.lse);
  }
}

TEST(QAbsmax, MakesARowIndependentOfTheOthers) {
  Case c{.name = "plain", .q_len = 40, .k_len = 120};
  c.fill();
  Case fewer = c;
  fewer.q_len = 1;
  fewer.q_heads = fewer.kv_heads = 1;
  fewer.q.resize(static_cast<std::size_t>(c.channels));
  fewer.k.resize(static_cast<std::size_t>(c.k_len * c.channels));
  fewer.v.resize(fewer.k.size());
  const std::vector<float> given{4.0F, 4.0F};
  for (const char* name : {"turbo-icl", "fp8-icl", "int8-icl", "turbo8"}) {
    SCOPED_TRACE(name);
    AttentionOptions all = c.options();
    AttentionOptions one = fewer.options();
    if (std::string(name).find("-icl") != std::string::npos && std::string(name) != "int8-icl") {
      all.q_absmax = TensorView(given.data(), DType::f32, {2});
      one.q_absmax = TensorView(given.data(), DType::f32, {1});
    }
    const Answer batch = run(c, preset(name), "reference.emulate", all);
    const Answer single = run(fewer, preset(name), "reference.emulate", one);
    ASSERT_TRUE(batch.status.ok()) << batch.status.message();
    ASSERT_TRUE(single.status.ok());
    for (std::size_t d = 0; d < single.o.size(); ++d) EXPECT_EQ(single.o[d], batch.o[d]);
    EXPECT_EQ(single.lse[0], batch.lse[0]);
  }
}

TEST(Smoothing, MeansAndRotationChangeNothingWithoutRounding) {
  for (const Case& c : visibility_cases()) {
    SCOPED_TRACE(c.name);
    const Answer want = run(c, preset("exact"), "reference.exact");
    const std::function<void(Recipe&)> changes[] = {
        [](Recipe& r) { r.smooth_k = true; },
        [](Recipe& r) { r.smooth_q = true; },
        [](Recipe& r) { r.smooth_v = true; },
        [](Recipe& r) { r.rotate = Rotation::hadamard; },
        [](Recipe& r) {
          r.smooth_k = r.smooth_q = r.smooth_v = true;
          r.rotate = Rotation::hadamard;
          r.rotate_seed = 77;
        },
    };
    for (const auto& change : changes) {
      const Answer got = run(c, unrounded(change), "reference.emulate");
      ASSERT_TRUE(got.status.ok()) << got.status.message();
      // f32 subtraction, rotation and logits: 2^-24 of values up to 5, summed over 32 channels, on logits up
      // to 10.
      EXPECT_LE(max_difference(got.o, want.o), 1e-5);
      EXPECT_LE(max_difference(got.lse, want.lse), 1e-5);
    }
  }
}

TEST(Smoothing, RemovesAKeyMeanThatSwampsInt8) {
  Case c{.name = "outlier channel", .q_len = 100, .k_len = 200};
  c.fill();
  for (std::size_t i = 3; i < c.k.size(); i += static_cast<std::size_t>(c.channels)) c.k[i] += 60.0F;
  const Answer want = run(c, preset("exact"), "reference.exact");
  Recipe r = preset("sage2-8+8");
  const double smooth = relative_l1(run(c, r, "reference.emulate").o, want.o);
  r.smooth_k = false;
  const double rough = relative_l1(run(c, r, "reference.emulate").o, want.o);
  EXPECT_LE(smooth, 0.04);
  EXPECT_GE(rough, 3.0 * smooth);
}

TEST(Rotation, SpreadsAZeroMeanOutlierChannel) {
  Case c{.name = "outlier channel", .q_len = 100, .k_len = 200, .channels = 48};
  c.fill();
  for (std::size_t i = 3; i < c.k.size(); i += static_cast<std::size_t>(c.channels)) {
    c.k[i] *= 40.0F;
    c.q[i % c.q.size()] *= 0.02F;
  }
  const Answer want = run(c, preset("exact"), "reference.exact");
  Recipe r = preset("sage2-8+8");
  const double plain = relative_l1(run(c, r, "reference.emulate").o, want.o);
  r.rotate = Rotation::hadamard;
  const double rotated = relative_l1(run(c, r, "reference.emulate").o, want.o);
  EXPECT_LE(rotated, 0.7 * plain);
}

TEST(Scales, TinyHugeAndZeroInputsSurvive) {
  Case c{.name = "plain", .q_len = 60, .k_len = 90};
  c.fill();
  for (const Preset& p : presets()) {
    if (p.name == "auto" || p.name == "turbo16" || p.name == "half")
      continue;  // f16 operands have f16's range
    SCOPED_TRACE(p.name);
    const Answer want = run(c, preset(p.name), "reference.emulate");
    Case small = c;
    for (float& x : small.k) x *= 0x1p-27F;  // about 1e-8
    for (float& x : small.q) x *= 0x1p+27F;
    for (float& x : small.v) x *= 0x1p-20F;
    const Answer got = run(small, preset(p.name), "reference.emulate");
    const float back = 0x1p+20F;
    std::vector<float> o = got.o;
    for (float& x : o) x *= back;
    if (p.name == "sage-8+16") {  // V itself is f16 here, whose smallest step shows at 2^-20
      EXPECT_LE(relative_l1(o, want.o), 0.05);
      continue;
    }
    EXPECT_EQ(o, want.o);
    EXPECT_EQ(got.lse, want.lse);

    Case zero = c;
    std::fill(zero.k.begin(), zero.k.end(), 0.0F);
    for (std::size_t i = 2; i < zero.v.size(); i += static_cast<std::size_t>(c.channels)) zero.v[i] = 0.0F;
    const Answer flat = run(zero, preset(p.name), "reference.emulate");
    for (std::size_t i = 2; i < flat.o.size(); i += static_cast<std::size_t>(c.channels))
      ASSERT_EQ(flat.o[i], 0.0F);
    for (const float x : flat.o) ASSERT_TRUE(std::isfinite(x));
  }
}

}  // namespace
}  // namespace octavo::testing
