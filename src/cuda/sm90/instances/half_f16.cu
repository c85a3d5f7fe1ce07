// 16-bit attention, f16: preset half.
#include "cuda/sm90/instance.cuh"

namespace octavo::cuda::sm90 {

Instance half_f16(int dim, Variant variant) {
  return family<Mma::f16_f32, Mma::f16_f32, Weights::exact>(dim, variant, "half_f16");
}

}  // namespace octavo::cuda::sm90
