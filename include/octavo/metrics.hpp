// Error measures between an output and its reference.
//
//   relative L1 = sum |o - r| / sum |r|      cossim = <o, r> / (|o| |r|)      RMSE = sqrt(mean (o - r)^2) max
//   = max |o - r|
#pragma once

#include <cstdint>
#include <vector>

#include "octavo/export.hpp"
#include "octavo/status.hpp"
#include "octavo/tensor.hpp"

namespace octavo {

struct ErrorMeasures {
  double relative_l1 = 0.0;
  double relative_l2 = 0.0;
  double cossim = 1.0;
  double rmse = 0.0;
  double max_abs = 0.0;
};

struct Comparison {
  ErrorMeasures all;                 ///< over the whole tensor
  std::vector<ErrorMeasures> heads;  ///< per (batch, head), batch outermost; packed: per head
  std::int64_t worst_head = 0;       ///< index into heads of the largest relative L1
};

/// Compares two outputs of the same shape in that layout; f32, f16 or bf16, any strides.
OCTAVO_API Result<Comparison> compare(const TensorView& out, const TensorView& reference,
                                      Layout layout = Layout::hnd);

}  // namespace octavo
