// The first product of the emulator: the logits of one query row, key tile by key tile.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "octavo/attention.hpp"
#include "reference/emulate_layout.hpp"
#include "reference/rows.hpp"

namespace octavo::reference {

/// What all rows of one (sequence, query head) share.
struct HeadContext {
  const Problem& problem;
  const Recipe& recipe;
  const Sequence& sequence;
  const MaskAndBias& given;
  std::int64_t head = 0;
  std::int64_t padded = 0;  ///< channels of codes
  QHead<const float> q;
  KvHead<const float> kv;
  const float* logits_in = nullptr;
  float* logits_out = nullptr;

  /// Keys of the largest tile there can be, in whole blocks of 32: a key_tile may be far longer than the
  /// keys.
  [[nodiscard]] std::size_t tile_keys() const {
    const std::int64_t keys = blocks_of(sequence.k_len, kKeysPerBlock) * kKeysPerBlock;
    return static_cast<std::size_t>(std::min<std::int64_t>(recipe.key_tile, keys));
  }
};

/// Keys [begin, begin + count); begin is a multiple of 32.
struct Tile {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

inline constexpr float kHiddenLogit = -std::numeric_limits<float>::infinity();

class RowScores {
 public:
  RowScores(const HeadContext& context, std::int64_t row);

  /// Computes the logits of a tile: s2 = dot * delta_q * delta_k * c + smooth_q term * c + bias * log2(e),
  /// hidden keys -infinity.
  void compute(const Tile& tile);

  [[nodiscard]] const KeyRange& range() const { return range_; }
  /// Logit of the j-th key of the tile.
  [[nodiscard]] float s2(std::int64_t j) const { return s2_[static_cast<std::size_t>(j)]; }
  /// Its dot product in units of delta_q * delta_k; on the f16 grid after an f16 accumulator.
  [[nodiscard]] float dot(std::int64_t j) const { return dot_[static_cast<std::size_t>(j)]; }
  /// The combined scale delta_q * delta_k * c of a key.
  [[nodiscard]] float logit_per_dot(std::int64_t key) const { return q_scale_ * x_.kv.delta[key]; }
  /// Is the logit dot * logit_per_dot, with an f16 dot? Only then can `direct` be computed in f16: a second
  /// term (smooth_q, bias) is f32.
  [[nodiscard]] bool is_scaled_f16() const {
    return x_.recipe.qk_accumulator == QkAccumulator::f16 && !x_.recipe.smooth_q &&
           x_.given.bias.data == nullptr;
  }

 private:
  void dot_block(const float* q, const float* keys, float* dot) const;
  void dot_block_f16(const float* q, const float* keys, float* dot) const;
  void add_query_mean(const Tile& tile);
  void take_logits(const Tile& tile, const float* logits);

  const HeadContext& x_;
  std::int64_t row_;
  KeyRange range_;
  float to_base2_;  ///< c = scale * log2(e)
  float q_scale_;   ///< delta_q * c
  std::vector<float> dot_;
  std::vector<float> s2_;
};

}  // namespace octavo::reference
