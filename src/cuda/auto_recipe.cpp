#include "cuda/auto_recipe.hpp"

#include <algorithm>
#include <limits>

#include "core/text.hpp"

namespace octavo {
namespace {

// What one H200 reaches where the choice is close, at one to some thousand tokens (bench/results/h200.json):
// FLOP a second, and what quantizing costs beside it: launches, and of q, k and v an element each. For up to
// 64 and up to 128 channels.
struct Candidate {
  double rate[2];
  double seconds[2];
  double of_element;
};
constexpr Candidate kHalf{{440e12, 620e12}, {0.0, 0.0}, 0.0};
constexpr Candidate kTurbo16{{680e12, 810e12}, {13e-6, 22e-6}, 1.1e-12};  // q and k are only copied
constexpr Candidate kTurbo8{{620e12, 890e12}, {13e-6, 23e-6}, 1.25e-12};

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
  const double flop = 4.0 * static_cast<double>(p.q_heads) * scores * dim;
  const auto time = [&](const Candidate& c) {
    const int wide = p.head_dim <= 64 ? 0 : 1;
    return flop / c.rate[wide] + c.seconds[wide] + tokens * dim * c.of_element;
  };
  // f16 queries and keys go into turbo16 as they are. Those of a wider range might not fit f16.
  const bool takes_16 = p.dtype == DType::f16;
  const double turbo16 = takes_16 ? time(kTurbo16) : std::numeric_limits<double>::infinity();
  const double turbo8 = time(kTurbo8);
  if (p.head_dim > 128) {
    reason = concat("auto: half, since the 8-bit kernels end at 128 channels", kHalfError);
    return recipe("half");
  }
  if (time(kHalf) <= std::min(turbo16, turbo8)) {
    reason =
        concat("auto: half, since quantizing so few queries and keys costs more than it saves", kHalfError);
    return recipe("half");
  }
  if (turbo8 < turbo16) {
    reason = concat("auto: turbo8, the fastest accurate recipe for ", to_string(p.dtype), " and ", p.head_dim,
                    " channels (relative L1 about 0.042 on N(0,1), 0.014-0.024 on real data)");
    return recipe("turbo8");
  }
  reason = concat("auto: turbo16, the fastest accurate recipe for f16 and ", p.head_dim,
                  " channels (relative L1 about 0.041 on N(0,1), 0.014-0.018 on real data)");
  return recipe("turbo16");
}

}  // namespace octavo
