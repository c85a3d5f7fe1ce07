// Which tiers run on this processor, and the OCTAVO_CPU_TIER override.
#include "cpu/tier.hpp"

#include <array>
#include <cstdlib>

#include "core/text.hpp"

namespace octavo::cpu {
namespace {

bool always() { return true; }

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
}

const char* forced() {
  const char* name = std::getenv("OCTAVO_CPU_TIER");
  return name != nullptr && *name != '\0' ? name : nullptr;
}

}  // namespace

std::span<const TierInfo> tiers() {
  static constexpr std::array<TierInfo, 3> kTiers{{
      {"scalar", "x86-64", always, portable_tier, 10},
      {"avx2", "AVX2, FMA, F16C", has_avx2, avx2_tier, 20},
      {"avx512", "AVX-512 F, BW, DQ, VL, VBMI, VNNI", has_avx512, avx512_tier, 30},
  }};
  return kTiers;
}

bool tier_enabled(const TierInfo& tier) {
  return tier.runs_here() && (forced() == nullptr || tier.name == forced());
}

Status forced_tier_status() {
  const char* name = forced();
  if (name == nullptr) return {};
  std::string known;
  for (const TierInfo& tier : tiers()) {
    known += concat(known.empty() ? "" : ", ", tier.name);
    if (tier.name != name) continue;
    if (tier.runs_here()) return {};
    return unsupported(
        concat("OCTAVO_CPU_TIER = ", name, " cannot run on this processor; it needs ", tier.requires_));
  }
  return invalid_argument(concat("OCTAVO_CPU_TIER = '", name, "' is not known; there are: ", known));
}

}  // namespace octavo::cpu
