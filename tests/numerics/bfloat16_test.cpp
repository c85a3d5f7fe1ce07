// bf16: every code round trips; every tie and its neighbours; NaN survives.
#include "numerics/bfloat16.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "nearest.hpp"

namespace {

using namespace octavo::numerics;

static_assert(bf16_to_f32(0x3F80) == 1.0f && f32_to_bf16(1.0f) == 0x3F80);
static_assert(round_to_bf16(1.0f + 0x1p-8f) == 1.0f && round_to_bf16(1.0f + 3 * 0x1p-8f) == 1.0f + 0x1p-6f);

TEST(Bfloat16, EveryCodeDecodesByDefinitionAndRoundTrips) {
  for (unsigned code = 0; code < 0x10000; ++code) {
    const auto bf16 = static_cast<uint16_t>(code);
    const float value = bf16_to_f32(bf16);
    if ((code & 0x7FFF) > 0x7F80) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(f32_to_bf16(value), code | 0x40) << "quiet, same sign and payload";
      continue;
    }
    if ((code & 0x7FFF) == 0x7F80) {
      EXPECT_TRUE(std::isinf(value));
    } else {
      EXPECT_EQ(value, octavo::test::decode_by_definition(code, 8, 7)) << code;
    }
    EXPECT_EQ(f32_to_bf16(value), bf16);
  }
}

TEST(Bfloat16, TiesGoToEvenAndNeighboursOfTiesDoNot) {
  for (unsigned low = 0; low < 0x7F80; ++low) {
    const uint32_t middle = (low << 16) | 0x8000;
    EXPECT_EQ(f32_to_bf16(float_from_bits(middle)), low % 2 == 0 ? low : low + 1);
    EXPECT_EQ(f32_to_bf16(float_from_bits(middle - 1)), low);
    EXPECT_EQ(f32_to_bf16(float_from_bits(middle + 1)), low + 1);
    EXPECT_EQ(f32_to_bf16(float_from_bits(middle | 0x80000000)), 0x8000 | (low % 2 == 0 ? low : low + 1));
  }
}

TEST(Bfloat16, NanWithPayloadOnlyInTheDroppedBitsStaysNan) {
  EXPECT_TRUE(std::isnan(round_to_bf16(float_from_bits(0x7F800001))));
  EXPECT_TRUE(std::isnan(round_to_bf16(float_from_bits(0xFFFFFFFF))));
  EXPECT_TRUE(std::isinf(round_to_bf16(3.4e38f)));
}

}  // namespace
