// The avx512bf16 tier: the avx512 tier with the second product on bf16 pairs (bfloat_values.hpp). Weights and
// values in f16 do not fit bf16: their recipes stay with the avx512 tier.
#include "cpu/isa/avx512bf16.hpp"
#include "cpu/isa/codes_avx512.hpp"

#include "cpu/bfloat_values.hpp"
#include "cpu/tier_ops.hpp"

namespace octavo::cpu {
namespace {

using V = Avx512Bf16;
using Functions = TierFunctions<V>;

bool quantize_values(const ValueJob& job) {
  return Quantizer<V>::quantize_values(job, [&](std::int64_t n, const float* row) {
    BfloatValues<V>::store_values(job.payload, n, row, job.spec.channels);
  });
}

template <class Scores>
AttentionOps bfloat_values() {
  using Kernel = Attention<V, Scores, BfloatValues<V>>;
  AttentionOps ops;
  ops.value_bytes = 2;
  ops.quantize_values = quantize_values;
  ops.scratch_bytes = Kernel::scratch_bytes;
  ops.run = Functions::run<Kernel>;
  ops.f16_values = false;
  return ops;
}

}  // namespace

const TierOps& avx512bf16_tier() {
  static const TierOps ops = [] {
    TierOps made = Functions::make("avx512bf16");
    made.int8 = bfloat_values<Int8Scores<V>>();
    made.float32 = bfloat_values<FloatScores<V>>();
    return made;
  }();
  return ops;
}

}  // namespace octavo::cpu
