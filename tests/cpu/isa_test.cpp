// The vector primitives of every tier that runs here equal the scalar numerics.
#include <gtest/gtest.h>

#include <string>

#include "cpu/tier.hpp"

namespace octavo::test {

std::string check_isa_portable();
std::string check_isa_avx2();
std::string check_isa_avx512();

namespace {

TEST(Isa, RoundsAndExponentiatesAsNumericsDoes) {
  for (const cpu::TierInfo& tier : cpu::tiers()) {
    if (!tier.runs_here()) continue;
    if (tier.name == "scalar") {
      EXPECT_EQ(check_isa_portable(), "");
    }
    if (tier.name == "avx2") {
      EXPECT_EQ(check_isa_avx2(), "");
    }
    if (tier.name == "avx512") {
      EXPECT_EQ(check_isa_avx512(), "");
    }
  }
}

}  // namespace
}  // namespace octavo::test
