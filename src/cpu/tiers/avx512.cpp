// The avx512 tier: see cpu/isa/avx512.hpp for what the instruction set gives, cpu/attend.hpp for the
// algorithm.
#include "cpu/isa/codes_avx512.hpp"

#include "cpu/tier_ops.hpp"

namespace octavo::cpu {

const TierOps& avx512_tier() {
  static const TierOps ops = TierFunctions<Avx512>::make("avx512");
  return ops;
}

}  // namespace octavo::cpu
