// f16 QK in f16 sums, weights from their bits, FP8 PV: preset turbo16.
#include "cuda/sm90/instance.cuh"

namespace octavo::cuda::sm90 {

Instance f16_direct(int dim, Variant variant) {
  return family<Mma::f16_f16, Mma::e4m3_f32, Weights::direct>(dim, variant, "f16_direct");
}

}  // namespace octavo::cuda::sm90
