// 16-bit attention, bf16: preset half.
#include "cuda/sm90/instance.cuh"

namespace octavo::cuda::sm90 {

Instance half_bf16(int dim, Variant variant) {
  return family<Mma::bf16_f32, Mma::bf16_f32, Weights::exact>(dim, variant, "half_bf16");
}

}  // namespace octavo::cuda::sm90
