// What `octavo demo` measured, for its table and its JSON.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accuracy.hpp"
#include "gpu.hpp"
#include "inputs.hpp"
#include "output.hpp"

namespace octavo::tool {

struct DemoLayer {
  std::string name;  ///< "0", from the metadata, or the file's name
  std::unique_ptr<Inputs> inputs;
};

/// One recipe on one layer.
struct DemoCell {
  ErrorMeasures error{};
  double worst_head_l1 = 0.0;
  std::int64_t worst_head = 0;
  std::optional<double> seconds;  ///< quantization included; none when emulated
};

struct DemoRow {
  std::string recipe;
  std::string kernel;  ///< empty when `problem_with_it` is set
  bool on_gpu = false;
  bool emulated = false;        ///< on the sampled rows only, because no fast kernel here runs it
  std::string problem_with_it;  ///< why it cannot run on this data at all
  std::vector<DemoCell> layers;

  [[nodiscard]] DemoCell over_layers() const;  ///< means; the worst head of all
};

struct DemoResult {
  std::vector<DemoLayer> layers;
  std::vector<std::string> skipped;  ///< files of the directory without q, k, v
  std::string directory;
  std::string model;
  RowChoice rows;  ///< of each layer
  int threads = 1;
  std::optional<Gpu> gpu;  ///< where recipes run that a kernel there runs
  std::vector<DemoRow> recipes;
  std::string baseline;  ///< recipe whose time the speed-ups are against
};

std::string demo_text(const DemoResult& result, bool per_layer);
Json demo_json(const DemoResult& result, const std::string& command_line);

}  // namespace octavo::tool
