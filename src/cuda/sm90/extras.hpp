// The small kernels beside attention: before it smooth_q's term and a cleared counter, after it the merge of
// split keys.
#pragma once

#include <cuda_runtime.h>

#include "cuda/sm90/arguments.hpp"
#include "octavo/status.hpp"

namespace octavo::cuda::sm90 {

/// correction[q head][sequence][128-query block][key] = q_mean . k_exact, f32 (docs/numerics.md, smooth_q).
/// q_mean holds scale * log2(e).
Status launch_correction(const float* q_mean, const float* k_exact, float* correction, const Arguments& a,
                         int padded_dim, std::int64_t longest_keys, cudaStream_t stream);

/// The counter of a dynamic schedule back to 0.
Status launch_clear(int* counter, cudaStream_t stream);

/// Merges the parts of each split tile by their LSE, in order, and writes out and lse. `filled`: rows of a
/// tile that may hold queries.
Status launch_merge(const Arguments& a, int rows_of_tile, int filled, cudaStream_t stream);

}  // namespace octavo::cuda::sm90
