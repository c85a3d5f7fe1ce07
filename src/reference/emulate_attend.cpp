// The emulator's second half, one query row at a time: scores of a key tile, running maximum, weights, second
// product, and at the end the normaliser (docs/numerics.md, "Softmax and P" and "V and the second product").
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/parallel.hpp"
#include "numerics/accumulate.hpp"
#include "numerics/bfloat16.hpp"
#include "numerics/cpu8_table.hpp"
#include "numerics/e4m3.hpp"
#include "numerics/exp2.hpp"
#include "numerics/float16.hpp"
#include "numerics/rounding.hpp"
#include "reference/emulate.hpp"
#include "reference/emulate_layout.hpp"
#include "reference/emulate_scores.hpp"

namespace octavo::reference {
namespace {

constexpr double kLn2 = 0x1.62e42fefa39efp-1;
constexpr std::int64_t kRowsPerItem = 16;  // many items even for 256 rows, so that all threads stay busy
constexpr std::int64_t kPvStep = 32;       // keys of one f16 tensor-core product with 8-bit operands

/// Walks one row. Sum is double for the f64 accumulator, else float.
template <class Sum>
class RowWalk {
 public:
  RowWalk(const HeadContext& context, std::int64_t row)
      : x_(context),
        row_(row),
        scores_(context, row),
        log2_p_range_(std::log2(context.recipe.p_range)),
        w_(context.tile_keys()),
        step_(size(context.problem.head_dim)),
        buffer_(size(context.problem.head_dim)),
        acc_(size(context.problem.head_dim)) {}

  void walk() {
    const KeyRange& range = scores_.range();
    if (range.begin >= range.end) return;
    const std::int64_t keys = x_.recipe.key_tile;
    const std::int64_t first = range.begin / keys;
    const std::int64_t last = (range.end - 1) / keys;
    for (std::int64_t i = 0; i <= last - first; ++i) {
      const std::int64_t tile = x_.recipe.key_order == KeyOrder::forward ? first + i : last - i;
      visit({tile * keys, std::min(keys, x_.sequence.k_len - tile * keys)});
    }
  }

  /// O = acc * delta_V / l, the means given back; rows without keys get 0 and -infinity.
  void finish(float* out, float& lse) const {
    for (std::int64_t c = 0; c < x_.problem.head_dim; ++c) {
      const Sum scaled = acc_[size(c)] * static_cast<Sum>(x_.kv.value_delta[c] / x_.recipe.p_range);
      out[c] = seen_ ? static_cast<float>(scaled / sum_) + x_.kv.value_mean[c] : 0.0F;
    }
    const double base2 = static_cast<double>(max_) + std::log2(static_cast<double>(sum_));
    lse = seen_ ? static_cast<float>(base2 * kLn2) + x_.q.lse_shift[row_] : kHiddenLogit;
  }

 private:
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

  void visit(const Tile& tile) {
    scores_.compute(tile);
    float tile_max = kHiddenLogit;
    bool seen = false;
    for (std::int64_t j = 0; j < tile.count; ++j) {
      seen = seen || scores_.s2(j) != kHiddenLogit;  // NaN counts: an overflow must show in O
      tile_max = std::max(tile_max, scores_.s2(j));
    }
    if (!seen) return;  // a wholly hidden tile contributes 0
    if (x_.recipe.exp2 == Exp2::table) tile_max = on_table_grid(tile_max);

    const float new_max = next_maximum(tile, tile_max);
    const float reference = x_.recipe.p_reference == PReference::tile_max ? tile_max : new_max;
    const float shrink = seen_ ? numerics::exp2_exact(max_ - new_max) : 0.0F;
    const float fold = reference == new_max ? 1.0F : numerics::exp2_exact(reference - new_max);
    max_ = new_max;
    seen_ = true;

    const Sum part =
        x_.recipe.exp2 == Exp2::table ? table_weights(tile, reference) : weights(tile, reference);
    sum_ = sum_ * static_cast<Sum>(shrink) + part * static_cast<Sum>(fold);
    for (Sum& a : acc_) a *= static_cast<Sum>(shrink);
    accumulate(tile, fold);
  }

  /// With slack the maximum lags behind by up to that many octaves, then moves to `headroom` whole ones above
  /// the tile's, so that every rescaling is by a power of two. Without, it is the running maximum.
  [[nodiscard]] float next_maximum(const Tile& tile, float tile_max) const {
    if (x_.recipe.slack == 0.0F) return std::max(max_, tile_max);
    return exceeds_slack(tile, tile_max) ? std::ceil(tile_max) + static_cast<float>(x_.recipe.headroom)
                                         : max_;
  }

  [[nodiscard]] bool exceeds_slack(const Tile& tile, float tile_max) const {
    if (tile_max <= max_) return false;
    if (max_ == kHiddenLogit) return true;
    if (x_.recipe.exp2 != Exp2::direct || !scores_.is_scaled_f16()) return tile_max - max_ > x_.recipe.slack;
    // In f16 the weight's code is what is compared, as it will be rounded.
    std::int64_t at = 0;
    while (scores_.s2(at) != tile_max) ++at;
    const float offset = log2_p_range_ - max_;
    const std::uint16_t code =
        numerics::fma_f16(numerics::f32_to_f16(scores_.dot(at)),
                          numerics::f32_to_f16(8.0F * scores_.logit_per_dot(tile.begin + at)),
                          numerics::f32_to_f16(8.0F * offset + numerics::kDirectBias));
    const float limit = 8.0F * (log2_p_range_ + x_.recipe.slack) + numerics::kDirectBias;
    return numerics::f16_to_f32(code) > numerics::round_to_f16(limit);
  }

  // ---- weights: 2^(s2 - reference) on P's grid, in units of 1 / P_r; both return the tile's part of the
  // normaliser ----

  Sum weights(const Tile& tile, float reference) {
    Sum exact{0};
    Sum rounded{0};
    for (std::int64_t j = 0; j < tile.count; ++j) {
      float& w = w_[size(j)];
      if (scores_.s2(j) == kHiddenLogit) {
        w = 0.0F;
      } else if (is_direct(j)) {
        w = direct_weight(tile, j, reference);
      } else {
        const float p = numerics::exp2_exact(scores_.s2(j) - reference);
        w = on_weight_grid(p * x_.recipe.p_range);
        exact += static_cast<Sum>(p);
      }
      rounded += static_cast<Sum>(w);
    }
    return x_.recipe.normaliser == Normaliser::unquantized ? exact
                                                           : rounded / static_cast<Sum>(x_.recipe.p_range);
  }

  [[nodiscard]] bool is_direct(std::int64_t key_in_tile) const {
    if (x_.recipe.exp2 == Exp2::direct) return true;
    return x_.recipe.exp2 == Exp2::mixed &&
           numerics::mixed_is_direct(static_cast<int>(key_in_tile), x_.recipe.mixed_direct,
                                     x_.recipe.mixed_period);
  }

  /// The e4m3 byte from the logarithm. After an f16 accumulator in f16: code = S * f16(8 a) + f16(b).
  [[nodiscard]] float direct_weight(const Tile& tile, std::int64_t j, float reference) const {
    const float offset = log2_p_range_ - reference;
    if (!scores_.is_scaled_f16())
      return numerics::e4m3_to_f32(numerics::exp2_direct_e4m3(scores_.s2(j) + offset));
    const std::uint16_t slope = numerics::f32_to_f16(8.0F * scores_.logit_per_dot(tile.begin + j));
    const std::uint16_t constant = numerics::f32_to_f16(8.0F * offset + numerics::kDirectBias);
    return numerics::e4m3_to_f32(
        numerics::exp2_direct_e4m3_f16(numerics::f32_to_f16(scores_.dot(j)), slope, constant));
  }

  [[nodiscard]] float on_weight_grid(float scaled) const {
    switch (x_.recipe.p_format) {
      case Format::e4m3:
        return numerics::round_to_e4m3(scaled);
      case Format::f16:
        return numerics::round_to_f16(scaled);
      case Format::bf16:
        return numerics::round_to_bf16(scaled);
      case Format::u8:
        return numerics::round_even(scaled);
      default:
        return scaled;
    }
  }

  static float on_table_grid(float s2) {
    constexpr auto kSteps = static_cast<float>(numerics::kCpu8StepsPerOctave);
    return std::nearbyint(s2 * kSteps) / kSteps;  // the division is exact: a power of two
  }

  /// exp2 = table: logit and maximum are integers of 64 steps an octave, their distance gives the weight.
  Sum table_weights(const Tile& tile, float reference) {
    constexpr auto kSteps = static_cast<double>(numerics::kCpu8StepsPerOctave);
    constexpr double kFar =
        1 << 20;  // weights are 0 from far smaller distances on; keeps -infinity an integer
    Sum rounded{0};
    for (std::int64_t j = 0; j < tile.count; ++j) {
      const auto logit = static_cast<double>(on_table_grid(scores_.s2(j)));
      const double distance = (static_cast<double>(reference) - logit) * kSteps;
      float& w = w_[size(j)];
      if (std::isnan(distance)) {
        w = static_cast<float>(distance);  // integers have no NaN; the walk shows it instead of hiding it
      } else {
        w = static_cast<float>(numerics::cpu8_weight(static_cast<std::int64_t>(std::min(distance, kFar))));
      }
      rounded += static_cast<Sum>(w);
    }
    return rounded / static_cast<Sum>(x_.recipe.p_range);
  }

  // ---- second product
  // ------------------------------------------------------------------------------------------------

  /// acc += fold * (buffer of at most n keys), buffer after buffer; no buffer spans a tile. Accumulators
  /// without a buffer take the tile as one.
  void accumulate(const Tile& tile, float fold) {
    const std::int64_t channels = x_.problem.head_dim;
    const std::int64_t keys = keys_per_buffer();
    for (std::int64_t j = 0; j < tile.count; j += keys) {
      const std::int64_t count = std::min(keys, tile.count - j);
      const float* values = x_.kv.values + (tile.begin + j) * channels;
      fill_buffer(w_.data() + j, count, values);
      for (std::int64_t c = 0; c < channels; ++c) acc_[size(c)] += static_cast<Sum>(fold) * buffer_[size(c)];
    }
  }

  [[nodiscard]] std::int64_t keys_per_buffer() const {
    switch (x_.recipe.pv_accumulator) {
      case PvAccumulator::f32_buffered:
        return x_.recipe.pv_buffer;
      case PvAccumulator::f16_buffered:
        return x_.recipe.pv_buffer * kPvStep;
      default:
        return x_.recipe.key_tile;
    }
  }

  /// buffer = weights * values of `count` keys, in the recipe's accumulator.
  void fill_buffer(const float* w, std::int64_t count, const float* values) {
    const std::int64_t channels = x_.problem.head_dim;
    std::fill(buffer_.begin(), buffer_.end(), Sum{0});
    switch (x_.recipe.pv_accumulator) {
      case PvAccumulator::f64:
      case PvAccumulator::f32:
      case PvAccumulator::f32_buffered:
        add_products(w, count, values, channels, channels, buffer_.data());
        break;
      case PvAccumulator::s32:  // a tile of 519 keys of 255 * 127 passes f32's 2^24; f64 holds any s32
                                // exactly
        std::fill(step_.begin(), step_.end(), 0.0);
        add_products(w, count, values, channels, channels, step_.data());
        for (std::size_t c = 0; c < step_.size(); ++c) buffer_[c] = static_cast<Sum>(step_[c]);
        break;
      case PvAccumulator::f16_buffered:  // exact sum of 32 products plus accumulator, rounded once
        for (std::int64_t j = 0; j < count; j += kPvStep) {
          std::fill(step_.begin(), step_.end(), 0.0);
          add_products(w + j, std::min(kPvStep, count - j), values + j * channels, channels, channels,
                       step_.data());
          for (std::size_t c = 0; c < step_.size(); ++c) {
            buffer_[c] = static_cast<Sum>(numerics::f16_accumulate(static_cast<float>(buffer_[c]), step_[c]));
          }
        }
        break;
    }
  }

  const HeadContext& x_;
  std::int64_t row_;
  RowScores scores_;
  float log2_p_range_;

  std::vector<float> w_;      ///< weights of the tile
  std::vector<double> step_;  ///< exact sums that are rounded afterwards
  std::vector<Sum> buffer_;

  bool seen_ = false;  ///< a key that is not hidden
  float max_ = kHiddenLogit;
  Sum sum_{0};
  std::vector<Sum> acc_;
};

template <class Sum>
void run_row(const HeadContext& context, std::int64_t row, float* out, float& lse) {
  RowWalk<Sum> walk(context, row);
  walk.walk();
  walk.finish(out, lse);
}

}  // namespace

Status attend(const KernelCall& call, const std::byte* qq, const KvBuffer& kv, const RowLists& rows,
              const MutableTensorView& out, const MutableTensorView& lse, const EmulateHooks& hooks) {
  const Problem& problem = call.problem;
  const KvLayout kv_layout(problem, call.recipe, kv.heads);
  const QLayout q_layout(problem, call.recipe);
  const MaskAndBias given(problem);
  const MutableHeadsView outputs = heads_view(out, problem.options.layout);
  const std::vector<RowBlock> blocks = row_blocks(problem, rows, kRowsPerItem);
  cpu::parallel_for(call.threads, static_cast<std::int64_t>(blocks.size()), [&](std::int64_t item, int) {
    const RowBlock& block = blocks[static_cast<std::size_t>(item)];
    const auto index = static_cast<std::size_t>(block.sequence);
    const HeadContext context{
        .problem = problem,
        .recipe = call.recipe,
        .sequence = problem.sequences[index],
        .given = given,
        .head = block.head,
        .padded = q_layout.padded,
        .q = q_layout.head(reinterpret_cast<const float*>(qq), block.sequence, block.head),
        .kv = kv_layout.head(reinterpret_cast<const float*>(kv.data), block.sequence,
                             kv.first_head + block.head / problem.group()),
        .logits_in = hooks.logits_in ? hooks.logits_in(block.sequence, block.head) : nullptr,
        .logits_out = hooks.logits_out ? hooks.logits_out(block.sequence, block.head) : nullptr,
    };
    std::vector<float> line(static_cast<std::size_t>(problem.head_dim));
    for (std::int64_t i = block.first; i < block.first + block.count; ++i) {
      const std::int64_t row = rows.empty() ? i : rows[index][static_cast<std::size_t>(i)];
      float row_lse = 0.0F;
      if (call.recipe.pv_accumulator == PvAccumulator::f64) {
        run_row<double>(context, row, line.data(), row_lse);
      } else {
        run_row<float>(context, row, line.data(), row_lse);
      }
      store_row(outputs, context.sequence.batch, block.head, context.sequence.q_begin + row, problem.head_dim,
                line.data());
      if (!lse.empty()) {
        static_cast<float*>(lse.data)[lse_offset(lse, problem.packed(), context.sequence, block.head, row)] =
            row_lse;
      }
    }
  });
  return {};
}

}  // namespace octavo::reference
