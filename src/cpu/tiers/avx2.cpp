// The avx2 tier: see cpu/isa/avx2.hpp for what the instruction set gives, cpu/attend.hpp for the algorithm.
#include "cpu/isa/codes_avx2.hpp"

#include "cpu/tier_ops.hpp"

namespace octavo::cpu {

const TierOps& avx2_tier() {
  static const TierOps ops = TierFunctions<Avx2>::make("avx2");
  return ops;
}

}  // namespace octavo::cpu
