// reference.exact against a triple loop, and what every kernel promises about padding, layouts, threads and
// bad data.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "numerics/bfloat16.hpp"
#include "numerics/float16.hpp"
#include "reference/emulate.hpp"
#include "reference/problems.hpp"

namespace octavo::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const char* const kBoth[] = {"reference.exact", "reference.emulate"};

TEST(Exact, EqualsATripleLoopForEveryVisibility) {
  for (const Case& c : visibility_cases()) {
    SCOPED_TRACE(c.name);
    const Answer want = triple_loop(c);
    const Answer got = run(c, preset("exact"), "reference.exact");
    ASSERT_TRUE(got.status.ok()) << got.status.message();
    // Both are f64 rounded once to f32: two units of 2^-24 of a value around 4.
    EXPECT_LE(max_difference(got.o, want.o), 5e-7);
    EXPECT_LE(max_difference(got.lse, want.lse), 2e-6);
  }
}

TEST(Exact, IsPickedForTheExactRecipe) {
  Case c{.name = "plain"};
  c.fill();
  const Result<Problem> problem = make_problem(c.q_view(), c.k_view(), c.v_view(), c.options());
  ASSERT_TRUE(problem.ok());
  const Result<Plan> chosen = plan(*problem, preset("exact"));
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  EXPECT_EQ(chosen->kernel_name(), "reference.exact");
  EXPECT_FALSE(plan(*problem, preset("sage2-8+8"), {"reference.exact"}).ok());
}

TEST(Exact, LargeLogitsDoNotOverflow) {
  Case c{.name = "large", .q_len = 20, .k_len = 70};
  c.fill();
  for (float& x : c.q) x *= 300.0F;  // logits up to about 8000, where exp() is infinite
  const Answer got = run(c, preset("exact"), "reference.exact");
  ASSERT_TRUE(got.status.ok());
  for (const float o : got.o) EXPECT_TRUE(std::isfinite(o));
  for (const float lse : got.lse) EXPECT_GT(lse, 89.0F);
}

TEST(Padding, PaddedKeysNeverChangeTheOutput) {
  Case c{.name = "lengths", .batch = 3, .q_len = 20, .k_len = 100, .kv_lengths = {37, 0, 99}};
  c.fill();
  Case poisoned = c;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t h = 0; h < c.kv_heads; ++h) {
      for (std::int64_t j = c.kv_lengths[static_cast<std::size_t>(b)]; j < c.k_len; ++j) {
        for (std::int64_t d = 0; d < c.channels; ++d) {
          const auto i = static_cast<std::size_t>(((b * c.kv_heads + h) * c.k_len + j) * c.channels + d);
          poisoned.k[i] = d % 2 == 0 ? kNan : std::numeric_limits<float>::infinity();
          poisoned.v[i] = kNan;
        }
      }
    }
  }
  for (const Preset& p : presets()) {
    if (p.name == "auto") continue;
    SCOPED_TRACE(p.name);
    const Answer clean = run(c, preset(p.name), "reference.emulate");
    const Answer got = run(poisoned, preset(p.name), "reference.emulate");
    ASSERT_TRUE(got.status.ok()) << got.status.message();
    EXPECT_EQ(got.o, clean.o);
    EXPECT_EQ(got.lse, clean.lse);
  }
  EXPECT_EQ(run(poisoned, preset("exact"), "reference.exact").o,
            run(c, preset("exact"), "reference.exact").o);
}

TEST(NonFinite, IsRefusedWithItsPlaceOrKeptInItsHead) {
  Case c{.name = "bad", .batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 9, .k_len = 40};
  c.fill();
  const auto kv_index = [&](std::int64_t b, std::int64_t h, std::int64_t j, std::int64_t d) {
    return static_cast<std::size_t>(((b * c.kv_heads + h) * c.k_len + j) * c.channels + d);
  };
  Case bad_k = c;
  bad_k.k[kv_index(1, 0, 33, 5)] = kNan;
  bad_k.k[kv_index(1, 1, 2, 1)] = kNan;
  Case bad_v = c;
  bad_v.v[kv_index(0, 1, 39, 31)] = -std::numeric_limits<float>::infinity();
  Case bad_q = c;
  bad_q.q[static_cast<std::size_t>((2 * c.q_len + 8) * c.channels + 3)] = kNan;
  for (const char* kernel : kBoth) {
    SCOPED_TRACE(kernel);
    const Recipe recipe = preset("exact");
    const Status k = run(bad_k, recipe, kernel).status;
    EXPECT_EQ(k.code(), StatusCode::invalid_argument);
    EXPECT_NE(k.message().find("k holds nan at batch entry 1, head 0, token 33, channel 5"),
              std::string::npos)
        << k.message();
    const Status v = run(bad_v, recipe, kernel).status;
    EXPECT_NE(v.message().find("v holds -inf at batch entry 0, head 1, token 39, channel 31"),
              std::string::npos)
        << v.message();
    const Answer q = run(bad_q, recipe, kernel);
    EXPECT_NE(q.status.message().find("q holds nan at batch entry 0, head 2, token 8, channel 3"),
              std::string::npos)
        << q.status.message();
    for (const float o : q.o) EXPECT_TRUE(std::isnan(o)) << "a refused call wrote to the output";

    AttentionOptions unchecked = c.options();
    unchecked.check_finite = false;
    const Answer clean = run(c, recipe, kernel, unchecked);
    const Answer got = run(bad_k, recipe, kernel, unchecked);
    ASSERT_TRUE(got.status.ok());
    const std::size_t entry = got.o.size() / 2;  // batch entry 1 holds all bad keys
    for (std::size_t i = 0; i < entry; ++i) ASSERT_EQ(got.o[i], clean.o[i]);
    EXPECT_TRUE(std::isnan(got.o[entry]));
  }
}

TEST(Layouts, NhdAndStridedViewsEqualHnd) {
  Case c{.name = "plain", .batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 30, .k_len = 50};
  c.fill();
  const auto transposed = [&](const std::vector<float>& x, std::int64_t heads, std::int64_t tokens) {
    std::vector<float> y(x.size());
    for (std::int64_t b = 0; b < c.batch; ++b)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t i = 0; i < tokens; ++i)
          for (std::int64_t d = 0; d < c.channels; ++d)
            y[static_cast<std::size_t>(((b * tokens + i) * heads + h) * c.channels + d)] =
                x[static_cast<std::size_t>(((b * heads + h) * tokens + i) * c.channels + d)];
    return y;
  };
  const std::vector<float> q = transposed(c.q, c.q_heads, c.q_len);
  const std::vector<float> k = transposed(c.k, c.kv_heads, c.k_len);
  const std::vector<float> v = transposed(c.v, c.kv_heads, c.k_len);
  AttentionOptions options;
  options.layout = Layout::nhd;
  for (const char* name : {"exact", "sage2++-8+8", "cpu8"}) {
    SCOPED_TRACE(name);
    const std::string kernel = std::string(name) == "exact" ? "reference.exact" : "reference.emulate";
    const Answer want = run(c, preset(name), kernel);
    std::vector<float> o(q.size(), kNan);
    // lse as a transposed view: [B, Hq, Lq] stored as [B, Lq, Hq].
    std::vector<float> lse(static_cast<std::size_t>(c.batch * c.q_heads * c.q_len), kNan);
    MutableTensorView lse_view(lse.data(), DType::f32, {c.batch, c.q_heads, c.q_len});
    lse_view.strides = {c.q_heads * c.q_len, 1, c.q_heads, 0};
    const Status s =
        attention(TensorView(q.data(), DType::f32, {c.batch, c.q_len, c.q_heads, c.channels}),
                  TensorView(k.data(), DType::f32, {c.batch, c.k_len, c.kv_heads, c.channels}),
                  TensorView(v.data(), DType::f32, {c.batch, c.k_len, c.kv_heads, c.channels}),
                  MutableTensorView(o.data(), DType::f32, {c.batch, c.q_len, c.q_heads, c.channels}),
                  lse_view, preset(name), options, PlanOptions{kernel});
    ASSERT_TRUE(s.ok()) << s.message();
    EXPECT_EQ(o, transposed(want.o, c.q_heads, c.q_len));
    for (std::int64_t b = 0; b < c.batch; ++b)
      for (std::int64_t h = 0; h < c.q_heads; ++h)
        for (std::int64_t i = 0; i < c.q_len; ++i)
          ASSERT_EQ(lse[static_cast<std::size_t>((b * c.q_len + i) * c.q_heads + h)],
                    want.lse[static_cast<std::size_t>((b * c.q_heads + h) * c.q_len + i)]);
  }
}

TEST(DTypes, SixteenBitInputsAreReadAndWrittenExactly) {
  Case c{.name = "plain", .q_len = 20, .k_len = 45};
  c.fill();
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const auto encode = [&](float x) {
      return dtype == DType::f16 ? numerics::f32_to_f16(x) : numerics::f32_to_bf16(x);
    };
    const auto decode = [&](std::uint16_t x) {
      return dtype == DType::f16 ? numerics::f16_to_f32(x) : numerics::bf16_to_f32(x);
    };
    Case rounded = c;
    std::vector<std::vector<std::uint16_t>> half;
    for (std::vector<float>* x : {&rounded.q, &rounded.k, &rounded.v}) {
      half.emplace_back();
      for (float& value : *x) {
        half.back().push_back(encode(value));
        value = decode(half.back().back());
      }
    }
    const Answer want = run(rounded, preset("exact"), "reference.exact");
    std::vector<std::uint16_t> o(rounded.q.size());
    TensorView q = rounded.q_view();
    TensorView k = rounded.k_view();
    TensorView v = rounded.v_view();
    q.dtype = k.dtype = v.dtype = dtype;
    q.data = half[0].data();
    k.data = half[1].data();
    v.data = half[2].data();
    ASSERT_TRUE(attention(q, k, v, MutableTensorView(o.data(), dtype, {1, c.q_heads, c.q_len, c.channels}),
                          {}, preset("exact"), {}, {"reference.exact"})
                    .ok());
    for (std::size_t i = 0; i < o.size(); ++i) ASSERT_EQ(o[i], encode(want.o[i]));
  }
}

TEST(Rows, OnlyTheListedRowsAreWrittenAndEqualTheFullRun) {
  Case c{.name = "packed",
         .q_len = 150,
         .k_len = 300,
         .causal = Causal::bottom_right,
         .cu_q = {0, 90, 150},
         .cu_k = {0, 75, 300}};
  c.fill();
  const Result<Problem> problem = make_problem(c.q_view(), c.k_view(), c.v_view(), c.options());
  ASSERT_TRUE(problem.ok());
  const reference::RowLists rows{{0, 17, 89}, {5}};
  std::vector<bool> listed(static_cast<std::size_t>(c.q_len), false);
  for (const std::size_t token : {0U, 17U, 89U, 95U}) listed[token] = true;

  for (const char* name : {"exact", "sage2-4+8"}) {
    SCOPED_TRACE(name);
    const bool exact = std::string(name) == "exact";
    const Answer all = run(c, preset(name), exact ? kBoth[0] : kBoth[1]);
    std::vector<float> o(c.q.size(), kNan);
    std::vector<float> lse(all.lse.size(), kNan);
    const MutableTensorView out(o.data(), DType::f32, {c.q_len, c.q_heads, c.channels});
    const MutableTensorView lse_view(lse.data(), DType::f32, {c.q_heads, c.q_len});
    const Status s =
        exact ? reference::exact_rows(*problem, c.q_view(), c.k_view(), c.v_view(), rows, out, lse_view)
              : reference::emulate_rows(*problem, preset(name), c.q_view(), c.k_view(), c.v_view(), rows, out,
                                        lse_view);
    ASSERT_TRUE(s.ok()) << s.message();
    for (std::size_t i = 0; i < o.size(); ++i) {
      const bool expected = listed[i / static_cast<std::size_t>(c.q_heads * c.channels)];
      ASSERT_TRUE(expected ? o[i] == all.o[i] : std::isnan(o[i])) << o[i] << " at " << i;
    }
    for (std::size_t i = 0; i < lse.size(); ++i) {
      const bool expected = listed[i % static_cast<std::size_t>(c.q_len)];
      ASSERT_TRUE(expected ? lse[i] == all.lse[i] : std::isnan(lse[i])) << lse[i] << " at " << i;
    }
    EXPECT_FALSE(
        reference::exact_rows(*problem, c.q_view(), c.k_view(), c.v_view(), {{90}, {}}, out, {}).ok());
    EXPECT_FALSE(reference::exact_rows(*problem, c.q_view(), c.k_view(), c.v_view(), {{0}}, out, {}).ok());
  }
}

TEST(Threads, AnyCountGivesTheSameBits) {
  Case c{.name = "grouped", .batch = 2, .q_heads = 6, .kv_heads = 2, .q_len = 70, .k_len = 90};
  c.fill();
  for (const char* name : {"exact", "sage2++-4+8", "turbo", "cpu8"}) {
    for (const char* kernel : kBoth) {
      if (std::string(name) != "exact" && std::string(kernel) == kBoth[0]) continue;
      AttentionOptions options = c.options();
      options.threads = 1;
      const Answer one = run(c, preset(name), kernel, options);
      options.threads = 5;
      const Answer five = run(c, preset(name), kernel, options);
      ASSERT_TRUE(one.status.ok());
      EXPECT_EQ(one.o, five.o);
      EXPECT_EQ(one.lse, five.lse);
    }
  }
}

}  // namespace
}  // namespace octavo::testing
