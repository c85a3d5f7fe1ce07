// The report of octavo attend, as text and as JSON.
#include <fmt/format.h>

#include "arguments.hpp"
#include "attend.hpp"
#include "core/kernel.hpp"
#include "io/text.hpp"
#include "machine.hpp"

namespace octavo::tool {
namespace {

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

std::string side(std::int64_t keys) { return keys < 0 ? "no limit" : fmt::format("{}", keys); }

std::string input_text(const Inputs& in) {
  const Problem& p = in.problem;
  std::string text = labelled("input", io::printable(in.path, 200));
  text +=
      labelled("tensors", fmt::format("q {}, k {}, v {}", describe(in.q), describe(in.k), describe(in.v)));
  if (!in.extras.empty()) text += labelled("with", joined(in.extras));
  if (!in.unused.empty()) text += labelled("not used", joined(in.unused));
  text += labelled("options", fmt::format("layout {} ({}); causal {} ({}); scale {}; window {}, {}",
                                          to_string(p.options.layout), in.layout_from,
                                          to_text(p.options.causal), in.causal_from, p.scale,
                                          side(p.options.window.left), side(p.options.window.right)));
  return text;
}

std::string recipe_text(const AttendResult& r) {
  std::string values;
  for (const RecipeField& field : fields(r.plan().recipe()))
    values += (values.empty() ? "" : " ") + field.name + "=" + field.value;
  return labelled("recipe",
                  r.plan().recipe().name +
                      (r.asked_for == r.plan().recipe().name ? "" : " (asked for: " + r.asked_for + ")")) +
         labelled("effective", values) + labelled("kernel", r.plan().kernel_name()) +
         labelled("because", r.placed.reason());
}

std::string gpu_speed(const AttendResult& r, double seconds) {
  const double flops = flops_of(r.scores, r.plan().problem().head_dim);
  if (!(r.scores > 0.0)) return "left out: there are no scores";
  std::string text = fmt::format("{:.4g} TFLOPS to attend", flops / seconds * 1e-12);
  if (r.clock_hz) {
    text += fmt::format(", {:.0f} FLOP a clock and SM ({:.2f} GHz right after it)",
                        flops / seconds / *r.clock_hz / r.placed.gpu->gpu().sm_count, *r.clock_hz * 1e-9);
  }
  return text;
}

std::string time_text(const AttendResult& r) {
  const StepTimes best = best_of(r.runs);
  std::string text = labelled(
      "time", fmt::format("quantize {} (K, V {}; Q {}) + attend {} = {}, {}", format_seconds(best.quantize()),
                          format_seconds(best.quantize_kv), format_seconds(best.quantize_q),
                          format_seconds(best.attend), format_seconds(best.together()),
                          r.runs.size() == 1 ? "one run" : fmt::format("best of {} runs", r.runs.size())));
  if (best.end_to_end) {
    double least = *best.end_to_end;
    for (const StepTimes& run : r.runs) least = std::min(least, run.end_to_end.value_or(least));
    text += labelled("end to end",
                     format_seconds(least) + " as one captured graph, on tensors that are on the GPU");
  }
  const std::optional<double> cycles = r.cycles_per_score(best.attend);
  if (r.placed.gpu != nullptr) return text + labelled("speed", gpu_speed(r, best.attend));
  const std::optional<double> all = r.cycles_per_score(best.together());
  if (cycles && all) {
    text += labelled("speed", fmt::format("{:.2f} cycles a score and thread to attend, {:.2f} with "
                                          "quantization ({:.3g} scores, {:.2f} GHz)",
                                          *cycles, *all, r.scores, *r.clock_hz * 1e-9));
  } else {
    text += labelled("speed", "cycles a score are left out: " +
                                  std::string(r.scores > 0.0 ? "the clock changed during the run"
                                                             : "there are no scores"));
  }
  if (is_reference(r.plan().kernel_name())) {
    text += labelled("", "This kernel is a reference: it shows the recipe's error, not its speed.");
  }
  return text;
}

std::string error_text(const AttendResult& r) {
  if (!r.accuracy) return labelled("error", "not measured (--no-compare)");
  const ErrorMeasures& m = r.accuracy->output.all;
  std::string text = labelled(
      "error", fmt::format("relative L1 {}%, cossim {}, RMSE {}, largest {}", format_percent(m.relative_l1),
                           format_cossim(m.cossim), format_small(m.rmse), format_small(m.max_abs)));
  if (!r.accuracy->output.heads.empty()) {
    const ErrorMeasures& worst =
        r.accuracy->output.heads[static_cast<std::size_t>(r.accuracy->output.worst_head)];
    text +=
        labelled("worst head", fmt::format("{}: relative L1 {}%, cossim {}",
                                           head_name(r.plan().problem(), r.accuracy->output.worst_head),
                                           format_percent(worst.relative_l1), format_cossim(worst.cossim)));
  }
  const LseError& lse = r.accuracy->lse;
  text += labelled(
      "LSE error",
      fmt::format("largest {}, mean {}", format_small(lse.max_abs), format_small(lse.mean_abs)) +
          (lse.one_sided > 0 ? fmt::format("; {} rows infinite or NaN on one side only", lse.one_sided)
                             : ""));
  return text + labelled("against", "softmax in f64 of the unquantized inputs, " + r.rows.text());
}

Json tensor_json(const TensorView& t) {
  Json shape = Json::array();
  for (int d = 0; d < t.rank; ++d) shape.push_back(t.shape[static_cast<std::size_t>(d)]);
  return {{"dtype", to_string(t.dtype)}, {"shape", shape}};
}

Json optional_json(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

}  // namespace

std::string attend_text(const AttendResult& r) {
  const Processor p = processor();
  std::string text = fmt::format("octavo {} attend\n", version());
  text += input_text(r.inputs) + recipe_text(r);
  if (r.placed.gpu != nullptr) text += labelled("GPU", describe(r.placed.gpu->gpu()));
  text += labelled("processor", fmt::format("{}; {} thread{}", p.model, threads_of(r.plan().problem()),
                                            threads_of(r.plan().problem()) == 1 ? "" : "s"));
  text += time_text(r) + error_text(r);
  text +=
      labelled("output", r.out_path.empty() ? "not written (-o FILE writes it)"
                                            : fmt::format("{}: o {}, lse f32", io::printable(r.out_path, 200),
                                                          to_string(r.out_dtype)));
  return text;
}

Json attend_json(const AttendResult& r, const std::string& command_line) {
  const Problem& p = r.plan().problem();
  const StepTimes best = best_of(r.runs);
  Json json = report_head("attend", command_line);
  json["device"] = r.placed.gpu != nullptr ? to_json(r.placed.gpu->gpu()) : Json("cpu");
  json["threads"] = threads_of(p);
  json["input"] = {{"file", r.inputs.path},
                   {"q", tensor_json(r.inputs.q)},
                   {"k", tensor_json(r.inputs.k)},
                   {"v", tensor_json(r.inputs.v)},
                   {"with", r.inputs.extras},
                   {"unused", r.inputs.unused},
                   {"layout", to_string(p.options.layout)},
                   {"layout_from", r.inputs.layout_from},
                   {"causal", to_text(p.options.causal)},
                   {"causal_from", r.inputs.causal_from},
                   {"scale", p.scale},
                   {"window", {p.options.window.left, p.options.window.right}}};
  json["asked_for"] = r.asked_for;
  json["recipe"] = to_json(r.plan().recipe());
  json["kernel"] = r.plan().kernel_name();
  json["reason"] = r.placed.reason();
  json["seconds"] = {{"quantize_kv", best.quantize_kv},
                     {"quantize_q", best.quantize_q},
                     {"quantize", best.quantize()},
                     {"attend", best.attend},
                     {"together", best.together()},
                     {"end_to_end", optional_json(best.end_to_end)},
                     {"runs", r.runs.size()}};
  json["scores"] = r.scores;
  json["clock_hz"] = optional_json(r.clock_hz);
  json["cycles_per_score"] = {{"attend", optional_json(r.cycles_per_score(best.attend))},
                              {"together", optional_json(r.cycles_per_score(best.together()))}};
  json["error"] = r.accuracy ? to_json(*r.accuracy, r.rows, p) : Json(nullptr);
  json["output"] = r.out_path.empty()
                       ? Json(nullptr)
                       : Json{{"file", r.out_path}, {"o", to_string(r.out_dtype)}, {"lse", "f32"}};
  return json;
}

}  // namespace octavo::tool
