// OCTAVO_CPU_TIER: the forced tier runs, and a wish that cannot be met is an error.
#include "cpu/tier.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "support/kernels.hpp"
#include "support/problem.hpp"

namespace octavo::test {
namespace {

class Forced {
 public:
  explicit Forced(const std::string& tier) {
    if (const char* old = std::getenv("OCTAVO_CPU_TIER"); old != nullptr) saved_ = old;
    setenv("OCTAVO_CPU_TIER", tier.c_str(), 1);
  }
  ~Forced() {
    if (saved_.empty()) {
      unsetenv("OCTAVO_CPU_TIER");
    } else {
      setenv("OCTAVO_CPU_TIER", saved_.c_str(), 1);
    }
  }
  Forced(const Forced&) = delete;
  Forced& operator=(const Forced&) = delete;

 private:
  std::string saved_;
};

Result<Plan> small_plan(const std::string& recipe) {
  const Inputs in({});
  return plan(*make_problem(in.q.view(), in.k.view(), in.v.view(), in.options()), preset(recipe));
}

TEST(Tier, ForcedOneRuns) {
  for (const cpu::TierInfo& tier : cpu::tiers()) {
    if (!tier.runs_here()) continue;
    const Forced forced{std::string(tier.name)};
    for (const char* recipe : {"sage2++-8+8", "cpu8"}) {
      const Result<Plan> made = small_plan(recipe);
      ASSERT_TRUE(made.ok()) << made.status().message();
      EXPECT_TRUE(made->kernel_name().starts_with("cpu." + std::string(tier.name) + "."))
          << made->kernel_name();
    }
  }
}

TEST(Tier, UnknownOrMissingOneIsAnError) {
  {
    const Forced forced("avx1024");
    const Result<Plan> made = small_plan("cpu8");
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(made.status().message().find("avx1024"), std::string::npos);
    EXPECT_NE(made.status().message().find("scalar"), std::string::npos);
  }
  for (const cpu::TierInfo& tier : cpu::tiers()) {
    if (tier.runs_here()) continue;
    const Forced forced{std::string(tier.name)};
    const Result<Plan> made = small_plan("cpu8");
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), StatusCode::unsupported);
  }
}

}  // namespace
}  // namespace octavo::test
