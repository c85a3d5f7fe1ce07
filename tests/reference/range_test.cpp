// Ranges of P and V: the f16 accumulator's budget, and what narrowing the ranges costs.
#include <gtest/gtest.h>

#include <cmath>

#include "reference/emulate.hpp"
#include "reference/problems.hpp"

namespace octavo::testing {
namespace {

/// SageAttention2++ with n products of k = 32 in an f16 accumulator; 128 keys a tile hold n = 4.
Recipe buffered(float p_range, float v_range, int products) {
  Recipe r = preset("sage2++-8+8");
  r.p_range = p_range;
  r.v_range = v_range;
  r.pv_buffer = products;
  r.key_tile = 128;
  return r;
}

TEST(F16Budget, HoldsJustInsideAndOverflowsJustOutside) {
  struct Pair {
    int products;
    float p_in, v_in;    // 32 * n * P_r * V_r <= 65504, the nearest such pair of e4m3 values
    float p_out, v_out;  // the first beyond
  };
  const Pair pairs[] = {
      {1, 224.0F, 9.0F, 256.0F, 8.0F},   // 2016, 2048 of 2047
      {2, 224.0F, 4.5F, 256.0F, 4.0F},   // 1008, 1024 of 1023.5
      {3, 208.0F, 3.25F, 176.0F, 4.0F},  // 676, 704 of 682.3
      {4, 224.0F, 2.25F, 256.0F, 2.0F},  // 504, 512 of 511.75
  };
  // The worst case: equal keys make every weight P_r, and every value is its channel's amax.
  Case c{.name = "worst", .q_len = 5, .k_len = 256};
  c.fill();
  for (std::size_t i = 0; i < c.k.size(); ++i) c.k[i] = 0.3F;
  for (std::size_t i = 0; i < c.v.size(); ++i) c.v[i] = i % 2 == 0 ? 1.75F : -0.625F;
  for (const Pair& pair : pairs) {
    SCOPED_TRACE(pair.products);
    const Answer inside = run(c, buffered(pair.p_in, pair.v_in, pair.products), "reference.emulate");
    ASSERT_TRUE(inside.status.ok()) << inside.status.message();
    for (std::size_t i = 0; i < inside.o.size(); ++i)
      ASSERT_NEAR(inside.o[i], i % 2 == 0 ? 1.75F : -0.625F, 1e-6F);

    Recipe outside = buffered(pair.p_out, pair.v_out, pair.products);
    const Status refused = run(c, outside, "reference.emulate").status;
    EXPECT_EQ(refused.code(), StatusCode::invalid_argument);
    EXPECT_NE(refused.message().find("65504"), std::string::npos) << refused.message();
    outside.check_budget = false;
    const Answer overflow = run(c, outside, "reference.emulate");
    ASSERT_TRUE(overflow.status.ok()) << overflow.status.message();
    for (const float o : overflow.o) ASSERT_FALSE(std::isfinite(o));
    outside.pv_buffer =
        pair.products + 1;  // one fewer key than a further product needs: a buffer never spans a tile
    outside.key_tile = 32 * pair.products;
    for (const float o : run(c, outside, "reference.emulate").o) ASSERT_FALSE(std::isfinite(o));
    if (pair.products > 1) {
      outside.key_tile = 32 * (pair.products - 1);
      for (const float o : run(c, outside, "reference.emulate").o) ASSERT_TRUE(std::isfinite(o));
    }
  }
}

TEST(F16Budget, OverflowOfTheQkAccumulatorShowsInTheOutput) {
  Case c{.name = "worst", .q_len = 5, .k_len = 64, .channels = 64};
  c.fill();
  for (float& x : c.q) x = 1.0F;
  for (float& x : c.k) x = 0.5F;
  Recipe r = preset("turbo");
  r.rotate = Rotation::none;
  r.smooth_k = false;
  r.exp2 = Exp2::exact;
  r.q_range = 32.0F;
  r.k_range = 30.0F;  // 32 * 30 * 64 = 61,440
  const Answer inside = run(c, r, "reference.emulate");
  ASSERT_TRUE(inside.status.ok()) << inside.status.message();
  EXPECT_LE(relative_l1(inside.o, run(c, preset("exact"), "reference.exact").o), 0.05);
  r.k_range = 32.0F;  // 65,536
  EXPECT_FALSE(run(c, r, "reference.emulate").status.ok());
  r.check_budget = false;
  for (const float o : run(c, r, "reference.emulate").o) ASSERT_FALSE(std::isfinite(o));
}

/// N(0,1) inputs, 2,048 keys, 128 of 2,048 rows of two heads: what Table 2 of the SageAttention2++ paper
/// varies.
class Ranges : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    case_ = {.name = "table 2",
             .q_heads = 16,
             .kv_heads = 16,
             .q_len = 2048,
             .k_len = 2048,
             .channels = GetParam(),
             .seed = 7};
    case_.fill();
    for (float& x : case_.k) x -= 0.7F;  // fill() adds means, N(0,1) has none
    for (float& x : case_.v) x -= 0.3F;
    for (std::int64_t i = 0; i < 24; ++i) rows_[0].push_back(85 * i + i);
    problem_ = *make_problem(case_.q_view(), case_.k_view(), case_.v_view(), case_.options());
    exact_ = sampled([&](const MutableTensorView& out) {
      return reference::exact_rows(problem_, case_.q_view(), case_.k_view(), case_.v_view(), rows_, out, {});
    });
  }

  std::vector<float> emulate(const Recipe& r) {
    return sampled([&](const MutableTensorView& out) {
      return reference::emulate_rows(problem_, r, case_.q_view(), case_.k_view(), case_.v_view(), rows_, out,
                                     {});
    });
  }

  std::vector<float> exact_;

 private:
  template <class Call>
  std::vector<float> sampled(Call call) {
    std::vector<float> o(case_.q.size());
    const Status s =
        call(MutableTensorView(o.data(), DType::f32, {1, case_.q_heads, case_.q_len, case_.channels}));
    EXPECT_TRUE(s.ok()) << s.message();
    return o;  // rows that are not listed stay 0 in both outputs
  }

  Case case_;
  reference::RowLists rows_{{}};
  Problem problem_;
};

TEST_P(Ranges, NarrowingThemKeepsTheKnownErrorOfInt8WithFp8) {
  const std::vector<float> wide = emulate(preset("sage2-8+8"));
  const double base = relative_l1(wide, exact_);
  EXPECT_GE(base, 0.030);
  EXPECT_LE(base, 0.045);
  EXPECT_GE(cossim(wide, exact_), 0.9990);

  std::vector<double> narrow;
  for (const auto& [p, v] : {std::pair{448.0F, 2.25F}, std::pair{224.0F, 4.5F}, std::pair{112.0F, 9.0F}}) {
    Recipe r = preset("sage2++-8+8");
    r.p_range = p;
    r.v_range = v;
    narrow.push_back(relative_l1(emulate(r), exact_));
    EXPECT_NEAR(narrow.back() / base, 1.0, 0.02) << "P_r " << p << ", V_r " << v;
    // The three V_r are powers of two apart and so are the P_r: the same grids but for subnormals.
    EXPECT_NEAR(narrow.back() / narrow.front(), 1.0, 0.001) << "P_r " << p << ", V_r " << v;
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, Ranges, ::testing::Values(64, 128));

}  // namespace
}  // namespace octavo::testing
