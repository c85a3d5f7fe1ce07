// From checked arguments and buffers to a launch of one instance.
#pragma once

#include "core/kernel.hpp"
#include "cuda/sm90/instance.hpp"

namespace octavo::cuda::sm90 {

std::size_t workspace_bytes(const Problem& problem, const Recipe& recipe, const Instance& instance);
Status attend(const KernelCall& call, const Instance& instance, const std::byte* qq, const KvBuffer& kv,
              const MutableTensorView& out, const MutableTensorView& lse, std::byte* workspace);

}  // namespace octavo::cuda::sm90
