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
  const int flat = part < 0 ? index : a.whole + part / a.splits;
  const int block = flat / (a.head_block * a.tiles);
  const int in_block = min(a.head_block, a.pairs - block * a.head_block);  // the last block may be smaller
  const int rest = flat - block * a.head_block * a.tiles;
  const int tile = rest / in_block;
  const int pair = block * a.head_block + rest - tile * in_block;
  const int sequence = pair / a.kv_heads;
  return {sequence, pair - sequence * a.kv_heads, a.longest_first ? a.tiles - 1 - tile : tile, part};
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

/// Key tiles [first, last) of some rows, and the ones in the middle, [clear_first, clear_last), that every
/// row sees whole.
struct TileRange {
  int first = 0;
  int last = 0;
  int clear_first = 0;
  int clear_last = 0;
};

/// Of packed rows [row, row + count) of a sequence with `rows` of them; without rows or keys: none.
template <int kKeys>
OCTAVO_DEVICE TileRange tiles_of(const Visibility& v, int row, int count, int rows, int group) {
  TileRange t;
  if (row >= rows) return t;
  const int low = group == 1 ? row : row / group;
  const int past = min(row + count, rows) - 1;
  const int high = group == 1 ? past : past / group;
  const int begin = v.begin(low);
  const int end = v.end(high);
  if (begin >= end) return t;
  t.first = begin / kKeys;
  t.last = (end + kKeys - 1) / kKeys;
  t.clear_first = (v.begin(high) + kKeys - 1) / kKeys;
  t.clear_last = max(0, v.end(low)) / kKeys;
  return t;
}

/// Of a block's key tiles those that a part walks. Cuts lie at multiples of split_tiles, or (packed
/// sequences, so that others' lengths do not move them) at even parts of the sequence's own keys.
template <int kKeys>
OCTAVO_DEVICE void take_part(const Arguments& a, int part, int keys, TileRange& t) {
  if (part < 0) return;
  const int split = part % a.splits;
  const int length =
      a.split_tiles != 0 ? a.split_tiles : ((keys + kKeys - 1) / kKeys + a.splits - 1) / a.splits;
  t.first = max(t.first, split * length);
  t.last = min(t.last, (split + 1) * length);
  if (t.first >= t.last) t.first = t.last = 0;
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
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t k_full(std::uint32_t stage) const {
    return barriers() + 8 * stage;
  }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t k_empty(std::uint32_t stage) const {
    return k_full(C::kStages + stage);
  }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t v_full(std::uint32_t stage) const {
    return k_full(2 * C::kStages + stage);
  }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t v_empty(std::uint32_t stage) const {
    return k_full(3 * C::kStages + stage);
  }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t q_full(std::uint32_t stage) const {
    return k_full(4 * C::kStages + stage);
  }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t q_empty(std::uint32_t stage) const {
    return k_full(4 * C::kStages + 2 + stage);
  }
  /// number of the item that the tile in this Q stage belongs to; -1: no more work
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t item(std::uint32_t stage) const {
    return barriers() + 512 + 4 * stage;
  }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t q(std::uint32_t stage) const { return base + stage * C::kQBytes; }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t k(std::uint32_t stage) const {
    return base + C::kOffsetK + stage * C::kKBytes;
  }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t v(std::uint32_t stage) const {
    return base + C::kOffsetV + stage * C::kVPitch;
  }
  [[nodiscard]] OCTAVO_DEVICE std::uint32_t sums() const { return base + C::kOffsetSums; }
};

}  // namespace octavo::cuda::sm90
