// INT8 QK, FP8 PV in f32: presets sage2-8+8, sage2-4+8, int8-icl.
#include "cuda/sm90/instance.cuh"

namespace octavo::cuda::sm90 {

Instance int8_exact(int dim, Variant variant) {
  return family<Mma::int8, Mma::e4m3_f32, Weights::exact>(dim, variant, "int8_exact");
}

}  // namespace octavo::cuda::sm90
