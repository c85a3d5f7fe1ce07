// The passes, each one launch. `access` says how the caller's rows can be read.
#pragma once

#include <cuda_runtime.h>

#include "cuda/quantize/arguments.hpp"
#include "octavo/status.hpp"

namespace octavo::cuda {

/// Partial sums of K (smooth_k) and partial sums and extrema of V (value_statistics) per 512 keys, in
/// scratch. Clears the non-finite flag.
Status launch_statistics(const KvArguments& a, Access access, cudaStream_t stream);
/// Means and V's scales of every head and sequence from the partials. Clears the flag where no statistics
/// ran.
Status launch_finish(const KvArguments& a, cudaStream_t stream);
/// Payload and scales of K and V; with absmax_only the largest magnitude of each head of K, into scratch.
Status launch_keys_values(const KvArguments& a, Access access, cudaStream_t stream);
/// Payload and scales of Q; with absmax_only the largest magnitude of each query head, into head_absmax.
Status launch_queries(const QArguments& a, Access access, cudaStream_t stream);

/// Both of these in one launch, without absmax_only, where payload_accepts() says so: 16-bit rows in vectors,
/// no smooth_q.
bool payload_accepts(const KvArguments& kv, Access kv_access, const QArguments& q, Access q_access);
Status launch_payload(const KvArguments& kv, const QArguments& q, Access access, cudaStream_t stream);

/// Blocks of a pass over K and V, and over Q.
inline std::int64_t blocks_of(const KvArguments& a) {
  const std::int64_t tiles = a.sequences.table != nullptr
                                 ? a.key_rows / (a.span * kTileRows) + a.sequences.count
                                 : a.sequences.count * a.spans_each.value();
  return (a.absmax_only ? 1 : 2) * a.heads.value() * tiles;
}
inline std::int64_t blocks_of(const QArguments& a) { return std::int64_t{a.q_blocks} * a.heads.value(); }

/// Calls f with the instance of a kernel template for an access and 64 or 128 channels.
#define OCTAVO_CHOOSE_ROWS(kernel, access, padded_dim) \
  ((padded_dim) == 64 ? OCTAVO_CHOOSE_ACCESS(kernel, access, 1) : OCTAVO_CHOOSE_ACCESS(kernel, access, 2))
// NOLINTBEGIN(bugprone-macro-parentheses): of the name of a template there are none
#define OCTAVO_CHOOSE_ACCESS(kernel, access, chunks)         \
  ((access) == Access::f32    ? kernel<Access::f32, chunks>  \
   : (access) == Access::f16  ? kernel<Access::f16, chunks>  \
   : (access) == Access::bf16 ? kernel<Access::bf16, chunks> \
                              : kernel<Access::any, chunks>)
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace octavo::cuda
