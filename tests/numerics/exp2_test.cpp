// The exponentials: error sweep of `exact`, code by code check of `direct`, the pattern of `mixed`.
#include "numerics/exp2.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>

namespace {

using namespace octavo::numerics;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

static_assert(kExp2Poly[0] == 1.0f);
static_assert(exp2_exact(0.0f) == 1.0f && exp2_exact(-126.0f) == 0x1p-126f && exp2_exact(127.0f) == 0x1p127f);
static_assert(exp2_exact(-kInfinity) == 0.0f && exp2_exact(kInfinity) == kInfinity);
static_assert(exp2_direct_e4m3(-kInfinity) == 0 && exp2_direct_e4m3(1e30f) == 0x7E);
static_assert(exp2_direct_e4m3(0.0f) == 0x38);  // 8 * 7 - 0.46 = 55.54 rounds to 56, the code of 1
static_assert(mixed_is_direct(7, 1, 4) && !mixed_is_direct(8, 1, 4) && mixed_is_direct(32, 1, 4));

double relative_error(float x) {
  const long double truth = std::exp2(static_cast<long double>(x));
  return std::fabs(static_cast<double>((static_cast<long double>(exp2_exact(x)) - truth) / truth));
}

TEST(Exp2Exact, RelativeErrorOverTheWholeRange) {
  double worst = 0.0;
  float worst_x = 0.0f;
  const auto visit = [&](float x) {
    const double error = relative_error(x);
    if (error > worst) worst = error, worst_x = x;
  };
  // 2^22 points of [-126, 126), then a finer sweep of the octaves nearest to 0, where weights matter most.
  for (int i = 0; i < (1 << 22); ++i) visit(-126.0f + static_cast<float>(i) * (252.0f / (1 << 22)));
  for (int i = 0; i < (1 << 21); ++i) visit(-1.0f + static_cast<float>(i) * 0x1p-20f);
  visit(std::nextafter(128.0f, 0.0f));
  RecordProperty("worst_e9", static_cast<int>(worst * 1e9));
  EXPECT_LE(worst, 2.5e-7) << "at " << worst_x;  // as the header states; the recipe asks for 1e-5
}

TEST(Exp2Exact, IntegersAreExactAndEdgesFlush) {
  for (int n = -126; n <= 127; ++n) EXPECT_EQ(exp2_exact(static_cast<float>(n)), std::ldexp(1.0f, n));
  EXPECT_EQ(exp2_exact(std::nextafter(-126.0f, -1e9f)), 0.0f);
  EXPECT_EQ(exp2_exact(-1e30f), 0.0f);
  EXPECT_EQ(exp2_exact(128.0f), kInfinity);
  EXPECT_TRUE(std::isnan(exp2_exact(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Exp2Exact, CompileTimeAndRunTimeReturnTheSameBits) {
  constexpr int count = 256;
  constexpr float step = 0.1573f;  // a product alone: a compiler that fuses multiply-adds cannot change it
  constexpr std::array<float, count> folded = [] {
    std::array<float, count> values{};
    for (int i = 0; i < count; ++i)
      values[static_cast<size_t>(i)] = exp2_exact(static_cast<float>(i - 128) * step);
    return values;
  }();
  for (int i = 0; i < count; ++i) {
    volatile float x = static_cast<float>(i - 128) * step;
    EXPECT_EQ(float_bits(exp2_exact(x)), float_bits(folded[static_cast<size_t>(i)])) << i;
  }
}

// The compile-time fma: product exact in double, sum rounded to odd, one rounding to f32.
TEST(Rounding, SumRoundedToOddGivesTheFusedResult) {
  std::mt19937 random(7);
  const auto value = [&](uint32_t exponent_span) {
    const auto bits = static_cast<uint32_t>(random());
    return float_from_bits((bits & 0x807FFFFF) |
                           ((127 - exponent_span / 2 + (bits >> 23) % exponent_span) << 23));
  };
  for (int i = 0; i < 1000000; ++i) {
    const float a = value(40), b = value(40);
    const float c = i % 2 == 0 ? value(80) : -a * b;  // every second one cancels
    const auto via_odd = static_cast<float>(add_round_to_odd(static_cast<double>(a) * b, c));
    ASSERT_EQ(float_bits(via_odd), float_bits(std::fma(a, b, c))) << a << ' ' << b << ' ' << c;
  }
}

TEST(Exp2Direct, IsTheSaturatedNearestCode) {
  for (int i = -4000; i <= 4000; ++i) {
    const float t = static_cast<float>(i) * 0.00437f;
    const double code = 8.0 * (static_cast<double>(t) + 7.0) - 0.46;
    if (std::fabs(code - std::floor(code) - 0.5) < 1e-4) continue;  // f32 may fall on either side of a tie
    const double expected = std::fmin(std::fmax(std::nearbyint(code), 0.0), 126.0);
    ASSERT_EQ(exp2_direct_e4m3(t), static_cast<int>(expected)) << t;
  }
  EXPECT_EQ(exp2_direct_e4m3(-1e38f), 0);
  EXPECT_EQ(exp2_direct_e4m3(std::numeric_limits<float>::quiet_NaN()), 0x7F);
}

TEST(Exp2Direct, WeightErrorStaysInItsBandAndIsCentred) {
  // Before rounding the code, weight / 2^t = (1 + m) 2^-m 2^(-0.46/8), m in [0, 1): [0.961, 1.020],
  // mean 1.0000. Half a code step either way: times 2^(+-1/16). Lowest 0.9609 * 2^(-1/16) = 0.9202 at m = 0,
  // highest 1.0607 * 2^(0.04/8) = 1.0644 at m = 1/2. Rounding adds (ln2/8)^2/24 = 3e-4 to the mean.
  double lowest = 2.0, highest = 0.0, sum = 0.0;
  constexpr int steps = 80000;  // ten whole octaves, t in [-5, 5): codes 16 to 96
  for (int i = 0; i < steps; ++i) {
    const float t = -5.0f + static_cast<float>(i) * (10.0f / steps);
    const double ratio =
        static_cast<double>(e4m3_to_f32(exp2_direct_e4m3(t))) / std::exp2(static_cast<double>(t));
    lowest = std::fmin(lowest, ratio);
    highest = std::fmax(highest, ratio);
    sum += ratio;
  }
  EXPECT_GE(lowest, 0.9200);
  EXPECT_LE(highest, 1.0646);
  EXPECT_NEAR(sum / steps, 1.0, 1e-3);
}

TEST(Exp2Direct, HalfFormRoundsTheCodeToF16First) {
  std::mt19937 random(8);
  std::uniform_real_distribution<float> score(-60.0f, 60.0f), scale(0.1f, 2.0f), constant(20.0f, 119.5f);
  bool differs = false;
  for (int i = 0; i < 200000; ++i) {
    const uint16_t s = f32_to_f16(score(random)), a8 = f32_to_f16(scale(random)),
                   b = f32_to_f16(constant(random));
    // Exact in double: 22-bit product and 11-bit sum, all within 2^7 .. 2^-20.
    const double exact =
        static_cast<double>(f16_to_f32(s)) * f16_to_f32(a8) + static_cast<double>(f16_to_f32(b));
    const double code = std::fmin(std::fmax(std::nearbyint(round_to_f16(exact)), 0.0), 126.0);
    ASSERT_EQ(exp2_direct_e4m3_f16(s, a8, b), static_cast<int>(code)) << s << ' ' << a8 << ' ' << b;
    differs |= code != std::fmin(std::fmax(std::nearbyint(exact), 0.0), 126.0);
  }
  EXPECT_TRUE(differs) << "the f16 rounding has to be visible somewhere";
  EXPECT_EQ(exp2_direct_e4m3_f16(0xFC00, 0x3C00, 0x5640), 0);  // a hidden key: s = -infinity
  EXPECT_EQ(exp2_direct_e4m3_f16(0x7C00, 0x3C00, 0x5640), 0x7E);
}

TEST(Exp2Mixed, TakesTheFirstNOfEveryMGroupsOfEight) {
  int direct = 0;
  for (int key = 0; key < 128; ++key) {
    EXPECT_EQ(mixed_is_direct(key, 3, 4), (key % 32) < 24);
    direct += mixed_is_direct(key, 1, 2);
    EXPECT_TRUE(mixed_is_direct(key, 1, 1));
    EXPECT_FALSE(mixed_is_direct(key, 0, 4));
  }
  EXPECT_EQ(direct, 64);
}

}  // namespace
