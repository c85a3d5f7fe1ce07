// The rotation: orthonormal, equal to its matrix, spreads an outlier, signs balanced.
#include "numerics/hadamard.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

namespace {

using namespace octavo::numerics;

static_assert(next_power_of_two(1) == 1 && next_power_of_two(64) == 64 && next_power_of_two(65) == 128);
static_assert(next_power_of_two(80) == 128 && next_power_of_two(3) == 4);
static_assert(hadamard_sign(1, 0) * hadamard_sign(1, 0) == 1.0f);
static_assert([] {
  std::array<float, 4> x{1.0f, 0.0f, 0.0f, 0.0f};
  hadamard_rotate(x.data(), 4, 0);
  return x[0] * x[0] == 0.25f && x[3] * x[3] == 0.25f;
}());

std::vector<float> gaussian(int n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = normal(random);
  return x;
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

TEST(Hadamard, EqualsTheMatrixOfItsDefinition) {
  constexpr uint64_t seed = 12345;
  for (int n = 1; n <= 256; n *= 2) {
    const std::vector<float> x = gaussian(n, static_cast<unsigned>(n));
    std::vector<float> rotated = x;
    hadamard_rotate(rotated.data(), n, seed);
    for (int j = 0; j < n; ++j) {
      double expected = 0.0;
      for (int i = 0; i < n; ++i) {
        const double h = std::popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? 1.0 : -1.0;
        expected += static_cast<double>(x[static_cast<size_t>(i)] * hadamard_sign(seed, i)) * h;
      }
      expected /= std::sqrt(n);
      // log2 n + 2 roundings of at most 2^-24 relative to the norm (about 1 an element).
      EXPECT_NEAR(rotated[static_cast<size_t>(j)], expected, 1e-6 * std::sqrt(n)) << n << ' ' << j;
    }
  }
}

TEST(Hadamard, KeepsDotProductsAndNorms) {
  for (int n : {16, 32, 64, 128, 256}) {
    std::vector<float> a = gaussian(n, 1), b = gaussian(n, 2);
    const double before = dot(a, b), norm = dot(a, a);
    hadamard_rotate(a.data(), n, 7);
    hadamard_rotate(b.data(), n, 7);
    EXPECT_NEAR(dot(a, b), before, 1e-6 * norm);
    EXPECT_NEAR(dot(a, a), norm, 1e-6 * norm);
  }
}

TEST(Hadamard, SpreadsOneChannelEvenly) {
  std::vector<float> x(128, 0.0f);
  x[17] = 100.0f;
  hadamard_rotate(x.data(), 128, 3);
  for (const float value : x) EXPECT_NEAR(std::fabs(value), 100.0f / std::sqrt(128.0f), 1e-5f);
}

TEST(Hadamard, SignsDependOnSeedAndChannelAndAreBalanced) {
  int sum = 0, differ = 0;
  for (int channel = 0; channel < 4096; ++channel) {
    const float sign = hadamard_sign(42, channel);
    ASSERT_TRUE(sign == 1.0f || sign == -1.0f);
    sum += static_cast<int>(sign);
    differ += sign != hadamard_sign(43, channel);
  }
  EXPECT_LT(std::abs(sum), 4 * 64);  // four standard deviations of 4096 fair coins
  EXPECT_NEAR(differ, 2048, 4 * 32);
}

TEST(Hadamard, ScaleIsTheRoundedInverseRoot) {
  for (int n = 1; n <= (1 << 20); n *= 2) {
    EXPECT_EQ(hadamard_scale(n), static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)))) << n;
  }
}

}  // namespace
