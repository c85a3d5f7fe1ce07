// Which rows and keys a block works on: items of the persistent grid, and the key tiles that rows can see.
#pragma once

#include "cuda/ptx/registers.cuh"
#include "cuda/sm90/arguments.hpp"

namespace octavo::cuda::sm90 {

/// One piece of work: a tile of query rows of one (sequence, key head), and all or a part of its keys.
struct Item {
  int sequence;
  int head;
  int tile;
  int part;  ///< which of the partial results, < 0: all keys
};

/// Items in the order that serves caches and balance: head_block pairs together, within them tile by tile;
/// under a causal mask the longest tiles first.
OCTAVO_DEVICE Item decode(const Arguments& a, int index) {
  const int part = index - a.whole;
  const int flat = part < 0 ? index : a.whole + a.splits.quotient(part);
  const int block = a.block_tiles.quotient(flat);
  const IndexDivisor& in_block = block == a.last_block ? a.last_head_block : a.head_block;
  const int rest = flat - block * a.block_tiles.value();
  const int tile = in_block.quotient(rest);
  const int pair = block * a.head_block.value() + rest - tile * in_block.value();
  const int sequence = a.kv_heads.quotient(pair);
  return {sequence, pair - sequence * a.kv_heads.value(), a.longest_first ? a.tiles - 1 - tile : tile, part};
}

/// Keys that the tokens of one sequence see: token i sees [begin(i), end(i)).
struct Visibility {
  int keys;
  int first;  ///< begin(i) = max(0, i + first)
  int past;   ///< end(i) = min(keys, i + past)

  OCTAVO_DEVICE Visibility(const Arguments& a, const SequenceRow& s) : keys(static_cast<int>(s.k_len)) {
    const int shift = a.bottom_right ? static_cast<int>(s.k_len - s.q_len) : 0;
    first = shift - a.left;
    past = shift + a.right + 1;
  }
  [[nodiscard]] OCTAVO_DEVICE int begin(int token) const { return max(0, token + first); }
  [[nodiscard]] OCTAVO_DEVICE int end(int token) const { return min(keys, token + past); }
};

/// Key tiles [first, last) of some rows, and the pieces of tiles in the middle, [clear_first, clear_last),
/// that every row sees whole.
struct TileRange {
  int first = 0;
  int last = 0;
  int pieces = 0;  ///< up to the last key that a row sees
  int clear_first = 0;
  int clear_last = 0;
};

/// Of packed rows [row, row + count) of a sequence with `rows` of them; without rows or keys: none.
template <int kKeys, int kPiece>
OCTAVO_DEVICE TileRange tiles_of(const Visibility& v, int row, int count, int rows,
                                 const IndexDivisor& group) {
  TileRange t;
  if (row >= rows) return t;
  const int low = group.quotient(row);
  const int high = group.quotient(min(row + count, rows) - 1);
  const int begin = v.begin(low);
  const int end = v.end(high);
  if (begin >= end) return t;
  t.first = begin / kKeys;
  t.last = (end + kKeys - 1) / kKeys;
  t.pieces = (end + kPiece - 1) / kPiece;
  t.clear_first = (v.begin(high) + kPiece - 1) / kPiece;
  t.clear_last = max(0, v.end(low)) / kPiece;
  return t;
}

/// Of a block's key tiles those that a part walks. Cuts lie at multiples of split_tiles, or (packed
/// sequences, so that others' lengths do not move them) at even parts of the sequence's own keys.
template <int kKeys>
OCTAVO_DEVICE void take_part(const Arguments& a, int part, int keys, TileRange& t) {
  if (part < 0) return;
  const int split = part - a.splits.quotient(part) * a.splits.value();
  const int length = a.split_tiles != 0
                         ? a.split_tiles
                         : a.splits.quotient((keys + kKeys - 1) / kKeys + a.splits.value() - 1);
  t.first = max(t.first, split * length);
  t.last = min(t.last, (split + 1) * length);
  if (t.first >= t.last) t.first = t.last = 0;
}

/// Of a warpgroup's 64 rows a thread has this one and the one 8 below.
OCTAVO_DEVICE int row_of_thread() {
  const int thread = ptx::thread_index();
  return (thread >> 5 & 3) * 16 + (thread >> 2 & 7);
}

/// A position in a ring of stages.
template <int kStages>
struct Ring {
  std::uint32_t stage = 0;
  std::uint32_t phase = 0;
  OCTAVO_DEVICE void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

/// Shared-memory addresses of a block.
template <class C>
struct Shared {
  std::uint32_t base;
  OCTAVO_DEVICE explicit Shared(const void* raw) : base((ptx::shared_address(raw) + 1023) & ~1023U) {}
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t barriers() const { return base + C::kOffsetBarriers; }
  // Of a stage of K and V: its barriers and its K scales in a record of 64 bytes, one address for all.
  // There is a record more than stages: nobody waits for its barriers. They expect so many arrivals that a
  // phase ends, which would not matter, only after some 65,000 items.
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t full(std::uint32_t stage) const {
    return barriers() + 64 * stage;
  }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t empty(std::uint32_t stage) const { return full(stage) + 8; }
  /// f32 [64-key block][4], of the keys whose floor((key mod 8) / 2) is the last index
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t key_scales(std::uint32_t stage) const { return full(stage) + 32; }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t q_full(std::uint32_t stage) const {
    return full(C::kStages + 1) + 8 * stage;
  }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t q_empty(std::uint32_t stage) const {
    return full(C::kStages + 1) + 16 + 8 * stage;
  }
  /// the item of this slot is published, its queries may still be under way
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t known(std::uint32_t slot) const {
    return full(C::kStages + 1) + 32 + 8 * slot;
  }
  /// the Item of this slot and its number, see publish()
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t item(std::uint32_t slot) const {
    return barriers() + 512 + 32 * slot;
  }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t q(std::uint32_t stage) const { return base + stage * C::kQBytes; }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t k(std::uint32_t stage) const {
    return base + C::kOffsetStages + stage * C::kStageBytes;
  }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t v(std::uint32_t stage) const { return k(stage) + C::kKBytes; }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t sums() const { return base + C::kOffsetSums; }
  // What an item's rows and channels are multiplied by (kVectors).
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t q_scale(std::uint32_t slot) const {
    return base + C::kOffsetVectors + slot * C::kVectorBytes;
  }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t lse_shift(std::uint32_t slot) const {
    return q_scale(slot) + 4 * C::kRows;
  }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t k_scale(std::uint32_t slot) const {
    return lse_shift(slot) + 4 * C::kRows;
  }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t v_scale(std::uint32_t slot) const { return k_scale(slot) + 16; }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t v_mean(std::uint32_t slot) const {
    return v_scale(slot) + 4 * C::kDim;
  }
};

/// Hands the consumers the item of a slot and its number; -1: no more work.
template <class C>
OCTAVO_DEVICE void publish(const Shared<C>& shared, std::uint32_t slot, const Item& item, int index) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared.item(slot)), "r"(item.sequence),
               "r"(item.head), "r"(item.tile), "r"(item.part)
               : "memory");
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared.item(slot) + 16), "r"(index) : "memory");
}
template <class C>
OCTAVO_DEVICE Item published(const Shared<C>& shared, std::uint32_t slot) {
  Item item;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(item.sequence), "=r"(item.head), "=r"(item.tile), "=r"(item.part)
               : "r"(shared.item(slot))
               : "memory");
  return item;
}
/// The number of the item in a slot. A reduction leaves it in a uniform register, so that decoding, loop
/// counters, branches and descriptors stay on the uniform path; several, of a published item, end in ordinary
/// ones.
template <class C>
OCTAVO_DEVICE int item_number(const Shared<C>& shared, std::uint32_t slot) {
  int index;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(index) : "r"(shared.item(slot) + 16) : "memory");
  return ptx::keep_uniform(index);
}

}  // namespace octavo::cuda::sm90
