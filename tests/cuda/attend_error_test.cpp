// How far recipes are from exact attention on the GPU, on data that is hard in one way each, against what the
// emulator of the same recipe reaches; and what tensor-core accumulators lose over 65,536 keys.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "cuda/attend_compare.hpp"

namespace octavo::test {
namespace {

/// N(0,1) for each (head, channel).
std::vector<float> per_channel(std::int64_t heads, std::int64_t dim, unsigned seed, float size) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, size);
  std::vector<float> v(static_cast<std::size_t>(heads * dim));
  for (float& x : v) x = normal(random);
  return v;
}

enum class Data { normal, k_bias, v_bias, outlier, peaky };
constexpr const char* kData[] = {"N(0,1)", "K bias", "V bias", "outlier", "peaky"};

void make(AttendCase& c, Data data) {
  const auto [heads, dim] = std::pair{c.shape().q_heads, c.shape().head_dim};
  const auto at = [dim = dim](std::int64_t h, std::int64_t d) {
    return static_cast<std::size_t>(h * dim + d);
  };
  const std::vector<float> bias = per_channel(heads, dim, 11, data == Data::k_bias ? 5.0F : 3.0F);
  switch (data) {
    case Data::normal:
      break;
    case Data::k_bias:
      change(c.k(), [&](float x, auto h, auto, auto d) { return x + bias[at(h, d)]; });
      break;
    case Data::v_bias:
      change(c.v(), [&](float x, auto h, auto, auto d) { return x + bias[at(h, d)]; });
      break;
    case Data::outlier:
      change(c.q(), [](float x, auto, auto, auto d) { return 0.7F * (d == 3 ? 8.0F * x : x); });
      change(c.k(), [](float x, auto, auto, auto d) { return d == 3 ? 8.0F * x : x; });
      break;
    case Data::peaky:
      change(c.q(), [](float x, auto, auto, auto) { return 4.0F * x; });
      break;
  }
}

/// The largest mean relative L1 of a recipe on that data, for those that promise one.
double promised(const std::string& name, Data data) {
  if (name == "sage2-8+8" && data == Data::normal) return 0.040;
  if (name == "turbo" && data == Data::normal) return 0.060;
  if (name == "turbo" && data != Data::peaky) return 0.065;
  if (name == "turbo8" && data == Data::normal) return 0.043;
  if ((name == "sage2-8+8" || name == "int8-icl" || name == "turbo8") && data == Data::peaky) return 0.048;
  return 1.0;
}

/// What FP8 accumulators may lose of V's mean, which the emulator does not model: each of n products is cut
/// towards zero at 2^-13 of the running sum, half a unit on average, and the running sum is half the final
/// one on average: n / 4 * 2^-13 of O. Kernels with direct weights give it back.
double accumulator_loss(const Recipe& r, Data data) {
  const bool cut = r.v_format == Format::e4m3 && r.pv_accumulator == PvAccumulator::f32_buffered;
  return cut && data == Data::v_bias && r.exp2 == Exp2::exact ? r.pv_buffer * 0x1p-15 : 0.0;
}

/// Mean over heads of the relative L1 over the listed rows.
double mean_l1(const AttendCase& c, const reference::RowLists& rows, const AttendResult& got,
               const AttendResult& want) {
  std::vector<double> error(static_cast<std::size_t>(c.shape().q_heads));
  std::vector<double> size(error.size());
  c.each_row(rows, [&](std::int64_t line, const Sequence&, std::int64_t h, std::int64_t) {
    for (std::int64_t i = line * c.shape().head_dim; i < (line + 1) * c.shape().head_dim; ++i) {
      const auto at = static_cast<std::size_t>(i);
      error[static_cast<std::size_t>(h)] +=
          std::abs(static_cast<double>(got.o[at]) - static_cast<double>(want.o[at]));
      size[static_cast<std::size_t>(h)] += std::abs(static_cast<double>(want.o[at]));
    }
  });
  double mean = 0;
  for (std::size_t h = 0; h < error.size(); ++h)
    mean += error[h] / size[h] / static_cast<double>(error.size());
  return mean;
}

TEST(AttendError, SixteenHeadsOf8192Keys) {
  OCTAVO_NEEDS_HOPPER();
  constexpr std::int64_t kRows = 32;  // of each head
  for (const std::int64_t dim : {64, 128}) {
    std::printf("D %-11ld relative L1, mean of 16 heads (the emulator's)\n%-13s", static_cast<long>(dim),
                "recipe");
    for (const char* data : kData) std::printf(" %-16s", data);
    std::printf("\n");
    const std::vector<std::string> names = {"half",     "sage2-8+8", "sage2-4+8", "sage2++-8+8", "sage-8+16",
                                            "fp8-head", "int8-icl",  "turbo8",    "turbo",       "turbo16"};
    std::vector<std::string> lines(names.size());
    for (const Data data : {Data::normal, Data::k_bias, Data::v_bias, Data::outlier, Data::peaky}) {
      AttendShape s{.q_heads = 16,
                    .kv_heads = 16,
                    .q_len = 8192,
                    .kv_len = 8192,
                    .head_dim = dim,
                    .dtype = DType::bf16};
      s.k_mean = 0.0F;
      AttendCase c(s);
      make(c, data);
      c.send();
      const reference::RowLists rows = c.sample_rows(kRows * 16 * 8192);
      const AttendResult exact = c.exact(rows);
      for (std::size_t i = 0; i < names.size(); ++i) {
        const Plan plan = c.make_plan(gpu_recipe(names[i]));
        const double of_kernel = mean_l1(c, rows, c.run(plan), exact);
        const double of_recipe = mean_l1(c, rows, c.emulate(plan.recipe(), rows), exact);
        char cell[32];
        std::snprintf(cell, sizeof cell, " %.4f (%.4f) ", of_kernel, of_recipe);
        lines[i] += cell;
        SCOPED_TRACE(names[i] + " on " + kData[static_cast<int>(data)] + " D " + std::to_string(dim));
        EXPECT_LE(of_kernel, promised(names[i], data));
        EXPECT_LE(of_kernel, 1.05 * of_recipe + 1e-4 + accumulator_loss(plan.recipe(), data));
      }
    }
    for (std::size_t i = 0; i < names.size(); ++i)
      std::printf("%-13s%s\n", names[i].c_str(), lines[i].c_str());
  }
}

// FP8 products are cut to about 13 bits below the accumulator's running value, towards zero: every query
// averages the half of the keys whose V has mean 1, so that the sums grow long.
TEST(AttendError, ClusteredValuesOver65536Keys) {
  OCTAVO_NEEDS_HOPPER();
  constexpr std::int64_t kKeys = 65536;
  constexpr double kLost = 0.016;
  for (const std::int64_t dim : {64, 128}) {
    AttendShape s{.q_heads = 1, .kv_heads = 1, .q_len = 192, .kv_len = kKeys, .head_dim = dim};
    s.k_mean = 0.0F;
    AttendCase c(s);
    std::vector<float> e = per_channel(1, dim, 5, 1.0F);
    float norm = 0.0F;
    for (const float x : e) norm += x * x;
    for (float& x : e) x *= 6.0F / std::sqrt(norm);
    const auto side = [](std::int64_t n) { return n < kKeys / 2 ? 1.0F : -1.0F; };
    change(c.q(), [&](float x, auto, auto, auto d) { return x + e[static_cast<std::size_t>(d)]; });
    change(c.k(),
           [&](float x, auto, auto n, auto d) { return x + side(n) * e[static_cast<std::size_t>(d)]; });
    change(c.v(), [&](float x, auto, auto n, auto) { return x + side(n); });
    c.send();
    const reference::RowLists rows = c.sample_rows(64 * kKeys);
    const AttendResult exact = c.exact(rows);
    for (const char* name : {"turbo", "turbo.wide", "turbo8", "turbo16", "int8-icl", "sage2-8+8",
                             "sage2++-8+8", "fp8-head", "half"}) {
      const Plan plan = c.make_plan(gpu_recipe(name));
      const AttendResult got = c.run(plan);
      const AttendResult want = c.emulate(plan.recipe(), rows);
      const Difference lost = difference(c, rows, got, want);
      std::printf("D %-4ld %-12s relative L1 %.4f, of the recipe %.4f, lost %.4f, LSE %.4f\n",
                  static_cast<long>(dim), name, difference(c, rows, got, exact).l1,
                  difference(c, rows, want, exact).l1, lost.l1, lost.lse_max);
      EXPECT_LE(lost.l1, kLost) << name << " " << lost.worst;
    }
  }
}

// Near-flat scores: all weights are three or four neighbouring bytes, so what a product is cut by depends on
// few significands, and what is given back of V's mean must still be what was lost (1.3% of it here).
TEST(AttendError, MeanOfValuesUnderNearFlatScores) {
  OCTAVO_NEEDS_HOPPER();
  constexpr std::int64_t kKeys = 16384;
  constexpr double kOff = 0.004;
  for (const std::int64_t dim : {64, 128}) {
    for (const float q_size : {0.001F, 0.05F, 0.15F}) {
      AttendShape s{.q_heads = 2, .kv_heads = 2, .q_len = 192, .kv_len = kKeys, .head_dim = dim};
      s.q_size = q_size;
      s.k_mean = 0.0F;
      s.v_mean = 2.0F;
      AttendCase c(s);
      c.send();
      const reference::RowLists rows = c.sample_rows(2 * 32 * kKeys);
      for (const char* name : {"turbo", "turbo.wide", "turbo8", "turbo16"}) {
        const Plan plan = c.make_plan(gpu_recipe(name));
        const Difference off = difference(c, rows, c.run(plan), c.emulate(plan.recipe(), rows));
        std::printf("D %-4ld q x %.3f %-8s off by %.4f\n", static_cast<long>(dim),
                    static_cast<double>(q_size), name, off.l1);
        EXPECT_LE(off.l1, kOff) << name << " q x " << q_size << " " << off.worst;
      }
    }
  }
}

}  // namespace
}  // namespace octavo::test
