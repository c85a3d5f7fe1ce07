// How an attention launch divides its work, decided from the problem's shape alone.
#pragma once

#include <cstddef>

#include "cuda/sm90/instance.hpp"
#include "octavo/attention.hpp"

namespace octavo::cuda::sm90 {

struct Schedule {
  std::int64_t group = 1;     ///< query heads that are packed into the rows of a tile
  std::int64_t kv_heads = 1;  ///< heads that items count: key heads, or query heads where nothing is packed
  std::int64_t rows = 0;      ///< of the longest sequence, packed
  std::int64_t tiles = 0;     ///< that they fill
  std::int64_t pairs = 0;     ///< (sequence, head)
  std::int64_t whole = 0;     ///< tiles that keep their keys together; the others are split
  std::int64_t splits = 1;
  std::int64_t split_tiles = 0;
  bool longest_first = false;
  bool dynamic = false;  ///< blocks take the next item from a counter
  double time = 0.0;     ///< estimate, in key tiles of a plain instance (about 1 us)

  // The workspace, bytes.
  std::size_t counter = 0;
  std::size_t correction = 0;
  std::size_t partial_out = 0;
  std::size_t partial_lse = 0;
  std::size_t bytes = 0;

  /// packed: query heads of a key head share tiles (quantized operands); else each has its own.
  Schedule(const Problem& problem, const Recipe& recipe, const Instance& instance, bool packed);

  [[nodiscard]] std::int64_t items() const { return whole + (tiles * pairs - whole) * splits; }

 private:
  void divide(const Problem& problem, const Recipe& recipe, const Instance& instance,
              std::int64_t multiprocessors);
};

}  // namespace octavo::cuda::sm90
