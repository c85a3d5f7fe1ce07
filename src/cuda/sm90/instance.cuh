// Makes a family's instances; included by the files of instances/ alone.
#pragma once

#include "cuda/sm90/attend.cuh"
#include "cuda/sm90/instance.hpp"

namespace octavo::cuda::sm90 {

template <class C>
Instance instance(const char* name) {
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
          C::kNarrow};
}

template <Mma kScores, Mma kValues, Weights kWeights>
Instance family(int dim, Variant variant, const char* name) {
  const bool general = variant == Variant::general;
  if (dim == 128) {
    return general ? instance<Config<kScores, kValues, kWeights, 128, true>>(name)
                   : instance<Config<kScores, kValues, kWeights, 128, false>>(name);
  }
  if constexpr (kScores != Mma::int8 && kScores != Mma::e4m3_f32) {  // what auto and short calls pick
    if (variant == Variant::narrow)
      return instance<Config<kScores, kValues, kWeights, 64, false, true>>(name);
  }
  return general ? instance<Config<kScores, kValues, kWeights, 64, true>>(name)
                 : instance<Config<kScores, kValues, kWeights, 64, false>>(name);
}

}  // namespace octavo::cuda::sm90
