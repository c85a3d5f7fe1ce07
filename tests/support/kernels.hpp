// Which kernels of the table a test should walk: those that run on this machine.
#pragma once

#include <gtest/gtest.h>

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

/// Does this kernel run the recipe? Tiers whose products are bf16 refuse f16 operands, and plan then takes
/// another; every other refusal is a defect, and so is one without a sentence.
inline bool runs(const std::string& kernel, const Recipe& recipe) {
  const float zeros[64] = {};
  const TensorView t(zeros, DType::f32, {1, 1, 1, 64});
  const Result<Plan> made = plan(*make_problem(t, t, t), recipe, {kernel});
  if (made.ok()) return true;
  const bool bf16_tier =
      kernel.find(".amx.") != std::string::npos || kernel.find(".avx512bf16.") != std::string::npos;
  const bool f16 = recipe.qk_format == Format::f16 || recipe.p_format == Format::f16;
  EXPECT_TRUE(bf16_tier && f16 && made.status().code() == StatusCode::unsupported)
      << kernel << ": " << made.status().message();
  return false;
}

inline Recipe preset(const std::string& name) { return *recipe(name); }

}  // namespace octavo::test
