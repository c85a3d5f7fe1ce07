// Q, K and V to payload in one launch, for calls that quantize all three: at a thousand tokens launches are
// most of the time. The same bytes as the two kernels write that it stands for.
#include "cuda/quantize/kernels.hpp"
#include "cuda/quantize/keys_values.cuh"
#include "cuda/quantize/launch.cuh"
#include "cuda/quantize/queries.cuh"

namespace octavo::cuda {
namespace {

struct PayloadArguments {
  KvArguments kv;
  QArguments q;
  int kv_blocks;
};

/// K and V first, the last keys before the others: what the statistics pass read last is still in L2.
template <Access kAccess, int kChunks>
__global__ void __launch_bounds__(kQuantizeThreads, blocks_per_sm(kAccess, kChunks))
    payload(const __grid_constant__ PayloadArguments a) {
  __shared__ SharedValues<kChunks> shared;
  ptx::admit_successor();
  const int behind = static_cast<int>(blockIdx.x) - a.kv_blocks;
  if (behind < 0) {
    quantize_keys_values<kAccess, kChunks>(a.kv, -1 - behind, shared);
  } else {
    quantize_queries<kAccess, kChunks, false, true>(a.q, behind);
  }
}

}  // namespace

bool payload_accepts(const KvArguments& kv, Access kv_access, const QArguments& q, Access q_access) {
  return kv_access == q_access && (q_access == Access::f16 || q_access == Access::bf16) &&
         q.q_mean == nullptr && blocks_of(kv) > 0 && blocks_of(q) > 0 &&
         blocks_of(kv) + blocks_of(q) < std::int64_t{1} << 31;
}

Status launch_payload(const KvArguments& kv, const QArguments& q, Access access, cudaStream_t stream) {
  const PayloadArguments a{kv, q, static_cast<int>(blocks_of(kv))};
  const bool narrow = kv.padded_dim == 64;
  const auto kernel = access == Access::f16 ? (narrow ? payload<Access::f16, 1> : payload<Access::f16, 2>)
                                            : (narrow ? payload<Access::bf16, 1> : payload<Access::bf16, 2>);
  return launch("quantizing Q, K and V", kernel, blocks_of(kv) + blocks_of(q), kQuantizeThreads, stream, a);
}

}  // namespace octavo::cuda
