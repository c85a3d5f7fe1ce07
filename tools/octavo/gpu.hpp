// A call on a GPU: which GPUs there are, copies of a file's tensors on one, timed runs there. In builds
// without CUDA there are none.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octavo/attention.hpp"
#include "output.hpp"
#include "running.hpp"

namespace octavo::tool {

struct Gpu {
  int index = 0;
  std::string name;
  int major = 0;  ///< compute capability
  int minor = 0;
  int sm_count = 0;
  std::size_t memory = 0;  ///< bytes
};
const std::vector<Gpu>& gpus();
/// "CUDA 13.0, driver for CUDA 13.0", "none: built without CUDA", "none: no CUDA device or driver here".
std::string cuda_text();
std::string describe(const Gpu& gpu);  ///< "cuda:0 NVIDIA H200, sm_90, 132 SMs, 139.8 GiB"
Json to_json(const Gpu& gpu);

/// Copies of q, k, v, mask, bias and q_absmax on a GPU, and room for o and lse there. NaN and Inf are
/// refused, as on the CPU: a timed run that checked for them would wait for the device.
class GpuCall {
 public:
  GpuCall(const Device& device, const Problem& host, const TensorView& q, const TensorView& k,
          const TensorView& v, DType out_dtype, bool with_lse);
  ~GpuCall();
  GpuCall(const GpuCall&) = delete;
  GpuCall& operator=(const GpuCall&) = delete;

  [[nodiscard]] const Problem& problem() const;
  [[nodiscard]] const Gpu& gpu() const;
  /// Runs all steps once to warm up, then each up to `most_runs` times or for about `seconds`, timed by the
  /// device.
  [[nodiscard]] TimedRuns run(const Plan& plan, int most_runs, double seconds) const;
  /// The last run's output, to contiguous tensors of the host.
  void fetch(const MutableTensorView& out, const MutableTensorView& lse) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Where a call runs, and what will run it.
struct Placed {
  std::unique_ptr<GpuCall> gpu;  ///< null: the CPU
  Plan plan;
  std::string note;  ///< "" or why not on the GPU

  [[nodiscard]] std::string reason() const { return plan.reason() + (note.empty() ? "" : "; " + note); }
};

/// `automatic`: on cuda:0 where a kernel there runs the call, else on the CPU, and the note says why if there
/// is a GPU.
struct DeviceChoice {
  bool automatic = true;
  Device device{};
};
/// "auto", "cpu" or "cuda:N"; exit code 3 for a GPU that is not there.
DeviceChoice parse_device(const std::string& text);
Placed place(const DeviceChoice& choice, const Problem& host, const TensorView& q, const TensorView& k,
             const TensorView& v, DType out_dtype, bool with_lse, const Recipe& recipe,
             const std::string& kernel);

/// Times of a placed call, and its output in tensors of the host.
TimedRuns run_placed(const Placed& placed, const TensorView& q, const TensorView& k, const TensorView& v,
                     const MutableTensorView& out, const MutableTensorView& lse, int most_runs,
                     double seconds);

}  // namespace octavo::tool
