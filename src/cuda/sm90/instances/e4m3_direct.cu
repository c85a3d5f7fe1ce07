// FP8 QK in f16 sums, weights from their bits, FP8 PV: presets turbo, turbo-icl.
#include "cuda/sm90/instance.cuh"

namespace octavo::cuda::sm90 {

Instance e4m3_direct(int dim, Variant variant) {
  return family<Mma::e4m3_f16, Mma::e4m3_f32, Weights::direct>(dim, variant, "e4m3_direct");
}

}  // namespace octavo::cuda::sm90
