// K, V and Q of the caller's device tensors to the payload that tensor-core kernels read (cuda/layout.hpp).
//
// Everything runs on call.stream, allocates nothing and waits for nothing, unless
// problem.check_finite asks for an answer about NaN and Inf; then the call is synchronous (and
// refused in stream capture). Means are summed in fixed order without float atomics: equal inputs give equal
// bytes.
//
// Bytes decide the time, so passes are few: one over K and V for their statistics (none of what the recipe
// does not need), one that quantizes both, one over Q, which joins that one in quantize_all; plus a small
// kernel that ends the statistics. Only a per_head scale of K or Q adds a pass, since it depends on the last
// key of the rotated head.
#pragma once

#include <cstddef>

#include "core/kernel.hpp"

namespace octavo::cuda {

/// k, v [B, Hkv, Lk, D] (or as options.layout says; f32, f16 or bf16, any strides) to a whole
/// KvLayout(problem, recipe, problem.kv_heads) buffer, 256-byte aligned. Formats: K int8, int4, e4m3, f16,
/// bf16 at per_head, per_block, per_warp, per_thread; V e4m3, f16, bf16; D <= 128. Fails with a refused
/// launch, or with invalid_argument for NaN or Inf if check_finite.
Status quantize_kv(const KernelCall& call, const TensorView& k, const TensorView& v, std::byte* kv);

/// q [B, Hq, Lq, D] to a QLayout(problem, recipe) buffer, 256-byte aligned. `kv` was filled by quantize_kv
/// earlier on the same stream (or was joined); its key means make the LSE right again.
Status quantize_q(const KernelCall& call, const TensorView& q, const KvBuffer& kv, std::byte* qq);

/// The same bytes as the two, in a launch less where q, k and v have rows alike.
Status quantize_all(const KernelCall& call, const TensorView& q, const TensorView& k, const TensorView& v,
                    std::byte* kv, std::byte* qq);

}  // namespace octavo::cuda
