// Every recipe on Hopper against the emulator of its effective recipe (docs/numerics.md, Tolerances): fixed
// problems that have one feature each, then random ones that mix them. Outputs start as NaN, every buffer
// lies between guard bands, inputs must stay as they are.
//
//   OCTAVO_TEST_SEED=time cuda_tests --gtest_filter='*AttendRecipe*'      other random problems than always
//   compute-sanitizer cuda_tests --gtest_filter='AttendSanitize.*'        a few small ragged ones
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <span>

#include "cuda/attend_compare.hpp"
#include "cuda/runtime.hpp"

namespace octavo::test {
namespace {

class Watch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Worst figures of a recipe, printed at its end.
struct Worst {
  double l2 = 0;
  double lse = 0;
  double l1_ratio = 0;
  int problems = 0;
};

void check_case(const AttendShape& shape, const std::string& name, Worst& worst,
                std::int64_t budget = 2'000'000) {
  AttendShape s = shape;
  const Recipe recipe = gpu_recipe(name);
  s.absmax = (s.absmax || needs_absmax(name)) && scales_queries(recipe);
  SCOPED_TRACE(name + " " + to_text(s));
  AttendCase c(s);
  c.send();
  if (testing::Test::HasFatalFailure()) return;
  const Plan plan = c.make_plan(recipe);
  if (testing::Test::HasFailure()) return;
  const AttendResult got = c.run(plan);
  const reference::RowLists rows = c.sample_rows(budget);
  const AttendResult want = c.emulate(plan.recipe(), rows);

  // Every element was written, sampled or not.
  EXPECT_EQ(difference(c, {}, got, got).not_finite, 0) << "elements of the output are NaN or Inf";
  const Difference d = difference(c, rows, got, want);
  const Tolerance t = tolerance_of(plan.recipe(), s);
  const double some = std::sqrt(static_cast<double>(std::max<std::int64_t>(d.rows, 1)));
  // Each part of split keys has its own maximum: the same recipe, rounded elsewhere.
  const bool split = s.key_splits != 1;
  const double parts = split ? 1.6 * difference(c, rows, want, c.exact(rows)).l2 : 0.0;
  EXPECT_LE(d.l2, t.l2 + t.flip / some + parts) << d.worst;
  const double logits = (t.exact_scores ? 0.0 : 0x1p-10 * c.largest_logit()) + parts;
  EXPECT_LE(d.lse_rms, t.lse + logits + t.lse_flips * std::sqrt(rows_that_flip(plan.recipe(), c, d)) / some)
      << d.worst;
  EXPECT_LE(d.lse_max, t.lse + logits + t.lse_flips) << d.worst;
  if (s.f32_out) worst.l2 = std::max(worst.l2, d.l2);
  worst.lse = std::max(worst.lse, d.lse_max);
  ++worst.problems;

  // In one call. 16-bit recipes then read the caller's tensors themselves, where those are aligned.
  const AttendResult once = c.run(plan, AttendCase::Way::given);
  if (name == "half") {
    EXPECT_EQ(difference(c, {}, once, once).not_finite, 0) << "run(): elements are NaN or Inf";
    const Difference apart = difference(c, rows, once, want);
    EXPECT_LE(apart.l2, t.l2 + t.flip / some) << "run(): " << apart.worst;
    EXPECT_LE(apart.lse_max, t.lse + logits + t.lse_flips) << "run(): " << apart.worst;
  } else {
    EXPECT_TRUE(same_bits(once.o, got.o)) << "run() and the steps";
    EXPECT_TRUE(same_bits(once.lse, got.lse)) << "run() and the steps";
  }

  c.each_row(rows, [&](std::int64_t line, const Sequence& seq, std::int64_t h, std::int64_t row) {
    const bool empty = want.lse[static_cast<std::size_t>(line)] == -INFINITY;
    if (!empty) return;
    for (std::int64_t i = 0; i < s.head_dim; ++i)
      EXPECT_EQ(got.o[static_cast<std::size_t>(line * s.head_dim + i)], 0.0F)
          << "row " << row << " of sequence " << seq.index << " head " << h << " sees no key";
    if (s.lse) {
      EXPECT_EQ(got.lse[static_cast<std::size_t>(line)], -INFINITY);
    }
  });

  // As near to the truth as the recipe promises. Clamped queries have another one.
  if (s.f32_out && !s.absmax && !split && d.rows >= 64) {
    const AttendResult exact = c.exact(rows);
    const double of_kernel = difference(c, rows, got, exact).l1;
    const double of_recipe = difference(c, rows, want, exact).l1;
    EXPECT_LE(of_kernel, 1.05 * of_recipe + 1e-3);
    if (of_recipe > 5e-3) worst.l1_ratio = std::max(worst.l1_ratio, of_kernel / of_recipe);
  }
}

/// One feature each; D, heads and lengths vary along the way.
std::vector<AttendShape> fixed_shapes() {
  using enum Causal;
  using S = Storage;
  const auto bf16 = DType::bf16;
  const auto f32 = DType::f32;
  const auto thd = Layout::thd;
  std::vector<AttendShape> v{
      {.q_len = 1, .kv_len = 1},
      {.q_len = 1, .kv_len = 300, .f32_out = false},
      {.batch = 2, .q_len = 200, .kv_len = 257, .gaps_out = true},
      {.q_len = 193, .kv_len = 1000, .head_dim = 128},
      {.q_len = 65, .kv_len = 1023, .head_dim = 96, .dtype = bf16, .f32_out = false},
      {.q_len = 130, .kv_len = 129, .head_dim = 1},
      {.q_len = 70, .kv_len = 400, .head_dim = 21, .gaps_out = true},
      {.q_len = 70, .kv_len = 400, .head_dim = 63, .dtype = f32},
      {.q_len = 70, .kv_len = 400, .head_dim = 65, .dtype = bf16},
      {.q_len = 70, .kv_len = 400, .head_dim = 127, .lse = false},
      {.q_heads = 8, .kv_heads = 2, .q_len = 50, .kv_len = 333},                   // GQA
      {.q_heads = 7, .kv_heads = 1, .q_len = 40, .kv_len = 500, .head_dim = 128},  // MQA
      // One query: its heads are the rows of a tile, of two where the group is large.
      {.batch = 3, .q_heads = 15, .kv_heads = 3, .q_len = 1, .kv_len = 700, .layout = Layout::nhd},
      {.batch = 2, .q_heads = 8, .kv_heads = 1, .q_len = 1, .kv_len = 500, .head_dim = 128, .dtype = bf16},
      {.q_heads = 400, .kv_heads = 2, .q_len = 1, .kv_len = 150, .causal = bottom_right},
      {.q_heads = 6, .kv_heads = 2, .q_len = 150, .kv_len = 150, .causal = top_left},
      {.q_len = 300, .kv_len = 300, .head_dim = 128, .dtype = bf16, .causal = top_left, .f32_out = false},
      {.q_len = 300, .kv_len = 100, .causal = bottom_right},  // the first 200 rows see no key
      {.q_len = 100, .kv_len = 300, .head_dim = 128, .causal = bottom_right},
      {.q_heads = 4, .kv_heads = 1, .q_len = 77, .kv_len = 300, .causal = bottom_right},
      {.q_len = 300, .kv_len = 300, .window = {100, 20}},
      {.q_len = 300, .kv_len = 350, .head_dim = 128, .window = {-1, 5}},
      {.q_len = 400, .kv_len = 400, .causal = bottom_right, .window = {150, -1}},
      {.q_len = 200, .kv_len = 150, .causal = top_left, .window = {0, -1}},
      {.q_heads = 4, .kv_heads = 2, .q_len = 333, .kv_len = 222, .window = {7, 7}},
      {.batch = 4, .q_len = 100, .kv_len = 400, .lengths = {400, 0, 1, 129}},
      {.batch = 3,
       .q_heads = 4,
       .kv_heads = 2,
       .q_len = 140,
       .kv_len = 300,
       .head_dim = 128,
       .layout = Layout::nhd,
       .causal = bottom_right,
       .lengths = {300, 77, 140}},
      {.q_heads = 4,
       .kv_heads = 2,
       .layout = thd,
       .q_lens = {100, 0, 1, 64, 200},
       .k_lens = {130, 50, 0, 64, 333}},
      {.q_heads = 2,
       .kv_heads = 2,
       .head_dim = 128,
       .layout = thd,
       .causal = bottom_right,
       .q_lens = {77, 200, 0, 3},
       .k_lens = {77, 300, 0, 100}},
      {.layout = thd,
       .causal = top_left,
       .window = {40, -1},
       .q_lens = {1, 1, 300, 65},
       .k_lens = {9, 500, 300, 64}},
      {.layout = thd, .q_lens = {0, 0}, .k_lens = {0, 0}},
      {.batch = 2,
       .q_heads = 4,
       .kv_heads = 2,
       .q_len = 150,
       .kv_len = 150,
       .layout = Layout::nhd,
       .storage = S::one_buffer},
      {.batch = 2, .q_len = 150, .kv_len = 150, .head_dim = 72, .dtype = bf16, .storage = S::one_buffer},
      {.batch = 2, .q_len = 90, .kv_len = 260, .storage = S::padded_rows},
      {.batch = 2,
       .q_len = 90,
       .kv_len = 260,
       .head_dim = 128,
       .dtype = f32,
       .layout = Layout::nhd,
       .storage = S::padded_rows},
      {.batch = 2, .q_len = 90, .kv_len = 260, .storage = S::every_second, .gaps_out = true},
      {.batch = 3, .q_len = 90, .kv_len = 260, .storage = S::shared_keys},
      {.q_len = 100, .kv_len = 300, .scale = -0.2F},
      {.q_len = 100, .kv_len = 300, .head_dim = 128, .scale = -0.05F},
      {.q_len = 100, .kv_len = 300, .scale = 0.0F},
      {.q_len = 100, .kv_len = 600, .scale = 0.5F},
      {.q_len = 100, .kv_len = 300, .absmax = true},
      {.q_len = 120, .kv_len = 250, .mask = Extra::full},
      {.batch = 2, .q_len = 120, .kv_len = 250, .head_dim = 128, .mask = Extra::rows},
      {.batch = 2,
       .q_heads = 4,
       .kv_heads = 2,
       .q_len = 70,
       .kv_len = 333,
       .causal = bottom_right,
       .mask = Extra::keys},
      {.batch = 2, .q_len = 120, .kv_len = 250, .bias = Extra::full},
      {.q_heads = 6,
       .kv_heads = 2,
       .q_len = 120,
       .kv_len = 250,
       .head_dim = 128,
       .bias = Extra::heads,
       .bias_dtype = DType::f16},
      {.batch = 2,
       .q_len = 120,
       .kv_len = 250,
       .dtype = bf16,
       .mask = Extra::keys,
       .bias = Extra::rows,
       .bias_dtype = bf16},
      {.batch = 2,
       .q_len = 250,
       .kv_len = 250,
       .causal = top_left,
       .lengths = {250, 100},
       .bias = Extra::rows,
       .f32_out = false},
      {.batch = 3,
       .q_len = 30,
       .kv_len = 200,
       .head_dim = 128,
       .window = {20, 20},
       .lengths = {200, 31, 0},
       .mask = Extra::full,
       .bias = Extra::keys},
      {.q_len = 2048, .kv_len = 2048, .causal = top_left},
      {.q_len = 500, .kv_len = 4096, .head_dim = 128, .f32_out = false},
  };
  unsigned seed = 100;
  for (AttendShape& s : v) s.seed = ++seed;
  return v;
}

AttendShape random_shape(unsigned seed) {
  std::mt19937 random(seed);
  const auto one_of = [&](auto... values) {
    const std::common_type_t<decltype(values)...> list[] = {values...};
    return list[random() % sizeof...(values)];
  };
  const auto up_to = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(n + 1));
  };
  AttendShape s;
  s.seed = seed;
  s.kv_heads = one_of(1, 2, 3);
  s.q_heads = s.kv_heads * one_of(1, 1, 1, 2, 3, 5);
  s.head_dim = one_of(1, 8, 16, 33, 40, 64, 64, 64, 64, 72, 80, 96, 100, 128, 128, 128);
  s.dtype = one_of(DType::f16, DType::f16, DType::bf16, DType::bf16, DType::f32);
  s.causal = one_of(Causal::none, Causal::none, Causal::top_left, Causal::bottom_right);
  if (random() % 4 == 0) s.window = {one_of(-1, 0, 5, 63, 200), one_of(-1, 0, 3, 64, 150)};
  if (random() % 5 == 0) s.scale = one_of(-0.3F, -0.01F, 0.0F, 0.02F, 0.4F);
  s.absmax = random() % 5 == 0;
  s.lse = random() % 5 != 0;
  s.f32_out = random() % 2 == 0;
  s.gaps_out = random() % 3 == 0;
  s.q_size = one_of(0.1F, 1.0F, 1.0F, 2.0F);
  s.k_mean = one_of(0.0F, 0.5F, 2.0F);
  s.layout = one_of(Layout::hnd, Layout::nhd, Layout::thd);
  s.storage = one_of(Storage::contiguous, Storage::contiguous, Storage::padded_rows, Storage::every_second);
  if (s.layout == Layout::thd) {
    const std::int64_t n = 1 + up_to(5);
    for (std::int64_t i = 0; i < n; ++i) {
      s.q_lens.push_back(one_of(0, 1, 2, 64, 65, 100, 193) + up_to(30));
      s.k_lens.push_back(one_of(0, 0, 1, 63, 128, 200, 400) + up_to(50));
    }
    return s;
  }
  s.batch = one_of(1, 1, 2, 3);
  s.q_len = one_of(1, 3, 63, 64, 65, 127, 129, 192, 300) + up_to(10);
  s.kv_len = one_of(1, 31, 64, 65, 127, 128, 161, 193, 500, 1025) + up_to(10);
  if (random() % 4 == 0) {
    s.storage = Storage::one_buffer;
    s.kv_len = s.q_len;
  } else if (random() % 8 == 0) {
    s.storage = Storage::shared_keys;
  }
  if (random() % 3 == 0 && s.storage != Storage::shared_keys) {
    for (std::int64_t b = 0; b < s.batch; ++b) s.lengths.push_back(up_to(s.kv_len));
  }
  if (random() % 5 == 0) s.mask = one_of(Extra::full, Extra::rows, Extra::keys, Extra::heads);
  if (random() % 5 == 0) {
    s.bias = one_of(Extra::full, Extra::rows, Extra::keys, Extra::heads);
    s.bias_dtype = one_of(DType::f32, DType::f16, DType::bf16);
  }
  return s;
}

unsigned first_seed() {
  const char* text = std::getenv("OCTAVO_TEST_SEED");
  if (text == nullptr) return 1;
  if (std::string(text) != "time") return static_cast<unsigned>(std::strtoul(text, nullptr, 10));
  return static_cast<unsigned>(std::chrono::system_clock::now().time_since_epoch().count() / 1000);
}

class AttendRecipe : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { OCTAVO_NEEDS_HOPPER(); }
  void TearDown() override {
    if (worst_.problems > 0)
      std::printf(
          "%-13s %3d problems, largest relative L2 %.2e, LSE %.2e, L1 against f64 %.3f of the recipe's\n",
          GetParam().c_str(), worst_.problems, worst_.l2, worst_.lse, worst_.l1_ratio);
  }
  Worst worst_;
};

TEST_P(AttendRecipe, EmulatorOnFixedProblems) {
  for (const AttendShape& s : fixed_shapes()) {
    check_case(s, GetParam(), worst_);
    if (HasFatalFailure()) return;
  }
}

TEST_P(AttendRecipe, EmulatorOnRandomProblems) {
  constexpr double kSeconds = 3;  // of 13 recipes; what is left out on a slow machine is said
  constexpr unsigned kProblems = 120;
  const unsigned seed = first_seed();
  const Watch watch;
  unsigned i = 0;
  for (; i < kProblems && (watch.seconds() < kSeconds || i < 10) && !HasFailure(); ++i)
    check_case(random_shape(1000 * seed + i), GetParam(), worst_);
  if (i < kProblems) std::printf("stopped after %u of %u random problems, seed %u\n", i, kProblems, seed);
}

std::string identifier(const testing::TestParamInfo<std::string>& info) {
  std::string name;
  for (const char c : info.param)
    name += c == '+' ? "p" : std::isalnum(static_cast<unsigned char>(c)) != 0 ? std::string(1, c) : "_";
  return name;
}

INSTANTIATE_TEST_SUITE_P(Preset, AttendRecipe, testing::ValuesIn(gpu_presets()), identifier);

TEST(AttendFields, OverridesThatFamiliesTake) {
  OCTAVO_NEEDS_HOPPER();
  Worst worst;
  const auto check_with = [&](const std::string& name,
                              const std::vector<std::pair<std::string, std::string>>& set,
                              const AttendShape& shape) {
    Recipe r = gpu_recipe(name);
    std::string fields;
    for (const auto& [field, value] : set) {
      ASSERT_TRUE(set_field(r, field, value).ok()) << field;
      fields += " " + field + "=" + value;
    }
    SCOPED_TRACE(name + fields);
    AttendCase c(shape);
    c.send();
    const Plan plan = c.make_plan(r);
    if (HasFailure()) return;
    const AttendResult got = c.run(plan);
    const reference::RowLists rows = c.sample_rows(1'000'000);
    const Difference d = difference(c, rows, got, c.emulate(plan.recipe(), rows));
    EXPECT_EQ(d.not_finite, 0);
    EXPECT_LE(d.l2, 2e-2 + 0.1 / std::sqrt(static_cast<double>(d.rows))) << d.worst;
    worst.l2 = std::max(worst.l2, d.l2);
  };
  for (const std::int64_t dim : {64, 128}) {
    AttendShape s{.q_heads = 4, .kv_heads = 2, .q_len = 200, .kv_len = 700, .head_dim = dim};
    s.v_mean = 1.0F;
    for (const char* name :
         {"sage2-8+8", "turbo8", "turbo", "turbo.wide", "turbo16", "fp8-head", "sage2++-8+8"}) {
      check_with(name, {{"smooth_v", "true"}}, s);
      check_with(name, {{"smooth_k", "false"}}, s);
      check_with(name, {{"key_order", "forward"}}, s);
      check_with(name, {{"normaliser", "quantized"}}, s);
    }
    for (const char* name : {"sage2-8+8", "turbo8", "fp8-head"}) {
      for (const char* group : {"per_head", "per_block", "per_warp", "per_thread"})
        check_with(name, {{"k_group", group}}, s);
      for (const char* group : {"per_head", "per_warp", "per_token"})
        check_with(name, {{"q_group", group}}, s);
    }
    check_with("turbo8", {{"pv_buffer", "256"}}, s);
    check_with("turbo8", {{"pv_buffer", "100000"}}, s);
    check_with("sage2-8+8", {{"pv_accumulator", "f32"}, {"pv_buffer", "0"}}, s);
    check_with("sage2-8+8", {{"rotate", "hadamard"}}, s);
    check_with("turbo16", {{"rotate", "hadamard"}}, s);
    check_with("turbo8", {{"smooth_q", "true"}}, s);
    check_with("turbo", {{"smooth_q", "true"}}, s);
    check_with("turbo8", {{"p_range", "64"}, {"slack", "1.5"}}, s);
    check_with("turbo8", {{"headroom", "3"}}, s);
    check_with("turbo16", {{"headroom", "4"}}, s);
  }
  std::printf("largest relative L2 %.2e\n", worst.l2);
}

// Tiles of 256 rows where they fill a wave and lower ones do not.
TEST(AttendRecipeTail, TakesWideTiles) {
  OCTAVO_NEEDS_HOPPER();
  const auto device = cuda::device_properties(0);
  ASSERT_TRUE(device.ok());
  const std::int64_t tokens = (*device)->sm_count / 8 * 256;
  const AttendShape s{.q_heads = 8, .kv_heads = 8, .q_len = tokens, .kv_len = tokens, .key_splits = 0};
  Worst worst;
  check_case(s, "turbo", worst, 1'000'000);
  AttendCase c(s);
  c.send();
  EXPECT_EQ(c.make_plan(gpu_recipe("turbo")).recipe().key_tile, gpu_recipe("turbo.wide").key_tile);
  std::printf("  largest relative L2 %.2e, LSE %.2e\n", worst.l2, worst.lse);
}

// More query tiles than multiprocessors, but no whole number of waves: the keys of the last tiles are split.
TEST(AttendRecipeTail, SplitsTheLastWave) {
  OCTAVO_NEEDS_HOPPER();
  const auto device = cuda::device_properties(0);
  ASSERT_TRUE(device.ok());
  // Of 128 rows two waves and 8 tiles, of 192 one wave and a third of one, of 256 one wave and 4. Keys enough
  // that parts are worth their merge.
  const std::int64_t rows = 128 * (2 * (*device)->sm_count + 8);
  const std::vector<AttendShape> shapes = {
      {.q_heads = 1, .kv_heads = 1, .q_len = rows - 13, .kv_len = 6000, .key_splits = 0},
      {.q_heads = 2, .kv_heads = 1, .q_len = rows / 2 - 13, .kv_len = 3001, .head_dim = 128, .key_splits = 0},
      {.q_heads = 1,
       .kv_heads = 1,
       .q_len = rows - 13,
       .kv_len = 6000,
       .window = {4500, -1},
       .key_splits = 0},
  };
  for (const char* name : {"turbo", "turbo16", "turbo8", "half", "sage-8+16"}) {
    Worst worst;
    for (const AttendShape& s : shapes) {
      check_case(s, name, worst, 300'000);
      // The last tiles alone, against the same with whole keys: weights refer to whole octaves, or are hardly
      // rounded, so they do not depend on the parts. Without one of eight parts LSE would lack ln(8 / 7).
      AttendCase c(s);
      c.send();
      const Plan plan = c.make_plan(gpu_recipe(name));
      SCOPED_TRACE(std::string(name) + " " + to_text(s));
      EXPECT_GT(plan.workspace_bytes(), 0U) << "no parts";  // full attention has no counter
      const AttendResult parts = c.run(plan);
      c.set_key_splits(1);
      c.send();
      const Plan undivided = c.make_plan(gpu_recipe(name));
      EXPECT_EQ(undivided.workspace_bytes(), 0U);
      reference::RowLists last(1);
      for (std::int64_t token = s.q_len - 384; token < s.q_len; ++token) last[0].push_back(token);
      const Difference d = difference(c, last, parts, c.run(undivided));
      EXPECT_LE(d.l2, 3e-2) << d.worst;
      EXPECT_LE(d.lse_rms, 2e-2) << d.worst;
    }
    std::printf("  %-12s largest relative L2 %.2e, LSE %.2e\n", name, worst.l2, worst.lse);
  }
}

TEST(AttendRefusals, AreSentences) {
  OCTAVO_NEEDS_HOPPER();
  const auto refused = [](AttendShape s, const Recipe& r, const std::string& part) {
    AttendCase c(std::move(s));
    c.send();
    const Status status = plan(c.problem(true), r).status();
    EXPECT_EQ(status.code(), StatusCode::unsupported) << status.message();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  };
  refused({.head_dim = 129}, gpu_recipe("turbo8"), "head_dim up to 128");
  refused({.head_dim = 256}, gpu_recipe("half"), "head_dim up to 128");
  refused({}, gpu_recipe("exact"), "");
  refused({}, gpu_recipe("cpu8"), "");
  Recipe r = gpu_recipe("sage2-8+8");
  r.p_reference = PReference::tile_max;
  refused({}, r, "p_reference running");
  r = gpu_recipe("turbo8");
  r.slack = 0.0F;
  refused({}, r, "slack");
}

/// Small, for compute-sanitizer: every family, head dims of both sizes, ragged edges.
void sanitize(const AttendShape& shape, std::span<const char* const> names) {
  Worst worst;
  for (const char* name : names) {
    for (const std::int64_t dim : {40, 128}) {
      AttendShape s = shape;
      s.head_dim = dim;
      check_case(s, name, worst, 20'000);
    }
  }
}

TEST(AttendSanitize, PackedCausal) {
  OCTAVO_NEEDS_HOPPER();
  sanitize({.q_heads = 2,
            .kv_heads = 1,
            .layout = Layout::thd,
            .causal = Causal::bottom_right,
            .q_lens = {70, 0, 1, 33},
            .k_lens = {135, 20, 0, 33},
            .gaps_out = true},
           kFamilies);
}

TEST(AttendSanitize, LengthsAndWindow) {
  OCTAVO_NEEDS_HOPPER();
  sanitize({.batch = 3,
            .q_len = 67,
            .kv_len = 200,
            .storage = Storage::padded_rows,
            .window = {50, 10},
            .lengths = {200, 0, 69},
            .f32_out = false},
           kFamilies);
}

TEST(AttendSanitize, MaskBiasAndSmoothQ) {
  OCTAVO_NEEDS_HOPPER();
  constexpr const char* kWithInt4[] = {"half",     "sage2-4+8", "sage2++-4+8", "sage-8+16",
                                       "fp8-head", "turbo8",    "turbo",       "turbo16"};
  sanitize({.batch = 2,
            .q_len = 67,
            .kv_len = 197,
            .dtype = DType::bf16,
            .layout = Layout::nhd,
            .lengths = {197, 65},
            .mask = Extra::full,
            .bias = Extra::rows,
            .bias_dtype = DType::bf16},
           kWithInt4);
}

TEST(AttendSanitize, Splits) {
  OCTAVO_NEEDS_HOPPER();
  for (const int splits : {0, 3}) {
    sanitize({.batch = 2,
              .q_heads = 4,
              .kv_heads = 2,
              .q_len = 3,
              .kv_len = 1300,
              .causal = Causal::bottom_right,
              .lengths = {1300, 500},
              .key_splits = splits},
             kFamilies);
  }
}

}  // namespace
}  // namespace octavo::test
