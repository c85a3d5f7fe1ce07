// Properties that hold bit for bit: they would catch a race, an unwritten row or a read of padding that no
// tolerance can see.
#include <gtest/gtest.h>

#include "support/kernels.hpp"
#include "support/problem.hpp"

namespace octavo::test {
namespace {

struct KernelRecipe {
  std::string kernel;
  Recipe recipe;
};

std::vector<KernelRecipe> all() {
  std::vector<KernelRecipe> list;
  for (const std::string& k : cpu_kernels("int8")) list.push_back({k, preset("sage2++-8+8")});
  for (const std::string& k : cpu_kernels("int8")) list.push_back({k, preset("sage2-4+8")});
  Recipe half = preset("half");
  half.qk_format = half.p_format = half.v_format = Format::bf16;  // every tier multiplies bf16
  for (const std::string& k : cpu_kernels("float")) list.push_back({k, half});
  for (const std::string& k : cpu_kernels("cpu8")) list.push_back({k, preset("cpu8")});
  return list;
}

/// Direct weights and FP8 scores too.
std::vector<KernelRecipe> all_and_direct_and_fp8() {
  std::vector<KernelRecipe> list = all();
  for (const std::string& k : cpu_kernels("int8")) list.push_back({k, preset("turbo8")});
  for (const std::string& k : cpu_kernels("float")) list.push_back({k, preset("fp8-head")});
  return list;
}

Status run_checking(bool check_finite, const Inputs& in, Outputs& out, const KernelRecipe& with) {
  AttentionOptions options = in.options();
  options.check_finite = check_finite;
  return attention(in.q.view(), in.k.view(), in.v.view(), out.o.view(), out.lse.view(), with.recipe, options,
                   {with.kernel});
}

void expect_same_bits(const Tensor& a, const Tensor& b, const std::string& what) {
  ASSERT_EQ(a.bytes().size(), b.bytes().size()) << what;
  for (std::int64_t i = 0; i < a.elements(); ++i) {
    const float x = a[i];
    const float y = b[i];
    ASSERT_EQ(std::memcmp(&x, &y, sizeof x), 0)
        << what << ": first difference at element " << i << ": " << x << " and " << y;
  }
}

TEST(Bits, AnyThreadCountGivesTheSame) {
  for (const auto& [kernel, recipe] : all()) {
    const Inputs in({.batch = 2,
                     .q_heads = 4,
                     .kv_heads = 2,
                     .q_len = 300,
                     .kv_len = 333,
                     .causal = Causal::bottom_right,
                     .seed = 5});
    Outputs one(in);
    ASSERT_TRUE(run(in, one, recipe, kernel, 1).ok());
    for (const int threads : {2, 3, 7}) {
      Outputs many(in);
      ASSERT_TRUE(run(in, many, recipe, kernel, threads).ok());
      expect_same_bits(many.o, one.o, kernel + " o");
      expect_same_bits(many.lse, one.lse, kernel + " lse");
    }
  }
}

TEST(Bits, LayoutsAgree) {
  for (const auto& [kernel, recipe] : all()) {
    const Shape shape{
        .batch = 2, .q_heads = 2, .kv_heads = 2, .q_len = 70, .kv_len = 90, .head_dim = 40, .seed = 9};
    const Inputs hnd(shape);
    Shape other = shape;
    other.layout = Layout::nhd;
    Inputs nhd(other);
    const auto transpose = [&](const Tensor& from, Tensor& to, std::int64_t tokens) {
      for (std::int64_t b = 0; b < 2; ++b)
        for (std::int64_t h = 0; h < 2; ++h)
          for (std::int64_t t = 0; t < tokens; ++t)
            for (std::int64_t d = 0; d < 40; ++d)
              to.set(((b * tokens + t) * 2 + h) * 40 + d, from[((b * 2 + h) * tokens + t) * 40 + d]);
    };
    transpose(hnd.q, nhd.q, 70);
    transpose(hnd.k, nhd.k, 90);
    transpose(hnd.v, nhd.v, 90);
    Outputs a(hnd);
    Outputs b(nhd);
    ASSERT_TRUE(run(hnd, a, recipe, kernel).ok());
    ASSERT_TRUE(run(nhd, b, recipe, kernel).ok());
    Tensor back(DType::f32, {2, 70, 2, 40});
    transpose(a.o, back, 70);
    expect_same_bits(b.o, back, kernel);
    expect_same_bits(a.lse, b.lse, kernel);
  }
}

TEST(Bits, PaddingKeysNeverChangeTheOutput) {
  for (const auto& [kernel, recipe] : all()) {
    Shape shape{
        .batch = 3, .q_heads = 2, .kv_heads = 1, .q_len = 50, .kv_len = 200, .lengths = true, .seed = 11};
    Inputs in(shape);
    Outputs nan(in);
    ASSERT_TRUE(run(in, nan, recipe, kernel).ok());
    for (std::int64_t i = 0; i < in.k.elements(); ++i) {
      if (std::isnan(in.k[i])) in.k.set(i, 1e4F);
      if (std::isinf(in.v[i])) in.v.set(i, -1e4F);
    }
    Outputs finite(in);
    ASSERT_TRUE(run(in, finite, recipe, kernel).ok());
    expect_same_bits(finite.o, nan.o, kernel);
    expect_same_bits(finite.lse, nan.lse, kernel);
  }
}

TEST(Bits, RepeatedKeyHeadsEqualGroupedOnes) {
  for (const auto& [kernel, recipe] : all()) {
    const Shape shape{.batch = 1, .q_heads = 4, .kv_heads = 2, .q_len = 40, .kv_len = 100, .seed = 13};
    const Inputs grouped(shape);
    Shape full_shape = shape;
    full_shape.kv_heads = 4;
    Inputs full(full_shape);
    std::memcpy(full.q.bytes().data(), grouped.q.bytes().data(), full.q.bytes().size());
    for (std::int64_t h = 0; h < 4; ++h) {
      for (std::int64_t i = 0; i < 100 * 64; ++i) {
        full.k.set(h * 6400 + i, grouped.k[h / 2 * 6400 + i]);
        full.v.set(h * 6400 + i, grouped.v[h / 2 * 6400 + i]);
      }
    }
    Outputs a(grouped);
    Outputs b(full);
    ASSERT_TRUE(run(grouped, a, recipe, kernel).ok());
    ASSERT_TRUE(run(full, b, recipe, kernel).ok());
    expect_same_bits(a.o, b.o, kernel);
  }
}

TEST(Bits, InputsAreNotModifiedAndOutputsWrittenEntirely) {
  for (const auto& [kernel, recipe] : all()) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      const Inputs in({.batch = 2,
                       .q_heads = 2,
                       .kv_heads = 1,
                       .q_len = 37,
                       .kv_len = 61,
                       .head_dim = 65,
                       .dtype = dtype,
                       .seed = 17});
      const auto q = in.q.bytes();
      const auto k = in.k.bytes();
      const auto v = in.v.bytes();
      Outputs out(in, dtype);
      ASSERT_TRUE(run(in, out, recipe, kernel).ok());
      EXPECT_TRUE(q == in.q.bytes() && k == in.k.bytes() && v == in.v.bytes()) << kernel;
      EXPECT_TRUE(out.o.guards_intact() && out.lse.guards_intact()) << kernel;
      for (std::int64_t i = 0; i < out.o.elements(); ++i)
        ASSERT_FALSE(std::isnan(out.o[i])) << kernel << " element " << i;
      for (std::int64_t i = 0; i < out.lse.elements(); ++i)
        ASSERT_FALSE(std::isnan(out.lse[i])) << kernel << " element " << i;
    }
  }
}

TEST(Rows, WithoutKeysGiveZeroAndMinusInfinity) {
  for (const auto& [kernel, recipe] : all()) {
    for (const std::int64_t keys : {std::int64_t{0}, std::int64_t{20}}) {
      // 50 queries over 20 keys, bottom-right: the first 30 rows see nothing.
      const Inputs in({.batch = 1,
                       .q_heads = 1,
                       .kv_heads = 1,
                       .q_len = 50,
                       .kv_len = keys,
                       .causal = Causal::bottom_right,
                       .seed = 19});
      Outputs out(in);
      ASSERT_TRUE(run(in, out, recipe, kernel).ok());
      for (std::int64_t row = 0; row < 50 - keys; ++row) {
        EXPECT_EQ(out.lse[row], -std::numeric_limits<float>::infinity()) << kernel << " row " << row;
        for (std::int64_t d = 0; d < 64; ++d)
          ASSERT_EQ(out.o[row * 64 + d], 0.0F) << kernel << " row " << row;
      }
      for (std::int64_t row = 50 - keys; row < 50; ++row)
        EXPECT_TRUE(std::isfinite(out.lse[row])) << kernel << " row " << row;
    }
  }
}

// What a mask hides is hidden whatever it holds: NaN of the bias, of k's row, of the query of a row that sees
// nothing.
TEST(Rows, MasksHideNaN) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr std::int64_t kQueries = 20;
  constexpr std::int64_t kKeys = 90;
  constexpr std::int64_t kHiddenKey = 9;
  constexpr std::int64_t kHiddenRow = 3;
  for (const auto& [kernel, recipe] : all_and_direct_and_fp8()) {
    for (const char where : {'b', 'q', 'k'}) {
      // Only formats that keep a NaN in its own place: one in k's scale is of other keys too, one in k's mean
      // of all.
      const bool sixteen_bit = recipe.qk_format == Format::f16 || recipe.qk_format == Format::bf16;
      if (where == 'k' && (!sixteen_bit || recipe.smooth_k)) continue;
      if (where == 'q' && !sixteen_bit && recipe.q_group != Granularity::per_token) continue;
      Inputs in({.batch = 1,
                 .q_heads = 1,
                 .kv_heads = 1,
                 .q_len = kQueries,
                 .kv_len = kKeys,
                 .mask = true,
                 .bias = true,
                 .seed = 41});
      auto* mask = static_cast<std::uint8_t*>(in.mask.view().data);
      for (std::int64_t row = 0; row < kQueries; ++row) {
        mask[row * kKeys + kHiddenKey] = 0;
        mask[row * kKeys] = 1;
      }
      for (std::int64_t key = 0; key < kKeys; ++key) mask[kHiddenRow * kKeys + key] = 0;
      if (where == 'b') {
        for (std::int64_t row = 0; row < kQueries; ++row) in.bias.set(row * kKeys + kHiddenKey, kNaN);
        in.bias.set(kHiddenRow * kKeys + 50, kNaN);
      } else if (where == 'q') {
        in.q.set(kHiddenRow * 64 + 7, kNaN);
      } else {
        in.k.set(kHiddenKey * 64 + 7, kNaN);
      }
      Outputs out(in);
      ASSERT_TRUE(run_checking(false, in, out, {kernel, recipe}).ok());
      for (std::int64_t row = 0; row < kQueries; ++row) {
        const bool hidden = row == kHiddenRow;
        EXPECT_EQ(out.lse[row] == -std::numeric_limits<float>::infinity(), hidden)
            << kernel << " " << recipe.name << " " << where << " row " << row << ": " << out.lse[row];
        for (std::int64_t d = 0; d < 64; ++d) {
          const float o = out.o[row * 64 + d];
          ASSERT_TRUE(hidden ? o == 0.0F : std::isfinite(o))
              << kernel << " " << recipe.name << " " << where << " row " << row << ": " << o;
        }
      }
    }
  }
}

// Only with check_finite = false; by default the call is refused.
TEST(Rows, NanInTheirDataIsVisibleAndStaysInItsHead) {
  for (const auto& [kernel, recipe] : all_and_direct_and_fp8()) {
    for (const char where : {'q', 'k', 'v'}) {
      Inputs in({.batch = 1, .q_heads = 2, .kv_heads = 2, .q_len = 5, .kv_len = 40, .seed = 31});
      Tensor& spoiled = where == 'q' ? in.q : where == 'k' ? in.k : in.v;
      spoiled.set(3 * 64 + 7, std::numeric_limits<float>::quiet_NaN());  // head 0, token 3, channel 7
      Outputs out(in);
      ASSERT_TRUE(run_checking(false, in, out, {kernel, recipe}).ok());
      EXPECT_TRUE(std::isnan(out.o[3 * 64 + 7])) << kernel << " " << recipe.name << " " << where;
      if (where != 'v') {
        EXPECT_TRUE(std::isnan(out.lse[3])) << kernel << " " << recipe.name << " " << where;
      }
      for (std::int64_t i = 5 * 64; i < 10 * 64; ++i)
        ASSERT_TRUE(std::isfinite(out.o[i])) << kernel << " " << recipe.name << " " << where;
      EXPECT_EQ(run_checking(true, in, out, {kernel, recipe}).code(), StatusCode::invalid_argument);
    }
  }
}

TEST(Merge, ChunksByLseEqualTheWhole) {
  for (const auto& [kernel, recipe] : all()) {
    const std::int64_t keys = 512;
    const Inputs in({.batch = 1, .q_heads = 1, .kv_heads = 1, .q_len = 64, .kv_len = keys, .seed = 23});
    Outputs exact(in);
    ASSERT_TRUE(run(in, exact, preset("exact")).ok());
    Outputs whole(in);
    ASSERT_TRUE(run(in, whole, recipe, kernel).ok());
    const double own = relative_l2(whole.o, exact.o);
    for (const std::int64_t chunks : {2, 4, 8}) {
      std::vector<double> sum(64 * 64, 0.0);
      std::vector<double> weight(64, 0.0);
      for (std::int64_t c = 0; c < chunks; ++c) {
        const auto part = [&](const Tensor& t) {
          TensorView view = t.view();
          view.shape[2] = keys / chunks;
          view.data = static_cast<const std::byte*>(view.data) + c * (keys / chunks) * 64 * 2;
          return view;
        };
        Outputs out(in);
        ASSERT_TRUE(attention(in.q.view(), part(in.k), part(in.v), out.o.view(), out.lse.view(), recipe,
                              in.options(), {kernel})
                        .ok());
        for (std::int64_t row = 0; row < 64; ++row) {
          const double w = std::exp(static_cast<double>(out.lse[row]) - static_cast<double>(exact.lse[row]));
          weight[static_cast<std::size_t>(row)] += w;
          for (std::int64_t d = 0; d < 64; ++d)
            sum[static_cast<std::size_t>(row * 64 + d)] += w * static_cast<double>(out.o[row * 64 + d]);
        }
      }
      Tensor merged(DType::f32, {64, 64});
      for (std::int64_t i = 0; i < 64 * 64; ++i)
        merged.set(i, static_cast<float>(sum[static_cast<std::size_t>(i)] /
                                         weight[static_cast<std::size_t>(i / 64)]));
      // Chunks have scales of their own, so merging draws its error anew: within a quarter of the whole's.
      EXPECT_LE(relative_l2(merged, exact.o), 1.25 * own + 1e-4) << kernel << " " << chunks << " chunks";
    }
  }
}

TEST(QuantizedKv, OneBufferServesSeveralCallsAndItsFirstHead) {
  for (const auto& [kernel, recipe] : all()) {
    const Inputs in({.batch = 1, .q_heads = 4, .kv_heads = 4, .q_len = 33, .kv_len = 130, .seed = 29});
    const Result<Problem> problem = make_problem(in.q.view(), in.k.view(), in.v.view(), in.options());
    const Result<Plan> made = plan(*problem, recipe, {kernel});
    QuantizedKv kv;
    ASSERT_TRUE(made->quantize_kv(in.k.view(), in.v.view(), kv).ok());
    // All four query heads on head 0 of the same buffer equal a call on that head alone.
    const auto first_head = [](const Tensor& t) {
      TensorView view = t.view();
      view.shape[1] = 1;
      return view;
    };
    const TensorView k0 = first_head(in.k);
    const TensorView v0 = first_head(in.v);
    const Result<Plan> single = plan(*make_problem(in.q.view(), k0, v0, in.options()), recipe, {kernel});
    QuantizedQ qq;
    const Result<QuantizedKv> head0 = kv.heads(0, 1);
    ASSERT_TRUE(head0.ok());
    ASSERT_TRUE(single->quantize_q(in.q.view(), *head0, qq).ok());
    Outputs shared(in);
    ASSERT_TRUE(single->attend(qq, *head0, shared.o.view(), shared.lse.view()).ok());
    Outputs alone(in);
    ASSERT_TRUE(
        attention(in.q.view(), k0, v0, alone.o.view(), alone.lse.view(), recipe, in.options(), {kernel})
            .ok());
    expect_same_bits(shared.o, alone.o, kernel);
    EXPECT_FALSE(kv.heads(3, 2).ok());
    // A plan for other keys refuses the buffer.
    const Inputs other({.batch = 1, .q_heads = 4, .kv_heads = 4, .q_len = 33, .kv_len = 131, .seed = 29});
    const Result<Plan> wrong = plan(
        *make_problem(other.q.view(), other.k.view(), other.v.view(), other.options()), recipe, {kernel});
    EXPECT_EQ(wrong->quantize_q(other.q.view(), kv, qq).code(), StatusCode::invalid_argument);
  }
}

}  // namespace
}  // namespace octavo::test
