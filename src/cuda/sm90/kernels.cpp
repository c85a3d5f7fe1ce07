// Hopper's lines of the kernel table: one per family of recipes (docs/kernels/sm90.md).
#include <algorithm>

#include "core/text.hpp"
#include "cuda/layout.hpp"
#include "cuda/quantize/quantize.hpp"
#include "cuda/runtime.hpp"
#include "cuda/sm90/launch.hpp"
#include "cuda/sm90/schedule.hpp"

namespace octavo {
namespace {

using cuda::sm90::Instance;

/// What a family runs; everything else of a recipe is free or checked in `accepts`.
struct Family {
  std::string_view name;
  std::string_view summary;
  Format qk;  ///< int8 stands for int4 too
  QkAccumulator qk_accumulator;
  Format values;  ///< e4m3, or f16 for any 16-bit format
  PvAccumulator pv_accumulator;
  Exp2 exp2;
  Instance (*instance)(int dim, cuda::sm90::Variant variant);
  Instance (*bf16_instance)(int dim, cuda::sm90::Variant variant) = nullptr;  ///< null: not with bf16
};

constexpr Family kHalf{"cuda.sm90a.half",    "16-bit QK and PV in f32: half; D 1-128",
                       Format::f16,          QkAccumulator::f32,
                       Format::f16,          PvAccumulator::f32,
                       Exp2::exact,          cuda::sm90::half_f16,
                       cuda::sm90::half_bf16};
constexpr Family kInt8{
    "cuda.sm90a.int8", "int8/int4 QK, e4m3 PV in f32: sage2-8+8, sage2-4+8, int8-icl; D 1-128",
    Format::int8,      QkAccumulator::s32,
    Format::e4m3,      PvAccumulator::f32_buffered,
    Exp2::exact,       cuda::sm90::int8_exact};
constexpr Family kInt8F16Sums{
    "cuda.sm90a.int8_f16_sums",
    "int8/int4 QK, e4m3 PV in f16 sums of 64 keys: sage2++-8+8, sage2++-4+8; D 1-128",
    Format::int8,
    QkAccumulator::s32,
    Format::e4m3,
    PvAccumulator::f16_buffered,
    Exp2::exact,
    cuda::sm90::int8_f16_sums};
constexpr Family kInt8Wide{"cuda.sm90a.int8_16bit",
                           "int8/int4 QK, f16 PV: sage-8+16; D 1-128",
                           Format::int8,
                           QkAccumulator::s32,
                           Format::f16,
                           PvAccumulator::f32,
                           Exp2::exact,
                           cuda::sm90::int8_wide_values};
constexpr Family kE4m3{"cuda.sm90a.fp8", "e4m3 QK and PV in f32: fp8-head, fp8-icl; D 1-128",
                       Format::e4m3,     QkAccumulator::f32,
                       Format::e4m3,     PvAccumulator::f32_buffered,
                       Exp2::exact,      cuda::sm90::e4m3_exact};
constexpr Family kTurbo8{"cuda.sm90a.turbo8", "int8/int4 QK, direct weights, e4m3 PV: turbo8; D 1-128",
                         Format::int8,        QkAccumulator::s32,
                         Format::e4m3,        PvAccumulator::f32_buffered,
                         Exp2::direct,        cuda::sm90::int8_direct};
constexpr Family kTurbo{
    "cuda.sm90a.turbo", "e4m3 QK in f16, direct weights, e4m3 PV: turbo, turbo-icl; D 1-128",
    Format::e4m3,       QkAccumulator::f16,
    Format::e4m3,       PvAccumulator::f32_buffered,
    Exp2::direct,       cuda::sm90::e4m3_direct};
constexpr Family kTurbo16{"cuda.sm90a.turbo16", "f16 QK in f16, direct weights, e4m3 PV: turbo16; D 1-128",
                          Format::f16,          QkAccumulator::f16,
                          Format::e4m3,         PvAccumulator::f32_buffered,
                          Exp2::direct,         cuda::sm90::f16_direct};

bool wide(Format f) { return f == Format::f16 || f == Format::bf16; }

Instance instance_of(const Family& f, const Problem& p, const Recipe& r, cuda::sm90::Variant variant) {
  const auto instance =
      r.qk_format == Format::bf16 && f.bf16_instance != nullptr ? f.bf16_instance : f.instance;
  return instance(static_cast<int>(cuda::padded_channels(p.head_dim)), variant);
}

/// The instance whose schedule is estimated to end first.
Instance instance_of(const Family& f, const Problem& p, const Recipe& r) {
  using cuda::sm90::Schedule;
  using cuda::sm90::Variant;
  if (!p.options.mask.empty() || !p.options.bias.empty() || r.smooth_q)
    return instance_of(f, p, r, Variant::general);
  const Instance plain = instance_of(f, p, r, Variant::plain);
  Instance best = plain;
  double time = -1.0;  // of the best, once there is another
  for (const Variant variant : {Variant::narrow, Variant::wide}) {
    const Instance other = instance_of(f, p, r, variant);
    if (other.variant != variant) continue;
    if (other.step != plain.step) {  // their bits differ
      if (r.key_tile == other.step) return other;
      if (r.key_tile != 0 || p.options.key_splits > 0) continue;  // whatever is computed beside
    }
    if (time < 0.0) time = Schedule(p, r, plain, true).time;
    if (const double then = Schedule(p, r, other, true).time; then < time) {
      time = then;
      best = other;
    }
  }
  return best;
}

Status accepts_formats(const Family& f, const Recipe& r) {
  const Format qk = r.qk_format == Format::int4   ? Format::int8
                    : r.qk_format == Format::bf16 ? Format::f16
                                                  : r.qk_format;
  if (qk != f.qk || r.qk_accumulator != f.qk_accumulator)
    return unsupported("runs another qk_format or qk_accumulator");
  if (r.exp2 != f.exp2) return unsupported("runs another exp2");
  if ((wide(r.v_format) ? Format::f16 : r.v_format) != f.values || wide(r.p_format) != wide(r.v_format))
    return unsupported("runs another p_format or v_format");
  if (wide(r.v_format) && r.p_format != r.v_format) return unsupported("runs p_format and v_format alike");
  const bool straight =
      r.pv_accumulator == PvAccumulator::f32 && f.pv_accumulator == PvAccumulator::f32_buffered;
  if (r.pv_accumulator != f.pv_accumulator && !straight) return unsupported("runs another pv_accumulator");
  return {};
}

/// The quantizers count rows of all heads, and channels of all heads and sequences, in 32 bits.
Status accepts_size(const Problem& p, const Recipe& r) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  constexpr std::int64_t kChannels = 128;
  const std::int64_t q_heads = std::max<std::int64_t>(p.q_heads, 1);
  const std::int64_t kv_heads = std::max<std::int64_t>(p.kv_heads, 1);
  const auto sequences = static_cast<std::int64_t>(std::max<std::size_t>(p.sequences.size(), 1));
  if (std::max(q_heads, kv_heads) >= kMost / kChannels / sequences)
    return unsupported("runs less than 2^24 heads, those of each sequence counted");
  if (cuda::QLayout(p, r).q_rows >= kMost / kv_heads ||
      cuda::KvLayout(p, r, kv_heads).key_rows >= kMost / kv_heads)
    return unsupported("runs less than 2^31 rows of q, k or v, those of each head counted");
  return {};
}

Status accepts(const Family& f, const Problem& p, const Recipe& r) {
  if (Status s = accepts_formats(f, r); !s.ok()) return s;
  if (p.head_dim > 128) return unsupported(concat("runs head_dim up to 128, not ", p.head_dim));
  if (wide(r.v_format) && (f.qk == Format::int8) && r.v_format == Format::bf16)
    return unsupported("runs p_format and v_format f16 after int8 products, not bf16");
  if (f.bf16_instance == nullptr && r.qk_format == Format::bf16)
    return unsupported("runs qk_format f16, not bf16, with an f16 accumulator");
  if (wide(f.qk) && f.exp2 == Exp2::exact && r.qk_format != r.v_format)
    return unsupported("runs qk_format and v_format alike");
  if (r.p_reference != PReference::running) return unsupported("runs p_reference running");
  if (r.k_group == Granularity::per_token)
    return unsupported("runs k_group per_head to per_thread, not per_token");
  if (f.qk == Format::e4m3 && f.exp2 == Exp2::direct && r.k_group != Granularity::per_head)
    return unsupported("runs k_group per_head with an f16 accumulator");
  if (wide(r.v_format) && r.normaliser == Normaliser::quantized)
    return unsupported("runs normaliser unquantized with 16-bit values");
  if (f.exp2 == Exp2::direct && r.slack <= 0.0F)
    return unsupported("runs exp2 direct with slack above 0 (its reference moves in whole octaves)");
  if (f.exp2 == Exp2::exact && r.slack != 0.0F) return unsupported("runs exp2 exact with slack 0");
  const Instance instance = instance_of(f, p, r);
  if (r.key_tile != 0 && r.key_tile != instance.step)
    return unsupported(concat("runs key_tile ", instance.step, " here, not ", r.key_tile));
  if (r.pv_accumulator == PvAccumulator::f32_buffered && r.pv_buffer < instance.keys)
    return unsupported(concat("runs pv_buffer from ", instance.keys, " keys on, not ", r.pv_buffer));
  if (r.pv_accumulator == PvAccumulator::f16_buffered && r.pv_buffer != 2)
    return unsupported(concat("runs pv_buffer 2 with f16_buffered, not ", r.pv_buffer));
  if (p.q_len * p.group() >= (1 << 28) || p.kv_len >= (1 << 28))
    return unsupported("runs sequences of less than 2^28 tokens (times the query heads of a key head)");
  if (Status s = accepts_size(p, r); !s.ok()) return s;
  if (p.packed() && p.options.key_splits > 1) {
    // Partial results have room for the longest sequence in every place.
    std::int64_t longest = 0;
    std::int64_t tiles = 0;
    for (const Sequence& q : p.sequences) {
      const std::int64_t own = cuda::pieces(q.q_len * p.group(), instance.rows);
      longest = std::max(longest, own);
      tiles += own;
    }
    if (longest * static_cast<std::int64_t>(p.sequences.size()) > 4 * tiles + 1024)
      return unsupported(
          "runs key_splits > 1 on packed sequences of similar lengths; call very different ones in groups");
  }
  return {};
}

Recipe effective(const Family& f, const Problem& p, Recipe r) {
  // docs/numerics.md leaves the 16-bit format of `half` to the input.
  if (r.name == "half" && p.dtype == DType::bf16) r.qk_format = r.p_format = r.v_format = Format::bf16;
  if (r.key_tile == 0) r.key_tile = instance_of(f, p, r).step;
  return r;
}

/// Kernel entries are plain functions, so the family is a template argument.
template <const Family& kFamily>
const Kernel& entry() {
  static const Kernel kernel = [] {
    Kernel k;
    k.name = kFamily.name;
    k.backend = "cuda";
    k.tier = "sm90a";
    k.file = "src/cuda/sm90/attend.cuh";
    k.summary = kFamily.summary;
    k.rank = 10;
    k.tiled_keys = false;
    k.available = [] { return cuda::has_device(9, 0); };
    k.accepts = [](const Problem& p, const Recipe& r) {
      return accepts(kFamily, p, effective(kFamily, p, r));
    };
    k.effective = [](const Problem& p, Recipe r) { return effective(kFamily, p, std::move(r)); };
    k.kv_bytes = [](const Problem& p, const Recipe& r) { return cuda::KvLayout(p, r, p.kv_heads).bytes; };
    k.q_bytes = [](const Problem& p, const Recipe& r) { return cuda::QLayout(p, r).bytes; };
    k.workspace_bytes = [](const Problem& p, const Recipe& r, int) {
      return cuda::sm90::workspace_bytes(p, r, instance_of(kFamily, p, r));
    };
    k.quantize_kv = cuda::quantize_kv;
    k.quantize_q = cuda::quantize_q;
    k.quantize_all = cuda::quantize_all;
    k.attend = [](const KernelCall& call, const std::byte* qq, const KvBuffer& kv,
                  const MutableTensorView& out, const MutableTensorView& lse, std::byte* workspace) {
      return cuda::sm90::attend(call, instance_of(kFamily, call.problem, call.recipe), qq, kv, out, lse,
                                workspace);
    };
    if (kFamily.name == kHalf.name) {
      k.direct_accepts = cuda::sm90::direct_accepts;
      k.direct_workspace_bytes = [](const Problem& p, const Recipe& r) {
        return cuda::sm90::direct_workspace_bytes(p, r, instance_of(kFamily, p, r));
      };
      k.attend_direct = [](const KernelCall& call, const TensorView& q, const TensorView& k_view,
                           const TensorView& v, const MutableTensorView& out, const MutableTensorView& lse,
                           std::byte* workspace) {
        return cuda::sm90::attend_direct(call, instance_of(kFamily, call.problem, call.recipe), q, k_view, v,
                                         out, lse, workspace);
      };
    }
    return k;
  }();
  return kernel;
}

}  // namespace

const Kernel& cuda_sm90a_half() { return entry<kHalf>(); }
const Kernel& cuda_sm90a_int8() { return entry<kInt8>(); }
const Kernel& cuda_sm90a_int8_f16_sums() { return entry<kInt8F16Sums>(); }
const Kernel& cuda_sm90a_int8_16bit() { return entry<kInt8Wide>(); }
const Kernel& cuda_sm90a_fp8() { return entry<kE4m3>(); }
const Kernel& cuda_sm90a_turbo8() { return entry<kTurbo8>(); }
const Kernel& cuda_sm90a_turbo() { return entry<kTurbo>(); }
const Kernel& cuda_sm90a_turbo16() { return entry<kTurbo16>(); }

}  // namespace octavo
