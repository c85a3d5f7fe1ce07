// Running a call on a GPU. The device times itself: events between steps, and a captured graph for end to
// end.
#include "gpu.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <tuple>
#include <utility>

#include "core/device.hpp"
#include "core/rows.hpp"
#include "failure.hpp"
#include "io/text.hpp"
#include "machine.hpp"
#if defined(OCTAVO_HAS_CUDA)
#include "cuda/runtime.hpp"
#endif

namespace octavo::tool {

std::string describe(const Gpu& gpu) {
  return fmt::format("cuda:{} {}, sm_{}{}, {} SMs, {:.1f} GiB", gpu.index, gpu.name, gpu.major, gpu.minor,
                     gpu.sm_count, static_cast<double>(gpu.memory) / (1024.0 * 1024.0 * 1024.0));
}

Json to_json(const Gpu& gpu) {
  return {{"index", gpu.index},
          {"name", gpu.name},
          {"compute_capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
          {"sm_count", gpu.sm_count},
          {"memory_bytes", gpu.memory}};
}

#if defined(OCTAVO_HAS_CUDA)

namespace {

void require_cuda(cudaError_t error, const char* what) { require(cuda::check(error, what)); }

class Event {
 public:
  Event() { require_cuda(cudaEventCreate(&event_), "creating a CUDA event"); }
  ~Event() {
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  Event& operator=(Event&&) = delete;
  void record(cudaStream_t stream) const {
    require_cuda(cudaEventRecord(event_, stream), "recording a CUDA event");
  }
  /// Seconds from this event to a later one that has happened.
  [[nodiscard]] double until(const Event& later) const {
    float ms = 0.0F;
    require_cuda(cudaEventElapsedTime(&ms, event_, later.event_), "reading CUDA events");
    return 1e-3 * static_cast<double>(ms);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// The three steps and their memory as a graph: one launch, as an application that cares would do it.
class Graph {
 public:
  template <class Record>
  Graph(cudaStream_t stream, Record record) {
    require_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing a CUDA graph");
    const Status recorded = record();
    cudaGraph_t graph = nullptr;
    const Status ended = cuda::check(cudaStreamEndCapture(stream, &graph), "capturing a CUDA graph");
    Status made = recorded.ok() ? ended : recorded;
    if (made.ok()) made = cuda::check(cudaGraphInstantiate(&exec_, graph, 0), "instantiating a CUDA graph");
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    require(made);
  }
  ~Graph() {
    if (exec_ != nullptr) (void)cudaGraphExecDestroy(exec_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(cudaStream_t stream) const {
    require_cuda(cudaGraphLaunch(exec_, stream), "launching a CUDA graph");
  }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

/// Bytes from a view's first element to behind its last; strides of files and of slices of them are not
/// negative.
std::size_t reach_of(const TensorView& t) {
  std::int64_t last = 0;
  for (int d = 0; d < t.rank; ++d) {
    const auto i = static_cast<std::size_t>(d);
    if (t.shape[i] == 0) return 0;
    last += (t.shape[i] - 1) * t.strides[i];
  }
  return static_cast<std::size_t>(last + 1) * size_of(t.dtype);
}

}  // namespace

const std::vector<Gpu>& gpus() {
  static const std::vector<Gpu> list = [] {
    std::vector<Gpu> found;
    for (const cuda::DeviceProperties& d : cuda::devices())
      found.push_back({d.index, io::printable(d.name), d.major, d.minor, d.sm_count, d.memory});
    return found;
  }();
  return list;
}

std::string cuda_text() {
  if (gpus().empty()) return "none: no CUDA device or driver here";
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  const auto version = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
  return fmt::format("CUDA {}, driver for CUDA {}", version(CUDART_VERSION), version(driver));
}

struct GpuCall::State {
  Device device;
  Problem problem;
  cudaStream_t stream = nullptr;
  TensorView q, k, v;
  MutableTensorView out, lse;
  std::vector<std::shared_ptr<void>> memory;

  State() = default;
  ~State() {
    if (stream == nullptr) return;
    const DeviceScope scope(device);
    memory.clear();  // before its stream
    (void)cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void* room(std::size_t bytes) {
    memory.push_back(require(allocate(bytes, device, stream)));
    return memory.back().get();
  }
  TensorView upload(TensorView t) {
    if (t.empty()) return t;
    const std::size_t bytes = reach_of(t);
    void* to = room(bytes);
    if (bytes > 0)
      require_cuda(cudaMemcpyAsync(to, t.data, bytes, cudaMemcpyHostToDevice, stream), "copying to the GPU");
    t.data = to;
    t.device = device;
    return t;
  }
  MutableTensorView output(MutableTensorView like) {
    like.data = room(reach_of(like));
    like.device = device;
    return like;
  }
  void wait() const { require_cuda(cudaStreamSynchronize(stream), "running on the GPU"); }

  /// Seconds of `count` runs of a step, each between two events, queued without waiting in between.
  template <class Step>
  [[nodiscard]] std::vector<double> timed(int count, Step step) const {
    std::vector<Event> events(static_cast<std::size_t>(count) + 1);
    events.front().record(stream);
    for (std::size_t i = 1; i < events.size(); ++i) {
      step();
      events[i].record(stream);
    }
    wait();
    std::vector<double> seconds;
    for (std::size_t i = 1; i < events.size(); ++i) seconds.push_back(events[i - 1].until(events[i]));
    return seconds;
  }
};

GpuCall::GpuCall(const Device& device, const Problem& host, const TensorView& q, const TensorView& k,
                 const TensorView& v, DType out_dtype, bool with_lse)
    : state_(std::make_unique<State>()) {
  for (const auto& [name, tensor, queries] :
       {std::tuple{"q", &q, true}, {"k", &k, false}, {"v", &v, false}}) {
    const Status s = refuse_non_finite(name, *tensor, host, queries);
    if (s.code() == StatusCode::invalid_argument) require(s);
  }
  State& s = *state_;
  s.device = device;
  s.problem = host;
  s.problem.device = device;
  s.problem.check_finite = false;
  const DeviceScope scope(device);
  require(scope.status());
  require_cuda(cudaStreamCreateWithFlags(&s.stream, cudaStreamNonBlocking), "creating a CUDA stream");
  s.q = s.upload(q);
  s.k = s.upload(k);
  s.v = s.upload(v);
  for (TensorView* view : {&s.problem.options.mask, &s.problem.options.bias, &s.problem.options.q_absmax})
    *view = s.upload(*view);
  s.out = s.output(output_for(host, out_dtype).view());
  if (with_lse) s.lse = s.output(lse_for(host).view());
  s.wait();
}

GpuCall::~GpuCall() = default;

const Problem& GpuCall::problem() const { return state_->problem; }
const Gpu& GpuCall::gpu() const { return gpus()[static_cast<std::size_t>(state_->device.index)]; }

TimedRuns GpuCall::run(const Plan& plan, int most_runs, double seconds) const {
  const State& s = *state_;
  const DeviceScope scope(s.device);
  require(scope.status());
  TimedRuns result;
  {
    QuantizedKv kv;
    QuantizedQ qq;
    const std::size_t bytes = plan.workspace_bytes();
    const std::shared_ptr<void> workspace = require(allocate(bytes, s.device, s.stream));
    const auto quantize_kv = [&] { require(plan.quantize_kv(s.k, s.v, kv, s.stream)); };
    const auto quantize_q = [&] { require(plan.quantize_q(s.q, kv, qq, s.stream)); };
    const auto attend = [&] { require(plan.attend(qq, kv, s.out, s.lse, workspace.get(), bytes, s.stream)); };
    const auto all = [&] {
      quantize_kv();
      quantize_q();
      attend();
    };
    all();  // loads the code
    const double once = std::max(s.timed(1, all).front(), 1e-6);
    const int count = static_cast<int>(std::clamp(seconds / once, 1.0, static_cast<double>(most_runs)));
    const std::vector<double> of_kv = s.timed(count, quantize_kv);
    const std::vector<double> of_q = s.timed(count, quantize_q);
    const std::vector<double> of_attend = s.timed(count, attend);
    const Result<double> clock = cuda::measure_sm_clock(s.stream);
    if (clock.ok()) result.clock_hz = *clock;
    for (std::size_t i = 0; i < of_attend.size(); ++i)
      result.runs.push_back({of_kv[i], of_q[i], of_attend[i], {}});
  }
  const Graph graph(s.stream, [&] { return plan.run(s.q, s.k, s.v, s.out, s.lse, s.stream); });
  graph.launch(s.stream);
  const std::vector<double> whole =
      s.timed(static_cast<int>(result.runs.size()), [&] { graph.launch(s.stream); });
  for (std::size_t i = 0; i < whole.size(); ++i) result.runs[i].end_to_end = whole[i];
  return result;
}

void GpuCall::fetch(const MutableTensorView& out, const MutableTensorView& lse) const {
  const State& s = *state_;
  require(copy_to_host(out.data, s.out.data, reach_of(out), s.device, s.stream, "o"));
  if (!lse.empty()) require(copy_to_host(lse.data, s.lse.data, reach_of(lse), s.device, s.stream, "lse"));
}

#else  // no GPU ever gets this far

const std::vector<Gpu>& gpus() {
  static const std::vector<Gpu> none;
  return none;
}

std::string cuda_text() { return "none: built without CUDA"; }

struct GpuCall::State {};

GpuCall::GpuCall(const Device& device, const Problem&, const TensorView&, const TensorView&,
                 const TensorView&, DType, bool) {
  require(check_device(device));
}
GpuCall::~GpuCall() = default;
const Problem& GpuCall::problem() const { throw Failure(kExitOther, "there is no GPU"); }
const Gpu& GpuCall::gpu() const { throw Failure(kExitOther, "there is no GPU"); }
TimedRuns GpuCall::run(const Plan&, int, double) const { throw Failure(kExitOther, "there is no GPU"); }
void GpuCall::fetch(const MutableTensorView&, const MutableTensorView&) const {}

#endif

DeviceChoice parse_device(const std::string& text) {
  if (text == "auto") return {};
  if (text == "cpu") return {false, {}};
  const std::string cuda = "cuda:";
  int index = -1;
  const char* end = text.data() + text.size();
  if (text.starts_with(cuda)) {
    const auto [at, error] = std::from_chars(text.data() + cuda.size(), end, index);
    if (error != std::errc{} || at != end) index = -1;
  }
  if (index < 0)
    throw Failure(kExitUsage, fmt::format("--device = {} is not possible; it takes auto, cpu or cuda:N",
                                          io::in_quotes(text)));
  const Device device{Device::Kind::cuda, index};
  if (const Status s = check_device(device); !s.ok())
    throw Failure(kExitUnsupported, fmt::format("--device = '{}': {}", text, s.message()));
  return {false, device};
}

Placed place(const DeviceChoice& choice, const Problem& host, const TensorView& q, const TensorView& k,
             const TensorView& v, DType out_dtype, bool with_lse, const Recipe& recipe,
             const std::string& kernel) {
  const auto on_gpu = [&](const Device& device) {
    auto call = std::make_unique<GpuCall>(device, host, q, k, v, out_dtype, with_lse);
    Result<Plan> made = plan(call->problem(), recipe, {.kernel = kernel});
    return std::pair{std::move(call), std::move(made)};
  };
  if (!choice.automatic && choice.device.kind == Device::Kind::cuda) {
    auto [call, made] = on_gpu(choice.device);
    return {std::move(call), require(std::move(made)), ""};
  }
  std::string note;
  if (choice.automatic && !gpus().empty()) {
    const std::vector<KernelInfo> all = kernels();
    const bool named_other =
        !kernel.empty() && std::none_of(all.begin(), all.end(), [&](const KernelInfo& info) {
          return info.name == kernel && info.backend == "cuda";
        });
    if (!named_other) {
      auto [call, made] = on_gpu({Device::Kind::cuda, 0});
      if (made.ok()) return {std::move(call), std::move(*made), ""};
      if (!kernel.empty()) require(made.status());  // a CUDA kernel that was named
      note = "on the CPU, since on cuda:0 " + made.status().message();
    }
  }
  return {nullptr, require(plan(host, recipe, {.kernel = kernel})), note};
}

TimedRuns run_placed(const Placed& placed, const TensorView& q, const TensorView& k, const TensorView& v,
                     const MutableTensorView& out, const MutableTensorView& lse, int most_runs,
                     double seconds) {
  if (placed.gpu != nullptr) {
    TimedRuns result = placed.gpu->run(placed.plan, most_runs, seconds);
    placed.gpu->fetch(out, lse);
    return result;
  }
  TimedRuns result;
  const Clock clock;
  result.runs = run_plan(placed.plan, q, k, v, out, lse, most_runs, seconds);
  result.clock_hz = clock.finish();
  return result;
}

}  // namespace octavo::tool
