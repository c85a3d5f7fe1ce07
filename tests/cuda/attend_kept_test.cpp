// Quantized keys and values that serve other calls, and split keys.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "cuda/attend_compare.hpp"

namespace octavo::test {
namespace {

TEST(AttendKept, OneHeadOfQuantizedKeysServesAnotherCall) {
  OCTAVO_NEEDS_HOPPER();
  for (const std::string& name : gpu_presets()) {
    const Recipe recipe = gpu_recipe(name);
    AttendCase all(
        {.batch = 2, .q_heads = 6, .kv_heads = 3, .q_len = 80, .kv_len = 210, .absmax = needs_absmax(name)});
    all.send();
    const Plan plan = all.make_plan(recipe);
    const AttendResult want = all.run(plan);
    QuantizedKv kv;
    ASSERT_TRUE(plan.quantize_kv(all.device('k'), all.device('v'), kv).ok());
    // The query heads of key head 1 alone: a view of the same q.
    TensorView q = all.device('q');
    q.data =
        static_cast<const std::byte*>(q.data) + static_cast<std::size_t>(2 * q.strides[1]) * size_of(q.dtype);
    q.shape[1] = 2;
    TensorView k = all.device('k');
    k.shape[1] = 1;
    AttentionOptions o = all.problem(true).options;
    if (!o.q_absmax.empty()) {
      o.q_absmax.data = static_cast<const float*>(o.q_absmax.data) + 2;
      o.q_absmax.shape[1] = 2;
    }
    const Result<Problem> problem = make_problem(q, k, k, o);
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    const Result<Plan> one = octavo::plan(*problem, recipe);
    ASSERT_TRUE(one.ok()) << one.status().message();
    const Result<QuantizedKv> head = kv.heads(1, 1);
    ASSERT_TRUE(head.ok());
    const GuardedBytes out(static_cast<std::size_t>(2 * 2 * 80 * 64) * sizeof(float));
    const MutableTensorView view(out.data(), DType::f32, {2, 2, 80, 64}, kGpu);
    for (int again = 0; again < 2; ++again) {
      QuantizedQ qq;
      ASSERT_TRUE(one->quantize_q(q, *head, qq).ok());
      const Status s = one->attend(qq, *head, view);
      ASSERT_TRUE(s.ok()) << s.message();
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      const std::vector<std::byte> bytes = out.read();
      for (std::int64_t b = 0; b < 2; ++b) {
        const float* from = want.o.data() + (b * 6 + 2) * 80 * 64;
        EXPECT_EQ(std::memcmp(bytes.data() + static_cast<std::size_t>(b * 2 * 80 * 64) * sizeof(float), from,
                              2 * 80 * 64 * sizeof(float)),
                  0)
            << name << " entry " << b;
      }
    }
    EXPECT_FALSE(one->attend(QuantizedQ{}, *head, view).ok());
    QuantizedQ qq;
    EXPECT_FALSE(one->quantize_q(q, kv, qq).ok()) << "three heads where one is wanted";
  }
}

// docs/api.md: queries, mask and bias may differ. Kernels of other tiles take those.
TEST(AttendKept, QuantizedKeysServeFewQueriesAndMasks) {
  OCTAVO_NEEDS_HOPPER();
  const GuardedBytes visible(1);
  ASSERT_EQ(fill_device(visible.data(), 1, 1), cudaSuccess);
  for (const std::string& name : gpu_presets()) {
    for (const std::int64_t dim : {64, 128}) {
      const Recipe recipe = gpu_recipe(name);
      AttendCase all({.q_heads = 4,
                      .kv_heads = 2,
                      .q_len = 3000,
                      .kv_len = 500,
                      .head_dim = dim,
                      .absmax = needs_absmax(name)});
      all.send();
      QuantizedKv kv;
      ASSERT_TRUE(all.make_plan(recipe).quantize_kv(all.device('k'), all.device('v'), kv).ok());
      for (const std::int64_t queries : {1, 3000}) {
        for (const bool masked : {false, true}) {
          SCOPED_TRACE(name + " D " + std::to_string(dim) + " queries " + std::to_string(queries) +
                       (masked ? " masked" : ""));
          TensorView q = all.device('q');
          q.shape[2] = queries;
          AttentionOptions o = all.problem(true).options;
          if (masked) o.mask = MutableTensorView(visible.data(), DType::boolean, {1, 1, 1, 1}, kGpu);
          const Result<Problem> problem = make_problem(q, all.device('k'), all.device('v'), o);
          ASSERT_TRUE(problem.ok()) << problem.status().message();
          const Result<Plan> plan = octavo::plan(*problem, recipe);
          ASSERT_TRUE(plan.ok()) << plan.status().message();
          QuantizedQ qq;
          const GuardedBytes out(static_cast<std::size_t>(4 * queries * dim) * sizeof(float));
          Status s = plan->quantize_q(q, kv, qq);
          ASSERT_TRUE(s.ok()) << s.message();
          s = plan->attend(qq, kv, MutableTensorView(out.data(), DType::f32, {1, 4, queries, dim}, kGpu));
          ASSERT_TRUE(s.ok()) << s.message();
          ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        }
      }
    }
  }
}

TEST(AttendSplits, StayWithinTheErrorOfTheRecipe) {
  OCTAVO_NEEDS_HOPPER();
  std::printf("%-13s %-44s %8s %8s %9s\n", "recipe", "shape", "one part", "split", "apart");
  for (const auto& [q_len, kv_len, dim] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 65536, 64},
                                           {4, 8192, 128},
                                           {1, 1000, 64},
                                           {33, 5000, 64}}) {
    AttendShape s{.batch = 2, .q_heads = 8, .kv_heads = 2, .q_len = q_len, .kv_len = kv_len, .head_dim = dim};
    if (q_len == 33) {
      s.causal = Causal::bottom_right;
      s.lengths = {5000, 1234};
    }
    AttendCase c(s);
    c.send();
    const AttendResult exact = c.exact({});
    for (const char* name : kFamilies) {
      AttendResult whole;
      for (const int splits : {1, 0, 2, 7, 64}) {
        c.set_key_splits(splits);
        c.send();
        const Plan plan = c.make_plan(gpu_recipe(name));
        const AttendResult got = c.run(plan);
        SCOPED_TRACE(std::string(name) + " " + to_text(c.shape()));
        EXPECT_TRUE(same_bits(got.o, c.run(plan).o)) << "two runs";
        if (splits == 1) whole = got;
        const Difference one = difference(c, {}, whole, exact);
        const Difference here = difference(c, {}, got, exact);
        const Difference apart = difference(c, {}, got, whole);
        if (splits == 0)
          std::printf("%-13s %-44.44s %8.4f %8.4f %9.4f\n", name, to_text(s).c_str(), one.l1, here.l1,
                      apart.l1);
        EXPECT_EQ(here.not_finite, 0);
        EXPECT_LE(here.l1, 1.15 * one.l1 + 1e-3) << here.worst;
        EXPECT_LE(apart.l1, 1.6 * one.l1 + 1e-3) << apart.worst;
        EXPECT_LE(here.lse_max, 1.5 * one.lse_max + 2e-2);
      }
    }
  }
}

TEST(AttendSplits, AFixedNumberDoesNotSeeTheBatchOrTheQueries) {
  OCTAVO_NEEDS_HOPPER();
  for (const std::string& name : gpu_presets()) {
    for (const int splits : {1, 5}) {
      const bool absmax = scales_queries(gpu_recipe(name));
      if (gpu_recipe(name).smooth_q) continue;  // a mean of the rows of a call
      AttendCase c({.batch = 3,
                    .q_heads = 4,
                    .kv_heads = 2,
                    .q_len = 150,
                    .kv_len = 2500,
                    .lengths = {2500, 700, 1},
                    .absmax = absmax,
                    .key_splits = splits});
      c.send();
      const AttendResult want = c.run(c.make_plan(gpu_recipe(name)), AttendCase::Way::given);
      for (const auto& [entry, rows] :
           {std::pair<std::int64_t, std::int64_t>{0, 150}, {1, 150}, {1, 7}, {0, 1}}) {
        // An entry alone, or its first rows alone: views of the same tensors.
        TensorView q = c.device('q');
        TensorView k = c.device('k');
        TensorView v = c.device('v');
        for (TensorView* t : {&q, &k, &v}) {
          t->data = static_cast<const std::byte*>(t->data) +
                    static_cast<std::size_t>(entry * t->strides[0]) * size_of(t->dtype);
          t->shape[0] = 1;
        }
        q.shape[2] = rows;
        AttentionOptions o = c.problem(true).options;
        o.kv_lengths.data = static_cast<const std::int32_t*>(o.kv_lengths.data) + entry;
        o.kv_lengths.shape[0] = 1;
        if (absmax) {
          o.q_absmax.data = static_cast<const float*>(o.q_absmax.data) + entry * 4;
          o.q_absmax.shape[0] = 1;
        }
        const GuardedBytes out(static_cast<std::size_t>(4 * rows * 64) * sizeof(float));
        const Status s = attention(q, k, v, MutableTensorView(out.data(), DType::f32, {1, 4, rows, 64}, kGpu),
                                   {}, gpu_recipe(name), o);
        ASSERT_TRUE(s.ok()) << s.message();
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        const std::vector<std::byte> bytes = out.read();
        for (std::int64_t h = 0; h < 4; ++h) {
          EXPECT_EQ(std::memcmp(bytes.data() + static_cast<std::size_t>(h * rows * 64) * sizeof(float),
                                want.o.data() + (entry * 4 + h) * 150 * 64,
                                static_cast<std::size_t>(rows * 64) * sizeof(float)),
                    0)
              << name << " splits " << splits << " entry " << entry << " rows " << rows << " head " << h;
        }
      }
    }
  }
}

}  // namespace
}  // namespace octavo::test
