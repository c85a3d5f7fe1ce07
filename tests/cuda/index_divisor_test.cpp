// Division by a number known beforehand against the processor's own.
#include "cuda/index_divisor.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace octavo::cuda {
namespace {

constexpr std::int64_t kEnd = std::int64_t{1} << 31;

TEST(IndexDivisor, EqualsDivision) {
  std::vector<std::int64_t> divisors = {kEnd - 1, kEnd / 2, kEnd / 2 + 1, kEnd / 2 - 1, 1'000'003, 132 * 344};
  for (std::int64_t d = 1; d <= 300; ++d) divisors.push_back(d);
  for (int shift = 9; shift < 31; ++shift) {
    for (const int offset : {-1, 0, 1}) divisors.push_back((std::int64_t{1} << shift) + offset);
  }
  std::mt19937 random(1);
  for (const std::int64_t d : divisors) {
    const IndexDivisor by(d);
    EXPECT_EQ(by.value(), d);
    std::vector<std::int64_t> numbers = {0, 1, kEnd - 1, kEnd - 2};
    for (std::int64_t multiple = d; multiple < kEnd && numbers.size() < 200;
         multiple += 1 + multiple / 7 / d * d + d) {
      numbers.push_back(multiple - 1);
      numbers.push_back(multiple);
    }
    for (int i = 0; i < 200; ++i) numbers.push_back(random() >> 1);
    for (const std::int64_t n : numbers) {
      if (n >= kEnd) continue;
      EXPECT_EQ(by.quotient(static_cast<int>(n)), n / d) << n << " / " << d;
    }
  }
}

}  // namespace
}  // namespace octavo::cuda
