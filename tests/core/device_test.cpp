// The device of a call: what is refused without it, and what the CUDA runtime layer promises. Tests that need
// a GPU are skipped where there is none.
#include "core/device.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "core/kernel.hpp"
#include "octavo/octavo.hpp"
#if defined(OCTAVO_HAS_CUDA)
#include "cuda/auto_recipe.hpp"
#include "cuda/runtime.hpp"
#endif

namespace octavo {
namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};
constexpr Device kNoSuchGpu{Device::Kind::cuda, 99};

struct Call {
  std::vector<float> memory = std::vector<float>(4096);
  AttentionOptions options;
  TensorView q, k;

  explicit Call(Device device = {})
      : q(memory.data(), DType::f32, {2, 4, 3, 8}, device),
        k(memory.data(), DType::f32, {2, 2, 5, 8}, device) {}
  [[nodiscard]] Result<Problem> problem() const { return make_problem(q, k, k, options); }
  [[nodiscard]] TensorView on(Device device, DType dtype, std::initializer_list<std::int64_t> shape) const {
    return {memory.data(), dtype, shape, device};
  }
};

void expect_refusal(const Status& s, StatusCode code, const std::vector<std::string>& parts) {
  EXPECT_EQ(s.code(), code) << s.message();
  for (const std::string& part : parts) EXPECT_NE(s.message().find(part), std::string::npos) << s.message();
}

TEST(Device, TensorsOfOneCallAreOnOneDevice) {
  constexpr auto kInvalid = StatusCode::invalid_argument;
  Call call;
  call.k.device = kGpu;
  expect_refusal(call.problem().status(), kInvalid, {"k is on cuda:0", "q on the CPU"});
  call.k.device = {};
  call.options.mask = call.on(kGpu, DType::boolean, {3, 5});
  expect_refusal(call.problem().status(), kInvalid, {"mask is on cuda:0", "q on the CPU"});
  call.options = {};
  call.options.q_absmax = call.on(kGpu, DType::f32, {4});
  expect_refusal(call.problem().status(), kInvalid, {"q_absmax is on cuda:0"});
  call.options = {};
  call.options.kv_lengths = call.on(kGpu, DType::i32, {2});
  expect_refusal(call.problem().status(), kInvalid, {"kv_lengths is on cuda:0"});

  Call gpu(kGpu);
  gpu.options.bias = gpu.on({}, DType::f32, {3, 5});
  expect_refusal(gpu.problem().status(), kInvalid, {"bias is on the CPU", "q on cuda:0"});
  gpu.options = {};
  gpu.options.q_absmax = gpu.on({}, DType::f32, {4});
  expect_refusal(gpu.problem().status(), kInvalid, {"q_absmax is on the CPU"});
}

TEST(Device, ProblemReadsLengthsOnTheHostAndNoGpuPointer) {
  Call call(kGpu);
  // Nothing on the host may look behind these.
  call.q.data = call.k.data = reinterpret_cast<const void*>(std::uintptr_t{256});
  call.options.q_absmax = TensorView(call.q.data, DType::f32, {4}, kGpu);
  const std::int64_t lengths[] = {5, 7, 2, 7};
  call.options.kv_lengths = TensorView(lengths, DType::i64, {2});
  call.options.kv_lengths.strides[0] = 2;
  const Result<Problem> p = call.problem();
  ASSERT_TRUE(p.ok()) << p.status().message();
  EXPECT_EQ(p->sequences[0].k_len, 5);
  EXPECT_EQ(p->sequences[1].k_len, 2);
}

TEST(Device, CheckFiniteFollowsTheDevice) {
  EXPECT_TRUE(Call().problem()->check_finite);
  EXPECT_FALSE(Call(kGpu).problem()->check_finite);
  for (const bool wanted : {true, false}) {
    Call call(kGpu);
    call.options.check_finite = wanted;
    EXPECT_EQ(call.problem()->check_finite, wanted);
  }
}

TEST(Device, PlanRefusesADeviceThatIsNotThere) {
  const Call call(kNoSuchGpu);
  const Status s = plan(*call.problem(), *recipe("auto")).status();
  EXPECT_FALSE(s.ok());
  EXPECT_NE(s.message().find("cuda:99"), std::string::npos) << s.message();
#if !defined(OCTAVO_HAS_CUDA)
  expect_refusal(s, StatusCode::unsupported, {"built without CUDA"});
  Call lengths(kGpu);
  lengths.options.kv_lengths = lengths.on(kGpu, DType::i32, {2});
  expect_refusal(lengths.problem().status(), StatusCode::unsupported, {"built without CUDA"});
#endif
}

TEST(Device, KernelsRefuseTheOtherDevice) {
  const Call call;
  for (const Kernel* kernel : kernel_table()) {
    if (kernel->backend != "cuda") continue;
    expect_refusal(plan(*call.problem(), *recipe("half"), {std::string(kernel->name)}).status(),
                   StatusCode::unsupported, {std::string(kernel->name), "GPUs", "on the CPU"});
  }
  EXPECT_TRUE(serves({}, "cpu", "avx2"));
  EXPECT_FALSE(serves({}, "cuda", "sm90a"));
  EXPECT_FALSE(serves(kGpu, "cpu", "avx2"));
  EXPECT_FALSE(serves(kNoSuchGpu, "cuda", "sm90a"));
}

TEST(Device, RunIsTheThreeSteps) {
  Call call;
  std::iota(call.memory.begin(), call.memory.end(), -100.0F);
  const Problem problem = *call.problem();
  std::vector<float> once(2 * 4 * 3 * 8);
  std::vector<float> steps(once.size());
  const MutableTensorView a(once.data(), DType::f32, {2, 4, 3, 8});
  const MutableTensorView b(steps.data(), DType::f32, {2, 4, 3, 8});
  const Result<Plan> made = plan(problem, *recipe("cpu8"));
  ASSERT_TRUE(made.ok());
  ASSERT_TRUE(made->run(call.q, call.k, call.k, a).ok());
  QuantizedKv kv;
  QuantizedQ qq;
  ASSERT_TRUE(made->quantize_kv(call.k, call.k, kv).ok() && made->quantize_q(call.q, kv, qq).ok());
  ASSERT_TRUE(made->attend(qq, kv, b).ok());
  EXPECT_EQ(once, steps);

  // The same with the caller's memory, which nothing is written behind.
  alignas(64) static std::byte memory[1 << 20];
  const std::size_t bytes = made->run_bytes();
  ASSERT_LT(bytes + 64, sizeof memory);
  EXPECT_GE(bytes, made->kv_bytes() + made->q_bytes() + made->workspace_bytes());
  std::fill(std::begin(memory), std::end(memory), std::byte{0xA5});
  std::fill(once.begin(), once.end(), 0.0F);
  ASSERT_TRUE(made->run(call.q, call.k, call.k, a, {}, memory, bytes).ok());
  EXPECT_EQ(once, steps);
  EXPECT_TRUE(
      std::all_of(memory + bytes, std::end(memory), [](std::byte x) { return x == std::byte{0xA5}; }));
  expect_refusal(made->run(call.q, call.k, call.k, a, {}, memory, bytes - 1), StatusCode::out_of_memory,
                 {"memory of run", std::to_string(bytes)});
  expect_refusal(made->run(call.q, call.k, call.k, a, {}, memory + 4, bytes), StatusCode::invalid_argument,
                 {"memory of run", "aligned to 64"});
  MutableTensorView elsewhere = a;
  elsewhere.device = kGpu;
  expect_refusal(made->run(call.q, call.k, call.k, elsewhere), StatusCode::invalid_argument,
                 {"out is on cuda:0", "the CPU"});
}

#if defined(OCTAVO_HAS_CUDA)

TEST(CudaRuntime, ErrorsBecomeSentences) {
  EXPECT_TRUE(cuda::check(cudaSuccess, "x").ok());
  expect_refusal(cuda::check(cudaErrorMemoryAllocation, "allocating"), StatusCode::out_of_memory,
                 {"allocating failed", "cudaErrorMemoryAllocation"});
  expect_refusal(cuda::check(cudaErrorLaunchFailure, "attending"), StatusCode::internal,
                 {"attending failed", "cudaErrorLaunchFailure"});
}

TEST(CudaRuntime, TiersFitDevices) {
  const auto device = [](int major, int minor) {
    cuda::DeviceProperties d;
    d.major = major;
    d.minor = minor;
    return d;
  };
  EXPECT_TRUE(cuda::runs_tier(device(9, 0), "sm90a"));
  EXPECT_FALSE(cuda::runs_tier(device(10, 0), "sm90a"));
  EXPECT_FALSE(cuda::runs_tier(device(8, 0), "sm90a"));
  EXPECT_TRUE(cuda::runs_tier(device(8, 9), "sm80"));
  EXPECT_FALSE(cuda::runs_tier(device(8, 0), "sm89"));
  EXPECT_FALSE(cuda::runs_tier(device(9, 0), "sm80"));
  EXPECT_FALSE(cuda::runs_tier(device(9, 0), "avx2"));
  EXPECT_FALSE(cuda::runs_tier(device(9, 0), "sm"));
}

TEST(CudaRuntime, AutoPicksAPresetForEveryShape) {
  for (const std::int64_t head_dim : {16, 64, 128}) {
    for (const std::int64_t keys : {1, 100000}) {
      Problem p;
      p.head_dim = head_dim;
      p.kv_len = keys;
      std::string reason;
      const Result<Recipe> picked = auto_recipe_cuda(p, reason);
      ASSERT_TRUE(picked.ok());
      EXPECT_NE(reason.find(picked->name), std::string::npos) << reason;
    }
  }
}

TEST(CudaRuntime, AutoWeighsQuantizingAgainstWhatItSaves) {
  struct Case {
    DType dtype;
    std::int64_t tokens;
    std::int64_t head_dim;
    const char* picked;
  };
  // Crossovers as measured, bench/results/h200.json: 8 heads.
  for (const Case& c : {Case{DType::f16, 1024, 64, "half"}, Case{DType::f16, 2048, 128, "half"},
                        Case{DType::f16, 16384, 64, "turbo16"}, Case{DType::f16, 16384, 128, "turbo8"},
                        Case{DType::bf16, 16384, 64, "turbo8"}, Case{DType::f32, 16384, 128, "turbo8"},
                        Case{DType::bf16, 1024, 64, "half"}}) {
    Problem p;
    p.dtype = c.dtype;
    p.head_dim = c.head_dim;
    p.q_heads = p.kv_heads = 8;
    p.sequences.resize(1);
    p.sequences[0].q_len = p.sequences[0].k_len = c.tokens;
    std::string reason;
    const Result<Recipe> picked = auto_recipe_cuda(p, reason);
    ASSERT_TRUE(picked.ok());
    EXPECT_EQ(picked->name, c.picked) << c.tokens << " tokens, " << c.head_dim << " channels: " << reason;
  }
}

TEST(CudaRuntime, WithoutAGpuEverythingIsAStatus) {
  if (cuda::available()) GTEST_SKIP() << "there is a GPU";
  EXPECT_TRUE(cuda::devices().empty());
  EXPECT_FALSE(cuda::is_device_pointer(&kGpu));
  EXPECT_FALSE(cuda::allocate_device(16, 0, nullptr).ok());
  EXPECT_FALSE(DeviceScope(kGpu).status().ok());
  CUtensorMap map;
  EXPECT_FALSE(cuda::encode_tensor_map(&map, {}).ok());
  Call call(kGpu);
  call.options.kv_lengths = call.on(kGpu, DType::i32, {2});
  EXPECT_FALSE(call.problem().ok());
  expect_refusal(plan(*Call(kGpu).problem(), *recipe("auto")).status(), StatusCode::unsupported,
                 {"cuda:0", "no CUDA device"});
}

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::available()) GTEST_SKIP() << "no GPU";
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    if (stream_ != nullptr) {
      EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    }
  }
  std::vector<std::uint8_t> bytes_of(const void* device, std::size_t n) {
    std::vector<std::uint8_t> host(n);
    const Status s = cuda::download(host.data(), device, n, stream_, "test");
    EXPECT_TRUE(s.ok()) << s.message();
    return host;
  }
  static std::vector<std::uint8_t> pattern(std::size_t n, unsigned seed) {
    std::vector<std::uint8_t> v(n);
    for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<std::uint8_t>(i * 37 + i / 251 + seed);
    return v;
  }
  cudaStream_t stream_ = nullptr;
};

TEST_F(Gpu, UploadsWriteTheirBytesAndNoOthers) {
  for (const std::size_t n : {1U, 3U, 4U, 63U, 4000U, 4001U, 32000U, 32001U, 100003U}) {
    for (const std::size_t offset : {0U, 1U, 8U}) {
      const auto memory = cuda::allocate_device(n + 64, 0, stream_);
      ASSERT_TRUE(memory.ok()) << memory.status().message();
      ASSERT_EQ(cudaMemsetAsync(memory->get(), 0xA5, n + 64, stream_), cudaSuccess);
      auto host = pattern(n, 1);
      ASSERT_TRUE(
          cuda::upload(static_cast<std::byte*>(memory->get()) + offset, host.data(), n, stream_).ok());
      const auto expected = host;
      std::fill(host.begin(), host.end(), 0);  // allowed as soon as upload() is back
      const auto got = bytes_of(memory->get(), n + 64);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const bool ours = i >= offset && i < offset + n;
        ASSERT_EQ(got[i], ours ? expected[i - offset] : 0xA5)
            << n << " bytes at " << offset << ", byte " << i;
      }
    }
  }
}

TEST_F(Gpu, MemoryAndUploadsAreCapturedAndDownloadsAreRefused) {
  const auto out = cuda::allocate_device(5000, 0, stream_);
  ASSERT_TRUE(out.ok());
  const auto data = pattern(5000, 7);
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  {
    const auto memory = cuda::allocate_device(5000, 0, stream_);
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    ASSERT_TRUE(cuda::upload(memory->get(), data.data(), data.size(), stream_).ok());
    ASSERT_EQ(cudaMemcpyAsync(out->get(), memory->get(), 5000, cudaMemcpyDeviceToDevice, stream_),
              cudaSuccess);
    std::uint8_t byte = 0;
    expect_refusal(cuda::download(&byte, out->get(), 1, stream_, "kv_lengths"), StatusCode::invalid_argument,
                   {"kv_lengths", "captured"});
  }
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  for (int replay = 0; replay < 3; ++replay) {
    ASSERT_EQ(cudaMemsetAsync(out->get(), 0, 5000, stream_), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
    EXPECT_EQ(bytes_of(out->get(), 5000), data);
  }
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(Gpu, MemoryFromBeforeACaptureMayGoDuringIt) {
  auto before = cuda::allocate_device(1 << 20, 0, stream_);
  ASSERT_TRUE(before.ok());
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  before->reset();
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(Gpu, LengthsOnTheDeviceAreReadInStreamOrder) {
  const std::int32_t lengths[] = {5, -7, 2};
  const auto memory = cuda::allocate_device(sizeof lengths, 0, stream_);
  ASSERT_TRUE(memory.ok());
  ASSERT_TRUE(cuda::upload(memory->get(), lengths, sizeof lengths, stream_).ok());
  Call call(kGpu);
  call.options.kv_lengths = TensorView(memory->get(), DType::i32, {2}, kGpu);
  call.options.kv_lengths.strides[0] = 2;
  Result<Problem> p = make_problem(call.q, call.k, call.k, call.options, stream_);
  ASSERT_TRUE(p.ok()) << p.status().message();
  EXPECT_EQ(p->sequences[0].k_len, 5);
  EXPECT_EQ(p->sequences[1].k_len, 2);
  call.options.kv_lengths.data = static_cast<const std::int32_t*>(memory->get()) + 2;
  call.options.kv_lengths.strides[0] = -2;
  p = make_problem(call.q, call.k, call.k, call.options, stream_);
  ASSERT_TRUE(p.ok()) << p.status().message();
  EXPECT_EQ(p->sequences[0].k_len, 2);
  EXPECT_EQ(p->sequences[1].k_len, 5);
}

TEST_F(Gpu, TensorMapsAreEncodedOrSayWhatIsWrong) {
  const auto memory = cuda::allocate_device(1 << 16, 0, stream_);
  ASSERT_TRUE(memory.ok());
  cuda::TensorMapSpec spec;
  spec.address = memory->get();
  spec.dims = {64, 128, 4};
  spec.strides = {64, 64 * 128};
  spec.box = {64, 64, 1};
  spec.swizzle = cuda::Swizzle::bytes64;
  CUtensorMap map;
  const Status s = cuda::encode_tensor_map(&map, spec);
  EXPECT_TRUE(s.ok()) << s.message();
  spec.strides[0] = 63;
  expect_refusal(cuda::encode_tensor_map(&map, spec), StatusCode::internal, {"stride 63 bytes"});
}

TEST_F(Gpu, PointersFlagsAndClock) {
  const auto memory = cuda::allocate_device(256, 0, stream_);
  ASSERT_TRUE(memory.ok());
  EXPECT_TRUE(cuda::is_device_pointer(memory->get()));
  EXPECT_FALSE(cuda::is_device_pointer(&stream_));
  EXPECT_TRUE(check_buffer("kv", memory->get(), kGpu).ok());
  expect_refusal(check_buffer("kv", &stream_, kGpu), StatusCode::invalid_argument,
                 {"kv is not in device memory"});
  const std::uint32_t flags[] = {0, 1};
  ASSERT_TRUE(cuda::upload(memory->get(), flags, sizeof flags, stream_).ok());
  EXPECT_TRUE(cuda::refuse_nonfinite(memory->get(), "q", stream_).ok());
  expect_refusal(cuda::refuse_nonfinite(static_cast<std::uint32_t*>(memory->get()) + 1, "q", stream_),
                 StatusCode::invalid_argument, {"q holds a NaN or Inf"});
  const Result<double> clock = cuda::measure_sm_clock(stream_);
  ASSERT_TRUE(clock.ok()) << clock.status().message();
  EXPECT_GT(*clock, 1e8);
  EXPECT_LT(*clock, 5e9);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "nothing is left for the caller's own check";
}

#endif

}  // namespace
}  // namespace octavo
