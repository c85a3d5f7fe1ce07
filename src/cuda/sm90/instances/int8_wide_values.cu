// INT8 QK, 16-bit PV: preset sage-8+16.
#include "cuda/sm90/instance.cuh"

namespace octavo::cuda::sm90 {

Instance int8_wide_values(int dim, Variant variant) {
  return family<Mma::int8, Mma::f16_f32, Weights::exact>(dim, variant, "int8_wide_values");
}

}  // namespace octavo::cuda::sm90
