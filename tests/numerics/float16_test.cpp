// f16: every code, every tie, one rounding from f64, exact fused multiply-add; F16C where the processor has
// it.
#include "numerics/float16.hpp"

#include <gtest/gtest.h>
#include <immintrin.h>

#include <cmath>
#include <limits>
#include <random>

#include "nearest.hpp"

namespace {

using namespace octavo::numerics;
using octavo::test::decode_by_definition;
using octavo::test::nearest_f16;

static_assert(f16_to_f32(0x3C00) == 1.0f && f16_to_f32(0x0001) == 0x1p-24f && f16_to_f32(0x7BFF) == kF16Max);
static_assert(f32_to_f16(65519.0f) == 0x7BFF && f32_to_f16(65520.0f) == 0x7C00 &&
              f32_to_f16(-0.0f) == 0x8000);
static_assert(f64_to_f16(1.0 + 0x1p-11 + 0x1p-40) == 0x3C01 && f64_to_f16(1.0 + 0x1p-11) == 0x3C00);
static_assert(round_to_f16(0.1f) == 0x1.998p-4f && round_to_f16(0.1) == 0x1.998p-4);
static_assert(fma_f16(0x3C00, 0x4000, 0x4200) == 0x4500);  // 1 * 2 + 3 == 5
static_assert(fma_f16(0x7C00, 0x0000, 0x3C00) == 0x7FFF && fma_f16(0x7C00, 0xBC00, 0x3C00) == 0xFC00);

bool is_nan_code(unsigned code) { return (code & 0x7FFF) > 0x7C00; }

TEST(Float16, EveryCodeDecodesByDefinitionAndRoundTrips) {
  for (unsigned code = 0; code < 0x10000; ++code) {
    const auto half = static_cast<uint16_t>(code);
    const float value = f16_to_f32(half);
    if (is_nan_code(code)) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_TRUE(is_nan_code(f32_to_f16(value))) << code;
      EXPECT_TRUE(is_nan_code(f64_to_f16(static_cast<double>(value)))) << code;
      continue;
    }
    if ((code & 0x7FFF) == 0x7C00) {
      EXPECT_TRUE(std::isinf(value)) << code;
    } else {
      EXPECT_EQ(value, decode_by_definition(code, 5, 10)) << code;
    }
    EXPECT_EQ(std::signbit(value), (code & 0x8000) != 0) << code;
    EXPECT_EQ(f32_to_f16(value), half);
    EXPECT_EQ(f64_to_f16(static_cast<double>(value)), half);
  }
}

// Every midpoint between neighbours, and one f32 / f64 step to either side of it.
TEST(Float16, TiesGoToEvenAndNeighboursOfTiesDoNot) {
  const std::vector<double> values = octavo::test::f16_magnitudes();
  for (size_t code = 0; code + 1 < values.size(); ++code) {
    const double middle = (values[code] + values[code + 1]) / 2;
    const auto low = static_cast<uint16_t>(code);
    const auto high = static_cast<uint16_t>(code + 1);
    const uint16_t even = code % 2 == 0 ? low : high;
    const auto single = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(single), middle);
    EXPECT_EQ(f64_to_f16(middle), even);
    EXPECT_EQ(f64_to_f16(std::nextafter(middle, 0.0)), low);
    EXPECT_EQ(f64_to_f16(std::nextafter(middle, 1e9)), high);
    EXPECT_EQ(f32_to_f16(single), even);
    EXPECT_EQ(f32_to_f16(std::nextafter(single, 0.0f)), low);
    EXPECT_EQ(f32_to_f16(std::nextafter(single, 1e9f)), high);
    EXPECT_EQ(f64_to_f16(-middle), even | 0x8000);
  }
}

TEST(Float16, ConversionFromDoubleRoundsOnce) {
  // Just above a tie by less than an f32 step: two roundings end at the even neighbour below.
  const double above = 1.0 + 0x1p-11 + 0x1p-40;
  EXPECT_EQ(f64_to_f16(above), 0x3C01);
  EXPECT_EQ(f32_to_f16(static_cast<float>(above)), 0x3C00);
  const double below = 1.0 + 3 * 0x1p-11 - 0x1p-40;
  EXPECT_EQ(f64_to_f16(below), 0x3C01);
  EXPECT_EQ(f32_to_f16(static_cast<float>(below)), 0x3C02);
  EXPECT_EQ(f64_to_f16(0x1p-25 + 0x1p-70), 0x0001);
  EXPECT_EQ(f64_to_f16(0x1p-25), 0x0000);
  EXPECT_EQ(f64_to_f16(65520.0 - 0x1p-30), 0x7BFF);
  EXPECT_EQ(f64_to_f16(1e300), 0x7C00);
  EXPECT_EQ(f64_to_f16(-5e-324), 0x8000);
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> exponent(-30, 17), sign(-1, 1);
  for (int i = 0; i < 200000; ++i) {
    const double x = std::copysign(std::exp2(exponent(random)), sign(random));
    ASSERT_EQ(f64_to_f16(x), nearest_f16(x)) << x;
    ASSERT_EQ(f32_to_f16(static_cast<float>(x)), nearest_f16(static_cast<float>(x))) << x;
  }
}

__attribute__((target("f16c"))) void convert_in_hardware(const float* x, uint16_t* half, float* back) {
  const __m128i codes = _mm_cvtps_ph(_mm_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(half), codes);
  _mm_storeu_ps(back, _mm_cvtph_ps(codes));
}

// Random f32 bit patterns (NaN payloads, denormals and infinities among them): same bits both ways.
TEST(Float16, AgreesWithF16C) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "no AVX2, and so perhaps no F16C";
  std::mt19937 random(2);
  for (unsigned i = 0; i < 4000000; i += 4) {
    float x[4], back[4];
    uint16_t half[4];
    for (unsigned lane = 0; lane < 4; ++lane) {
      // Half of them within f16's exponents, the others anywhere.
      uint32_t bits = static_cast<uint32_t>(random());
      if (lane % 2 == 0) bits = (bits & 0x80FFFFFF) | ((100 + (bits >> 24) % 24 * 2) << 23);
      x[lane] = float_from_bits(bits);
    }
    convert_in_hardware(x, half, back);
    for (int lane = 0; lane < 4; ++lane) {
      ASSERT_EQ(f32_to_f16(x[lane]), half[lane]) << std::hex << float_bits(x[lane]);
      ASSERT_EQ(float_bits(f16_to_f32(half[lane])), float_bits(back[lane])) << std::hex << half[lane];
    }
  }
}

__extension__ typedef __int128 Integer;  // a standard integer type is too short for an exact a * b + c

// f16 values in units of 2^-24 are integers below 2^41, so a * b + c in units of 2^-48 is one below 2^82.
Integer in_units(uint16_t half) {
  const int exponent = (half >> 10) & 0x1F;
  const int mantissa = half & 0x3FF;
  const Integer magnitude = exponent == 0 ? Integer{mantissa} : Integer{mantissa + 1024} << (exponent - 1);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

uint16_t exact_fma(uint16_t a, uint16_t b, uint16_t c) {
  static const std::vector<Integer> magnitudes = [] {
    std::vector<Integer> values;
    for (unsigned code = 0; code <= 0x7C00; ++code)
      values.push_back(in_units(static_cast<uint16_t>(code)) << 24);
    return values;
  }();
  const Integer sum = in_units(a) * in_units(b) + (in_units(c) << 24);
  // An exact zero is +0 unless both terms are negative zeros or negative.
  bool negative = sum < 0;
  if (sum == 0) negative = ((a ^ b) & 0x8000) != 0 && (c & 0x8000) != 0;
  const unsigned code = octavo::test::nearest_even_code<Integer>(sum < 0 ? -sum : sum, magnitudes);
  return static_cast<uint16_t>(code | (negative ? 0x8000U : 0U));
}

TEST(Float16, FusedMultiplyAddIsExactThenRoundedOnce) {
  std::mt19937 random(3);
  const auto finite = [&] {
    for (;;) {
      const auto half = static_cast<uint16_t>(random());
      if ((half & 0x7C00) != 0x7C00) return half;
    }
  };
  for (int i = 0; i < 1000000; ++i) {
    const uint16_t a = finite(), b = finite(), c = finite();
    ASSERT_EQ(fma_f16(a, b, c), exact_fma(a, b, c)) << std::hex << a << ' ' << b << ' ' << c;
  }
  // Products within the f16 range, so that c is often what decides; and c among the smallest codes.
  for (int i = 0; i < 1000000; ++i) {
    const auto a = static_cast<uint16_t>(0x2C00 + random() % 0x2000),
               b = static_cast<uint16_t>(0x2C00 + random() % 0x2000);
    const auto c = static_cast<uint16_t>((random() & 0x8000) | (random() % (i % 2 == 0 ? 4 : 0x7C00)));
    ASSERT_EQ(fma_f16(a, b, c), exact_fma(a, b, c)) << std::hex << a << ' ' << b << ' ' << c;
  }
  // Near cancellation: c next to -a * b.
  for (int i = 0; i < 1000000; ++i) {
    const uint16_t a = finite(), b = finite();
    const double product = -static_cast<double>(f16_to_f32(a)) * static_cast<double>(f16_to_f32(b));
    if (std::fabs(product) > 60000.0) continue;
    const uint16_t c = nearest_f16(product);
    ASSERT_EQ(fma_f16(a, b, c), exact_fma(a, b, c)) << std::hex << a << ' ' << b << ' ' << c;
  }
}

TEST(Float16, FusedMultiplyAddLetsTheSmallestTermDecideATie) {
  // 683 * 3 = 2049 lies halfway between 2048 and 2050; 2^-24 on either side decides.
  const uint16_t a = f32_to_f16(683.0f), b = f32_to_f16(3.0f);
  const uint16_t below = f32_to_f16(2048.0f), above = f32_to_f16(2050.0f);
  EXPECT_EQ(fma_f16(a, b, 0x0000), below);
  EXPECT_EQ(fma_f16(a, b, 0x0001), above);
  EXPECT_EQ(fma_f16(a, b, 0x8001), below);
  // 16 is half a step of 32768: the tie stays, one f16 step more in a moves it.
  EXPECT_EQ(fma_f16(0x5000, 0x3800, 0x7800), 0x7800);
  EXPECT_EQ(fma_f16(0x5001, 0x3800, 0x7800), 0x7801);
  // 2^-48 is never visible beside 2^15, and alone it is a signed zero.
  EXPECT_EQ(fma_f16(0x0001, 0x0001, 0x7800), 0x7800);
  EXPECT_EQ(fma_f16(0x0001, 0x0001, 0x0000), 0x0000);
  EXPECT_EQ(fma_f16(0x8001, 0x0001, 0x8000), 0x8000);
  EXPECT_EQ(fma_f16(0x7BFF, 0x7BFF, 0xFBFF), 0x7C00);
}

TEST(Float16, FusedMultiplyAddSpecialValues) {
  constexpr uint16_t inf = 0x7C00, minus_inf = 0xFC00, nan = 0x7FFF, one = 0x3C00, zero = 0;
  EXPECT_EQ(fma_f16(0x7E01, one, one), nan);
  EXPECT_EQ(fma_f16(one, 0xFE00, one), nan);
  EXPECT_EQ(fma_f16(one, one, 0x7C01), nan);
  EXPECT_EQ(fma_f16(inf, zero, one), nan);
  EXPECT_EQ(fma_f16(inf, one, minus_inf), nan);
  EXPECT_EQ(fma_f16(inf, one, inf), inf);
  EXPECT_EQ(fma_f16(inf, 0xBC00, one), minus_inf);
  EXPECT_EQ(fma_f16(one, one, minus_inf), minus_inf);
}

}  // namespace
