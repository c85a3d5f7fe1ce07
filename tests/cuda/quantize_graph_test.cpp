// The GPU quantizers as a captured graph, at offsets beyond 2^31 elements, and a small benchmark:
//   cuda_tests --gtest_also_run_disabled_tests --gtest_filter='*QuantizeBench*'
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "cuda/quantize_check.hpp"

namespace octavo::test {
namespace {

/// Both quantizers as one graph.
class Graph {
 public:
  Graph(const QuantizeCase& c, std::byte* kv, std::byte* qq) {
    EXPECT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
    const KernelCall call{c.problem, c.recipe, stream_};
    Status s = cuda::quantize_kv(call, c.k.view, c.v.view, kv);
    EXPECT_TRUE(s.ok()) << s.message();
    s = cuda::quantize_q(call, c.q.view, {kv, c.problem.kv_heads, 0}, qq);
    EXPECT_TRUE(s.ok()) << s.message();
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&exec_, graph_, 0), cudaSuccess);
  }
  ~Graph() {
    (void)cudaGraphExecDestroy(exec_);
    (void)cudaGraphDestroy(graph_);
    (void)cudaStreamDestroy(stream_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch() const { EXPECT_EQ(cudaGraphLaunch(exec_, stream_), cudaSuccess); }
  void wait() const { EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

TEST(QuantizeGraph, ReplaysWithOtherInputs) {
  OCTAVO_NEEDS_HOPPER();
  for (const char* name : {"turbo8", "fp8-head", "sage2-4+8"}) {
    for (const bool lengths : {false, true}) {
      QuantizeCase c(
          {.batch = 3, .q_heads = 4, .kv_heads = 2, .q_len = 90, .kv_len = 700, .lengths = lengths},
          *recipe(name));
      c.send();
      const cuda::KvLayout keys(c.problem, c.recipe, c.problem.kv_heads);
      const cuda::QLayout queries(c.problem, c.recipe);
      const DeviceBytes kv(keys.bytes);
      const DeviceBytes qq(queries.bytes);
      const Graph graph(c, kv.data(), qq.data());
      for (int round = 0; round < 3; ++round) {
        SCOPED_TRACE(std::string(name) + " round " + std::to_string(round));
        graph.launch();
        graph.wait();
        const Quantized got{kv.read(), qq.read()};
        check_keys(c, got);
        check_values(c, got);
        check_queries(c, got);
        for (DeviceTensor* t : {&c.q, &c.k, &c.v}) {  // other values in the same place
          std::rotate(t->host.begin(), t->host.begin() + 34, t->host.end());
          EXPECT_EQ(copy_to_device(t->device->data(), t->host.data(), t->host.size()), cudaSuccess);
        }
      }
    }
  }
}

TEST(QuantizeGraph, OffsetsBeyondTwoToThe31) {
  OCTAVO_NEEDS_HOPPER();
  constexpr std::int64_t kStride = (std::int64_t{1} << 31) + 64;  // elements of 2 bytes between two entries
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  if (free_bytes < std::size_t{3} * kStride) GTEST_SKIP() << "needs 6 GB of free device memory";
  QuantizeCase c({.batch = 2, .q_heads = 2, .kv_heads = 2, .q_len = 100, .kv_len = 600}, *recipe("turbo8"));
  c.send();
  const Quantized near = quantize(c);
  const DeviceBytes far(static_cast<std::size_t>(kStride) * 2 + (std::size_t{1} << 20));
  std::size_t at = 0;
  for (DeviceTensor* t : {&c.q, &c.k, &c.v}) {
    const std::size_t entry = t->host.size() / 2;
    for (std::size_t b = 0; b < 2; ++b) {
      EXPECT_EQ(copy_to_device(far.data() + at + b * kStride * 2, t->host.data() + b * entry, entry),
                cudaSuccess);
    }
    t->view.data = far.data() + at;
    t->view.strides[0] = kStride;
    at += (entry + 255) / 256 * 256;
  }
  const Quantized got = quantize(c);
  EXPECT_EQ(near.kv, got.kv);
  EXPECT_EQ(near.q, got.q);
}

TEST(QuantizeBench, DISABLED_Time) {
  OCTAVO_NEEDS_HOPPER();
  struct Shape {
    std::int64_t batch, heads, tokens, head_dim;
  };
  constexpr int kRuns = 21;
  constexpr int kLaunches = 10;
  std::printf("%-10s %4s %4s %7s %4s %10s %8s\n", "recipe", "B", "H", "N", "D", "ms", "GB/s");
  for (const Shape& shape : {Shape{1, 8, 4096, 64}, Shape{1, 8, 16384, 64}, Shape{1, 8, 65536, 64},
                             Shape{2, 16, 4096, 128}, Shape{2, 16, 16384, 128}}) {
    QuantizeCase c({.batch = shape.batch,
                    .q_heads = shape.heads,
                    .kv_heads = shape.heads,
                    .q_len = shape.tokens,
                    .kv_len = shape.tokens,
                    .head_dim = shape.head_dim},
                   *recipe("turbo8"));
    c.send();
    for (const char* name : {"turbo8", "turbo", "turbo16", "sage2-8+8"}) {
      c.recipe = *recipe(name);
      const cuda::KvLayout keys(c.problem, c.recipe, c.problem.kv_heads);
      const cuda::QLayout queries(c.problem, c.recipe);
      const DeviceBytes kv(keys.bytes);
      const DeviceBytes qq(queries.bytes);
      const Graph graph(c, kv.data(), qq.data());
      cudaEvent_t begin = nullptr;
      cudaEvent_t end = nullptr;
      ASSERT_EQ(cudaEventCreate(&begin), cudaSuccess);
      ASSERT_EQ(cudaEventCreate(&end), cudaSuccess);
      std::vector<float> times;
      for (int run = 0; run < kRuns; ++run) {
        ASSERT_EQ(cudaEventRecord(begin, graph.stream()), cudaSuccess);
        for (int i = 0; i < kLaunches; ++i) graph.launch();
        ASSERT_EQ(cudaEventRecord(end, graph.stream()), cudaSuccess);
        graph.wait();
        float ms = 0.0F;
        ASSERT_EQ(cudaEventElapsedTime(&ms, begin, end), cudaSuccess);
        times.push_back(ms / kLaunches);
      }
      std::sort(times.begin(), times.end());
      const float ms = times[times.size() / 2];
      // K and V twice (statistics, payload) where the recipe has statistics of them, Q once, and what is
      // written
      const double tensor = static_cast<double>(c.k.host.size());
      const double reads = (c.recipe.smooth_k ? 2.0 : 1.0) * tensor + 2.0 * tensor + tensor;
      const double writes =
          static_cast<double>(keys.k_scale - keys.k) + static_cast<double>(queries.lse_shift - queries.q);
      std::printf("%-10s %4ld %4ld %7ld %4ld %10.4f %8.0f\n", name, static_cast<long>(shape.batch),
                  static_cast<long>(shape.heads), static_cast<long>(shape.tokens),
                  static_cast<long>(shape.head_dim), static_cast<double>(ms),
                  (reads + writes) / static_cast<double>(ms) * 1e-6);
      (void)cudaEventDestroy(begin);
      (void)cudaEventDestroy(end);
    }
  }
}

}  // namespace
}  // namespace octavo::test
