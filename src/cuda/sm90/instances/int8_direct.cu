// INT8 QK, weights from their bits, FP8 PV: preset turbo8.
#include "cuda/sm90/instance.cuh"

namespace octavo::cuda::sm90 {

Instance int8_direct(int dim, Variant variant) {
  return family<Mma::int8, Mma::e4m3_f32, Weights::direct>(dim, variant, "int8_direct");
}

}  // namespace octavo::cuda::sm90
