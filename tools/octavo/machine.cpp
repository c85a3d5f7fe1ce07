// What Linux says about the processor, and a clock measured rather than believed: virtual machines report
// nominal frequencies.
#include "machine.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>

#include "build_info.hpp"
#include "cpu/parallel.hpp"
#include "cpu/tier.hpp"
#include "io/text.hpp"
#include "octavo/attention.hpp"

namespace octavo::tool {
namespace {

/// Flags of /proc/cpuinfo that decide which kernels can run. The system leaves out what it has not enabled,
/// which cpuid alone would not tell.
constexpr const char* kFeatures[] = {"sse4_2",      "avx",         "f16c",     "fma",      "avx2",
                                     "avx_vnni",    "avx512f",     "avx512bw", "avx512vl", "avx512_vnni",
                                     "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"};

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// Words of a line of flags.
std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> list;
  for (std::string word; stream >> word;) list.push_back(word);
  return list;
}

}  // namespace

Processor processor() {
  std::string model;
  std::string family;
  std::string number;
  std::vector<std::string> flags;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();) {  // the first processor's lines
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = trimmed(line.substr(0, colon));
    const std::string value = trimmed(line.substr(colon + 1));
    if (key == "model name") model = io::printable(value);
    if (key == "cpu family") family = io::printable(value);
    if (key == "model") number = io::printable(value);
    if (key == "flags") flags = words(value);
  }
  Processor p;
  p.model = model.empty() ? "unknown processor" : model;
  if (!family.empty() && !number.empty()) p.model += fmt::format(" (family {}, model {})", family, number);
  for (const char* feature : kFeatures) {
    if (std::find(flags.begin(), flags.end(), feature) != flags.end()) p.features.emplace_back(feature);
  }
  p.threads = cpu::default_threads();
  return p;
}

std::string forced_tier() {
  const char* tier = std::getenv("OCTAVO_CPU_TIER");
  return tier == nullptr ? "" : io::printable(tier);
}

std::string best_tier() {
  std::string best = "none";
  int rank = 0;
  for (const cpu::TierInfo& tier : cpu::tiers()) {
    if (!cpu::tier_enabled(tier) || tier.rank <= rank) continue;
    best = tier.name;
    rank = tier.rank;
  }
  return best;
}

double Clock::measure() {
  // 1,000 additions a loop make its own overhead vanish; the fastest of several short stretches is one
  // without interruption.
  constexpr int kLoops = 1000;
  constexpr int kStretches = 9;
  double best = 0.0;
  for (int stretch = 0; stretch < kStretches; ++stretch) {
    std::uint64_t sum = 0;
    std::uint64_t step = 3;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kLoops; ++i) {
      // Register operands: some processors fold additions of small constants and would seem faster than they
      // are.
      asm volatile(".rept 1000\n\tadd %1, %0\n\t.endr" : "+r"(sum) : "r"(step) : "cc");
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::max(best, 1000.0 * kLoops / seconds.count());
  }
  return best;
}

std::optional<double> Clock::finish() const {
  const double after = measure();
  if (!(before_ > 0.0) || std::abs(after - before_) > 0.05 * before_) return std::nullopt;
  return 0.5 * (before_ + after);
}

std::string commit() { return kCommit; }

std::string date_utc() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

nlohmann::ordered_json report_head(const std::string& command, const std::string& command_line) {
  const Processor p = processor();
  return {{"octavo", version()},
          {"command", command},
          {"command_line", command_line},
          {"date", date_utc()},
          {"commit", commit()},
          {"processor",
           {{"model", p.model},
            {"features", p.features},
            {"threads", p.threads},
            {"tier", best_tier()},
            {"tier_forced", forced_tier().empty() ? nlohmann::ordered_json(nullptr)
                                                  : nlohmann::ordered_json(forced_tier())}}}};
}

}  // namespace octavo::tool
