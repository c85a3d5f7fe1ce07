// Timed runs of a plan.
#include "running.hpp"

#include <algorithm>
#include <chrono>
#include <new>

#include "core/heads_view.hpp"
#include "cpu/parallel.hpp"
#include "failure.hpp"

namespace octavo::tool {
namespace {

class Stopwatch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

OwnedTensor::OwnedTensor(DType dtype, std::span<const std::int64_t> shape) {
  view_.dtype = dtype;
  view_.rank = static_cast<int>(shape.size());
  std::int64_t elements = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    view_.shape[d] = shape[d];
    view_.strides[d] = elements;
    if (__builtin_mul_overflow(elements, shape[d], &elements)) throw std::bad_alloc();
  }
  memory_.reset(std::calloc(std::max<std::size_t>(static_cast<std::size_t>(elements), 1), size_of(dtype)));
  if (memory_ == nullptr) throw std::bad_alloc();
  view_.data = memory_.get();
}

OwnedTensor output_for(const Problem& p, DType dtype) {
  const std::int64_t hnd[] = {p.batch, p.q_heads, p.q_len, p.head_dim};
  const std::int64_t nhd[] = {p.batch, p.q_len, p.q_heads, p.head_dim};
  const std::int64_t thd[] = {p.q_len, p.q_heads, p.head_dim};
  switch (p.options.layout) {
    case Layout::hnd:
      return {dtype, hnd};
    case Layout::nhd:
      return {dtype, nhd};
    case Layout::thd:
      break;
  }
  return {dtype, thd};
}

OwnedTensor lse_for(const Problem& p) {
  const std::int64_t dense[] = {p.batch, p.q_heads, p.q_len};
  const std::int64_t packed[] = {p.q_heads, p.q_len};
  return p.packed() ? OwnedTensor(DType::f32, packed) : OwnedTensor(DType::f32, dense);
}

std::vector<StepTimes> run_plan(const Plan& plan, const TensorView& q, const TensorView& k,
                                const TensorView& v, const MutableTensorView& out,
                                const MutableTensorView& lse, int most_runs, double seconds) {
  QuantizedKv kv;
  QuantizedQ qq;
  std::vector<std::byte> memory(plan.workspace_bytes() + 63);
  void* workspace = memory.data();
  std::size_t space = memory.size();
  std::align(64, plan.workspace_bytes(), workspace, space);  // what attend() asks for
  std::vector<StepTimes> runs;
  double spent = 0.0;
  do {
    StepTimes times;
    Stopwatch watch;
    require(plan.quantize_kv(k, v, kv));
    times.quantize_kv = watch.lap();
    require(plan.quantize_q(q, kv, qq));
    times.quantize_q = watch.lap();
    require(plan.attend(qq, kv, out, lse, workspace, space));
    times.attend = watch.lap();
    spent += times.together();
    runs.push_back(times);
  } while (static_cast<int>(runs.size()) < most_runs && spent < seconds);
  return runs;
}

StepTimes best_of(const std::vector<StepTimes>& runs) {
  return *std::min_element(runs.begin(), runs.end(), [](const StepTimes& a, const StepTimes& b) {
    return a.together() < b.together();
  });
}

double count_scores(const Problem& problem) {
  double pairs = 0.0;
  for (const Sequence& sequence : problem.sequences) {
    for (std::int64_t row = 0; row < sequence.q_len; ++row) {
      const KeyRange keys = visible_keys(problem, sequence, row);
      pairs += static_cast<double>(keys.end - keys.begin);
    }
  }
  return pairs * static_cast<double>(problem.q_heads);
}

int threads_of(const Problem& problem) {
  return problem.options.threads > 0 ? problem.options.threads : cpu::default_threads();
}

bool is_reference(const std::string& kernel_name) { return kernel_name.starts_with("reference."); }

}  // namespace octavo::tool
