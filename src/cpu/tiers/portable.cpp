// The portable tier: see cpu/isa/portable.hpp for what the instruction set gives, cpu/attend.hpp for the
// algorithm.
#include "cpu/isa/codes_portable.hpp"

#include "cpu/tier_ops.hpp"

namespace octavo::cpu {

const TierOps& portable_tier() {
  static const TierOps ops = TierFunctions<Portable>::make("scalar");
  return ops;
}

}  // namespace octavo::cpu
