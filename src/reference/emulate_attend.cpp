// The emulator's second half, one query row at a time: scores of a key tile, running maximum, weights, second
// product, and at the end the normaliser (docs/numerics.md, "Softmax and P" and "V and the second product").
//
// Vectors run over keys in the first product and over channels in the second. A dot product of int8 codes is
// at most 127 * 127 * 256 < 2^24, so f32 sums of them are the exact s32 result. e4m3 and 16-bit products
// accumulate in f32 one by one: a tensor core's truncation belongs to the tolerances, not to the recipe.
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

namespace octavo::reference {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();
constexpr float kLog2e = 0x1.715476p+0F;
constexpr double kLn2 = 0x1.62e42fefa39efp-1;
constexpr std::int64_t kRowsPerItem =
    16;  // enough to make handing out work cheap, few enough to keep all threads busy
constexpr std::int64_t kPvStep = 32;  // keys of one f16 tensor-core product with 8-bit operands

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
};

struct Tile {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

/// Walks one row. Sum is double for the f64 accumulator, else float.
template <class Sum>
class RowWalk {
 public:
  RowWalk(const HeadContext& context, std::int64_t row)
      : x_(context),
        row_(row),
        range_(visible_keys(context.problem, context.sequence, row)),
        to_base2_(context.problem.scale * kLog2e),
        q_scale_(context.q.delta[row] * to_base2_),
        log2_p_range_(std::log2(context.recipe.p_range)),
        // With a second term in the logit it is no multiple of the accumulator, and the f16 form does not
        // apply.
        direct_in_f16_(context.recipe.qk_accumulator == QkAccumulator::f16 && !context.recipe.smooth_q &&
                       context.given.bias.data == nullptr),
        dot_(size(context.recipe.key_tile)),
        s2_(size(context.recipe.key_tile)),
        w_(size(context.recipe.key_tile)),
        step_(size(std::max(context.problem.head_dim, kKeysPerBlock))),
        buffer_(size(context.problem.head_dim)),
        acc_(size(context.problem.head_dim)) {}

  void walk() {
    if (range_.begin >= range_.end) return;
    const std::int64_t keys = x_.recipe.key_tile;
    const std::int64_t first = range_.begin / keys;
    const std::int64_t last = (range_.end - 1) / keys;
    for (std::int64_t i = 0; i <= last - first; ++i) {
      const std::int64_t tile = x_.recipe.key_order == KeyOrder::forward ? first + i : last - i;
      visit({tile * keys, std::min(keys, x_.sequence.k_len - tile * keys)});
    }
  }

  /// O = acc * delta_V / l, the means given back; rows without keys get 0 and -infinity.
  void finish(float* out, float& lse) const {
    const std::int64_t channels = x_.problem.head_dim;
    for (std::int64_t c = 0; c < channels; ++c) {
      const Sum scaled = acc_[size(c)] * static_cast<Sum>(x_.kv.value_delta[c] / x_.recipe.p_range);
      out[c] = seen_ ? static_cast<float>(scaled / sum_) + x_.kv.value_mean[c] : 0.0F;
    }
    const double base2 = static_cast<double>(max_) + std::log2(static_cast<double>(sum_));
    lse = seen_ ? static_cast<float>(base2 * kLn2) + x_.q.lse_shift[row_] : kHidden;
  }

 private:
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

  void visit(const Tile& tile) {
    scores(tile);
    float tile_max = kHidden;
    bool seen = false;
    for (std::int64_t j = 0; j < tile.count; ++j) {
      seen = seen || s2_[size(j)] != kHidden;  // NaN counts: an overflow must show in O
      tile_max = std::max(tile_max, s2_[size(j)]);
    }
    if (!seen) return;  // a wholly hidden tile contributes 0
    if (x_.recipe.exp2 == Exp2::table) tile_max = on_table_grid(tile_max);

    // The maximum may lag behind by up to `slack` octaves; with slack 0 it never does.
    const bool lags = tile_max > max_ && tile_max <= max_ + x_.recipe.slack;
    const float new_max = lags ? max_ : std::max(max_, tile_max);
    const float reference = x_.recipe.p_reference == PReference::tile_max ? tile_max : new_max;
    const float shrink = seen_ ? numerics::exp2_exact(max_ - new_max) : 0.0F;
    const float fold = reference == new_max ? 1.0F : numerics::exp2_exact(reference - new_max);
    max_ = new_max;
    seen_ = true;

    const Sum part = weights(tile, reference);
    sum_ = sum_ * static_cast<Sum>(shrink) + part * static_cast<Sum>(fold);
    for (Sum& a : acc_) a *= static_cast<Sum>(shrink);
    accumulate(tile, fold);
  }

  // ---- first product
  // -------------------------------------------------------------------------------------------------

  /// s2 = dot * delta_q * delta_k * c + smooth_q term * c + bias * log2(e); hidden keys are -infinity.
  void scores(const Tile& tile) {
    for (std::int64_t j = 0; j < tile.count; j += kKeysPerBlock) {
      dot_block(x_.q.codes + row_ * x_.padded, x_.kv.codes + (tile.begin + j) * x_.padded, dot_.data() + j);
    }
    for (std::int64_t j = 0; j < tile.count; ++j)
      s2_[size(j)] = dot_[size(j)] * logit_per_dot(tile.begin + j);
    if (x_.recipe.smooth_q) add_query_mean(tile);
    hide_and_bias(x_.given, x_.sequence, range_, x_.head, row_, tile.begin, tile.begin + tile.count, kLog2e,
                  s2_.data());

    const std::int64_t at = row_ * x_.sequence.k_len + tile.begin;
    if (x_.logits_in != nullptr) take_logits(tile, x_.logits_in + at);
    if (x_.logits_out != nullptr) std::copy_n(s2_.data(), tile.count, x_.logits_out + at);
  }

  /// The combined scale delta_q * delta_k * c.
  [[nodiscard]] float logit_per_dot(std::int64_t key) const { return q_scale_ * x_.kv.delta[key]; }

  /// Dot products with 32 keys, in the recipe's accumulator.
  void dot_block(const float* q, const float* keys, float* dot) {
    switch (x_.recipe.qk_accumulator) {
      case QkAccumulator::f64: {
        double sums[kKeysPerBlock] = {};
        add_products(q, x_.padded, keys, kKeysPerBlock, kKeysPerBlock, sums);
        std::copy_n(sums, kKeysPerBlock, dot);
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
  void dot_block_f16(const float* q, const float* keys, float* dot) {
    const std::int64_t step = x_.recipe.qk_format == Format::e4m3 ? 32 : 16;
    std::fill_n(dot, kKeysPerBlock, 0.0F);
    for (std::int64_t c = 0; c < x_.padded; c += step) {
      double sums[kKeysPerBlock] = {};
      add_products(q + c, std::min(step, x_.padded - c), keys + c * kKeysPerBlock, kKeysPerBlock,
                   kKeysPerBlock, sums);
      for (std::int64_t j = 0; j < kKeysPerBlock; ++j) dot[j] = numerics::f16_accumulate(dot[j], sums[j]);
    }
  }

  /// qbar K'^T * c. The same for all rows of a block of 128; recomputed for each row to keep the walk by
  /// rows.
  void add_query_mean(const Tile& tile) {
    const std::int64_t channels = x_.problem.head_dim;
    const float* mean = x_.q.mean + row_ / kRowsPerQueryMean * channels;
    for (std::int64_t j = 0; j < tile.count; j += kKeysPerBlock) {
      float term[kKeysPerBlock] = {};
      add_products(mean, channels, x_.kv.smoothed + (tile.begin + j) * channels, kKeysPerBlock, kKeysPerBlock,
                   term);
      for (std::int64_t i = 0; i < std::min(kKeysPerBlock, tile.count - j); ++i)
        s2_[size(j + i)] += term[i] * to_base2_;
    }
  }

  /// Replaces the logits of visible keys, and the f16 accumulators they came from: dividing by the combined
  /// scale is off by 2^-23 at most, rounding to f16's 11 bits gives the accumulator back.
  void take_logits(const Tile& tile, const float* logits) {
    for (std::int64_t j = 0; j < tile.count; ++j) {
      if (s2_[size(j)] == kHidden) continue;
      s2_[size(j)] = logits[j];
      const float unit = logit_per_dot(tile.begin + j);
      if (direct_in_f16_) dot_[size(j)] = unit == 0.0F ? 0.0F : numerics::round_to_f16(logits[j] / unit);
    }
  }

  // ---- weights
  // -------------------------------------------------------------------------------------------------------

  /// Fills w_ with the weights 2^(s2 - reference) on P's grid in units of 1 / P_r; returns the tile's part of
  /// the normaliser.
  Sum weights(const Tile& tile, float reference) {
    if (x_.recipe.exp2 == Exp2::table) return table_weights(tile, reference);
    Sum exact{0};
    Sum rounded{0};
    for (std::int64_t j = 0; j < tile.count; ++j) {
      const float s2 = s2_[size(j)];
      float& w = w_[size(j)];
      if (s2 == kHidden) {
        w = 0.0F;
      } else if (is_direct(j)) {
        w = direct_weight(tile.begin + j, s2, dot_[size(j)], reference);
      } else {
        const float p = numerics::exp2_exact(s2 - reference);
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
  [[nodiscard]] float direct_weight(std::int64_t key, float s2, float dot, float reference) const {
    const float offset = log2_p_range_ - reference;
    if (!direct_in_f16_) return numerics::e4m3_to_f32(numerics::exp2_direct_e4m3(s2 + offset));
    const std::uint16_t slope = numerics::f32_to_f16(8.0F * logit_per_dot(key));
    const std::uint16_t constant = numerics::f32_to_f16(8.0F * offset + numerics::kDirectBias);
    return numerics::e4m3_to_f32(numerics::exp2_direct_e4m3_f16(numerics::f32_to_f16(dot), slope, constant));
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
    return std::nearbyint(s2 * kSteps) / kSteps;  // exact: a power of two
  }

  /// exp2 = table: both logit and maximum are integers of 64 steps an octave, their distance gives the
  /// weight.
  Sum table_weights(const Tile& tile, float reference) {
    constexpr auto kSteps = static_cast<double>(numerics::kCpu8StepsPerOctave);
    constexpr double kFar = 1 << 20;  // any distance of 16 octaves or more has weight 0
    Sum rounded{0};
    for (std::int64_t j = 0; j < tile.count; ++j) {
      const double distance =
          (static_cast<double>(reference) - static_cast<double>(on_table_grid(s2_[size(j)]))) * kSteps;
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
      std::fill(buffer_.begin(), buffer_.end(), Sum{0});
      switch (x_.recipe.pv_accumulator) {
        case PvAccumulator::f64:
        case PvAccumulator::f32:
        case PvAccumulator::f32_buffered:
          add_products(w_.data() + j, count, values, channels, channels, buffer_.data());
          break;
        case PvAccumulator::s32: {  // 255 * 127 times the keys of a tile can pass 2^24; f64 holds it exactly
          std::fill(step_.begin(), step_.end(), 0.0);
          add_products(w_.data() + j, count, values, channels, channels, step_.data());
          for (std::int64_t c = 0; c < channels; ++c) buffer_[size(c)] = static_cast<Sum>(step_[size(c)]);
          break;
        }
        case PvAccumulator::f16_buffered:
          buffer_f16(w_.data() + j, count, values);
          break;
      }
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

  /// Consecutive k = 32 products in f16: exact sum of 32 products plus accumulator, rounded once.
  void buffer_f16(const float* w, std::int64_t count, const float* values) {
    const std::int64_t channels = x_.problem.head_dim;
    for (std::int64_t j = 0; j < count; j += kPvStep) {
      std::fill(step_.begin(), step_.end(), 0.0);
      add_products(w + j, std::min(kPvStep, count - j), values + j * channels, channels, channels,
                   step_.data());
      for (std::int64_t c = 0; c < channels; ++c) {
        buffer_[size(c)] =
            static_cast<Sum>(numerics::f16_accumulate(static_cast<float>(buffer_[size(c)]), step_[size(c)]));
      }
    }
  }

  const HeadContext& x_;
  std::int64_t row_;
  KeyRange range_;
  float to_base2_;  ///< c = scale * log2(e)
  float q_scale_;   ///< delta_q * c
  float log2_p_range_;
  bool direct_in_f16_;

  std::vector<float> dot_;  ///< of the tile, in units of delta_q * delta_k
  std::vector<float> s2_;   ///< of the tile
  std::vector<float> w_;    ///< of the tile
  std::vector<double> step_;
  std::vector<Sum> buffer_;

  bool seen_ = false;  ///< a key that is not hidden
  float max_ = kHidden;
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
