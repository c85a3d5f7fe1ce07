// A compiled kernel as host code sees it: the function and the numbers of its Config.
#pragma once

#include <cstddef>

namespace octavo::cuda::sm90 {

struct Instance {
  const void* function = nullptr;
  const char* name = "";
  int rows = 0;  ///< queries of a tile
  int keys = 0;  ///< of a tile
  int threads = 0;
  int shared_bytes = 0;
  int row_bytes = 0;    ///< of Q and K
  int chunk_bytes = 0;  ///< of a row, that a copy brings
  int columns = 0;      ///< of V, ones included
  bool wide_operands = false;
  bool wide_values = false;
};

// One function a family, each in its own file of instances/. dim: 64 or 128; general: with boolean mask, bias
// or smooth_q's term.
Instance half_f16(int dim, bool general);
Instance half_bf16(int dim, bool general);
Instance int8_exact(int dim, bool general);
Instance int8_f16_sums(int dim, bool general);
Instance int8_wide_values(int dim, bool general);
Instance int8_direct(int dim, bool general);
Instance e4m3_exact(int dim, bool general);
Instance e4m3_direct(int dim, bool general);
Instance f16_direct(int dim, bool general);

}  // namespace octavo::cuda::sm90
