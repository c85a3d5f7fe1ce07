// The cpu8 exponential: accuracy of table and weights, and the AVX2 sequence of the header against the model.
#include "numerics/cpu8_table.hpp"

#include <gtest/gtest.h>
#include <immintrin.h>

#include <cmath>

namespace {

using namespace octavo::numerics;

static_assert(kCpu8StepsPerOctave == 1 << kCpu8StepsLog2 && kCpu8Table.size() == kCpu8StepsPerOctave);
static_assert(kCpu8Table[0] + 128 <= 65535 && (kCpu8Table[0] + 128) >> 8 == 255);
static_assert(cpu8_weight(0) == 255 && cpu8_weight(575) == 1 && cpu8_weight(576) == 0);
static_assert(cpu8_weight(1024) == 0 && cpu8_weight(INT64_MAX) == 0);

TEST(Cpu8Table, MantissaErrorAndOrder) {
  for (int f = 0; f < 64; ++f) {
    const double truth = 65279.0 * std::exp2(-f / 64.0);
    EXPECT_LE(std::fabs(cpu8_mantissa(f) / truth - 1.0), 7.3e-4) << f;
    EXPECT_EQ(kCpu8Table[static_cast<size_t>(f)], cpu8_mantissa(f));
    if (f > 0) {
      EXPECT_LT(cpu8_mantissa(f), cpu8_mantissa(f - 1));
    }
  }
  EXPECT_GT(cpu8_mantissa(63), cpu8_mantissa(0) / 2) << "no step up where an octave begins";
}

TEST(Cpu8Table, WeightsAreWithinAboutHalfAStepOfTheExponential) {
  int previous = 255;
  for (int d = 0; d < 2000; ++d) {
    const double truth = 255.0 * std::exp2(-d / 64.0);
    // Half a step, the mantissa's error, 65279 / 256 = 254.996 in place of 255, one bit lost by the shift.
    const double bound = 0.5 + truth * (7.3e-4 + 1.6e-5) + 1.0 / 256.0;
    EXPECT_LE(std::fabs(cpu8_weight(d) - truth), bound) << d;
    EXPECT_LE(cpu8_weight(d), previous) << d;
    previous = cpu8_weight(d);
  }
}

__attribute__((target("avx2"))) void weights_avx2(const uint16_t* distances, uint16_t* weights) {
  const auto constant = [](int x) { return static_cast<short>(x); };
  const __m256i d = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(distances));
  const __m256i u = _mm256_slli_epi16(d, 10);
  const __m256i slope = _mm256_sub_epi16(_mm256_set1_epi16(constant(kCpu8Slope)), _mm256_srli_epi16(u, 5));
  const __m256i q = _mm256_sub_epi16(_mm256_set1_epi16(constant(kCpu8Root)), _mm256_mulhi_epu16(u, slope));
  const __m256i t = _mm256_add_epi16(_mm256_set1_epi16(constant(kCpu8Lift)), _mm256_mulhi_epu16(q, q));
  const __m256i e = _mm256_srli_epi16(_mm256_min_epu16(d, _mm256_set1_epi16(1023)), 6);
  const __m256i bytes = _mm256_or_si256(e, _mm256_slli_epi16(e, 8));
  const __m256i index = _mm256_sub_epi8(bytes, _mm256_set1_epi16(8));
  const __m256i powers = _mm256_set_epi64x(0, 0x0102040810204080, 0, 0x0102040810204080);
  const __m256i power = _mm256_shuffle_epi8(powers, index);
  const __m256i scaled = _mm256_mulhi_epu16(t, power);
  const __m256i w = _mm256_srli_epi16(_mm256_add_epi16(scaled, _mm256_set1_epi16(64)), 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights), w);
}

TEST(Cpu8Table, Avx2SequenceGivesTheSameIntegersForEveryDistance) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "no AVX2";
  for (int base = 0; base < 65536; base += 16) {
    uint16_t distances[16], weights[16];
    for (int lane = 0; lane < 16; ++lane) distances[lane] = static_cast<uint16_t>(base + lane);
    weights_avx2(distances, weights);
    for (int lane = 0; lane < 16; ++lane) ASSERT_EQ(weights[lane], cpu8_weight(base + lane)) << base + lane;
  }
}

}  // namespace
