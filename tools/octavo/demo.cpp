// octavo demo: every recipe on real Q, K and V, in one table. The newcomer's first command.
#include "demo.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "arguments.hpp"
#include "build_info.hpp"
#include "commands.hpp"
#include "failure.hpp"
#include "io/text.hpp"
#include "progress.hpp"
#include "reference/emulate.hpp"
#include "running.hpp"

namespace octavo::tool {
namespace {

namespace fs = std::filesystem;

// The best of a few runs: enough to lose a cold start, little enough that all recipes are done within a
// minute.
constexpr int kMostRuns = 5;
constexpr double kSecondsOfRuns = 0.25;

struct DemoOptions {
  std::string tokens;
  std::string data;
  std::string threads = "0";
  std::string device = "auto";
  bool per_layer = false;
  bool json = false;
};

std::vector<fs::path> safetensors_in(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") files.push_back(it->path());
  }
  if (error)
    throw Failure(kExitFile, fmt::format("{}: cannot be listed: {}", io::printable(directory.string(), 200),
                                         error.message()));
  std::sort(files.begin(), files.end());
  return files;
}

/// Where the data is. A place that was named must have it; else the first of the usual places that does.
fs::path data_directory(const std::string& named) {
  if (!named.empty()) return named;
  if (const char* variable = std::getenv("OCTAVO_DATA"); variable != nullptr && *variable != '\0')
    return variable;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& place :
       {program / "../share/octavo/data", program / "../../data", fs::path(kSourceData)}) {
    if (fs::is_directory(place, error) && !safetensors_in(place).empty())
      return fs::weakly_canonical(place, error);
  }
  throw Failure(
      kExitFile,
      "the demo's data was not found beside the program; name its directory with --data or OCTAVO_DATA");
}

/// The first `tokens` tokens of a layer.
void cut(Inputs& in, std::int64_t tokens) {
  const Problem& p = in.problem;
  if (p.packed() || !in.extras.empty() || p.q_len != p.kv_len) {
    throw Failure(kExitUsage, fmt::format("--tokens = {} goes with q, k and v of equal length, not packed "
                                          "and with nothing else; {} differs",
                                          tokens, io::printable(in.path, 200)));
  }
  if (tokens > p.q_len) {
    throw Failure(kExitUsage, fmt::format("--tokens = {} is not possible; {} has {} tokens", tokens,
                                          io::printable(in.path, 200), p.q_len));
  }
  for (TensorView* view : {&in.q, &in.k, &in.v})
    view->shape[p.options.layout == Layout::hnd ? 2 : 1] = tokens;
  in.problem = require(make_problem(in.q, in.k, in.v, p.options));
}

void load_layers(DemoResult& result, const DemoOptions& o) {
  const fs::path directory = data_directory(o.data);
  result.directory = directory.string();
  InputChoices choices;
  choices.options.threads = parse_threads(o.threads);
  for (const fs::path& path : safetensors_in(directory)) {
    const io::SafetensorsFile file = open_file(path.string());
    if (file.find("q") == nullptr || file.find("k") == nullptr || file.find("v") == nullptr) {
      result.skipped.push_back(path.filename().string());
      continue;
    }
    auto inputs = std::make_unique<Inputs>(load_inputs(path.string(), choices));
    const auto text = [&](const char* key, const std::string& otherwise) {
      const auto found = file.metadata().find(key);
      return found == file.metadata().end() ? otherwise : io::printable(found->second, 40);
    };
    if (result.model.empty()) result.model = text("model", "");
    if (!o.tokens.empty()) cut(*inputs, parse_integer("--tokens", o.tokens, 1, std::int64_t{1} << 40));
    result.layers.push_back({text("layer", path.stem().string()), std::move(inputs)});
  }
  if (result.layers.empty()) {
    throw Failure(
        kExitUsage,
        fmt::format(
            "{}: no .safetensors file here has tensors q, k and v; name another directory with --data",
            io::printable(result.directory, 200)));
  }
  result.threads = threads_of(result.layers.front().inputs->problem);
}

DemoCell cell_of(const Accuracy& accuracy, std::optional<double> seconds) {
  DemoCell cell{accuracy.output.all, 0.0, accuracy.output.worst_head, seconds};
  if (!accuracy.output.heads.empty())
    cell.worst_head_l1 = accuracy.output.heads[static_cast<std::size_t>(cell.worst_head)].relative_l1;
  return cell;
}

/// Runs one recipe on one layer: a kernel in full, for its time; the emulator on the rows that are compared.
/// `gpu` is the layer on a GPU, or null.
void run_cell(DemoRow& row, const DemoLayer& layer, const GpuCall* gpu, const Exact& exact) {
  const Inputs& in = *layer.inputs;
  const Recipe wanted = require(recipe(row.recipe));
  const OwnedTensor out = output_for(in.problem, DType::f32);
  if (gpu != nullptr) {
    const Result<Plan> made = plan(gpu->problem(), wanted);
    if (made.ok()) {
      row.kernel = made->kernel_name();
      row.on_gpu = true;
      const TimedRuns timed = gpu->run(*made, kMostRuns, kSecondsOfRuns);
      gpu->fetch(out.view(), {});
      row.layers.push_back(cell_of(exact.compare(out.view(), {}), best_of(timed.runs).end_to_end));
      return;
    }
  }
  const Result<Plan> made = plan(in.problem, wanted);
  if (!made.ok()) {
    row.problem_with_it = made.status().message();
    return;
  }
  row.kernel = made->kernel_name();
  // The exact recipe is the comparison itself; it runs in full, once, so that its row has a time.
  row.emulated = is_reference(row.kernel) && row.recipe != "exact";
  if (row.emulated) {
    require(reference::emulate_rows(in.problem, made->recipe(), in.q, in.k, in.v, exact.rows().lists,
                                    out.view(), {}));
    row.layers.push_back(cell_of(exact.compare(out.view(), {}), std::nullopt));
    return;
  }
  const int runs = is_reference(row.kernel) ? 1 : kMostRuns;
  const StepTimes best = best_of(run_plan(*made, in.q, in.k, in.v, out.view(), {}, runs, kSecondsOfRuns));
  row.layers.push_back(cell_of(exact.compare(out.view(), {}), best.together()));
}

/// The layers on the GPU that was asked for, or on cuda:0 if a kernel of this build runs there; else nothing.
std::vector<std::unique_ptr<GpuCall>> layers_on_gpu(DemoResult& result, const DeviceChoice& choice) {
  std::vector<std::unique_ptr<GpuCall>> calls;
  const std::vector<KernelInfo> all = kernels();
  const bool usable = std::any_of(all.begin(), all.end(),
                                  [](const KernelInfo& k) { return k.backend == "cuda" && k.available; });
  if (choice.automatic ? gpus().empty() || !usable : choice.device.kind == Device::Kind::cpu) return calls;
  const Device device = choice.automatic ? Device{Device::Kind::cuda, 0} : choice.device;
  for (const DemoLayer& layer : result.layers) {
    const Inputs& in = *layer.inputs;
    calls.push_back(std::make_unique<GpuCall>(device, in.problem, in.q, in.k, in.v, DType::f32, false));
  }
  result.gpu = calls.front()->gpu();
  return calls;
}

/// `half` is 16-bit operands with f32 arithmetic: what f32 attention costs here. Without a kernel for it, the
/// f64 reference.
std::string baseline_of(const DemoResult& result) {
  for (const DemoRow& row : result.recipes) {
    if (row.recipe == "half" && !row.emulated && row.problem_with_it.empty()) return "half";
  }
  return "exact";
}

void run(const DemoOptions& o, const std::string& command_line) {
  const DeviceChoice device = parse_device(o.device);
  DemoResult result;
  load_layers(result, o);
  const std::vector<std::unique_ptr<GpuCall>> gpu = layers_on_gpu(result, device);
  std::vector<std::unique_ptr<Exact>> exact;
  for (const DemoLayer& layer : result.layers) {
    const Inputs& in = *layer.inputs;
    exact.push_back(std::make_unique<Exact>(in.problem, in.q, in.k, in.v, sampled_rows(in.problem)));
  }
  result.rows = exact.front()->rows();
  {
    Progress progress("demo", static_cast<double>((presets().size() - 1) * result.layers.size()));
    for (const Preset& preset : presets()) {
      if (preset.name == "auto") continue;
      progress.say(preset.name);
      DemoRow row;
      row.recipe = preset.name;
      for (std::size_t i = 0; i < result.layers.size() && row.problem_with_it.empty(); ++i) {
        run_cell(row, result.layers[i], gpu.empty() ? nullptr : gpu[i].get(), *exact[i]);
        progress.advance(1.0);
      }
      result.recipes.push_back(std::move(row));
    }
  }
  result.baseline = baseline_of(result);
  if (o.json) {
    write_json("-", demo_json(result, command_line));
  } else {
    print(demo_text(result, o.per_layer));
  }
}

}  // namespace

void add_demo(CLI::App& app, Context& context) {
  CLI::App* sub =
      app.add_subcommand("demo", "every recipe on real Q, K and V of a language model, in one table");
  const auto o = std::make_shared<DemoOptions>();
  sub->add_option("--tokens", o->tokens, "only the first N tokens")->type_name("N");
  sub->add_flag("--per-layer", o->per_layer, "a table for each layer too");
  sub->add_option(
         "--data", o->data,
         "directory of safetensors files with q, k, v (default:\n$OCTAVO_DATA, else the shipped ones)")
      ->type_name("DIR");
  sub->add_option("--threads", o->threads, "CPU threads, 0 = all (default)")->type_name("N");
  sub->add_option("--device", o->device,
                  "auto, cpu or cuda:N; auto (default) is cuda:0 where kernels run there")
      ->type_name("NAME");
  sub->add_flag("--json", o->json, "JSON instead of the table, layers included");
  sub->footer("Examples:\n  octavo demo\n  octavo demo --tokens 512 --per-layer");
  sub->callback([o, &context] { context.action = [o, &context] { run(*o, context.command_line); }; });
}

}  // namespace octavo::tool
