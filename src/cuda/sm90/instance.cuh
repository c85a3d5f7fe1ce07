// Makes a family's instances; included by the files of instances/ alone.
#pragma once

#include "cuda/sm90/attend.cuh"
#include "cuda/sm90/instance.hpp"

namespace octavo::cuda::sm90 {

template <Mma kScores, Mma kValues, Weights kWeights, int kDim, Variant kVariant>
Instance instance(const char* name) {
  using C = Config<kScores, kValues, kWeights, kDim, kVariant>;
  return {reinterpret_cast<const void*>(&attend<C>),
          name,
          C::kRows,
          C::kKeys,
          C::kPiece,
          C::kThreads,
          C::kSharedBytes,
          C::kRowBytes,
          C::kChunkBytes,
          C::kColumns,
          C::kWideOperands,
          C::kWideValues,
          kVariant};
}

template <Mma kScores, Mma kValues, Weights kWeights>
Instance family(int dim, Variant variant, const char* name) {
  const auto of = [&]<int kDim, Variant kVariant>() {
    return instance<kScores, kValues, kWeights, kDim, kVariant>(name);
  };
  if (dim == 128) {
    return variant == Variant::general ? of.template operator()<128, Variant::general>()
                                       : of.template operator()<128, Variant::plain>();
  }
  if (variant == Variant::general) return of.template operator()<64, Variant::general>();
  // turbo16's plain tiles are as low as narrow ones.
  if constexpr (kScores == Mma::e4m3_f16) {
    if (variant == Variant::wide) return of.template operator()<64, Variant::wide>();
  }
  if constexpr (kScores == Mma::e4m3_f16 || kScores == Mma::f16_f32 || kScores == Mma::bf16_f32) {
    if (variant == Variant::narrow) return of.template operator()<64, Variant::narrow>();
  }
  return of.template operator()<64, Variant::plain>();
}

}  // namespace octavo::cuda::sm90
