// From checked arguments and buffers to a launch of one instance.
#pragma once

#include "core/kernel.hpp"
#include "cuda/sm90/instance.hpp"

namespace octavo::cuda::sm90 {

std::size_t workspace_bytes(const Problem& problem, const Recipe& recipe, const Instance& instance);
Status attend(const KernelCall& call, const Instance& instance, const std::byte* qq, const KvBuffer& kv,
              const MutableTensorView& out, const MutableTensorView& lse, std::byte* workspace);

// The same on the caller's own 16-bit tensors, without quantized copies: for recipes that change nothing
// about them, dense layouts and strides that tensor maps can express.
bool direct_accepts(const Problem& problem, const Recipe& recipe, const TensorView& q, const TensorView& k,
                    const TensorView& v);
std::size_t direct_workspace_bytes(const Problem& problem, const Recipe& recipe, const Instance& instance);
Status attend_direct(const KernelCall& call, const Instance& instance, const TensorView& q,
                     const TensorView& k, const TensorView& v, const MutableTensorView& out,
                     const MutableTensorView& lse, std::byte* workspace);

}  // namespace octavo::cuda::sm90
