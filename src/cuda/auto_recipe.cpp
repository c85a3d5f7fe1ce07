#include "cuda/auto_recipe.hpp"

#include <algorithm>

#include "core/text.hpp"

namespace octavo {
namespace {

// What one H200 sustains (bench/results/h200.json), FLOP a second, up to 64 and up to 128 channels: half;
// turbo16, turbo8.
constexpr double kHalfRate[] = {450e12, 620e12};
constexpr double kTurboRate[2][2] = {{850e12, 950e12}, {720e12, 900e12}};
// What quantizing costs: launches, then bytes: 16-bit values are read twice and written once or twice.
constexpr double kQuantizeSeconds = 15e-6;
constexpr double kQuantizeBytesOfElement = 6.0;
constexpr double kQuantizeBandwidth = 2.5e12;

}  // namespace

Result<Recipe> auto_recipe_cuda(const Problem& p, std::string& reason) {
  constexpr const char* kHalfError = " (relative L1 about 0.0003)";
  if (!p.options.q_absmax.empty()) {
    reason =
        "auto: int8-icl, the most accurate recipe that takes a given query scale (relative L1 about 0.037)";
    return recipe("int8-icl");
  }
  if (!p.options.mask.empty() || !p.options.bias.empty()) {
    reason = concat("auto: half, since reading a mask or bias takes longer than the products", kHalfError);
    return recipe("half");
  }
  double scores = 0.0;
  double tokens = 0.0;
  for (const Sequence& s : p.sequences) {
    scores += static_cast<double>(s.q_len) * static_cast<double>(s.k_len);
    tokens += static_cast<double>(s.q_len) * static_cast<double>(p.q_heads) +
              2.0 * static_cast<double>(s.k_len) * static_cast<double>(p.kv_heads);
  }
  if (p.options.causal != Causal::none) scores *= 0.5;
  const auto dim = static_cast<double>(p.head_dim);
  const int wide = p.head_dim <= 64 ? 0 : 1;
  const double flop = 4.0 * static_cast<double>(p.q_heads) * scores * dim;
  const double half = flop / kHalfRate[wide];
  const double turbo = flop / kTurboRate[p.dtype == DType::f16 ? 0 : 1][wide] + kQuantizeSeconds +
                       tokens * dim * kQuantizeBytesOfElement / kQuantizeBandwidth;
  if (p.head_dim > 128) {
    reason = concat("auto: half, since the 8-bit kernels end at 128 channels", kHalfError);
    return recipe("half");
  }
  if (half <= turbo) {
    reason =
        concat("auto: half, since quantizing so few queries and keys costs more than it saves", kHalfError);
    return recipe("half");
  }
  // f16 queries and keys go as they are. Those of a wider range might not fit f16, so they are quantized.
  if (p.dtype != DType::f16) {
    reason = concat("auto: turbo8, the fastest accurate recipe for ", to_string(p.dtype),
                    " (relative L1 about 0.042 on N(0,1), 0.014-0.024 on real data)");
    return recipe("turbo8");
  }
  reason =
      "auto: turbo16, the fastest accurate recipe (relative L1 about 0.041 on N(0,1), 0.014-0.018 on real "
      "data)";
  return recipe("turbo16");
}

}  // namespace octavo
