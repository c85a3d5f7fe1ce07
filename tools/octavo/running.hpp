// Running a plan and timing its steps; tensors that the command owns.
#pragma once

#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "octavo/attention.hpp"

namespace octavo::tool {

/// Row-major host memory, zero at first. Pages that nobody writes cost nothing.
class OwnedTensor {
 public:
  OwnedTensor() = default;
  OwnedTensor(DType dtype, std::span<const std::int64_t> shape);
  [[nodiscard]] const MutableTensorView& view() const { return view_; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  MutableTensorView view_{};
};

OwnedTensor output_for(const Problem& problem, DType dtype);  ///< shaped like q in the problem's layout
OwnedTensor lse_for(const Problem& problem);

/// Seconds of the three steps of one run.
struct StepTimes {
  double quantize_kv = 0.0;
  double quantize_q = 0.0;
  double attend = 0.0;
  std::optional<double> end_to_end{};  ///< on a GPU: the three steps as one captured graph
  [[nodiscard]] double quantize() const { return quantize_kv + quantize_q; }
  [[nodiscard]] double together() const { return quantize() + attend; }
};

struct TimedRuns {
  std::vector<StepTimes> runs;
  std::optional<double>
      clock_hz;  ///< of a core, or of the SMs right after the last run; none when it changed
};

/// Runs all steps at least once, then again until `most_runs` runs or `seconds` are spent. Buffers are kept
/// between the runs.
std::vector<StepTimes> run_plan(const Plan& plan, const TensorView& q, const TensorView& k,
                                const TensorView& v, const MutableTensorView& out,
                                const MutableTensorView& lse, int most_runs, double seconds);
/// The run that took least, quantization included.
StepTimes best_of(const std::vector<StepTimes>& runs);

/// (query, key) pairs that causal, window and lengths leave, over all query heads. A mask leaves them as they
/// are: kernels visit what it hides.
double count_scores(const Problem& problem);
/// Floating-point operations of both products, a multiply-add counted as two.
inline double flops_of(double scores, std::int64_t head_dim) {
  return 4.0 * scores * static_cast<double>(head_dim);
}
/// Threads that a plan uses.
int threads_of(const Problem& problem);
/// Whether a kernel is one of the references, whose time says nothing about a recipe's speed.
bool is_reference(const std::string& kernel_name);

}  // namespace octavo::tool
