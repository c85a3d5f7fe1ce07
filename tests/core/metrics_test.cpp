// Error measures against sums written out by hand.
#include "octavo/metrics.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

namespace octavo {
namespace {

TEST(Compare, MeasuresAreTheDefinitions) {
  const std::array<float, 8> o{1, 2, 3, 4, 0, 0, 0, 5};
  const std::array<float, 8> r{1, 2, 3, 2, 0, 0, 0, 4};
  const Result<Comparison> c =
      compare(TensorView(o.data(), DType::f32, {1, 2, 2, 2}), TensorView(r.data(), DType::f32, {1, 2, 2, 2}));
  ASSERT_TRUE(c.ok());
  EXPECT_DOUBLE_EQ(c->all.relative_l1, 3.0 / 12.0);
  EXPECT_DOUBLE_EQ(c->all.rmse, std::sqrt(5.0 / 8.0));
  EXPECT_DOUBLE_EQ(c->all.max_abs, 2.0);
  EXPECT_DOUBLE_EQ(c->all.relative_l2, std::sqrt(5.0 / 34.0));
  EXPECT_NEAR(c->all.cossim, 42.0 / std::sqrt(55.0 * 34.0), 1e-12);
  ASSERT_EQ(c->heads.size(), 2U);
  EXPECT_DOUBLE_EQ(c->heads[0].relative_l1, 0.25);
  EXPECT_EQ(c->worst_head, 0);
}

TEST(Compare, NanIsNeverGood) {
  std::array<float, 4> o{1, 2, 3, 4};
  const std::array<float, 4> r = o;
  o[3] = std::numeric_limits<float>::quiet_NaN();
  const Result<Comparison> c =
      compare(TensorView(o.data(), DType::f32, {1, 2, 1, 2}), TensorView(r.data(), DType::f32, {1, 2, 1, 2}));
  EXPECT_TRUE(std::isnan(c->all.relative_l1) && std::isnan(c->all.max_abs) && std::isnan(c->all.cossim));
  EXPECT_EQ(c->worst_head, 1);
}

TEST(Compare, ZerosAgree) {
  const std::array<float, 2> z{};
  const std::array<float, 2> one{1, 0};
  const TensorView zero(z.data(), DType::f32, {1, 1, 1, 2});
  EXPECT_EQ(compare(zero, zero)->all.relative_l1, 0.0);
  EXPECT_EQ(compare(zero, zero)->all.cossim, 1.0);
  EXPECT_TRUE(std::isinf(compare(TensorView(one.data(), DType::f32, {1, 1, 1, 2}), zero)->all.relative_l1));
}

TEST(Compare, ShapesMustAgree) {
  const std::array<float, 4> o{};
  const TensorView a(o.data(), DType::f32, {1, 1, 2, 2});
  EXPECT_EQ(compare(a, TensorView(o.data(), DType::f32, {1, 2, 1, 2})).status().code(),
            StatusCode::invalid_argument);
  EXPECT_EQ(compare(a, TensorView(o.data(), DType::i8, {1, 1, 2, 2})).status().code(),
            StatusCode::unsupported);
  EXPECT_EQ(compare(a, a, Layout::thd).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace octavo
