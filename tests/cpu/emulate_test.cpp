// Every CPU kernel against the emulator of the same effective recipe, on random problems. The tolerance is
// docs/numerics.md's for faithful kernels: relative L2 <= 1e-3, which exp2 within 1e-5 and exact integer
// products give; LSE <= 1e-3.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "support/kernels.hpp"
#include "support/problem.hpp"

namespace octavo::test {
namespace {

/// A problem of up to about 60,000 scores a head, small enough for hundreds of runs of the emulator.
rc::Gen<Shape> shapes() {
  return rc::gen::exec([] {
    Shape s;
    const auto group = *rc::gen::element<std::int64_t>(1, 1, 2, 3);
    s.layout = *rc::gen::element(Layout::hnd, Layout::nhd, Layout::thd);
    s.batch = *rc::gen::inRange<std::int64_t>(1, 4);
    s.kv_heads = *rc::gen::inRange<std::int64_t>(1, 3);
    s.q_heads = s.kv_heads * group;
    s.q_len = *rc::gen::inRange<std::int64_t>(1, 150);
    s.kv_len = *rc::gen::inRange<std::int64_t>(1, 400);
    s.head_dim =
        *rc::gen::element<std::int64_t>(1, 8, 16, 20, 32, 40, 64, 64, 65, 80, 96, 128, 128, 192, 256);
    s.dtype = *rc::gen::element(DType::f32, DType::f16, DType::bf16);
    s.causal = *rc::gen::element(Causal::none, Causal::top_left, Causal::bottom_right);
    if (*rc::gen::inRange(0, 4) == 0)
      s.window = {*rc::gen::inRange<std::int64_t>(-1, 100), *rc::gen::inRange<std::int64_t>(-1, 100)};
    if (s.layout != Layout::thd) {
      s.lengths = *rc::gen::inRange(0, 3) == 0;
      s.mask = *rc::gen::inRange(0, 4) == 0;
      s.bias = *rc::gen::inRange(0, 4) == 0;
    }
    s.seed = *rc::gen::arbitrary<std::uint64_t>();
    return s;
  });
}

void expect_as_emulated(const Inputs& in, const Recipe& recipe, const std::string& kernel, double tolerance) {
  const Result<Problem> problem = make_problem(in.q.view(), in.k.view(), in.v.view(), in.options());
  RC_ASSERT(problem.ok());
  const Result<Plan> made = plan(*problem, recipe, {kernel});
  RC_ASSERT(made.ok());
  Outputs kernel_out(in);
  Outputs emulated(in);
  const Status s = run(in, kernel_out, made->recipe(), kernel);
  const Status e = run(in, emulated, made->recipe(), "reference.emulate");
  RC_ASSERT(s.ok());
  RC_ASSERT(e.ok());
  const double o = relative_l2(kernel_out.o, emulated.o);
  const double lse = largest_difference(kernel_out.lse, emulated.lse);
  RC_LOG() << kernel << " " << made->recipe().name << " " << to_text(in.shape) << ": O " << o << ", LSE "
           << lse << "\n";
  RC_ASSERT(o <= tolerance);
  RC_ASSERT(lse <= 1e-3);
  RC_ASSERT(kernel_out.o.guards_intact());
  RC_ASSERT(kernel_out.lse.guards_intact());
}

void check_family(const std::string& family, const std::vector<std::string>& recipes, double tolerance) {
  for (const std::string& kernel : cpu_kernels(family)) {
    const bool held = rc::check(kernel + " equals the emulator", [&] {
      const Inputs in(*shapes());
      for (const std::string& name : recipes) {
        if (runs(kernel, preset(name))) expect_as_emulated(in, preset(name), kernel, tolerance);
      }
    });
    EXPECT_TRUE(held) << kernel;
  }
}

TEST(Emulate, PublishedRecipesOnIntegerKernels) {
  check_family("int8", {"sage2-8+8", "sage2-4+8", "sage2++-8+8", "sage2++-4+8", "sage-8+16"}, 1e-3);
}

// The direct exponential steps a whole e4m3 code when a logit moves across a tie, so one flip in a short row
// weighs 2^-3 of a weight: docs/numerics.md allows 2e-2 for it, and 1e-3 for the exact exponential of
// int8-icl.
TEST(Emulate, OwnRecipesOnIntegerKernels) {
  check_family("int8", {"int8-icl"}, 1e-3);
  check_family("int8", {"turbo8"}, 2e-2);
}

TEST(Emulate, FloatKernels) {
  check_family("float", {"half"}, 1e-3);
  // e4m3 products summed in another order than the emulator's: tolerance (c) of docs/numerics.md.
  check_family("float", {"fp8-head"}, 2e-2);
}

// Integer sums, codes and weights are the same numbers; what may differ is a code at a rounding tie (1/64 of
// an octave).
TEST(Emulate, Cpu8Kernels) { check_family("cpu8", {"cpu8"}, 2e-3); }

TEST(Emulate, FieldsOfOneRecipe) {
  const auto variant = [](std::initializer_list<std::pair<const char*, const char*>> changes) {
    Recipe r = preset("sage2-8+8");
    for (const auto& [field, value] : changes) EXPECT_TRUE(set_field(r, field, value).ok()) << field;
    EXPECT_TRUE(check(r).ok());
    return r;
  };
  const std::vector<Recipe> variants{
      variant({{"q_group", "per_head"}, {"k_group", "per_head"}}),
      variant({{"q_group", "per_warp"}, {"k_group", "per_token"}, {"key_order", "reverse"}}),
      variant({{"p_reference", "tile_max"}, {"smooth_v", "true"}, {"normaliser", "quantized"}}),
      variant({{"smooth_q", "true"}, {"rotate", "hadamard"}, {"v_scale", "per_head"}}),
      variant({{"pv_accumulator", "f16_buffered"}, {"pv_buffer", "1"}, {"p_range", "224"}, {"v_range", "9"}}),
      variant({{"pv_accumulator", "f16_buffered"},
               {"pv_buffer", "4"},
               {"p_range", "112"},
               {"v_range", "4.5"},
               {"key_tile", "128"}}),
      variant({{"p_format", "f16"},
               {"v_format", "f16"},
               {"v_scale", "none"},
               {"p_range", "1"},
               {"smooth_k", "false"}}),
  };
  for (const std::string& kernel : cpu_kernels("int8")) {
    const bool held = rc::check(kernel + " equals the emulator in every field", [&] {
      const Inputs in(*shapes());
      const Recipe recipe = *rc::gen::elementOf(variants);
      if (runs(kernel, recipe)) expect_as_emulated(in, recipe, kernel, 1e-3);
    });
    EXPECT_TRUE(held) << kernel;
  }
}

}  // namespace
}  // namespace octavo::test
