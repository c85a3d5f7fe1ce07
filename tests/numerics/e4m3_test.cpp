// e4m3: all 256 codes, all f16 inputs, and f32 edges against a search over the exact grid.
#include "numerics/e4m3.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "nearest.hpp"
#include "numerics/float16.hpp"

namespace {

using namespace octavo::numerics;

static_assert(e4m3_to_f32(0x38) == 1.0f && e4m3_to_f32(0x7E) == kE4m3Max && e4m3_to_f32(0x01) == 0x1p-9f);
static_assert(f32_to_e4m3(1.0f) == 0x38 && f32_to_e4m3(-1e9f) == 0xFE && f32_to_e4m3(0x1p-10f) == 0x00);
static_assert(round_to_e4m3(4.6f) == 4.5f);

const std::vector<double>& magnitudes() {
  static const std::vector<double> values = [] {
    std::vector<double> v;
    for (unsigned code = 0; code <= 0x7E; ++code) v.push_back(octavo::test::decode_by_definition(code, 4, 3));
    return v;
  }();
  return values;
}

uint8_t nearest_e4m3(float x) {
  const unsigned sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return static_cast<uint8_t>(sign | 0x7F);
  return static_cast<uint8_t>(sign | octavo::test::nearest_even_code<double>(std::fabs(x), magnitudes()));
}

void expect_nearest(float x) {
  ASSERT_EQ(f32_to_e4m3(x), nearest_e4m3(x)) << x << " bits " << std::hex << float_bits(x);
}

TEST(E4m3, EveryCodeDecodesByDefinitionAndRoundTrips) {
  for (unsigned code = 0; code < 256; ++code) {
    const float value = e4m3_to_f32(static_cast<uint8_t>(code));
    EXPECT_EQ(std::signbit(value), code >= 0x80);
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(value, octavo::test::decode_by_definition(code, 4, 3));
    }
    EXPECT_EQ(f32_to_e4m3(value), code);
  }
}

TEST(E4m3, EveryF16ValueEncodesToTheNearest) {
  for (unsigned code = 0; code < 0x10000; ++code) expect_nearest(f16_to_f32(static_cast<uint16_t>(code)));
}

TEST(E4m3, TiesAndTheirF32Neighbours) {
  for (size_t code = 0; code + 1 < magnitudes().size(); ++code) {
    const auto middle = static_cast<float>((magnitudes()[code] + magnitudes()[code + 1]) / 2);
    for (const float sign : {1.0f, -1.0f}) {
      expect_nearest(sign * middle);
      expect_nearest(sign * std::nextafter(middle, 0.0f));
      expect_nearest(sign * std::nextafter(middle, 1e9f));
    }
    EXPECT_EQ(f32_to_e4m3(middle) & 1, 0) << "a tie goes to the even code";
  }
}

TEST(E4m3, RandomF32BitPatterns) {
  std::mt19937 random(4);
  for (int i = 0; i < 1000000; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    expect_nearest(float_from_bits(bits));
    // The same mantissa with an exponent in and just outside of e4m3's range, 2^-12 .. 2^11.
    expect_nearest(float_from_bits((bits & 0x807FFFFF) | ((115 + (bits >> 23) % 24) << 23)));
  }
}

TEST(E4m3, SaturatesAndKeepsNan) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {448.0f, 464.0f, 465.0f, 480.0f, 1e30f, infinity}) {
    EXPECT_EQ(f32_to_e4m3(x), 0x7E);
    EXPECT_EQ(f32_to_e4m3(-x), 0xFE);
  }
  EXPECT_EQ(f32_to_e4m3(float_from_bits(0x7F800001)), 0x7F);
  EXPECT_EQ(f32_to_e4m3(float_from_bits(0xFFC00000)), 0xFF);
  EXPECT_EQ(f32_to_e4m3(-0.0f), 0x80);
}

}  // namespace
