// What callers of the GPU kernels rely on beside accuracy: equal bits run after run, in graphs, on several
// streams and threads; NaN that stays where it was; quantized K and V that serve other calls; split keys.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <thread>

#include "core/rows.hpp"
#include "cuda/attend_case.hpp"

namespace octavo::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// One of each kernel family.
constexpr const char* kFamilies[] = {"half",     "sage2-8+8", "sage2++-8+8", "sage-8+16",
                                     "fp8-head", "turbo8",    "turbo",       "turbo16"};

class Stream {
 public:
  Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  // NOLINTNEXTLINE(google-explicit-constructor)
  operator cudaStream_t() const { return stream_; }
  void wait() const { EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }

 private:
  cudaStream_t stream_ = nullptr;
};

std::vector<float> floats(const DeviceBytes& memory) {
  const std::vector<std::byte> bytes = memory.read();
  std::vector<float> v(bytes.size() / sizeof(float));
  std::memcpy(v.data(), bytes.data(), v.size() * sizeof(float));
  return v;
}

/// A case with everything a run() needs, allocated once.
struct Runner {
  AttendCase c;
  Plan plan;
  DeviceBytes memory;
  DeviceBytes out;
  MutableTensorView view;

  Runner(const AttendShape& s, const Recipe& r) : Runner(sent(s), r, s) {}
  Status run(cudaStream_t stream) {
    return plan.run(c.device('q'), c.device('k'), c.device('v'), view, {}, memory.data(), plan.run_bytes(),
                    stream);
  }
  [[nodiscard]] std::vector<float> result() const { return floats(out); }

 private:
  static AttendCase sent(const AttendShape& s) {
    AttendCase c(s);
    c.send();
    return c;
  }
  Runner(AttendCase made, const Recipe& r, const AttendShape& s)
      : c(std::move(made)),
        plan(c.make_plan(r)),
        memory(plan.run_bytes(), 0xFF),
        out(static_cast<std::size_t>(s.batch * s.q_heads * s.q_len * s.head_dim) * sizeof(float), 0xFF),
        view(out.data(), DType::f32, {s.batch, s.q_heads, s.q_len, s.head_dim}, kGpu) {}
};

TEST(AttendRepeat, AThousandRunsGiveEqualBits) {
  OCTAVO_NEEDS_HOPPER();
  // More tiles than multiprocessors, of very different lengths: the order in which blocks take them varies.
  const AttendShape ragged{.batch = 3,
                           .q_heads = 8,
                           .kv_heads = 4,
                           .q_len = 1000,
                           .kv_len = 1100,
                           .causal = Causal::bottom_right,
                           .lengths = {1100, 333, 900}};
  for (const char* name : {"half", "sage2++-8+8", "int8-icl", "turbo8", "turbo", "turbo16"}) {
    Runner r(ragged, gpu_recipe(name));
    const Stream stream;
    std::vector<float> first;
    for (int i = 0; i < 1000; ++i) {
      if (i == 500) {
        ASSERT_EQ(fill_device(r.memory.data(), 0x5A, r.plan.run_bytes()), cudaSuccess);
      }
      ASSERT_EQ(cudaMemsetAsync(r.out.data(), 0xFF, 3000 * 8 * 64 * sizeof(float), stream), cudaSuccess);
      ASSERT_TRUE(r.run(stream).ok());
      stream.wait();
      std::vector<float> got = r.result();
      if (i == 0)
        first = std::move(got);
      else
        ASSERT_TRUE(same_bits(got, first)) << name << " run " << i;
    }
    EXPECT_TRUE(r.memory.guard_intact() && r.out.guard_intact());
  }
}

TEST(AttendSteps, RunThatAllocatesGivesTheBitsOfRunWithMemory) {
  OCTAVO_NEEDS_HOPPER();
  for (const char* name : kFamilies) {
    for (const int splits : {1, 4}) {
      AttendCase c(
          {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 100, .kv_len = 900, .key_splits = splits});
      c.send();
      const Plan plan = c.make_plan(gpu_recipe(name));
      const AttendResult given = c.run(plan, AttendCase::Way::given);
      const AttendResult allocated = c.run(plan, AttendCase::Way::allocated);
      EXPECT_TRUE(same_bits(given.o, allocated.o)) << name;
      EXPECT_TRUE(same_bits(given.lse, allocated.lse)) << name;
    }
  }
}

TEST(AttendGraph, ReplaysWithOtherInputs) {
  OCTAVO_NEEDS_HOPPER();
  for (const char* name : kFamilies) {
    for (const bool given : {true, false}) {  // memory of the caller, or nodes of the graph
      Runner r({.batch = 2,
                .q_heads = 4,
                .kv_heads = 2,
                .q_len = 200,
                .kv_len = 500,
                .causal = Causal::bottom_right,
                .lengths = {500, 260}},
               gpu_recipe(name));
      const Stream stream;
      ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
      const Status s =
          given ? r.run(stream)
                : r.plan.run(r.c.device('q'), r.c.device('k'), r.c.device('v'), r.view, {}, stream);
      ASSERT_TRUE(s.ok()) << s.message();
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t exec = nullptr;
      ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
      ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
      std::vector<float> before;
      for (int round = 0; round < 3; ++round) {
        ASSERT_EQ(fill_device(r.out.data(), 0xFF, 64), cudaSuccess);
        ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
        ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);  // one behind the other, counters and all
        stream.wait();
        const std::vector<float> replayed = r.result();
        ASSERT_TRUE(r.run(stream).ok());
        stream.wait();
        EXPECT_TRUE(same_bits(replayed, r.result())) << name << " round " << round;
        EXPECT_NE(replayed, before) << name << ": the same output for other inputs";
        before = replayed;
        // q in another order, in place
        const std::vector<std::byte>& q = r.c.host_bytes('q');
        const std::size_t lead = TwinBuffer::kLead;
        const std::size_t body = q.size() - 2 * lead;
        const std::size_t cut = 128 * static_cast<std::size_t>(round + 1);
        std::byte* to = static_cast<std::byte*>(r.c.device('q').data);
        ASSERT_EQ(copy_to_device(to, q.data() + lead + cut, body - cut), cudaSuccess);
        ASSERT_EQ(copy_to_device(to + body - cut, q.data() + lead, cut), cudaSuccess);
      }
      EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    }
  }
}

TEST(AttendStreams, TwoThreadsOnTwoStreams) {
  OCTAVO_NEEDS_HOPPER();
  const auto work = [](unsigned seed, int* wrong) {
    const Stream stream;
    for (const char* name : {"turbo8", "half", "sage2++-8+8"}) {
      AttendShape s{.batch = 2,
                    .q_heads = 8,
                    .kv_heads = 4,
                    .q_len = 700,
                    .kv_len = 700,
                    .causal = Causal::bottom_right};
      s.seed = seed;
      Runner r(s, gpu_recipe(name));
      std::vector<float> first;
      for (int i = 0; i < 60; ++i) {
        // Every third run allocates inside.
        const Status status = i % 3 != 0
                                  ? r.run(stream)
                                  : attention(r.c.device('q'), r.c.device('k'), r.c.device('v'), r.view, {},
                                              gpu_recipe(name), r.c.problem(true).options, {}, stream);
        *wrong += status.ok() ? 0 : 1;
        stream.wait();
        std::vector<float> got = r.result();
        if (i == 0)
          first = std::move(got);
        else
          *wrong += same_bits(got, first) ? 0 : 1;
      }
    }
  };
  int wrong[2] = {};
  std::thread other([&] { work(7, &wrong[1]); });
  work(8, &wrong[0]);
  other.join();
  EXPECT_EQ(wrong[0] + wrong[1], 0);
}

TEST(AttendStreams, WaitsForASlowProducerOnAnotherStream) {
  OCTAVO_NEEDS_HOPPER();
  const Stream producer;
  const Stream consumer;
  cudaEvent_t ready = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming), cudaSuccess);
  for (const char* name : {"turbo8", "half", "fp8-head"}) {
    Runner r(
        {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 300, .kv_len = 300, .causal = Causal::top_left},
        gpu_recipe(name));
    ASSERT_TRUE(r.run(consumer).ok());
    consumer.wait();
    const std::vector<float> want = r.result();
    std::vector<std::unique_ptr<DeviceBytes>> copies;
    const std::size_t lead = TwinBuffer::kLead;
    for (const char which : {'q', 'k', 'v'}) {
      copies.push_back(std::make_unique<DeviceBytes>(r.c.host_bytes(which)));
      ASSERT_EQ(fill_device(r.c.device(which).data, 0xFF, r.c.host_bytes(which).size() - 2 * lead),
                cudaSuccess);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(
        cudaLaunchHostFunc(
            producer, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }, nullptr),
        cudaSuccess);
    int i = 0;
    for (const char which : {'q', 'k', 'v'}) {
      ASSERT_EQ(cudaMemcpyAsync(r.c.device(which).data, copies[static_cast<std::size_t>(i++)]->data() + lead,
                                r.c.host_bytes(which).size() - 2 * lead, cudaMemcpyDeviceToDevice, producer),
                cudaSuccess);
    }
    ASSERT_EQ(cudaEventRecord(ready, producer), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(consumer, ready), cudaSuccess);
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(r.run(consumer).ok());
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    EXPECT_LT(took, 0.08) << "run() waited for the device";
    consumer.wait();
    EXPECT_TRUE(same_bits(r.result(), want)) << name;
  }
  EXPECT_EQ(cudaEventDestroy(ready), cudaSuccess);
}

/// Index ranges of one (sequence, head) in o and lse.
bool belongs(std::int64_t head, std::int64_t group, std::int64_t key_head) {
  return head / group == key_head;
}

/// Runs a case clean and with NaN or Inf at one place of q, k or v; everything of other sequences and key
/// heads must keep its bits, the place itself must show.
void check_spoilt(const AttendShape& shape, const std::string& name, char which, float value,
                  std::int64_t sequence, std::int64_t key_head, std::int64_t token,
                  AttendCase::Way way = AttendCase::Way::steps) {
  AttendShape s = shape;
  const Recipe recipe = gpu_recipe(name);
  s.absmax = needs_absmax(name);
  AttendCase c(s);
  c.send();
  const Plan plan = c.make_plan(recipe);
  const AttendResult clean = c.run(plan, way);
  const Problem p = c.problem(false);
  const Sequence seq = p.sequences[static_cast<std::size_t>(sequence)];
  const MutableTensorView t = which == 'q' ? c.q() : which == 'k' ? c.k() : c.v();
  const MutableHeadsView at = heads_view(t, p.options.layout);
  const std::int64_t head = which == 'q' ? key_head * p.group() : key_head;
  const std::int64_t begin = which == 'q' ? seq.q_begin : seq.k_begin;
  write_element(at.data, at.dtype, at.offset(seq.batch, head, begin + token) + 3 * at.channel_stride, value);
  c.send();
  const AttendResult spoilt = c.run(c.make_plan(recipe), way);
  SCOPED_TRACE(name + " " + which + " = " + std::to_string(value) + " in sequence " +
               std::to_string(sequence) + " key head " + std::to_string(key_head) + " token " +
               std::to_string(token) + ", " + to_text(s));
  std::int64_t changed = 0;
  bool shows = false;
  c.each_row({}, [&](std::int64_t line, const Sequence& of, std::int64_t h, std::int64_t row) {
    const bool own = of.index == sequence && belongs(h, p.group(), key_head) &&
                     (which != 'q' || (h == head && row == token));
    const auto from = static_cast<std::size_t>(line * s.head_dim);
    const auto size = static_cast<std::size_t>(s.head_dim);
    // Scales of q may be shared by the rows of a block or head.
    const bool near = which == 'q' && of.index == sequence && h == head;
    if (own || near) {
      for (std::size_t i = from; i < from + size; ++i) shows = shows || !std::isfinite(spoilt.o[i]);
      return;
    }
    const bool same = std::memcmp(clean.o.data() + from, spoilt.o.data() + from, size * sizeof(float)) == 0 &&
                      std::memcmp(&clean.lse[static_cast<std::size_t>(line)],
                                  &spoilt.lse[static_cast<std::size_t>(line)], sizeof(float)) == 0;
    changed += same ? 0 : 1;
  });
  EXPECT_EQ(changed, 0) << "rows of other heads and sequences changed";
  // An infinite query is beyond a given scale as any large one is: it clamps.
  if (which == 'q' && s.absmax && std::isinf(value)) return;
  EXPECT_TRUE(shows) << "the output of the head itself is finite";
}

TEST(AttendNaN, StaysInItsHeadAndSequence) {
  OCTAVO_NEEDS_HOPPER();
  const AttendShape dense{.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 90, .kv_len = 150};
  // Key tiles of 128 to 192 keys reach from one sequence into the next two.
  const AttendShape packed{.q_heads = 4,
                           .kv_heads = 2,
                           .head_dim = 128,
                           .layout = Layout::thd,
                           .q_lens = {60, 70, 65, 3},
                           .k_lens = {65, 5, 70, 130}};
  const AttendShape lengths{.batch = 3,
                            .q_heads = 2,
                            .kv_heads = 2,
                            .q_len = 40,
                            .kv_len = 100,
                            .layout = Layout::nhd,
                            .lengths = {33, 100, 64}};
  for (const std::string& name : gpu_presets()) {
    for (const float value : {kNaN, -std::numeric_limits<float>::infinity()}) {
      for (const char which : {'q', 'k', 'v'}) {
        check_spoilt(dense, name, which, value, 0, 1, 77);
        check_spoilt(packed, name, which, value, 1, 0, 2);
        check_spoilt(packed, name, which, value, 2, 1, 64);
        check_spoilt(lengths, name, which, value, 1, 0, 0);
        if (name == "half") {  // reads the caller's tensors in one call
          check_spoilt(dense, name, which, value, 0, 1, 77, AttendCase::Way::given);
          check_spoilt(packed, name, which, value, 1, 0, 2, AttendCase::Way::given);
          check_spoilt(lengths, name, which, value, 1, 0, 0, AttendCase::Way::given);
        }
        if (HasFailure()) return;
      }
    }
  }
}

TEST(AttendNaN, ShowsThroughTheMergeOfSplitKeys) {
  OCTAVO_NEEDS_HOPPER();
  AttendShape s{.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 2, .kv_len = 3000, .key_splits = 5};
  for (const std::string& name : gpu_presets()) {
    for (const char which : {'k', 'v'}) {
      for (const std::int64_t token : {0, 1500, 2999}) check_spoilt(s, name, which, kNaN, 0, 1, token);
    }
  }
}

TEST(AttendNaN, PaddingNeverShows) {
  OCTAVO_NEEDS_HOPPER();
  for (const std::string& name : gpu_presets()) {
    for (const std::int64_t dim : {64, 128}) {
      for (const int splits : {1, 3}) {
        // Padding is NaN (k) and Inf (v) here,
        AttendCase c({.batch = 4,
                      .q_heads = 4,
                      .kv_heads = 2,
                      .q_len = 70,
                      .kv_len = 300,
                      .head_dim = dim,
                      .lengths = {300, 1, 0, 129},
                      .absmax = needs_absmax(name),
                      .key_splits = splits});
        c.send();
        const auto way = name == "half" && splits == 1 ? AttendCase::Way::given : AttendCase::Way::steps;
        const AttendResult dirty = c.run(c.make_plan(gpu_recipe(name)), way);
        // and zero there.
        for (const MutableTensorView& t : {c.k(), c.v()}) {
          const MutableHeadsView at = heads_view(t, Layout::hnd);
          const std::vector<float> zeros(static_cast<std::size_t>(dim));
          for (const Sequence& seq : c.problem(false).sequences) {
            for (std::int64_t h = 0; h < 2; ++h) {
              for (std::int64_t i = seq.k_len; i < 300; ++i)
                write_row(at.data, at.dtype, at.offset(seq.batch, h, i), at.channel_stride, zeros.data(),
                          dim);
            }
          }
        }
        c.send();
        const AttendResult clean = c.run(c.make_plan(gpu_recipe(name)), way);
        EXPECT_TRUE(same_bits(dirty.o, clean.o)) << name << " D " << dim << " splits " << splits;
        EXPECT_TRUE(same_bits(dirty.lse, clean.lse)) << name << " D " << dim << " splits " << splits;
        EXPECT_EQ(difference(c, {}, dirty, dirty).not_finite, 0) << name;
      }
    }
  }
}

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
