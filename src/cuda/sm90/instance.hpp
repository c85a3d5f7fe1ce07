// A compiled kernel as host code sees it: the function and the numbers of its Config.
#pragma once

#include <cstddef>

namespace octavo::cuda::sm90 {

/// plain; with boolean mask, bias or smooth_q's term; with fewer query rows a tile, or more, where they fill
/// multiprocessors better (the plain one where a family has no such instance).
enum class Variant { plain, general, narrow, wide };

struct Instance {
  const void* function = nullptr;
  const char* name = "";
  int rows = 0;  ///< queries of a tile
  int keys = 0;  ///< of a tile
  int step = 0;  ///< keys whose weights are made at once: the recipe's key_tile
  int threads = 0;
  int shared_bytes = 0;
  int row_bytes = 0;    ///< of Q and K
  int chunk_bytes = 0;  ///< of a row, that a copy brings
  int columns = 0;      ///< of V, ones included
  bool wide_operands = false;
  bool wide_values = false;
  Variant variant = Variant::plain;
};

// One function a family, each in its own file of instances/. dim: 64 or 128.
Instance half_f16(int dim, Variant variant);
Instance half_bf16(int dim, Variant variant);
Instance int8_exact(int dim, Variant variant);
Instance int8_f16_sums(int dim, Variant variant);
Instance int8_wide_values(int dim, Variant variant);
Instance int8_direct(int dim, Variant variant);
Instance e4m3_exact(int dim, Variant variant);
Instance e4m3_direct(int dim, Variant variant);
Instance f16_direct(int dim, Variant variant);

}  // namespace octavo::cuda::sm90
