// What `octavo attend` did, for its text and its JSON report.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "accuracy.hpp"
#include "gpu.hpp"
#include "inputs.hpp"
#include "output.hpp"
#include "running.hpp"

namespace octavo::tool {

struct AttendResult {
  const Inputs& inputs;
  const Placed& placed;
  std::string asked_for;  ///< recipe name as given
  std::string out_path;   ///< empty: not written
  DType out_dtype = DType::f32;
  std::vector<StepTimes> runs;
  double scores = 0.0;
  std::optional<double> clock_hz;
  std::optional<Accuracy> accuracy;  ///< none with --no-compare
  RowChoice rows;

  [[nodiscard]] const Plan& plan() const { return placed.plan; }
  /// Cycles a thread (on a GPU: an SM) spent for each score, by the whole run's time.
  [[nodiscard]] std::optional<double> cycles_per_score(double seconds) const;
};

std::string attend_text(const AttendResult& result);
Json attend_json(const AttendResult& result, const std::string& command_line);

}  // namespace octavo::tool
