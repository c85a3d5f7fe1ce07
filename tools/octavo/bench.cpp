// octavo bench: speed of the kernels that run here over shapes, on N(0, 1) data, in one run.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <random>

#include "arguments.hpp"
#include "commands.hpp"
#include "core/rows.hpp"
#include "failure.hpp"
#include "gpu.hpp"
#include "machine.hpp"
#include "octavo/attention.hpp"
#include "output.hpp"
#include "progress.hpp"
#include "running.hpp"

namespace octavo::tool {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;
constexpr std::int64_t kMostHeads = 4096;
constexpr std::int64_t kMostHeadDim = 256;
constexpr double kSecondsOfRuns = 20.0;  // a slow kernel on a long input stops repeating then

struct BenchOptions {
  std::string recipes;
  std::string kernel;
  std::string heads = "8";
  std::string tokens = "1024,4096";
  std::string head_dims = "64,128";
  std::string causal = "none";
  std::string device = "cpu";
  std::string threads = "1";
  std::string repeat = "5";
  std::string json;
};

struct Shape {
  std::int64_t heads = 0;
  std::int64_t tokens = 0;
  std::int64_t head_dim = 0;
};

struct Measured {
  std::string recipe;
  std::string kernel;
  Shape shape;
  double scores = 0.0;
  std::vector<StepTimes> runs;
  std::optional<double> clock_hz;

  template <class Part>
  [[nodiscard]] double least(Part part) const {
    double best = part(runs.front());
    for (const StepTimes& run : runs) best = std::min(best, part(run));
    return best;
  }
  template <class Part>
  [[nodiscard]] double median(Part part) const {
    std::vector<double> values;
    for (const StepTimes& run : runs) values.push_back(part(run));
    std::sort(values.begin(), values.end());
    const std::size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
  }
};

constexpr auto kQuantize = [](const StepTimes& t) { return t.quantize(); };
constexpr auto kAttend = [](const StepTimes& t) { return t.attend; };
constexpr auto kTogether = [](const StepTimes& t) { return t.together(); };
constexpr auto kEndToEnd = [](const StepTimes& t) { return t.end_to_end.value_or(t.together()); };

/// [1, H, L, D] from N(0, 1), the same in every run.
OwnedTensor random_tensor(const Shape& s, DType dtype, std::uint32_t seed) {
  const std::int64_t dims[] = {1, s.heads, s.tokens, s.head_dim};
  OwnedTensor tensor(dtype, dims);
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < s.heads * s.tokens * s.head_dim; ++i)
    write_element(tensor.view().data, dtype, i, normal(generator));
  return tensor;
}

class Bench {
 public:
  Bench(const BenchOptions& o, int threads)
      : kernel_(o.kernel),
        causal_(parse_causal("--causal", o.causal)),
        device_(device_of(o)),
        threads_(threads),
        repeat_(static_cast<int>(parse_integer("--repeat", o.repeat, 1, 10000))),
        named_(!o.recipes.empty()) {
    if (named_) {
      for (const std::string& name : parse_names("--recipes", o.recipes))
        recipes_.push_back(require(recipe(name)));
    } else {
      for (const Preset& preset : presets()) {
        if (preset.name != "auto") recipes_.push_back(require(recipe(preset.name)));
      }
    }
    if (!kernel_.empty()) {
      const std::vector<KernelInfo> all = kernels();
      if (std::none_of(all.begin(), all.end(), [&](const KernelInfo& k) { return k.name == kernel_; })) {
        throw Failure(kExitUsage,
                      fmt::format("--kernel = {} is not known; `octavo info` lists the kernels", kernel_));
      }
    }
  }

  void measure(const Shape& shape, Progress& progress) {
    const OwnedTensor q = random_tensor(shape, dtype(), 1);
    const OwnedTensor k = random_tensor(shape, dtype(), 2);
    const OwnedTensor v = random_tensor(shape, dtype(), 3);
    AttentionOptions options;
    options.causal = causal_;
    options.threads = threads_;
    const Problem problem = require(make_problem(q.view(), k.view(), v.view(), options));
    const OwnedTensor out = output_for(problem, dtype());
    const double scores = count_scores(problem);
    std::unique_ptr<GpuCall> gpu;
    if (on_gpu())
      gpu = std::make_unique<GpuCall>(device_, problem, q.view(), k.view(), v.view(), dtype(), false);
    for (const Recipe& wanted : recipes_) {
      for (const Plan& made : plans(gpu != nullptr ? gpu->problem() : problem, wanted)) {
        progress.say(fmt::format("{} {} tokens {}", wanted.name, made.kernel_name(), shape.tokens));
        Measured m{wanted.name, made.kernel_name(), shape, scores, {}, {}};
        if (gpu != nullptr) {
          TimedRuns timed = gpu->run(made, repeat_, kSecondsOfRuns);
          m.runs = std::move(timed.runs);
          m.clock_hz = timed.clock_hz;
        } else {
          const Clock clock;
          m.runs = run_plan(made, q.view(), k.view(), v.view(), out.view(), {}, repeat_, kSecondsOfRuns);
          m.clock_hz = clock.finish();
        }
        results_.push_back(std::move(m));
      }
      progress.advance(1.0);
    }
  }

  [[nodiscard]] std::size_t recipe_count() const { return recipes_.size(); }
  [[nodiscard]] const std::vector<Measured>& results() const { return results_; }
  [[nodiscard]] Causal causal() const { return causal_; }
  [[nodiscard]] bool on_gpu() const { return device_.kind == Device::Kind::cuda; }
  [[nodiscard]] const Gpu& gpu() const { return gpus()[static_cast<std::size_t>(device_.index)]; }
  /// What callers bring: f32 to a CPU, 16 bits to a GPU.
  [[nodiscard]] DType dtype() const { return on_gpu() ? DType::f16 : DType::f32; }
  [[nodiscard]] std::string data_text() const {
    return fmt::format("N(0, 1), {}, batch 1", to_string(dtype()));
  }
  [[nodiscard]] const std::vector<std::string>& left_out() const { return left_out_; }
  /// Why a kernel that was asked for ran nothing.
  [[nodiscard]] const Status& refusal() const { return refusal_; }

 private:
  static Device device_of(const BenchOptions& o) {
    const DeviceChoice choice = parse_device(o.device);
    if (choice.automatic)
      throw Failure(kExitUsage, "--device = 'auto' is not possible; bench takes cpu or cuda:N");
    return choice.device;
  }

  /// Every kernel that runs a recipe here. Only when named: the references, whose time says nothing about a
  /// recipe, and scalar kernels beside faster tiers, which would take most of the time
  /// (OCTAVO_CPU_TIER=scalar leaves just them).
  std::vector<Plan> plans(const Problem& problem, const Recipe& wanted) {
    std::vector<Plan> list;
    Status refusal;
    for (const KernelInfo& kernel : kernels()) {
      if ((kernel.backend == "cuda") != on_gpu() && kernel_.empty()) continue;
      const bool slow = is_reference(kernel.name) || (kernel.tier == "scalar" && tier_ != "scalar");
      if (kernel_.empty() ? slow || !kernel.available : kernel.name != kernel_) continue;
      Result<Plan> made = plan(problem, wanted, {.kernel = kernel.name});
      if (made.ok()) {
        list.push_back(*made);
      } else {
        refusal = made.status();
      }
    }
    if (!list.empty()) return list;
    if (!kernel_.empty()) refusal_ = refusal;
    if (named_) {  // a recipe that was asked for is not left out quietly
      require(refusal_);
      throw Failure(kExitUnsupported,
                    fmt::format("recipe {} has no kernel here but the references; name one with --kernel "
                                "reference.emulate to time that",
                                wanted.name));
    }
    if (std::find(left_out_.begin(), left_out_.end(), wanted.name) == left_out_.end())
      left_out_.push_back(wanted.name);
    return list;
  }

  Status refusal_;
  std::string kernel_;
  std::string tier_ = best_tier();
  Causal causal_;
  Device device_;
  int threads_;
  int repeat_;
  bool named_;
  std::vector<Recipe> recipes_;
  std::vector<Measured> results_;
  std::vector<std::string> left_out_;
};

std::optional<double> cycles(const Measured& m, double seconds, int threads) {
  if (!m.clock_hz) return std::nullopt;
  return seconds * *m.clock_hz * threads / m.scores;
}

/// Multiply-adds of both products.
std::optional<double> mac_per_cycle(const Measured& m, int threads) {
  const std::optional<double> per_score = cycles(m, m.least(kAttend), threads);
  if (!per_score) return std::nullopt;
  return 2.0 * static_cast<double>(m.shape.head_dim) / *per_score;
}

std::optional<double> flop_per_clk_per_sm(const Measured& m, const Gpu& gpu) {
  if (!m.clock_hz) return std::nullopt;
  return flops_of(m.scores, m.shape.head_dim) / m.least(kAttend) / *m.clock_hz / gpu.sm_count;
}

double tflops(const Measured& m) { return flops_of(m.scores, m.shape.head_dim) / m.least(kAttend) * 1e-12; }

std::string left_out_text(const Bench& bench) {
  if (bench.left_out().empty()) return "";
  std::string names;
  for (const std::string& name : bench.left_out()) names += (names.empty() ? "" : ", ") + name;
  return labelled("left out", names + ": no kernel here runs them but the references");
}

std::string gpu_text_of(const Bench& bench) {
  std::string text = labelled("GPU", describe(bench.gpu()));
  text += labelled("data", fmt::format("{}, causal {}; commit {}", bench.data_text(), to_text(bench.causal()),
                                       commit())) +
          "\n";
  Table table({"recipe", "kernel", "H x N x D", "attend ms", "median", "end to end", "TFLOPS", "per clk, SM"},
              "<<<>>>>>");
  for (const Measured& m : bench.results()) {
    const std::optional<double> per_clock = flop_per_clk_per_sm(m, bench.gpu());
    table.add({m.recipe, m.kernel, fmt::format("{}x{}x{}", m.shape.heads, m.shape.tokens, m.shape.head_dim),
               fmt::format("{:.4f}", 1e3 * m.least(kAttend)), fmt::format("{:.4f}", 1e3 * m.median(kAttend)),
               fmt::format("{:.4f}", 1e3 * m.median(kEndToEnd)), fmt::format("{:.1f}", tflops(m)),
               per_clock ? fmt::format("{:.0f}", *per_clock) : "-"});
  }
  text += table.text() + "\n";
  text += labelled(
      "ms",
      "attend alone: the least and the median of the runs; end to end: the median of the three steps "
      "as one captured graph");
  text += labelled("TFLOPS",
                   "of both products, attend alone, least time; per clk, SM: FLOP a clock and SM, by the SM "
                   "clock right after the runs");
  return text + left_out_text(bench);
}

std::string text_of(const Bench& bench, int threads) {
  if (bench.on_gpu()) return gpu_text_of(bench);
  const Processor p = processor();
  std::string text =
      labelled("processor", fmt::format("{}; {} thread{}", p.model, threads, threads == 1 ? "" : "s"));
  text += labelled("data", fmt::format("{}, causal {}; commit {}", bench.data_text(), to_text(bench.causal()),
                                       commit())) +
          "\n";
  Table table({"recipe", "kernel", "H x N x D", "attend ms", "+quant", "median", "cycles", "+quant", "MAC"},
              "<<<>>>>>>");
  const auto number = [](const std::optional<double>& value, const char* form) {
    return value ? fmt::format(fmt::runtime(form), *value) : "-";
  };
  for (const Measured& m : bench.results()) {
    table.add({m.recipe, m.kernel, fmt::format("{}x{}x{}", m.shape.heads, m.shape.tokens, m.shape.head_dim),
               fmt::format("{:.2f}", 1e3 * m.least(kAttend)), fmt::format("{:.2f}", 1e3 * m.least(kTogether)),
               fmt::format("{:.2f}", 1e3 * m.median(kTogether)),
               number(cycles(m, m.least(kAttend), threads), "{:.2f}"),
               number(cycles(m, m.least(kTogether), threads), "{:.2f}"),
               number(mac_per_cycle(m, threads), "{:.1f}")});
  }
  text += table.text() + "\n";
  text += labelled("ms",
                   "attend alone, and with the quantization of Q, K and V; the least of the runs, and the "
                   "median with quantization");
  text += labelled("cycles",
                   "of a thread for a (query, key) pair, - when the clock changed; MAC: multiply-adds of "
                   "both products a cycle, attend alone");
  return text + left_out_text(bench);
}

Json times_json(const Measured& m, double (*part)(const StepTimes&)) {
  return {{"min", m.least(part)}, {"median", m.median(part)}};
}

Json json_of(const Bench& bench, int threads, const std::string& command_line) {
  const auto optional = [](const std::optional<double>& value) {
    return value ? Json(*value) : Json(nullptr);
  };
  Json json = report_head("bench", command_line);
  json["threads"] = threads;
  json["causal"] = to_text(bench.causal());
  json["device"] = bench.on_gpu() ? to_json(bench.gpu()) : Json("cpu");
  json["data"] = bench.data_text();
  json["left_out"] = bench.left_out();
  json["results"] = Json::array();
  for (const Measured& m : bench.results()) {
    json["results"].push_back({{"recipe", m.recipe},
                               {"kernel", m.kernel},
                               {"heads", m.shape.heads},
                               {"tokens", m.shape.tokens},
                               {"head_dim", m.shape.head_dim},
                               {"scores", m.scores},
                               {"runs", m.runs.size()},
                               {"clock_hz", optional(m.clock_hz)},
                               {"seconds",
                                {{"quantize", times_json(m, kQuantize)},
                                 {"attend", times_json(m, kAttend)},
                                 {"together", times_json(m, kTogether)}}},
                               {"cycles_per_score",
                                {{"attend", optional(cycles(m, m.least(kAttend), threads))},
                                 {"together", optional(cycles(m, m.least(kTogether), threads))}}},
                               {"mac_per_cycle", optional(mac_per_cycle(m, threads))}});
    if (bench.on_gpu()) {
      Json& entry = json["results"].back();
      for (const char* of_threads : {"cycles_per_score", "mac_per_cycle"}) entry.erase(of_threads);
      entry["seconds"]["end_to_end"] = times_json(m, kEndToEnd);
      entry["tflops"] = tflops(m);
      entry["flop_per_clk_per_sm"] = optional(flop_per_clk_per_sm(m, bench.gpu()));
    }
  }
  return json;
}

void run(const BenchOptions& o, const std::string& command_line) {
  const int asked = parse_threads(o.threads);
  const std::vector<std::int64_t> heads = parse_integers("--heads", o.heads, 1, kMostHeads);
  const std::vector<std::int64_t> tokens = parse_integers("--tokens", o.tokens, 1, kMostTokens);
  const std::vector<std::int64_t> head_dims = parse_integers("--head-dim", o.head_dims, 1, kMostHeadDim);
  const int threads = asked > 0 ? asked : processor().threads;
  Bench bench(o, threads);
  if (!o.json.empty() && o.json != "-") require_writable("--json", o.json);
  {
    Progress progress(
        "bench", static_cast<double>(heads.size() * tokens.size() * head_dims.size() * bench.recipe_count()));
    for (const std::int64_t h : heads) {
      for (const std::int64_t n : tokens) {
        for (const std::int64_t d : head_dims) bench.measure({h, n, d}, progress);
      }
    }
  }
  if (bench.results().empty()) {
    require(bench.refusal());
    throw Failure(kExitUnsupported,
                  o.kernel.empty()
                      ? "no kernel here runs any recipe but the references; name one with --kernel"
                      : fmt::format("kernel {} runs none of the recipes on these shapes here", o.kernel));
  }
  if (!o.json.empty()) write_json(o.json, json_of(bench, threads, command_line));
  if (o.json != "-") print(text_of(bench, threads));
}

}  // namespace

void add_bench(CLI::App& app, Context& context) {
  CLI::App* sub = app.add_subcommand("bench", "speed of the kernels that run here, over shapes");
  const auto o = std::make_shared<BenchOptions>();
  sub->add_option("--recipes", o->recipes, "presets, by commas (default: all that a kernel here runs)")
      ->type_name("NAMES");
  sub->add_option("--kernel", o->kernel, "only this kernel (default: all here but the references and scalar)")
      ->type_name("NAME");
  sub->add_option("--heads", o->heads, "numbers of heads (default 8)")->type_name("LIST");
  sub->add_option("--tokens", o->tokens, "queries and keys (default 1024,4096)")->type_name("LIST");
  sub->add_option("--head-dim", o->head_dims, "channels a head (default 64,128)")->type_name("LIST");
  sub->add_option("--causal", o->causal, "none (default), top-left or bottom-right")->type_name("WORD");
  sub->add_option("--device", o->device, "cpu (default) or cuda:N")->type_name("NAME");
  sub->add_option("--threads", o->threads, "CPU threads, 0 = all (default 1)")->type_name("N");
  sub->add_option("--repeat", o->repeat, "runs of each (default 5)")->type_name("N");
  sub->add_option("--json", o->json, "write the results; - prints them instead of the table")
      ->type_name("FILE");
  sub->footer(
      "Example:\n  octavo bench --recipes half,cpu8 --tokens 2048,8192 --head-dim 64 --json bench.json");
  sub->callback([o, &context] { context.action = [o, &context] { run(*o, context.command_line); }; });
}

}  // namespace octavo::tool
