#include "cuda/quantize/keys_values.cuh"

#include "cuda/quantize/kernels.hpp"
#include "cuda/quantize/launch.cuh"

namespace octavo::cuda {
namespace {

// Blocks go from the last keys to the first: what the statistics pass read last is still in L2.
template <Access kAccess, int kChunks>
__global__ void __launch_bounds__(kQuantizeThreads, blocks_per_sm(kAccess, kChunks))
    keys_values(const __grid_constant__ KvArguments a) {
  __shared__ SharedValues<kChunks> shared;
  ptx::admit_successor();
  quantize_keys_values<kAccess, kChunks>(a, static_cast<int>(gridDim.x - 1 - blockIdx.x), shared);
}

}  // namespace

Status launch_keys_values(const KvArguments& a, Access access, cudaStream_t stream) {
  return launch(a.absmax_only ? "finding the largest magnitude of each head of K" : "quantizing K and V",
                OCTAVO_CHOOSE_ROWS(keys_values, access, a.padded_dim), blocks_of(a), kQuantizeThreads, stream,
                a);
}

}  // namespace octavo::cuda
