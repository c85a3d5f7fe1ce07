// Recipes are data: presets are consistent, fields can be read and set by name, and range budgets are refused
// with their bound.
#include "octavo/recipe.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace octavo {
namespace {

Recipe preset(const std::string& name) { return *recipe(name); }

TEST(Recipe, EveryPresetChecksAtEveryHeadDimItIsFor) {
  for (const Preset& p : presets()) {
    const Result<Recipe> r = recipe(p.name);
    ASSERT_TRUE(r.ok()) << p.name;
    EXPECT_EQ(r->name, p.name);
    for (const int d : {1, 64, 128})
      EXPECT_TRUE(check(*r, d).ok()) << p.name << " at " << d << ": " << check(*r, d).message();
  }
}

TEST(Recipe, UnknownNameListsTheKnown) {
  const Status s = recipe("sage3").status();
  EXPECT_EQ(s.code(), StatusCode::invalid_argument);
  for (const Preset& p : presets()) EXPECT_NE(s.message().find(p.name), std::string::npos) << p.name;
}

TEST(Recipe, EveryFieldReadsBackWhatWasSet) {
  for (const Preset& p : presets()) {
    const Recipe original = preset(p.name);
    Recipe copy;
    copy.name = original.name;
    for (const RecipeField& f : fields(original))
      ASSERT_TRUE(set_field(copy, f.name, f.value).ok()) << p.name << " " << f.name << " = " << f.value;
    EXPECT_EQ(copy, original) << p.name;
  }
}

TEST(Recipe, BadFieldsAndValuesAreRefusedByName) {
  Recipe r = preset("sage2-8+8");
  const Recipe before = r;
  EXPECT_NE(set_field(r, "p_rang", "224").message().find("p_rang"), std::string::npos);
  for (const auto& [field, value] :
       std::initializer_list<std::pair<const char*, const char*>>{{"qk_format", "int9"},
                                                                  {"smooth_k", "yes"},
                                                                  {"p_range", "nan"},
                                                                  {"p_range", "-1"},
                                                                  {"p_range", "0"},
                                                                  {"p_range", "inf"},
                                                                  {"p_range", "2 "},
                                                                  {"p_range", ""},
                                                                  {"pv_buffer", "1e3"},
                                                                  {"pv_buffer", "-1"},
                                                                  {"pv_buffer", "99999999999999999999"},
                                                                  {"mixed_period", "0"},
                                                                  {"slack", "17"},
                                                                  {"headroom", "9"},
                                                                  {"headroom", "0"},
                                                                  {"headroom", "1.5"}}) {
    const Status s = set_field(r, field, value);
    EXPECT_EQ(s.code(), StatusCode::invalid_argument) << field << " = " << value;
    EXPECT_NE(s.message().find(field), std::string::npos);
    EXPECT_NE(s.message().find(value), std::string::npos);
    EXPECT_EQ(r, before);
  }
}

struct Bound {
  int products;
  float inside_p, inside_v, outside_v;
};

// 32 * n * P_r * V_r <= 65504: products of the ranges up to 2047, 1023.5, 682.3, 511.75, on e4m3's grid.
TEST(Budget, F16AccumulatorBoundsAreThePapers) {
  for (const Bound& b : {Bound{1, 448, 4.5F, 5}, Bound{2, 224, 4.5F, 5}, Bound{2, 448, 2.25F, 2.5F},
                         Bound{2, 112, 9, 10}, Bound{3, 224, 3, 3.25F}, Bound{4, 128, 3.75F, 4.5F}}) {
    Recipe r = preset("sage2++-8+8");
    r.pv_buffer = b.products;
    r.p_range = b.inside_p;
    r.v_range = b.inside_v;
    EXPECT_TRUE(check(r).ok()) << check(r).message();
    r.v_range = b.outside_v;
    const Status s = check(r);
    EXPECT_EQ(s.code(), StatusCode::invalid_argument);
    EXPECT_NE(s.message().find("65504"), std::string::npos) << s.message();
    r.check_budget = false;
    EXPECT_TRUE(check(r).ok());
  }
}

TEST(Budget, RangesAreRoundedToTheGridFirst) {
  Recipe r = preset("sage2++-8+8");
  r.p_range = 224.0F;
  r.v_range = 4.6F;  // e4m3(4.6) = 4.5, which fits: 4.6 itself would not
  EXPECT_TRUE(check(r).ok()) << check(r).message();
}

TEST(Budget, F16SumsNeedAScaledV) {
  Recipe r = preset("sage-8+16");
  r.pv_accumulator = PvAccumulator::f16_buffered;
  r.pv_buffer = 2;
  EXPECT_NE(check(r).message().find("scaled v_format"), std::string::npos) << check(r).message();
}

TEST(Budget, SlackCountsAgainstE4m3) {
  Recipe r = preset("fp8-head");
  r.slack = 0.75F;  // 256 * 2^0.75 = 430.5
  EXPECT_TRUE(check(r).ok());
  r.slack = 1.0F;
  EXPECT_NE(check(r).message().find("448"), std::string::npos);
}

TEST(Budget, HeadroomLeavesRoomBelow) {
  Recipe r = preset("turbo");
  r.headroom = 8;
  EXPECT_TRUE(check(r).ok());
  r.p_range = 4.0F;  // 4 / 2^9 = 2^-7
  EXPECT_NE(check(r).message().find("headroom"), std::string::npos) << check(r).message();
  r.slack = 0.0F;
  EXPECT_EQ(check(r).message().find("headroom"), std::string::npos) << check(r).message();
}

TEST(Budget, RangesKeepValuesOnTheGrid) {
  for (const char* field : {"q_range", "k_range", "p_range", "v_range"}) {
    Recipe r = preset("fp8-head");
    ASSERT_TRUE(set_field(r, field, "0.015625").ok());
    EXPECT_TRUE(check(r).ok()) << field << ": " << check(r).message();
    ASSERT_TRUE(set_field(r, field, "0.0156").ok());
    EXPECT_EQ(check(r).code(), StatusCode::invalid_argument) << field;
    EXPECT_NE(check(r).message().find(std::string(field) + " = 0.0156"), std::string::npos)
        << check(r).message();
    r.check_budget = false;
    EXPECT_TRUE(check(r).ok()) << field;
  }
  Recipe r = preset("half");
  r.p_range = 65504.0F;
  EXPECT_TRUE(check(r).ok()) << check(r).message();
  r.p_range = 70000.0F;
  EXPECT_NE(check(r).message().find("p_range * 2^slack = 70000"), std::string::npos) << check(r).message();
  r.p_range = 40000.0F;
  r.slack = 1.0F;
  EXPECT_NE(check(r).message().find("p_range * 2^slack = 80000"), std::string::npos) << check(r).message();
  r.p_format = r.v_format = r.qk_format = Format::bf16;
  EXPECT_TRUE(check(r).ok()) << check(r).message();
}

TEST(Budget, F16WeightsDoNotVanish) {
  Recipe r = preset("half");
  r.p_range = 0x1p-14F;
  EXPECT_TRUE(check(r).ok()) << check(r).message();
  r.p_range = 0x1p-15F;
  EXPECT_NE(check(r).message().find("p_range = 3.0517578e-05 is below 2^-14"), std::string::npos)
      << check(r).message();
  r.p_range = 0x1p-10F;
  r.slack = 1.0F;
  r.headroom = 4;
  EXPECT_NE(check(r).message().find("p_range / 2^(headroom + 1)"), std::string::npos) << check(r).message();
}

TEST(Budget, IntegerSumsOfAKeyTile) {
  Recipe r = preset("cpu8");
  r.key_tile = 66304;  // 255 * 127 * 66,304 = 2,147,255,040
  EXPECT_TRUE(check(r).ok()) << check(r).message();
  r.key_tile = 66336;
  EXPECT_NE(check(r).message().find("key_tile = 66336"), std::string::npos) << check(r).message();
}

// A plain struct takes whatever is written into it.
TEST(Check, RefusesValuesThatNoFieldTakes) {
  const auto refused = [](const char* field, const std::function<void(Recipe&)>& change) {
    for (const Preset& p : presets()) {
      if (p.name == "auto") continue;
      Recipe r = preset(p.name);
      change(r);
      EXPECT_EQ(check(r).code(), StatusCode::invalid_argument) << r.name << " " << field;
      EXPECT_NE(check(r).message().find(std::string("recipe field ") + field + " = "), std::string::npos)
          << check(r).message();
    }
  };
  refused("mixed_period", [](Recipe& r) { r.mixed_period = 0; });
  refused("key_tile", [](Recipe& r) { r.key_tile = -64; });
  refused("p_range", [](Recipe& r) { r.p_range = std::numeric_limits<float>::quiet_NaN(); });
  refused("p_range", [](Recipe& r) { r.p_range = 0.0F; });
  refused("v_range", [](Recipe& r) { r.v_range = std::numeric_limits<float>::infinity(); });
  refused("slack", [](Recipe& r) { r.slack = -5.0F; });
  refused("headroom", [](Recipe& r) { r.headroom = -1000; });
  refused("p_format", [](Recipe& r) { r.p_format = static_cast<Format>(77); });
}

TEST(Fields, NumbersComeBackAsTheyWere) {
  for (const float range : {1.2345678F, 1.2345681F, 65504.004F, 0x1p-100F, 448.0F, 0.1F}) {
    Recipe r = preset("half");
    r.p_range = range;
    for (const RecipeField& f : fields(r)) {
      Recipe copy = preset("half");
      ASSERT_TRUE(set_field(copy, f.name, f.value).ok()) << f.name << " = " << f.value;
      if (f.name == std::string("p_range")) {
        EXPECT_EQ(copy.p_range, range) << f.value;
      }
    }
  }
}

TEST(Budget, F16QkAccumulatorDependsOnHeadDim) {
  Recipe r = preset("turbo");
  EXPECT_TRUE(check(r, 128).ok());
  EXPECT_NE(check(r, 256).message().find("head_dim 256"), std::string::npos);
  r.q_range = 32;
  r.k_range = 30;
  EXPECT_TRUE(check(r, 64).ok());
  EXPECT_FALSE(check(r, 128).ok());
}

TEST(Recipe, FieldsThatDoNotFitTogetherAreRefused) {
  const auto refused = [](const char* base,
                          std::initializer_list<std::pair<const char*, const char*>> changes) {
    Recipe r = preset(base);
    for (const auto& [field, value] : changes) EXPECT_TRUE(set_field(r, field, value).ok());
    return check(r).code() == StatusCode::invalid_argument;
  };
  EXPECT_TRUE(refused("sage2-8+8", {{"qk_format", "f16"}}));
  EXPECT_TRUE(refused("sage2-8+8", {{"qk_accumulator", "f32"}}));
  EXPECT_TRUE(refused("sage2-8+8", {{"q_range", "100"}}));
  EXPECT_TRUE(refused("sage2-8+8", {{"exp2", "direct"}}));
  EXPECT_TRUE(refused("sage2-8+8", {{"exp2", "table"}}));
  EXPECT_TRUE(refused("sage2-8+8", {{"p_format", "u8"}}));
  EXPECT_TRUE(refused("sage2-8+8", {{"v_format", "int4"}}));
  EXPECT_TRUE(refused("sage2-8+8", {{"key_tile", "48"}}));
  EXPECT_TRUE(refused("sage2-8+8", {{"pv_buffer", "0"}}));
  EXPECT_TRUE(refused("sage2-8+8", {{"v_scale", "none"}}));
  EXPECT_TRUE(refused("cpu8", {{"p_reference", "running"}}));
  EXPECT_TRUE(refused("half", {{"qk_accumulator", "s32"}}));
  EXPECT_TRUE(refused("turbo8", {{"exp2", "mixed"}, {"mixed_direct", "9"}}));
}

}  // namespace
}  // namespace octavo
