// plan and the three steps: what is picked, what is refused, what a caller's memory must be.
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "support/kernels.hpp"
#include "support/problem.hpp"

namespace octavo::test {
namespace {

Result<Plan> plan_for(const Inputs& in, const Recipe& recipe, const std::string& kernel = "") {
  return plan(*make_problem(in.q.view(), in.k.view(), in.v.view(), in.options()), recipe, {kernel});
}

TEST(Plan, EveryPresetHasAKernelHere) {
  const Inputs in({});
  for (const Preset& p : presets()) {
    const Result<Plan> made = plan_for(in, preset(p.name));
    ASSERT_TRUE(made.ok()) << p.name << ": " << made.status().message();
    EXPECT_FALSE(made->reason().empty());
    EXPECT_GT(made->recipe().key_tile, 0) << p.name;
    EXPECT_NE(made->recipe().name, "auto");
  }
}

TEST(Plan, RefusesWithWhatIsSupported) {
  const Inputs in({});
  EXPECT_EQ(plan_for(in, preset("cpu8"), "cpu.avx9.cpu8").status().code(), StatusCode::invalid_argument);
  const Status s = plan_for(in, preset("turbo"), "cpu.scalar.int8").status();
  EXPECT_EQ(s.code(), StatusCode::unsupported);
  EXPECT_NE(s.message().find("int8 and int4"), std::string::npos) << s.message();
}

TEST(Plan, AutoTakesNoFields) {
  Recipe r = preset("auto");
  r.smooth_v = true;
  EXPECT_EQ(plan_for(Inputs({}), r).status().code(), StatusCode::invalid_argument);
}

TEST(Steps, CallersMemoryIsCheckedAndUsed) {
  const Inputs in({.batch = 1, .q_heads = 2, .kv_heads = 1, .q_len = 30, .kv_len = 70});
  const Result<Plan> made = plan_for(in, preset("sage2-8+8"));
  ASSERT_TRUE(made.ok());
  const std::size_t bytes = std::max({made->kv_bytes(), made->q_bytes(), made->workspace_bytes()}) + 64;
  const auto memory = [&] {
    return std::shared_ptr<void>(std::aligned_alloc(64, (bytes + 63) / 64 * 64), std::free);
  };
  const auto a = memory();
  const auto b = memory();
  const auto c = memory();

  QuantizedKv small(a.get(), made->kv_bytes() - 1);
  EXPECT_EQ(made->quantize_kv(in.k.view(), in.v.view(), small).code(), StatusCode::out_of_memory);
  QuantizedKv crooked(static_cast<std::byte*>(a.get()) + 4, made->kv_bytes());
  EXPECT_EQ(made->quantize_kv(in.k.view(), in.v.view(), crooked).code(), StatusCode::invalid_argument);

  QuantizedKv kv(a.get(), made->kv_bytes());
  QuantizedQ qq(b.get(), made->q_bytes());
  Outputs out(in);
  EXPECT_EQ(made->attend(qq, kv, out.o.view(), out.lse.view()).code(), StatusCode::invalid_argument)
      << "nothing was quantized yet";
  ASSERT_TRUE(made->quantize_kv(in.k.view(), in.v.view(), kv).ok());
  ASSERT_TRUE(made->quantize_q(in.q.view(), kv, qq).ok());
  EXPECT_EQ(made->attend(qq, kv, out.o.view(), out.lse.view(), c.get(), made->workspace_bytes() - 1).code(),
            StatusCode::out_of_memory);
  ASSERT_TRUE(made->attend(qq, kv, out.o.view(), out.lse.view(), c.get(), made->workspace_bytes()).ok());
  EXPECT_EQ(kv.data(), a.get());

  Outputs once(in);
  ASSERT_TRUE(run(in, once, preset("sage2-8+8")).ok());
  EXPECT_EQ(largest_difference(once.o, out.o), 0.0);
  EXPECT_EQ(largest_difference(once.lse, out.lse), 0.0);
}

TEST(Steps, RefusedCallsTouchNoOutput) {
  const Inputs in({});
  Outputs out(in);
  const auto before = out.o.bytes();
  MutableTensorView wrong = out.o.view();
  wrong.shape[2] += 1;
  EXPECT_EQ(
      attention(in.q.view(), in.k.view(), in.v.view(), wrong, out.lse.view(), preset("cpu8"), in.options())
          .code(),
      StatusCode::invalid_argument);
  wrong = out.o.view();
  wrong.dtype = DType::bf16;
  EXPECT_EQ(
      attention(in.q.view(), in.k.view(), in.v.view(), wrong, out.lse.view(), preset("cpu8"), in.options())
          .code(),
      StatusCode::invalid_argument);
  MutableTensorView lse = out.lse.view();
  lse.rank = 2;
  EXPECT_EQ(attention(in.q.view(), in.k.view(), in.v.view(), out.o.view(), lse, preset("cpu8"), in.options())
                .code(),
            StatusCode::invalid_argument);
  Inputs nan({});
  nan.q.set(100, std::numeric_limits<float>::quiet_NaN());
  const Status s = attention(nan.q.view(), nan.k.view(), nan.v.view(), out.o.view(), out.lse.view(),
                             preset("cpu8"), nan.options());
  EXPECT_EQ(s.code(), StatusCode::invalid_argument);
  EXPECT_NE(s.message().find("q holds nan at batch entry 0, head 0, token 1, channel 36"), std::string::npos)
      << s.message();
  EXPECT_TRUE(before == out.o.bytes());
}

TEST(Steps, SeveralThreadsMayCallAtOnce) {
  const Inputs in({.batch = 1, .q_heads = 2, .kv_heads = 2, .q_len = 100, .kv_len = 200});
  const Result<Plan> made = plan_for(in, preset("sage2++-8+8"));
  Outputs first(in);
  ASSERT_TRUE(run(in, first, preset("sage2++-8+8")).ok());
  std::vector<std::jthread> threads;
  std::vector<double> differences(8, -1.0);
  for (std::size_t t = 0; t < differences.size(); ++t) {
    threads.emplace_back([&, t] {
      Outputs out(in);
      QuantizedKv kv;
      QuantizedQ qq;
      const bool ok = made->quantize_kv(in.k.view(), in.v.view(), kv).ok() &&
                      made->quantize_q(in.q.view(), kv, qq).ok() &&
                      made->attend(qq, kv, out.o.view(), out.lse.view()).ok();
      differences[t] = ok ? largest_difference(out.o, first.o) : 1.0;
    });
  }
  threads.clear();
  for (const double d : differences) EXPECT_EQ(d, 0.0);
}

TEST(QAbsmax, PackedSequencesHaveTheirOwn) {
  const Inputs in(
      {.batch = 3, .q_heads = 2, .kv_heads = 1, .q_len = 20, .kv_len = 30, .layout = Layout::thd, .seed = 3});
  Tensor absmax(DType::f32, {3, 2});
  for (std::int64_t i = 0; i < 6; ++i) absmax.set(i, 0.5F + static_cast<float>(i));
  AttentionOptions options = in.options();
  options.q_absmax = absmax.view();
  Outputs all(in);
  ASSERT_TRUE(attention(in.q.view(), in.k.view(), in.v.view(), all.o.view(), all.lse.view(),
                        preset("int8-icl"), options)
                  .ok());
  // The last sequence alone, with its own row of q_absmax.
  const auto* cu_q = static_cast<const std::int32_t*>(in.cu_q.view().data);
  const auto* cu_k = static_cast<const std::int32_t*>(in.cu_k.view().data);
  const auto from = [](auto view, std::int32_t begin, std::int32_t end) {
    view.data = static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(view.data))) +
                begin * view.strides[0] * static_cast<std::int64_t>(size_of(view.dtype));
    view.shape[0] = end - begin;
    return view;
  };
  const std::int32_t q_offsets[] = {0, cu_q[3] - cu_q[2]};
  const std::int32_t k_offsets[] = {0, cu_k[3] - cu_k[2]};
  options.cu_seqlens_q = TensorView(q_offsets, DType::i32, {2});
  options.cu_seqlens_k = TensorView(k_offsets, DType::i32, {2});
  options.q_absmax = TensorView(static_cast<const float*>(absmax.view().data) + 4, DType::f32, {2});
  Outputs one(in);
  ASSERT_TRUE(attention(from(in.q.view(), cu_q[2], cu_q[3]), from(in.k.view(), cu_k[2], cu_k[3]),
                        from(in.v.view(), cu_k[2], cu_k[3]), from(one.o.view(), cu_q[2], cu_q[3]), {},
                        preset("int8-icl"), options)
                  .ok());
  ASSERT_GT(cu_q[3], cu_q[2]);
  for (std::int64_t i = cu_q[2] * 2 * 64; i < cu_q[3] * 2 * 64; ++i) ASSERT_EQ(one.o[i], all.o[i]) << i;
}

TEST(QAbsmax, TestRowsDoNotDependOnTheirBatch) {
  Inputs in({.batch = 1, .q_heads = 2, .kv_heads = 2, .q_len = 65, .kv_len = 100});
  Tensor absmax(DType::f32, {2});
  absmax.fill(3.5F);
  for (const char* name : {"fp8-icl", "int8-icl", "sage2-8+8"}) {
    AttentionOptions options = in.options();
    options.q_absmax = absmax.view();
    Outputs whole(in);
    ASSERT_TRUE(attention(in.q.view(), in.k.view(), in.v.view(), whole.o.view(), whole.lse.view(),
                          preset(name), options)
                    .ok());
    // Row 64 alone.
    const auto last = [](auto view) {
      view.data = static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(view.data))) +
                  64 * view.strides[2] * static_cast<std::int64_t>(size_of(view.dtype));
      view.shape[2] = 1;
      return view;
    };
    Outputs alone(in);
    MutableTensorView lse = alone.lse.view();
    lse.shape[2] = 1;
    ASSERT_TRUE(attention(last(in.q.view()), in.k.view(), in.v.view(), last(alone.o.view()), lse,
                          preset(name), options)
                    .ok());
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t d = 0; d < 64; ++d)
        EXPECT_EQ(alone.o[(h * 65 + 64) * 64 + d], whole.o[(h * 65 + 64) * 64 + d]) << name;
    }
  }
  AttentionOptions options = in.options();
  options.q_absmax = absmax.view();
  Outputs out(in);
  EXPECT_EQ(
      attention(in.q.view(), in.k.view(), in.v.view(), out.o.view(), {}, preset("half"), options).code(),
      StatusCode::invalid_argument);
}

}  // namespace
}  // namespace octavo::test
