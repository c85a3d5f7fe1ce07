// The machine that figures were measured on: processor, clock, tier, build, date.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace octavo::tool {

struct Processor {
  std::string model;                  ///< "AMD EPYC (family 25, model 1)"
  std::vector<std::string> features;  ///< those that kernels ask for, as Linux spells them
  int threads = 1;                    ///< that this process may use
};
Processor processor();

/// Value of OCTAVO_CPU_TIER, or empty.
std::string forced_tier();
/// The fastest tier that may be used: "avx2"; "none" when OCTAVO_CPU_TIER names one that cannot.
std::string best_tier();

/// The clock right before and right after some work, by a chain of dependent additions: one a cycle on every
/// x86-64.
class Clock {
 public:
  Clock() : before_(measure()) {}
  /// Hz; empty when the readings before and after differ by more than 5%: then cycles would be a guess.
  [[nodiscard]] std::optional<double> finish() const;

 private:
  static double measure();
  double before_;
};

std::string commit();    ///< git describe when the build was configured, or "unknown"
std::string date_utc();  ///< "2026-01-31T12:00:00Z"

/// The head of every JSON report: version, command, command line, date, commit, processor.
nlohmann::ordered_json report_head(const std::string& command, const std::string& command_line);

}  // namespace octavo::tool
