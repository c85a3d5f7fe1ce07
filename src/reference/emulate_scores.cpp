// The first product of the emulator; see emulate_scores.hpp. The loops run over 32 keys side by side.
//
// A dot product of int8 codes is at most 127 * 127 * 256 < 2^24, so f32 sums of them are the exact s32
// result. e4m3 and 16-bit products accumulate in f32 one by one: a tensor core's truncation belongs to the
// tolerances, not to the recipe.
#include "reference/emulate_scores.hpp"

#include <algorithm>
#include <numbers>

#include "numerics/accumulate.hpp"
#include "numerics/float16.hpp"

namespace octavo::reference {
RowScores::RowScores(const HeadContext& context, std::int64_t row)
    : x_(context),
      row_(row),
      range_(visible_keys(context.problem, context.sequence, row)),
      to_base2_(context.problem.scale * std::numbers::log2e_v<float>),
      q_scale_(context.q.delta[row] * to_base2_),
      dot_(context.tile_keys()),
      s2_(context.tile_keys()) {}

void RowScores::compute(const Tile& tile) {
  for (std::int64_t j = 0; j < tile.count; j += kKeysPerBlock) {
    dot_block(x_.q.codes + row_ * x_.padded, x_.kv.codes + (tile.begin + j) * x_.padded, dot_.data() + j);
  }
  for (std::int64_t j = 0; j < tile.count; ++j) s2_.data()[j] = dot(j) * logit_per_dot(tile.begin + j);
  if (x_.recipe.smooth_q) add_query_mean(tile);
  hide_and_bias(x_.given, x_.sequence, range_, x_.head, row_, tile.begin, tile.begin + tile.count,
                std::numbers::log2e_v<float>, s2_.data());

  const std::int64_t at = row_ * x_.sequence.k_len + tile.begin;
  if (x_.logits_in != nullptr) take_logits(tile, x_.logits_in + at);
  if (x_.logits_out != nullptr) std::copy_n(s2_.data(), tile.count, x_.logits_out + at);
}

/// Dot products with 32 keys, in the recipe's accumulator.
void RowScores::dot_block(const float* q, const float* keys, float* dot) const {
  switch (x_.recipe.qk_accumulator) {
    case QkAccumulator::f64: {
      double sums[kKeysPerBlock] = {};
      add_products(q, x_.padded, keys, kKeysPerBlock, kKeysPerBlock, sums);
      for (std::int64_t j = 0; j < kKeysPerBlock; ++j) dot[j] = static_cast<float>(sums[j]);
      break;
    }
    case QkAccumulator::f32:
    case QkAccumulator::s32:
      std::fill_n(dot, kKeysPerBlock, 0.0F);
      add_products(q, x_.padded, keys, kKeysPerBlock, kKeysPerBlock, dot);
      break;
    case QkAccumulator::f16:
      dot_block_f16(q, keys, dot);
      break;
  }
}

/// One rounding to f16 for each tensor-core step: 32 channels of e4m3, 16 of f16.
void RowScores::dot_block_f16(const float* q, const float* keys, float* dot) const {
  const std::int64_t step = x_.recipe.qk_format == Format::e4m3 ? 32 : 16;
  std::fill_n(dot, kKeysPerBlock, 0.0F);
  for (std::int64_t c = 0; c < x_.padded; c += step) {
    double sums[kKeysPerBlock] = {};
    add_products(q + c, std::min(step, x_.padded - c), keys + c * kKeysPerBlock, kKeysPerBlock, kKeysPerBlock,
                 sums);
    for (std::int64_t j = 0; j < kKeysPerBlock; ++j) dot[j] = numerics::f16_accumulate(dot[j], sums[j]);
  }
}

/// qbar K'^T * c. The same for all rows of a block of 128; recomputed for each row to keep the walk by rows.
void RowScores::add_query_mean(const Tile& tile) {
  const std::int64_t channels = x_.problem.head_dim;
  const float* mean = x_.q.mean + row_ / kRowsPerQueryMean * channels;
  for (std::int64_t j = 0; j < tile.count; j += kKeysPerBlock) {
    float term[kKeysPerBlock] = {};
    add_products(mean, channels, x_.kv.smoothed + (tile.begin + j) * channels, kKeysPerBlock, kKeysPerBlock,
                 term);
    const std::int64_t count = std::min(kKeysPerBlock, tile.count - j);
    for (std::int64_t i = 0; i < count; ++i) s2_.data()[j + i] += term[i] * to_base2_;
  }
}

/// Replaces the logits of visible keys, and the f16 accumulators they came from: dividing by the combined
/// scale is off by 2^-23 at most, rounding to f16's 11 bits gives the accumulator back.
void RowScores::take_logits(const Tile& tile, const float* logits) {
  for (std::int64_t j = 0; j < tile.count; ++j) {
    if (s2(j) == kHiddenLogit) continue;
    s2_.data()[j] = logits[j];
    const float unit = logit_per_dot(tile.begin + j);
    if (is_scaled_f16()) dot_.data()[j] = unit == 0.0F ? 0.0F : numerics::round_to_f16(logits[j] / unit);
  }
}

}  // namespace octavo::reference
