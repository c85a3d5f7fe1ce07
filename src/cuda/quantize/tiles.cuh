// Which rows a block works on. Blocks are numbered so that no list of tiles is needed: the sequence follows
// from a division where all sequences are alike, else from a binary search in their table.
#pragma once

#include <cstdint>

#include "cuda/quantize/arguments.hpp"
#include "numerics/integers.hpp"

namespace octavo::cuda {

struct Tile {
  SequenceRow sequence;
  int index = 0;  ///< of the sequence
  int first = 0;  ///< key or token within it
};

/// Rows that a tile of `size` has of a sequence's `length`.
__device__ __forceinline__ int rows_of(const Tile& tile, std::int64_t length, int size) {
  return min(static_cast<int>(length) - tile.first, size);
}

/// Where a tile's first row lies. Indices are unsigned because that saves instructions.
__device__ __forceinline__ const std::byte* rows_at(const CallerRows& rows, const Tile& tile, int head,
                                                    std::int64_t begin) {
  return rows.data + static_cast<unsigned>(tile.sequence.batch) * rows.batch_stride +
         static_cast<unsigned>(head) * rows.head_stride +
         static_cast<unsigned>(static_cast<int>(begin) + tile.first) * rows.token_stride;
}

/// `align` is a power of two.
__device__ __forceinline__ int round_up_to_rows(int n, int align) { return (n + align - 1) & -align; }

/// Last index whose start(table[index], index) is at most `slot`; starts do not decrease, the first is 0.
template <class Start>
__device__ __forceinline__ int last_at_most(const SequenceList& list, int slot, Start start) {
  int low = 0;
  int high = static_cast<int>(list.count);
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    if (start(list.table[middle], middle) <= slot) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// The slot of a sequence's first piece of `size` keys, a power of two. Rounding down and adding the index
/// leaves every sequence room for its pieces; key_rows / size + sequences slots are enough, a few stay empty.
__device__ __forceinline__ int first_slot(const SequenceRow& sequence, int index, int size) {
  return (static_cast<int>(sequence.k_row) >> (__ffs(size) - 1)) + index;
}

/// Where a head's and sequence's own begin among values [heads][sequences][dim].
__device__ __forceinline__ int first_channel(const SequenceList& list, int head, int index, int dim) {
  return (head * static_cast<int>(list.count) + index) * dim;
}
/// The slots of scratch of a head and sequence.
__device__ __forceinline__ float* slots_of(const KvArguments& a, int head, const SequenceRow& sequence,
                                           int index, int dim) {
  const int slot = head * a.partials + first_slot(sequence, index, kPartialKeys);
  return a.scratch + static_cast<std::int64_t>(slot) * (kPartialValues * dim);
}

/// Piece `slot` of `size` keys, which begins past the last key where the slot is empty. Where all sequences
/// are alike, slots are numbered without gaps: `each` a sequence.
__device__ __forceinline__ Tile key_tile(const SequenceList& list, int slot, int size,
                                         const IndexDivisor& each) {
  Tile tile;
  if (list.table == nullptr) {
    const int index = each.quotient(slot);
    tile.index = index;
    tile.sequence = list[index];
    tile.first = (slot - index * each.value()) * size;
  } else {
    tile.index =
        last_at_most(list, slot, [size](const SequenceRow& s, int i) { return first_slot(s, i, size); });
    tile.sequence = list.table[tile.index];
    tile.first = (slot - first_slot(tile.sequence, tile.index, size)) * size;
  }
  return tile;
}

/// Block `slot` of 128 query tokens, as q_mean numbers them.
__device__ __forceinline__ Tile query_tile(const SequenceList& list, int slot, const IndexDivisor& each) {
  Tile tile;
  if (list.table == nullptr) {
    const int index = each.quotient(slot);
    tile.index = index;
    tile.sequence = list[index];
  } else {
    tile.index =
        last_at_most(list, slot, [](const SequenceRow& s, int) { return static_cast<int>(s.q_block); });
    tile.sequence = list.table[tile.index];
  }
  tile.first = (slot - static_cast<int>(tile.sequence.q_block)) * static_cast<int>(kQueryBlock);
  return tile;
}

/// numerics::group_delta(), or NaN where the magnitude is no finite number. Two fused steps from the product
/// with the reciprocal give the quotient's own bits; the extremes of the range, where they would not, count
/// as zero or divide.
__device__ __forceinline__ float finite_delta(float amax, const GridSpec& grid) {
  const float near = amax * grid.inverse_range;
  const float delta = __fmaf_rn(__fmaf_rn(-near, grid.range, amax), grid.inverse_range, near);
  if (amax < numerics::kZeroGroupAmax) return 1.0F;
  if (amax < 0x1p100F) return delta;
  return amax <= 3.402823466e38F ? amax / grid.range : __uint_as_float(0x7FC00000U);
}

/// Adds the bits to the flag of the buffer; rare.
__device__ inline void flag(std::uint32_t* nonfinite, std::uint32_t bits) { atomicOr(nonfinite, bits); }

}  // namespace octavo::cuda
