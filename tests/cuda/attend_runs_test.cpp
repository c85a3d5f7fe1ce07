// Runs of the GPU kernels: equal bits again and again, in graphs, on several streams and threads.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "cuda/attend_compare.hpp"

namespace octavo::test {
namespace {

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
  for (const char* name : {"half", "sage2++-8+8", "int8-icl", "turbo8", "turbo", "turbo.wide", "turbo16"}) {
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

}  // namespace
}  // namespace octavo::test
