// int8 / int4 quantization: nearest even, symmetric clamp, nibble order, group scales.
#include "numerics/integers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace {

using namespace octavo::numerics;

static_assert(quantize_integer(2.5f, kInt8Limit) == 2 && quantize_integer(-3.5f, kInt8Limit) == -4);
static_assert(quantize_integer(1e30f, kInt4Limit) == 7 && quantize_integer(-7.6f, kInt4Limit) == -7);
static_assert(unpack_int4_low(pack_int4(-7, 5)) == -7 && unpack_int4_high(pack_int4(-7, 5)) == 5);
static_assert(pack_int4(1, -1) == 0xF1);
static_assert(group_delta(254.0f, 127.0f) == 2.0f && group_delta(0.0f, 7.0f) == 1.0f);

TEST(Integers, RoundsTiesToEvenAndClamps) {
  // All multiples of 1/16 far beyond the limits: every tie and both sides of it.
  for (const int limit : {kInt8Limit, kInt4Limit}) {
    for (int sixteenth = -4096; sixteenth <= 4096; ++sixteenth) {
      const float x = static_cast<float>(sixteenth) / 16.0f;
      const int expected = std::clamp(static_cast<int>(std::nearbyint(x)), -limit, limit);
      ASSERT_EQ(quantize_integer(x, limit), expected) << x;
    }
  }
  std::mt19937 random(5);
  std::uniform_real_distribution<float> value(-140.0f, 140.0f);
  for (int i = 0; i < 200000; ++i) {
    const float x = value(random);
    ASSERT_EQ(quantize_integer(x, kInt8Limit), std::clamp(static_cast<int>(std::nearbyint(x)), -127, 127))
        << x;
  }
}

TEST(Integers, NextToTies) {
  for (int n = -127; n < 127; ++n) {
    const float tie = static_cast<float>(n) + 0.5f;
    EXPECT_EQ(quantize_integer(std::nextafter(tie, -1e9f), kInt8Limit), n);
    EXPECT_EQ(quantize_integer(std::nextafter(tie, 1e9f), kInt8Limit), n + 1);
    EXPECT_EQ(quantize_integer(tie, kInt8Limit), n % 2 == 0 ? n : n + 1);
  }
}

TEST(Integers, InfinityClampsAndNanIsZero) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(quantize_integer(infinity, kInt8Limit), 127);
  EXPECT_EQ(quantize_integer(-infinity, kInt8Limit), -127);
  EXPECT_EQ(quantize_integer(std::numeric_limits<float>::quiet_NaN(), kInt8Limit), 0);
}

TEST(Integers, NibblesRoundTripWithTheEvenChannelLow) {
  for (int low = -8; low <= 7; ++low) {
    for (int high = -8; high <= 7; ++high) {
      const uint8_t packed = pack_int4(low, high);
      EXPECT_EQ(packed & 0xF, low & 0xF);
      EXPECT_EQ(unpack_int4_low(packed), low);
      EXPECT_EQ(unpack_int4_high(packed), high);
    }
  }
}

TEST(Integers, OnlyAVanishingGroupGetsTheUnitScale) {
  EXPECT_EQ(group_delta(1e-8f, 127.0f), 1e-8f / 127.0f);
  EXPECT_EQ(group_delta(kZeroGroupAmax, 127.0f), kZeroGroupAmax / 127.0f);
  const float below = std::nextafter(kZeroGroupAmax, 0.0f);
  EXPECT_EQ(group_delta(below, 127.0f), 1.0f);
  EXPECT_EQ(quantize_integer(below / group_delta(below, 127.0f), kInt8Limit), 0);
  // The largest element of any other group reaches the limit exactly: amax / delta rounds to 127 even
  // after two f32 roundings, whose error 127 * 2^-23 is far from half a step.
  std::mt19937 random(6);
  std::uniform_real_distribution<float> exponent(-100.0f, 100.0f);
  for (int i = 0; i < 10000; ++i) {
    const float amax = std::exp2(exponent(random));
    EXPECT_EQ(quantize_integer(amax / group_delta(amax, 127.0f), kInt8Limit), 127);
    EXPECT_EQ(quantize_integer(-amax / group_delta(amax, 7.0f), kInt4Limit), -7);
  }
}

}  // namespace
