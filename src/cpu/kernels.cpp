// The CPU's lines of the kernel table: every tier runs the same three kernels.
#include "core/kernel.hpp"
#include "cpu/driver.hpp"

namespace octavo {
namespace {

using cpu::Family;

/// Kernel entries are plain functions, so the tier and family are template arguments.
template <int kTier, Family kFamily>
struct Entry {
  static const cpu::TierInfo& info() { return cpu::tiers()[kTier]; }
  static const cpu::TierOps& ops() { return info().ops(); }

  static bool available() { return cpu::tier_enabled(info()); }
  static Status accepts(const Problem& p, const Recipe& r) {
    if (Status s = cpu::accepts(ops(), kFamily, p, r); !s.ok()) return s;
    return cpu::accepts_operands(cpu::attention_ops(ops(), kFamily), effective(p, r));
  }
  static Recipe effective(const Problem& p, Recipe r) { return cpu::effective(kFamily, p, std::move(r)); }
  static std::size_t kv_bytes(const Problem& p, const Recipe& r) {
    return cpu::BufferLayout(ops(), kFamily, p, r).kv_bytes(p.kv_heads);
  }
  static std::size_t q_bytes(const Problem& p, const Recipe& r) {
    return cpu::BufferLayout(ops(), kFamily, p, r).q_bytes();
  }
  static std::size_t workspace_bytes(const Problem& p, const Recipe& r, int threads) {
    return cpu::workspace_bytes(ops(), kFamily, p, r, threads);
  }
  static Status quantize_kv(const KernelCall& call, const TensorView& k, const TensorView& v, std::byte* kv) {
    return cpu::quantize_kv(ops(), kFamily, call, k, v, kv);
  }
  static Status quantize_q(const KernelCall& call, const TensorView& q, const KvBuffer& kv, std::byte* qq) {
    return cpu::quantize_q(ops(), kFamily, call, q, kv, qq);
  }
  static Status attend(const KernelCall& call, const std::byte* qq, const KvBuffer& kv,
                       const MutableTensorView& out, const MutableTensorView& lse, std::byte* workspace) {
    return cpu::attend(ops(), kFamily, call, qq, kv, out, lse, workspace);
  }

  static Kernel make(std::string_view name, std::string_view tier, std::string_view file,
                     std::string_view summary) {
    return {name,        "cpu",           tier,        file,       summary,
            info().rank, available,       accepts,     effective,  kv_bytes,
            q_bytes,     workspace_bytes, quantize_kv, quantize_q, attend};
  }
};

constexpr std::string_view kInt8Summary =
    "int8/int4 QK; e4m3, bf16 or f16 PV: sage2*, sage2++*, sage-8+16, int8-icl, turbo8; D 1-256";
constexpr std::string_view kFloatSummary =
    "16-bit or e4m3 QK in f32; e4m3, bf16 or f16 PV: half, fp8-head, fp8-icl; D 1-256";
constexpr std::string_view kInt8BfloatSummary =
    "int8/int4 QK; e4m3 or bf16 PV: sage2*, sage2++*, sage-8+16, int8-icl, turbo8; D 1-256";
constexpr std::string_view kFloatBfloatSummary =
    "16-bit or e4m3 QK in f32; e4m3 or bf16 PV: half in bf16, fp8-head, fp8-icl; D 1-256";
constexpr std::string_view kTileFloatSummary =
    "bf16 or e4m3 QK in bf16; e4m3 or bf16 PV: half in bf16, fp8-head, fp8-icl; D 1-256";
constexpr std::string_view kCpu8Summary = "int8 QK, u8 x s8 PV, table exponential: cpu8; D 1-256";

}  // namespace

#define OCTAVO_CPU_TIER_KERNELS(index, tier, float_file, cpu8_file, int8_summary, float_summary)      \
  const Kernel& cpu_##tier##_int8() {                                                                 \
    static const Kernel kernel =                                                                      \
        Entry<index, Family::int8>::make("cpu." #tier ".int8", #tier, float_file, int8_summary);      \
    return kernel;                                                                                    \
  }                                                                                                   \
  const Kernel& cpu_##tier##_float() {                                                                \
    static const Kernel kernel =                                                                      \
        Entry<index, Family::float32>::make("cpu." #tier ".float", #tier, float_file, float_summary); \
    return kernel;                                                                                    \
  }                                                                                                   \
  const Kernel& cpu_##tier##_cpu8() {                                                                 \
    static const Kernel kernel =                                                                      \
        Entry<index, Family::cpu8>::make("cpu." #tier ".cpu8", #tier, cpu8_file, kCpu8Summary);       \
    return kernel;                                                                                    \
  }
OCTAVO_CPU_TIER_KERNELS(0, scalar, "src/cpu/attend.hpp", "src/cpu/attend_cpu8.hpp", kInt8Summary,
                        kFloatSummary)
OCTAVO_CPU_TIER_KERNELS(1, avx2, "src/cpu/attend.hpp", "src/cpu/attend_cpu8.hpp", kInt8Summary, kFloatSummary)
OCTAVO_CPU_TIER_KERNELS(2, avx512, "src/cpu/attend.hpp", "src/cpu/attend_cpu8.hpp", kInt8Summary,
                        kFloatSummary)
OCTAVO_CPU_TIER_KERNELS(3, avx512bf16, "src/cpu/bfloat_values.hpp", "src/cpu/attend_cpu8.hpp",
                        kInt8BfloatSummary, kFloatBfloatSummary)
OCTAVO_CPU_TIER_KERNELS(4, amx, "src/cpu/amx/tile_scores.hpp", "src/cpu/amx/tile_cpu8.hpp",
                        kInt8BfloatSummary, kTileFloatSummary)
#undef OCTAVO_CPU_TIER_KERNELS

}  // namespace octavo
