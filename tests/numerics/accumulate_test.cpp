// The f16 accumulator model: one rounding, overflow to infinity, swallowed small sums.
#include "numerics/accumulate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "nearest.hpp"
#include "numerics/e4m3.hpp"

namespace {

using namespace octavo::numerics;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

static_assert(f16_accumulate(1.0f, 2.0) == 3.0f);
static_assert(f16_accumulate(2048.0f, 1.0) == 2048.0f && f16_accumulate(2050.0f, 1.0) == 2052.0f);

TEST(F16Accumulate, OverflowsFromHalfwayToTheNextBinade) {
  EXPECT_EQ(f16_accumulate(65504.0f, 15.9), 65504.0f);
  EXPECT_EQ(f16_accumulate(65504.0f, 16.0), kInfinity);
  EXPECT_EQ(f16_accumulate(-65504.0f, -16.0), -kInfinity);
  EXPECT_EQ(f16_accumulate(0.0f, 32 * 448.0 * 448.0), kInfinity);
  EXPECT_EQ(f16_accumulate(kInfinity, -1e6), kInfinity) << "an overflow cannot be undone";
  // The published budget: 224 * 4.5 * 32 products fit twice, at three steps they do not.
  const double step = 32 * 224.0 * 4.5;
  const float two = f16_accumulate(f16_accumulate(0.0f, step), step);
  EXPECT_EQ(two, 64512.0f);
  EXPECT_EQ(f16_accumulate(two, step), kInfinity);
}

TEST(F16Accumulate, SeesASumFarBelowADoublesLastBit) {
  // 2048 + 1 is a tie; 2^-60 more decides it although 2049 + 2^-60 is not a double.
  EXPECT_EQ(f16_accumulate(2048.0f, 1.0), 2048.0f);
  EXPECT_EQ(f16_accumulate(2048.0f, std::nextafter(1.0, 2.0)), 2050.0f);
  EXPECT_EQ(f16_accumulate(1.0f, 0x1p-11 + 0x1p-60), 1.0f + 0x1p-10f);
}

// Any e4m3 products: against the exact sum in units of 2^-24, which an int64 holds.
TEST(F16Accumulate, EqualsTheExactSumRoundedOnce) {
  std::mt19937 random(9);
  for (int trial = 0; trial < 20000; ++trial) {
    const int exponent_range = 1 + trial % 15;
    double sum = 0.0;
    for (int i = 0; i < 32; ++i) {
      const auto code = [&] {
        return static_cast<uint8_t>(random() % static_cast<unsigned>(8 * exponent_range));
      };
      const float sign = (random() & 1) != 0 ? -1.0f : 1.0f;
      const double a = static_cast<double>(e4m3_to_f32(code()));
      sum += static_cast<double>(sign) * a * static_cast<double>(e4m3_to_f32(code()));
    }
    const auto half = static_cast<uint16_t>(random() & 0xBFFF);  // |accumulator| < 2
    const double accumulator = static_cast<double>(f16_to_f32(half));
    const double scaled = std::ldexp(sum, 24);
    ASSERT_EQ(scaled, std::nearbyint(scaled));
    const auto exact = static_cast<int64_t>(scaled) + static_cast<int64_t>(std::ldexp(accumulator, 24));
    ASSERT_LT(std::llabs(exact), int64_t{1} << 53);
    const double expected_input = std::ldexp(static_cast<double>(exact), -24);
    const uint16_t got = f32_to_f16(f16_accumulate(f16_to_f32(half), sum));
    const uint16_t expected = octavo::test::nearest_f16(expected_input);
    if (exact == 0) {
      ASSERT_EQ(got & 0x7FFF, 0);
    } else {
      ASSERT_EQ(got, expected) << sum << " + " << accumulator;
    }
  }
}

}  // namespace
