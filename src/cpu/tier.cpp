// Which tiers run on this processor, and the OCTAVO_CPU_TIER override.
#include "cpu/tier.hpp"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "core/text.hpp"

namespace octavo::cpu {
namespace {

bool always() { return true; }

/// Asked of cpuid itself: clang's __builtin_cpu_supports does not know the name. Its registers are AVX's,
/// which avx2 has checked.
bool has_f16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
}

bool has_avx512bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

/// Where vdpbf16ps is twice as fast as two FMA (Zen 4, 5) the tier stands above avx512; on Intel it is half
/// as fast (15 against 31 products a cycle, Emerald Rapids) and stands below.
int avx512bf16_rank() { return __builtin_cpu_is("amd") ? 35 : 25; }

/// The processor's word (cpuid 7: EDX 22 bf16, 24 tiles, 25 int8) and the kernel's: Linux gives a process
/// tile state on request only. Asked for once; refused by kernels before 5.16 and where a signal stack is too
/// small.
bool has_amx() {
  static const bool has = [] {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    constexpr unsigned kNeeded = 1U << 22 | 1U << 24 | 1U << 25;
    if (!has_avx512() || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kNeeded) != kNeeded)
      return false;
    constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
}

const char* forced() {
  const char* name = std::getenv("OCTAVO_CPU_TIER");
  return name != nullptr && *name != '\0' ? name : nullptr;
}

}  // namespace

std::span<const TierInfo> tiers() {
  static const std::array<TierInfo, 5> kTiers{{
      {"scalar", "x86-64", always, portable_tier, 10},
      {"avx2", "AVX2, FMA, F16C", has_avx2, avx2_tier, 20},
      {"avx512", "AVX-512 F, BW, DQ, VL, VBMI, VNNI", has_avx512, avx512_tier, 30},
      {"avx512bf16", "the same and AVX-512 BF16", has_avx512bf16, avx512bf16_tier, avx512bf16_rank()},
      {"amx", "AVX-512 as avx512 and AMX TILE, INT8, BF16", has_amx, amx_tier, 40},
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

Status accepts_operands(const AttentionOps& ops, const Recipe& recipe) {
  // cpu8 kernels read one scale for every 64 keys.
  const bool one_scale =
      recipe.k_group != Granularity::per_thread && recipe.k_group != Granularity::per_token;
  if (recipe.p_format == Format::u8 && !one_scale)
    return unsupported("runs k_group per_block, per_warp and per_head with p_format u8");
  if (!ops.f16_queries && recipe.qk_format == Format::f16)
    return unsupported("runs qk_format bf16 and e4m3 on bf16 products; f16 is for the avx512 tier");
  if (!ops.f16_values && recipe.p_format == Format::f16)
    return unsupported("runs p_format e4m3 and bf16 on bf16 products; f16 is for the avx512 tier");
  return {};
}

}  // namespace octavo::cpu
