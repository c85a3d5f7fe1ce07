// The cpu8 kernel: INT8 Q K^T, the exponential on 16-bit codes, u8 weights times s8 values. One tile of
// queries, the same four steps as attend.hpp:
//   scores                 code = rne(64 * S), two keys of a row side by side; the row maximum on the way
//   update_max             m, the tile's own maximum as reference of its weights, and what both mean for
//   earlier sums exponentiate_and_pack  P = cpu8_weight(maximum - code), the row sum on the way accumulate O
//   = O * alpha + beta * (P V), the product exact in s32
// A score is a logarithm of base 2^(1/64), so 16 bits hold logits up to +-355 and the exponential is a table
// of 64 entries and a shift. Scores leave the registers as such codes, saturated. The saturated ones are
// right as long as the row maximum is not itself at the limit and everything within reach of it is above the
// lower one; otherwise, and when a mask or bias is added, the tile is done again in f32 (wide_scores), with
// the same codes. A weight does not depend on which of the two made it.
//
// Key tiles of 256: codes 8 KB, Q and O 2 + 4 KB at head dim 64; weights overwrite codes where they are as
// wide (AVX2). K streams by once a tile of queries; V is stored as the second product reads it
// (quantize_values). docs/kernels/cpu8.md: cycles per score, rooflines, what was tried.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/attend.hpp"
#include "cpu/isa/codes.hpp"
#include "numerics/cpu8_table.hpp"

namespace octavo::cpu {

/// Keys of V that are packed together.
inline constexpr int kValueBlock = 256;

/// Keys of the block of `key`: kValueBlock but for the last one.
static inline std::int64_t value_block_keys(std::int64_t key, std::int64_t keys_padded) {
  const std::int64_t rest = keys_padded - key / kValueBlock * kValueBlock;
  return rest < kValueBlock ? rest : kValueBlock;
}

/// Where s8 values of a key (a multiple of kPack) and channel (of kChannelUnroll) lie, in bytes: in a block
/// of keys, the channels of one pass of the second product together, [channels / kChannelUnroll][keys /
/// kPack][kChannelUnroll][kPack]. A pass then reads one stretch of memory; with rows of all channels its
/// lines, 2^n bytes apart, would fight for few sets of the cache.
template <class V>
static inline std::ptrdiff_t value_offset(std::int64_t key, int channel, int channels,
                                          std::int64_t keys_padded) {
  constexpr std::ptrdiff_t kWord = 4;  // kPack values
  const std::int64_t in_block = key % kValueBlock;
  return (key - in_block) / V::kPack * channels * kWord +
         channel * (value_block_keys(key, keys_padded) / V::kPack) * kWord +
         in_block / V::kPack * (V::kChannelUnroll * kWord);
}

/// The steps stay functions of their own: the compiler then gives each loop all registers. GCC 12 leaves
/// accumulators in memory when it has inlined several of them into one.
#define OCTAVO_STEP __attribute__((noinline)) static

template <class V>
struct Cpu8Attention {
  using F = typename V::F;
  using I = typename V::I;
  using N = Codes<V>;
  using C = typename N::C;
  static constexpr int kRows = V::kLanes * V::kGroups;
  static constexpr std::ptrdiff_t kVectorBytes = V::kLanes * 4;
  static constexpr std::ptrdiff_t kStepBytes =
      kVectorBytes * V::kGroups;       // of all rows, kPack keys or two codes
  static constexpr int kKeyStep = 16;  // tiles are cut to the keys that some row sees, in steps of this
  static constexpr float kSteps = static_cast<float>(numerics::kCpu8StepsPerOctave);

  static_assert(V::kGroups == 2);
  static_assert(kKeyStep % V::kKeyUnroll == 0 && kKeyStep % V::kPack == 0);

  /// Codes and weights at 2 bytes, and the f32 scores of the wide path.
  static constexpr std::size_t scratch_bytes(int key_tile) {
    return static_cast<std::size_t>(key_tile) * kRows * (2 * sizeof(std::int16_t) + sizeof(float));
  }

  static void run(const TileJob& job) {
    std::byte* codes = job.scratch;
    std::byte* weights =
        V::kPack == 2 ? codes : codes + static_cast<std::ptrdiff_t>(job.key_tile) * kRows * 2;
    auto* wide = reinterpret_cast<float*>(codes + static_cast<std::ptrdiff_t>(job.key_tile) * kRows * 4);
    RowState<V> row;
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      row.m[g] = V::set(-__builtin_inff());
      row.l[g] = V::zero();
    }
    for (int i = 0; i < job.value_channels * kRows; i += V::kLanes) V::store(job.out + i, V::zero());

    const Range seen = seen_keys(job);
    bool narrow = job.key_term == nullptr && job.addend == nullptr && codes_fit_32_bits(job);
    for (std::int64_t i = job.tile_begin; i < job.tile_end; ++i) {
      const std::int64_t tile = job.spec.reverse ? job.tile_end - 1 - (i - job.tile_begin) : i;
      const Range keys = cut(tile * job.key_tile, job.key_tile, seen);
      if (keys.begin >= keys.end) continue;
      const bool masked = keys.begin < job.full_begin || keys.end > job.full_end;
      F top[V::kGroups];
      C reference[V::kGroups];
      if (narrow) {
        scores(job, keys, codes, reference);
        if (masked) hide_keys(job, keys, codes, reference);
        narrow = row_maxima(job, keys, masked, reference, top);  // one tile out of range: expect more
      }
      if (!narrow) wide_scores(job, keys, masked, wide, codes, reference, top, row);
      update_max(top, row);
      if constexpr (!N::kFused) exponentiate_and_pack(keys, codes, weights, reference, row);
      accumulate(job, keys, codes, weights, reference, row);
    }
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      V::store(job.m + g * V::kLanes, row.m[g]);
      V::store(job.l + g * V::kLanes, row.l[g]);
    }
  }

 protected:  // the tile kernel (amx/tile_cpu8.hpp) replaces the two products and keeps the rest
  /// Keys [begin, end), counted from the sequence's first.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };

  /// Keys that at least one row sees.
  static Range seen_keys(const TileJob& job) {
    Range seen{INT64_MAX, 0};
    for (int r = 0; r < kRows; ++r) {
      if (job.row_begin[r] >= job.row_end[r]) continue;
      if (job.row_begin[r] < seen.begin) seen.begin = job.row_begin[r];
      if (job.row_end[r] > seen.end) seen.end = job.row_end[r];
    }
    return seen;
  }

  static Range cut(std::int64_t begin, int tile, const Range& seen) {
    const std::int64_t end = begin + tile;
    return {seen.begin > begin ? seen.begin / kKeyStep * kKeyStep : begin,
            seen.end < end ? (seen.end + kKeyStep - 1) / kKeyStep * kKeyStep : end};
  }

  /// Conversion to 32 bits answers what it cannot hold with INT_MIN, which would saturate the wrong way.
  /// False for a scale of NaN.
  static bool codes_fit_32_bits(const TileJob& job) {
    const float largest_dot = 127.0F * 127.0F * static_cast<float>(job.channels);
    float q = 0.0F;
    bool fit = true;
    for (int r = 0; r < kRows; ++r) {
      const float scale = job.q_scale[r] < 0.0F ? -job.q_scale[r] : job.q_scale[r];
      fit = fit && scale == scale;
      q = scale > q ? scale : q;
    }
    const std::int64_t end =
        job.tile_end * job.key_tile < job.keys_padded ? job.tile_end * job.key_tile : job.keys_padded;
    for (std::int64_t key = job.tile_begin * job.key_tile; key < end; key += kKeyStep) {
      fit = fit && q * job.k_scale[key] * kSteps * largest_dot < 0x1p31F;
    }
    return fit;
  }

  // ---- scores

  OCTAVO_STEP void scores(const TileJob& job, const Range& keys, std::byte* codes,
                          C (&reference)[V::kGroups]) {
    constexpr int kOperandBytes = V::kLanes * V::kPack * static_cast<int>(sizeof(typename V::QueryElement));
    const auto* q = static_cast<const std::byte*>(job.q);
    const auto* row = static_cast<const typename V::KeyElement*>(job.k) + keys.begin * job.channels;
    const float* k_scale = job.k_scale + keys.begin;
    const std::ptrdiff_t pitch = job.channels;
    I start[V::kGroups];
    F scale[V::kGroups];
    C best[V::kGroups];
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      scale[g] = V::mul(V::load(job.q_scale + g * V::kLanes), V::set(kSteps));
      start[g] = V::set_int(0);
      if constexpr (V::kKeyOffset != 0) {  // stored keys are k + 128: begin at -128 * sum(q)
        start[g] = V::sub_int(start[g], V::template shift_left<7>(V::load_int(job.q_sum + g * V::kLanes)));
      }
      best[g] = N::set_code(kLowestCode);
    }
    int count = static_cast<int>(keys.end - keys.begin);
    asm("" : "+r"(count));  // a known trip count makes GCC 12 spill the accumulators
    const int steps = job.channels / V::kPack;
    for (int k = 0; k < count; k += V::kKeyUnroll) {
      I acc[V::kGroups][V::kKeyUnroll];
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
        OCTAVO_UNROLL for (int j = 0; j < V::kKeyUnroll; ++j) acc[g][j] = start[g];
      }
      for (int c = 0; c < steps; c += N::kStepUnroll) {
        OCTAVO_UNROLL for (int u = 0; u < N::kStepUnroll; ++u) {
          I query[V::kGroups];
          OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
            query[g] = V::load_operand(q + ((c + u) * V::kGroups + g) * kOperandBytes);
          }
          OCTAVO_UNROLL for (int j = 0; j < V::kKeyUnroll; ++j) {
            const I key = V::broadcast(row + j * pitch + (c + u) * V::kPack);
            N::dot_keys(acc[0][j], acc[1][j], key, query[0], query[1]);
          }
        }
      }
      row += V::kKeyUnroll * pitch;
      const F key_scale = V::set(k_scale[k]);  // a block of 64 keys has one
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
        const F step = V::mul(scale[g], key_scale);
        OCTAVO_UNROLL for (int j = 0; j < V::kKeyUnroll; j += 2) {
          const C pair = N::pack(V::to_int(V::mul(V::to_float(acc[g][j]), step)),
                                 V::to_int(V::mul(V::to_float(acc[g][j + 1]), step)));
          best[g] = N::best(best[g], pair);
          N::store_codes(code_at(codes, k + j, g), pair);
        }
      }
    }
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) reference[g] = best[g];
  }

  /// Codes of keys k and k + 1 of the tile, group g.
  static inline std::byte* code_at(std::byte* codes, int k, int g) {
    return codes + k / 2 * kStepBytes + g * kVectorBytes;
  }

  OCTAVO_STEP void hide_keys(const TileJob& job, const Range& keys, std::byte* codes,
                             C (&reference)[V::kGroups]) {
    const I first = V::set_int(static_cast<std::int32_t>(keys.begin));
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      // Relative to the tile; pack saturates what lies far outside, on the right side.
      const I begin = V::sub_int(V::load_int(job.row_begin + g * V::kLanes), first);
      const I end = V::sub_int(V::load_int(job.row_end + g * V::kLanes), first);
      const C from = N::pack(begin, begin);
      const C to = N::pack(end, end);
      C key = N::pack(V::set_int(0), V::set_int(1));
      C most = N::set_code(kLowestCode);
      for (int k = 0; k < static_cast<int>(keys.end - keys.begin); k += 2) {
        std::byte* at = code_at(codes, k, g);
        const C code = N::hide(N::load_codes(at), key, from, to);
        most = N::best(most, code);
        N::store_codes(at, code);
        key = N::add_code(key, N::set_code(2));
      }
      reference[g] = most;
    }
  }

  /// Row maxima from the best of each pair: as the tile's reference, and in base 2 (-inf when a row sees no
  /// key of the tile). False when a saturated code may have decided a weight.
  static inline bool row_maxima(const TileJob& job, const Range& keys, bool masked,
                                C (&reference)[V::kGroups], F (&top)[V::kGroups]) {
    // From a maximum of -31745 down, a saturated code would be within kFarthestStep of it.
    const F lowest_exact = V::set(static_cast<float>(kLowestCode + kFarthestStep + 1));
    const F highest_exact = V::set(32766.0F);
    const F none = V::set(-__builtin_inff());
    bool exact = true;
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      const I best = N::row_best(reference[g]);
      const F code = V::to_float(best);
      reference[g] = N::pack(best, best);
      top[g] = V::select_greater(code, V::set(static_cast<float>(kLowestCode)),
                                 V::mul(code, V::set(1.0F / kSteps)), none);
      F lowest = lowest_exact;
      if (masked) {  // a row that sees nothing here is at kLowestCode rightly
        const I first = V::set_int(static_cast<std::int32_t>(keys.begin));
        const F begin =
            V::max(V::to_float(V::sub_int(V::load_int(job.row_begin + g * V::kLanes), first)), V::zero());
        const F end = V::min(V::to_float(V::sub_int(V::load_int(job.row_end + g * V::kLanes), first)),
                             V::set(static_cast<float>(keys.end - keys.begin)));
        lowest = V::select_greater(end, begin, lowest, none);
      }
      exact = exact && !V::any_greater(code, highest_exact) && !V::any_greater(lowest, code);
    }
    return exact;
  }

  /// The same codes by way of f32, with what is added to logits; they leave as code - maximum, so that 16
  /// bits always do.
  OCTAVO_STEP void wide_scores(const TileJob& job, const Range& keys, bool masked, float* s, std::byte* codes,
                               C (&reference)[V::kGroups], F (&top)[V::kGroups], RowState<V>& row) {
    TileJob part = job;
    part.key_tile = static_cast<int>(keys.end - keys.begin);
    Int8Scores<V>::run(part, keys.begin, s, top);
    const F lowest = V::set(-0x1p127F);
    const F farthest = V::set(static_cast<float>(-kFarthestStep));
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      const I begin = V::load_int(job.row_begin + g * V::kLanes);
      const I end = V::load_int(job.row_end + g * V::kLanes);
      F most = V::set(-__builtin_inff());
      F poison = V::zero();  // NaN once a logit is NaN or +inf: integers have no such value, and an overflow
                             // must show in O
      for (int k = 0; k < part.key_tile; ++k) {
        const std::int64_t key = keys.begin + k;
        float* at = s + static_cast<std::ptrdiff_t>(k) * kRows + g * V::kLanes;
        F value = V::load(at);
        if (job.key_term != nullptr) value = V::add(value, V::set(job.key_term[key]));
        if (job.addend != nullptr)
          value = add_or_hide<V>(value, V::load(job.addend + key * kRows + g * V::kLanes));
        if (masked) value = V::hide(value, static_cast<std::int32_t>(key), begin, end);
        const F code = V::round_even(V::mul(value, V::set(kSteps)));
        poison = V::fma(V::max(lowest, code), V::zero(), poison);
        most = V::max(code, most);
        V::store(at, code);
      }
      row.l[g] = V::add(row.l[g], poison);
      top[g] = V::mul(most, V::set(1.0F / kSteps));
      reference[g] = N::set_code(0);
      const F seen = V::select_greater(most, lowest, most, V::zero());
      for (int k = 0; k < part.key_tile; k += 2) {
        const float* at = s + static_cast<std::ptrdiff_t>(k) * kRows + g * V::kLanes;
        const F first = V::max(V::sub(V::load(at), seen), farthest);
        const F second = V::max(V::sub(V::load(at + kRows), seen), farthest);
        N::store_codes(code_at(codes, k, g), N::pack(V::to_int(first), V::to_int(second)));
      }
    }
  }

  // ---- softmax

  /// Weights are taken against the tile's own maximum; beta = 2^(that - m) brings its products to the common
  /// scale, 0 for a row that sees nothing here (its weights mean nothing then).
  static inline void update_max(const F (&top)[V::kGroups], RowState<V>& row) {
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      const F m = V::max(top[g], row.m[g]);
      const F seen =
          V::select_greater(m, V::set(-0x1p127F), m, V::zero());  // keeps -inf - -inf out of the exponents
      row.alpha[g] = V::exp2(V::sub(row.m[g], seen));
      row.beta[g] = V::exp2(V::sub(top[g], seen));
      row.m[g] = m;
    }
  }

  static inline void add_sum(const I& sum, int g, RowState<V>& row) {
    row.l[g] = V::fma(row.l[g], row.alpha[g], V::mul(V::to_float(sum), row.beta[g]));
  }

  OCTAVO_STEP void exponentiate_and_pack(const Range& keys, const std::byte* codes, std::byte* weights,
                                         const C (&reference)[V::kGroups], RowState<V>& row) {
    const typename N::Constants constants;  // here, where registers can hold them
    C top[V::kGroups];
    I total[V::kGroups];
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      top[g] = reference[g];
      total[g] = V::set_int(0);
    }
    for (std::int64_t begin = keys.begin; begin < keys.end; begin += N::kSumKeys) {
      const std::int64_t end = begin + N::kSumKeys < keys.end ? begin + N::kSumKeys : keys.end;
      I sum[V::kGroups];
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) sum[g] = V::set_int(0);
      for (std::int64_t k = begin; k < end; k += V::kPack) {
        OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
          const I weight = N::weights(codes + g * kVectorBytes, kStepBytes, top[g], constants);
          N::add_weights(sum[g], weight);
          N::store_weights(weights + g * kVectorBytes, weight);
        }
        codes += V::kPack / 2 * kStepBytes;
        weights += kStepBytes;
      }
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) total[g] = V::add_int(total[g], N::sum_of(sum[g]));
    }
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) add_sum(total[g], g, row);
  }

  // ---- second product

  static inline void accumulate(const TileJob& job, const Range& keys, const std::byte* codes,
                                std::byte* weights, const C (&reference)[V::kGroups], RowState<V>& row) {
    I sum[V::kGroups];
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) sum[g] = V::set_int(0);
    F alpha[V::kGroups];
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) alpha[g] = row.alpha[g];
    Range part = keys;
    while (part.begin < keys.end) {  // once, unless a tile is no part of a block of V
      const std::int64_t block_end = (part.begin / kValueBlock + 1) * kValueBlock;
      part.end = block_end < keys.end ? block_end : keys.end;
      int d = 0;
      if constexpr (N::kFused) {
        accumulate_channels<true>(job, part, 0, V::kChannelUnroll, codes, weights, reference, alpha, row.beta,
                                  sum);
        d = V::kChannelUnroll;
      }
      accumulate_channels<false>(job, part, d, job.value_channels, codes, weights, reference, alpha, row.beta,
                                 sum);
      codes += (part.end - part.begin) / 2 * kStepBytes;
      weights += (part.end - part.begin) / V::kPack * kStepBytes;
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) alpha[g] = V::set(1.0F);
      part.begin = part.end;
    }
    if constexpr (N::kFused) {
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) add_sum(sum[g], g, row);
    }
  }

  /// O = O * alpha + beta * (P V) for channels [first, last); kConvert: makes the weights and adds up their
  /// sum on the way.
  template <bool kConvert>
  OCTAVO_STEP void accumulate_channels(const TileJob& job, const Range& keys, int first, int last,
                                       const std::byte* codes, std::byte* weights,
                                       const C (&reference)[V::kGroups], const F (&alpha)[V::kGroups],
                                       const F (&beta)[V::kGroups], I (&sum)[V::kGroups]) {
    [[maybe_unused]] const typename N::Constants constants;
    const std::byte* values_of_pass = static_cast<const std::byte*>(job.v) +
                                      value_offset<V>(keys.begin, first, job.value_channels, job.keys_padded);
    const std::ptrdiff_t pass_bytes =
        value_block_keys(keys.begin, job.keys_padded) / V::kPack * V::kChannelUnroll * 4;
    int steps = static_cast<int>(keys.end - keys.begin) / V::kPack;
    asm("" : "+r"(steps));  // as in scores
    float* out = job.out + static_cast<std::ptrdiff_t>(first) * kRows;
    for (int d = first; d < last; d += V::kChannelUnroll) {
      I acc[V::kChannelUnroll][V::kGroups];
      OCTAVO_UNROLL for (int j = 0; j < V::kChannelUnroll; ++j) {
        OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) acc[j][g] = V::set_int(0);
      }
      const std::byte* values = values_of_pass;
      std::byte* p = weights;
      for (int step = 0; step < steps; step += N::kStepUnroll) {
        OCTAVO_UNROLL for (int u = 0; u < N::kStepUnroll; ++u) {
          I weight[V::kGroups];
          OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
            if constexpr (kConvert) {
              weight[g] = N::weights(codes + g * kVectorBytes, kStepBytes, reference[g], constants);
              N::add_weights(sum[g], weight[g]);
              N::store_weights(p + g * kVectorBytes, weight[g]);
            } else {
              weight[g] = V::load_operand(p + g * kVectorBytes);
            }
          }
          OCTAVO_UNROLL for (int j = 0; j < V::kChannelUnroll; ++j) {
            const I value = V::broadcast(values + j * 4);
            N::dot_values(acc[j][0], acc[j][1], value, weight[0], weight[1]);
          }
          if constexpr (kConvert) codes += V::kPack / 2 * kStepBytes;
          p += kStepBytes;
          values += V::kChannelUnroll * 4;
        }
      }
      OCTAVO_UNROLL for (int j = 0; j < V::kChannelUnroll; ++j) {
        OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
          float* at = out + j * kRows + g * V::kLanes;
          V::store(at, V::fma(V::load(at), alpha[g], V::mul(V::to_float(acc[j][g]), beta[g])));
        }
      }
      out += V::kChannelUnroll * kRows;
      values_of_pass += pass_bytes;
    }
  }
};

}  // namespace octavo::cpu
