// FP8 QK and PV: presets fp8-head, fp8-icl.
#include "cuda/sm90/instance.cuh"

namespace octavo::cuda::sm90 {

Instance e4m3_exact(int dim, Variant variant) {
  return family<Mma::e4m3_f32, Mma::e4m3_f32, Weights::exact>(dim, variant, "e4m3_exact");
}

}  // namespace octavo::cuda::sm90
