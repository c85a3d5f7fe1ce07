// The table of octavo demo, its footnotes, and its JSON.
#include <fmt/format.h>

#include <algorithm>

#include "arguments.hpp"
#include "demo.hpp"
#include "io/text.hpp"
#include "machine.hpp"

namespace octavo::tool {
namespace {

const DemoRow* baseline_of(const DemoResult& r) {
  for (const DemoRow& row : r.recipes) {
    if (row.recipe == r.baseline && row.problem_with_it.empty()) return &row;
  }
  return nullptr;
}

std::optional<double> seconds_of(const DemoRow& row, std::optional<std::size_t> layer) {
  return layer ? row.layers[*layer].seconds : row.over_layers().seconds;
}

/// Against the baseline, where both ran on the same processor.
std::string speed_up(const DemoCell& cell, const DemoRow& row, const DemoRow* baseline,
                     std::optional<std::size_t> layer) {
  if (baseline == nullptr || !cell.seconds || row.on_gpu != baseline->on_gpu) return "-";
  const std::optional<double> seconds = seconds_of(*baseline, layer);
  return seconds ? fmt::format("{:.2f}x", *seconds / *cell.seconds) : "-";
}

/// Of one layer, or of all.
std::string table_of(const DemoResult& r, std::optional<std::size_t> layer) {
  Table table({"recipe", "rel. L1 %", "cossim", "RMSE", "worst head %", "time ms", "speed-up", "run by"},
              "<>>>>>><");
  const DemoRow* baseline = baseline_of(r);
  for (const DemoRow& row : r.recipes) {
    if (!row.problem_with_it.empty()) {
      table.add({row.recipe, "-", "-", "-", "-", "-", "-", "cannot run (see below)"});
      continue;
    }
    const DemoCell cell = layer ? row.layers[*layer] : row.over_layers();
    table.add({row.recipe, format_percent(cell.error.relative_l1), format_cossim(cell.error.cossim),
               format_small(cell.error.rmse), format_percent(cell.worst_head_l1),
               cell.seconds ? fmt::format("{:.{}f}", *cell.seconds * 1e3, row.on_gpu ? 3 : 1) : "-",
               speed_up(cell, row, baseline, layer), row.emulated ? "(emulated)" : row.kernel});
  }
  return table.text();
}

std::string head_of(const DemoResult& r) {
  const Processor p = processor();
  const Inputs& first = *r.layers.front().inputs;
  std::string names;
  for (const DemoLayer& layer : r.layers) names += (names.empty() ? "" : ", ") + layer.name;
  std::string text =
      fmt::format("octavo {} demo: the error and the time of 8-bit attention on real data\n\n", version());
  text += labelled("processor", fmt::format("{}; tier {}; {} thread{}", p.model, best_tier(), r.threads,
                                            r.threads == 1 ? "" : "s"));
  if (r.gpu) text += labelled("GPU", describe(*r.gpu));
  text += labelled("data", fmt::format("{}layer{} {}; {} tokens; q {}, k, v {}; causal {}",
                                       r.model.empty() ? "" : r.model + ", ", r.layers.size() == 1 ? "" : "s",
                                       names, first.problem.q_len, describe(first.q), describe(first.k),
                                       to_text(first.problem.options.causal)));
  return text + labelled("error", "against softmax in f64 of the unquantized inputs, " + r.rows.text()) +
         "\n";
}

std::string footnotes(const DemoResult& r) {
  const bool several = r.layers.size() > 1;
  std::string text;
  text += labelled("rel. L1", fmt::format("sum |o - exact| / sum |exact|; cossim and RMSE (root of the mean "
                                          "squared error) of the same rows{}",
                                          several ? "; means over the layers" : ""));
  text += labelled("worst head",
                   fmt::format("the largest rel. L1 of one head{}", several ? " of any layer" : ""));
  text += labelled("time", fmt::format("of a layer, quantization included, best of a few runs{}",
                                       several ? ", mean over the layers" : ""));
  if (r.gpu)
    text += labelled(
        "",
        "kernels named cuda: as one captured graph, tensors on the GPU; speed-ups compare rows of one "
        "processor");
  text += labelled("exact", "what the others are compared with: f64 arithmetic, not made for speed");
  if (r.baseline == "half") {
    text += labelled(
        "speed-up",
        "against `half`: unquantized 16-bit inputs with f32 arithmetic, the cost of plain attention here");
  } else {
    text += labelled(
        "speed-up",
        "against `exact`, an f64 reference that is not made for speed: no f32 kernel here to compare with");
  }
  for (const DemoRow& row : r.recipes) {
    if (!row.emulated) continue;
    text += labelled(
        "(emulated)",
        "no fast kernel here runs it: computed step by step on the rows compared, so there is no time");
    break;
  }
  for (const DemoRow& row : r.recipes) {
    if (!row.problem_with_it.empty()) text += labelled(row.recipe.substr(0, 11), row.problem_with_it);
  }
  if (!r.skipped.empty()) {
    std::string names;
    for (const std::string& name : r.skipped) names += (names.empty() ? "" : ", ") + io::printable(name);
    text += labelled("left out", names + ": no q, k, v");
  }
  return text +
         labelled("next",
                  "`octavo recipes` explains the names, `octavo attend FILE` runs one on your own q, k, v");
}

Json json_of(const DemoCell& cell) {
  Json json = to_json(cell.error);
  json["worst_head"] = cell.worst_head;
  json["worst_head_relative_l1"] = cell.worst_head_l1;
  json["seconds"] = cell.seconds ? Json(*cell.seconds) : Json(nullptr);
  return json;
}

}  // namespace

DemoCell DemoRow::over_layers() const {
  DemoCell mean;
  mean.error = {0.0, 0.0, 0.0, 0.0, 0.0};
  double seconds = 0.0;
  bool timed = true;
  const double share = 1.0 / static_cast<double>(layers.size());
  for (const DemoCell& cell : layers) {
    mean.error.relative_l1 += cell.error.relative_l1 * share;
    mean.error.relative_l2 += cell.error.relative_l2 * share;
    mean.error.cossim += cell.error.cossim * share;
    mean.error.rmse += cell.error.rmse * share;
    mean.error.max_abs = std::max(mean.error.max_abs, cell.error.max_abs);
    if (cell.worst_head_l1 > mean.worst_head_l1) {
      mean.worst_head_l1 = cell.worst_head_l1;
      mean.worst_head = cell.worst_head;
    }
    timed = timed && cell.seconds.has_value();
    seconds += cell.seconds.value_or(0.0) * share;
  }
  if (timed) mean.seconds = seconds;
  return mean;
}

std::string demo_text(const DemoResult& r, bool per_layer) {
  std::string text = head_of(r);
  if (per_layer && r.layers.size() > 1) {
    for (std::size_t i = 0; i < r.layers.size(); ++i)
      text += fmt::format("layer {}\n", r.layers[i].name) + table_of(r, i) + "\n";
    text += "all layers\n";
  }
  return text + table_of(r, std::nullopt) + "\n" + footnotes(r);
}

Json demo_json(const DemoResult& r, const std::string& command_line) {
  Json json = report_head("demo", command_line);
  json["threads"] = r.threads;
  json["gpu"] = r.gpu ? to_json(*r.gpu) : Json(nullptr);
  json["directory"] = r.directory;
  json["model"] = r.model;
  json["tokens"] = r.layers.front().inputs->problem.q_len;
  json["layers"] = Json::array();
  for (const DemoLayer& layer : r.layers) json["layers"].push_back(layer.name);
  json["skipped"] = r.skipped;
  json["sampled"] = r.rows.sampled();
  json["rows_per_head"] = r.rows.rows;
  json["baseline"] = r.baseline;
  json["recipes"] = Json::array();
  for (const DemoRow& row : r.recipes) {
    Json entry = {{"recipe", row.recipe}, {"kernel", row.kernel}, {"emulated", row.emulated}};
    if (!row.problem_with_it.empty()) {
      entry["refused"] = row.problem_with_it;
    } else {
      entry["all"] = json_of(row.over_layers());
      entry["layers"] = Json::array();
      for (const DemoCell& cell : row.layers) entry["layers"].push_back(json_of(cell));
    }
    json["recipes"].push_back(entry);
  }
  return json;
}

}  // namespace octavo::tool
