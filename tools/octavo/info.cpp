// octavo info: what this machine is, and which kernels of the table can run on it.
#include <fmt/format.h>

#include <memory>

#include "commands.hpp"
#include "gpu.hpp"
#include "machine.hpp"
#include "octavo/attention.hpp"
#include "output.hpp"

namespace octavo::tool {
namespace {

Json json_of(const std::string& command_line) {
  Json json = report_head("info", command_line);
  json["gpus"] = Json::array();
  for (const Gpu& gpu : gpus()) json["gpus"].push_back(to_json(gpu));
  json["cuda"] = cuda_text();
  json["kernels"] = Json::array();
  for (const KernelInfo& k : kernels()) {
    json["kernels"].push_back({{"name", k.name},
                               {"backend", k.backend},
                               {"tier", k.tier},
                               {"file", k.file},
                               {"summary", k.summary},
                               {"available", k.available}});
  }
  return json;
}

std::string text_of() {
  const Processor p = processor();
  std::string features;
  for (const std::string& feature : p.features) features += (features.empty() ? "" : " ") + feature;
  std::string text = labelled("octavo", fmt::format("{}, commit {}", version(), commit()));
  text +=
      labelled("processor", fmt::format("{}; {} thread{}", p.model, p.threads, p.threads == 1 ? "" : "s"));
  text += labelled("features", features.empty() ? "none of those that kernels use" : features);
  text += labelled("tier", fmt::format("{} ({})", best_tier(),
                                       forced_tier().empty() ? "OCTAVO_CPU_TIER is not set"
                                                             : "OCTAVO_CPU_TIER=" + forced_tier()));
  text += labelled("GPUs", cuda_text());
  for (const Gpu& gpu : gpus()) text += labelled("", describe(gpu));
  text += "\nkernels, + can run here\n";
  for (const KernelInfo& k : kernels()) {
    text += fmt::format("{} {}  {}\n    ", k.available ? '+' : '-', k.name, k.file) + wrapped(k.summary, 4);
  }
  return text;
}

}  // namespace

void add_info(CLI::App& app, Context& context) {
  CLI::App* sub = app.add_subcommand("info", "processor, GPUs, and the kernels that can run here");
  const auto json = std::make_shared<bool>(false);
  sub->add_flag("--json", *json, "JSON on standard output");
  sub->callback([json, &context] {
    context.action = [json, &context] {
      if (*json) {
        write_json("-", json_of(context.command_line));
      } else {
        print(text_of());
      }
    };
  });
}

}  // namespace octavo::tool
