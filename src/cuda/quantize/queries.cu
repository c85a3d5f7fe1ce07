#include "cuda/quantize/queries.cuh"

#include "cuda/quantize/kernels.hpp"
#include "cuda/quantize/launch.cuh"

namespace octavo::cuda {
namespace {

// smooth_q has an instance of its own, since its registers would cost the others a third of their occupancy.
template <Access kAccess, int kChunks>
__global__ void __launch_bounds__(kQuantizeThreads, blocks_per_sm(kAccess, kChunks))
    queries(const __grid_constant__ QArguments a) {
  ptx::admit_successor();
  ptx::wait_for_predecessors();
  quantize_queries<kAccess, kChunks, false>(a, static_cast<int>(blockIdx.x));
}
template <Access kAccess, int kChunks>
__global__ void __launch_bounds__(kQuantizeThreads) smooth_queries(const __grid_constant__ QArguments a) {
  ptx::admit_successor();
  ptx::wait_for_predecessors();
  quantize_queries<kAccess, kChunks, true>(a, static_cast<int>(blockIdx.x));
}

}  // namespace

Status launch_queries(const QArguments& a, Access access, cudaStream_t stream) {
  return launch(a.absmax_only ? "finding the largest magnitude of each query head" : "quantizing Q",
                a.q_mean != nullptr ? OCTAVO_CHOOSE_ROWS(smooth_queries, access, a.padded_dim)
                                    : OCTAVO_CHOOSE_ROWS(queries, access, a.padded_dim),
                blocks_of(a), kQuantizeThreads, stream, a);
}

}  // namespace octavo::cuda
