// octavo attend: runs a recipe on the q, k, v of a file and says what was run, how long it took and how far
// off it is.
#include "attend.hpp"

#include <fmt/format.h>

#include <array>
#include <map>
#include <memory>

#include "arguments.hpp"
#include "commands.hpp"
#include "failure.hpp"
#include "progress.hpp"

namespace octavo::tool {
namespace {

// Short inputs run several times, because a first run pays for cold caches and fresh pages; long ones once.
constexpr int kMostRuns = 20;
constexpr double kSecondsOfRuns = 0.5;

struct AttendOptions {
  std::string file;
  std::string out;
  std::string recipe = "auto";
  std::vector<std::string> settings;
  std::string causal;
  std::string scale;
  std::string layout;
  std::string window;
  std::string device = "auto";
  std::string kernel;
  std::string threads = "0";
  bool no_compare = false;
  std::string out_dtype;
  std::string json;
};

InputChoices choices_of(const AttendOptions& o) {
  InputChoices choices;
  if (!o.causal.empty()) choices.causal = parse_causal("--causal", o.causal);
  if (!o.layout.empty()) choices.layout = parse_layout("--layout", o.layout);
  if (!o.scale.empty()) choices.options.scale = parse_scale(o.scale);
  if (!o.window.empty()) choices.options.window = parse_window(o.window);
  choices.options.threads = parse_threads(o.threads);
  return choices;
}

void check_paths(const AttendOptions& o) {
  if (!o.out.empty()) {
    require_different("--out", o.out, "the input file", o.file);
    require_writable("--out", o.out);
  }
  if (!o.json.empty() && o.json != "-") {
    require_different("--json", o.json, "the input file", o.file);
    if (!o.out.empty()) require_different("--json", o.json, "the output file", o.out);
    require_writable("--json", o.json);
  }
}

std::map<std::string, std::string> metadata_of(const Plan& plan) {
  const Problem& p = plan.problem();
  std::map<std::string, std::string> metadata;
  for (const RecipeField& field : fields(plan.recipe())) metadata[field.name] = field.value;
  metadata["recipe"] = plan.recipe().name;
  metadata["kernel"] = plan.kernel_name();
  metadata["octavo"] = version();
  metadata["layout"] = to_string(p.options.layout);
  metadata["causal"] = p.options.causal == Causal::none       ? "none"
                       : p.options.causal == Causal::top_left ? "top_left"
                                                              : "bottom_right";
  metadata["scale"] = fmt::format("{}", p.scale);
  metadata["window"] = fmt::format("{},{}", p.options.window.left, p.options.window.right);
  return metadata;
}

void run(const AttendOptions& o, const std::string& command_line) {
  const InputChoices choices = choices_of(o);
  const DeviceChoice device = parse_device(o.device);
  const Recipe wanted = parse_recipe(o.recipe, o.settings);
  std::optional<DType> dtype;
  if (!o.out_dtype.empty()) dtype = parse_out_dtype(o.out_dtype);
  const Inputs inputs = load_inputs(o.file, choices);
  const Problem& problem = inputs.problem;
  const DType out_dtype = dtype.value_or(problem.dtype);
  if (out_dtype != problem.dtype && out_dtype != DType::f32) {
    throw Failure(kExitUsage, fmt::format("--out-dtype = {} does not fit; q is {}, so the output can be {}",
                                          to_string(out_dtype), to_string(problem.dtype),
                                          problem.dtype == DType::f32
                                              ? "f32"
                                              : fmt::format("{} or f32", to_string(problem.dtype))));
  }
  check_paths(o);
  const Placed placed =
      place(device, problem, inputs.q, inputs.k, inputs.v, out_dtype, true, wanted, o.kernel);

  const OwnedTensor out = output_for(problem, out_dtype);
  const OwnedTensor lse = lse_for(problem);
  AttendResult result{inputs, placed, o.recipe, o.out, out_dtype, {}, count_scores(problem), {}, {}, {}};
  {
    const Progress progress("quantize and attend");
    TimedRuns timed =
        run_placed(placed, inputs.q, inputs.k, inputs.v, out.view(), lse.view(), kMostRuns, kSecondsOfRuns);
    result.runs = std::move(timed.runs);
    result.clock_hz = timed.clock_hz;
  }
  if (!o.out.empty()) {  // before the comparison, which may take longer than the run itself
    const std::array<io::NamedTensor, 2> tensors{{{"o", out.view()}, {"lse", lse.view()}}};
    require(io::write_safetensors(o.out, tensors, metadata_of(placed.plan)), "--out ");
  }
  if (!o.no_compare) {
    result.rows = rows_that_are_affordable(problem);
    const Exact exact(problem, inputs.q, inputs.k, inputs.v, result.rows);
    result.accuracy = exact.compare(out.view(), lse.view());
  }
  if (!o.json.empty()) write_json(o.json, attend_json(result, command_line));
  if (o.json != "-") print(attend_text(result));
}

}  // namespace

std::optional<double> AttendResult::cycles_per_score(double seconds) const {
  if (!clock_hz || !(scores > 0.0)) return std::nullopt;
  const int workers = placed.gpu != nullptr ? placed.gpu->gpu().sm_count : threads_of(plan().problem());
  return seconds * *clock_hz * workers / scores;
}

void add_attend(CLI::App& app, Context& context) {
  CLI::App* sub =
      app.add_subcommand("attend", "run a recipe on q, k, v from a safetensors file; report time and error");
  const auto o = std::make_shared<AttendOptions>();
  sub->add_option("FILE", o->file,
                  "tensors q, k, v (f32, f16 or bf16), 4-D, or 3-D packed with\n"
                  "cu_seqlens_q and cu_seqlens_k; optional kv_lengths, mask, bias,\n"
                  "q_absmax; metadata causal and layout are defaults")
      ->required()
      ->type_name("");
  sub->add_option("-o,--out", o->out, "write o and lse to this safetensors file")->type_name("FILE");
  sub->add_option("--recipe", o->recipe, "preset, see `octavo recipes` (default auto)")->type_name("NAME");
  sub->add_option("--set", o->settings, "change fields of the recipe; may be repeated")
      ->type_name("FIELD=VALUE")
      ->allow_extra_args(false);
  sub->add_option("--causal", o->causal, "none, top-left or bottom-right (default: the file's, else none)")
      ->type_name("WORD");
  sub->add_option("--scale", o->scale, "what scores are multiplied with (default 1/sqrt(head dim))")
      ->type_name("X");
  sub->add_option("--layout", o->layout, "hnd, nhd, or thd (packed); default: the file's, else by rank")
      ->type_name("WORD");
  sub->add_option("--window", o->window, "keys seen on the left and right, -1 = no limit")->type_name("L,R");
  sub->add_option(
         "--device", o->device,
         "auto, cpu or cuda:N; auto (default) is cuda:0 where a kernel\nthere runs the call, else cpu")
      ->type_name("NAME");
  sub->add_option("--kernel", o->kernel, "run this kernel, see `octavo info`")->type_name("NAME");
  sub->add_option("--threads", o->threads, "CPU threads, 0 = all (default)")->type_name("N");
  sub->add_flag("--no-compare", o->no_compare, "leave out the comparison with the exact result");
  sub->add_option("--out-dtype", o->out_dtype, "f32, or q's dtype (default)")->type_name("DTYPE");
  sub->add_option("--json", o->json, "write a report; - prints it instead of the text")->type_name("FILE");
  sub->footer(
      "Examples:\n"
      "  octavo attend qkv.safetensors --recipe sage2++-8+8 -o out.safetensors\n"
      "  octavo attend qkv.safetensors --recipe fp8-head --set p_range=448 --set key_order=forward\n"
      "  octavo attend packed.safetensors --layout thd --causal bottom-right --json report.json");
  sub->callback([o, &context] { context.action = [o, &context] { run(*o, context.command_line); }; });
}

}  // namespace octavo::tool
