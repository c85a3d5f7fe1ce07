// From a checked call to tier functions: buffers, work items, masks, and what is written at the end. The same
// for every tier.
#pragma once

#include "core/kernel.hpp"
#include "cpu/layout.hpp"

namespace octavo::cpu {

/// ok, or what of this recipe or problem the family does not run.
Status accepts(const TierOps& tier, Family family, const Problem& problem, const Recipe& recipe);
Recipe effective(Family family, const Problem& problem, Recipe recipe);
std::size_t workspace_bytes(const TierOps& tier, Family family, const Problem& problem, const Recipe& recipe,
                            int threads);
Status quantize_kv(const TierOps& tier, Family family, const KernelCall& call, const TensorView& k,
                   const TensorView& v, std::byte* kv);
Status quantize_q(const TierOps& tier, Family family, const KernelCall& call, const TensorView& q,
                  const KvBuffer& kv, std::byte* qq);
Status attend(const TierOps& tier, Family family, const KernelCall& call, const std::byte* qq,
              const KvBuffer& kv, const MutableTensorView& out, const MutableTensorView& lse,
              std::byte* workspace);

}  // namespace octavo::cpu
