// INT8 QK, FP8 PV in f16 sums of 64 keys: presets sage2++-8+8, sage2++-4+8.
#include "cuda/sm90/instance.cuh"

namespace octavo::cuda::sm90 {

Instance int8_f16_sums(int dim, Variant variant) {
  return family<Mma::int8, Mma::e4m3_f16, Weights::exact>(dim, variant, "int8_f16_sums");
}

}  // namespace octavo::cuda::sm90
