// Which kernels of the table a test should walk: those that run on this machine.
#pragma once

#include <string>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo::test {

/// Names of the CPU kernels that run here and end in `what` ("int8", "float", "cpu8"); all CPU kernels when
/// empty.
inline std::vector<std::string> cpu_kernels(const std::string& what = "") {
  std::vector<std::string> names;
  for (const KernelInfo& k : kernels()) {
    const bool fits = what.empty() || k.name.ends_with("." + what);
    if (k.backend == "cpu" && k.available && fits) names.push_back(k.name);
  }
  return names;
}

inline Recipe preset(const std::string& name) { return *recipe(name); }

}  // namespace octavo::test
