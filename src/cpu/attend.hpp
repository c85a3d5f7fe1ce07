// Attention with f32 scores: INT8 (or f32) Q K^T, weights and values on the e4m3 or a 16-bit grid, sums in
// f32 or in f16 with delayed f32 buffering. One tile of queries; the same four steps on every tier.
//
// Per key tile of 64 (S 64 x 32 x 4 B = 8 KB, P as much, O 64 x 32 x 4 B = 8 KB: within a 32 KB L1 beside the
// tile of K and V):
//   scores                 S = dot * delta_q * delta_k * c, the row maximum on the way
//   update_max             m, and 2^(m_old - m_new) for what was summed before
//   exponentiate_and_pack  P = round(2^(S - m) * P_r), the row sum on the way
//   accumulate             O = O * alpha + P V
// Rungs: portable (SSE2) -> AVX2 -> AVX-512 (vpdpbusd) -> AVX-512 BF16 (vdpbf16ps for P V) -> AMX (both
// products on tiles). docs/kernels/cpu.md has cycles per score, rooflines and what was tried.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/isa/grids.hpp"
#include "cpu/tile_job.hpp"
#include "numerics/exp2.hpp"

namespace octavo::cpu {

#define OCTAVO_UNROLL _Pragma("GCC unroll 16")

// The product loops are functions of their own (noinline): inlined into the walk over tiles, GCC 12 keeps
// accumulators and addresses of the loop on the stack (tests/cpu/check_inner_loops.py looks for that).

/// Per-row vectors of one query tile.
template <class V>
struct RowState {
  typename V::F m[V::kGroups];      // running maximum, base 2
  typename V::F l[V::kGroups];      // sum of weights
  typename V::F alpha[V::kGroups];  // rescales what was summed before this key tile
  typename V::F beta[V::kGroups];   // 2^(tile maximum - m) with p_reference tile_max, else 1
  typename V::F reference[V::kGroups];
};

/// A score and what mask and bias add to it. -infinity hides the key, also where the score is NaN.
template <class V>
inline __attribute__((always_inline)) typename V::F add_or_hide(typename V::F score, typename V::F addend) {
  const typename V::F hidden = V::set(-__builtin_inff());
  return V::select_greater(V::set(-__FLT_MAX__), addend, hidden, V::add(score, addend));
}

/// First product on the integer units: K rows broadcast four bytes at a time, Q packed [channels /
/// kPack][group][lane][kPack].
template <class V>
struct Int8Scores {
  using F = typename V::F;
  using I = typename V::I;

  /// S[key][row] for the keys of one tile, and their maximum.
  __attribute__((noinline)) static void run(const TileJob& job, std::int64_t key0, float* s,
                                            F (&top)[V::kGroups]) {
    constexpr int kRows = V::kLanes * V::kGroups;
    constexpr int kStepBytes = V::kLanes * V::kPack * static_cast<int>(sizeof(typename V::QueryElement));
    const auto* q = static_cast<const std::byte*>(job.q);
    const auto* keys = static_cast<const typename V::KeyElement*>(job.k) + key0 * job.channels;
    I start[V::kGroups];
    F scale[V::kGroups];
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      scale[g] = V::load(job.q_scale + g * V::kLanes);
      start[g] = V::set_int(0);
      if constexpr (V::kKeyOffset != 0) {  // stored keys are k + 128: begin at -128 * sum(q)
        start[g] = V::sub_int(start[g], V::template shift_left<7>(V::load_int(job.q_sum + g * V::kLanes)));
      }
    }
    int tile = job.key_tile;
    asm("" : "+r"(tile));  // a known trip count makes GCC 12 spill the accumulators
    for (int k = 0; k < tile; k += V::kKeyUnroll) {
      I acc[V::kGroups][V::kKeyUnroll];
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
        OCTAVO_UNROLL for (int j = 0; j < V::kKeyUnroll; ++j) acc[g][j] = start[g];
      }
      const typename V::KeyElement* row = keys + static_cast<std::int64_t>(k) * job.channels;
      const int steps = job.channels / V::kPack;
      for (int c = 0; c < steps; ++c) {
        I query[V::kGroups];
        OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) query[g] =
            V::load_operand(q + (c * V::kGroups + g) * kStepBytes);
        OCTAVO_UNROLL for (int j = 0; j < V::kKeyUnroll; ++j) {
          const I key = V::broadcast(row + j * job.channels + c * V::kPack);
          OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) V::dot(acc[g][j], key, query[g]);
        }
      }
      OCTAVO_UNROLL for (int j = 0; j < V::kKeyUnroll; ++j) {
        const F key_scale = V::set(job.k_scale[key0 + k + j]);
        OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
          const F value = V::mul(V::to_float(acc[g][j]), V::mul(scale[g], key_scale));
          top[g] = V::max(value, top[g]);
          V::store(s + static_cast<std::ptrdiff_t>(k + j) * kRows + g * V::kLanes, value);
        }
      }
    }
  }
};

/// First product in f32, for 16-bit and e4m3 operands: K f32 rows, Q packed [channels][group][lane].
template <class V>
struct FloatScores {
  using F = typename V::F;

  __attribute__((noinline)) static void run(const TileJob& job, std::int64_t key0, float* s,
                                            F (&top)[V::kGroups]) {
    constexpr int kRows = V::kLanes * V::kGroups;
    const auto* q = static_cast<const float*>(job.q);
    const auto* keys = static_cast<const float*>(job.k) + key0 * job.channels;
    F scale[V::kGroups];
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) scale[g] = V::load(job.q_scale + g * V::kLanes);
    int tile = job.key_tile;
    asm("" : "+r"(tile));
    for (int k = 0; k < tile; k += V::kKeyUnroll) {
      F acc[V::kGroups][V::kKeyUnroll];
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
        OCTAVO_UNROLL for (int j = 0; j < V::kKeyUnroll; ++j) acc[g][j] = V::zero();
      }
      const float* row = keys + static_cast<std::int64_t>(k) * job.channels;
      for (int c = 0; c < job.channels; ++c) {
        F query[V::kGroups];
        OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) query[g] =
            V::load_float_operand(q + c * kRows + g * V::kLanes);
        OCTAVO_UNROLL for (int j = 0; j < V::kKeyUnroll; ++j) {
          const F key = V::broadcast_float(row + j * job.channels + c);
          OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) V::fma_chain(acc[g][j], key, query[g]);
        }
      }
      OCTAVO_UNROLL for (int j = 0; j < V::kKeyUnroll; ++j) {
        const F key_scale = V::set(job.k_scale[key0 + k + j]);
        OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
          const F value = V::mul(acc[g][j], V::mul(scale[g], key_scale));
          top[g] = V::max(value, top[g]);
          V::store(s + static_cast<std::ptrdiff_t>(k + j) * kRows + g * V::kLanes, value);
        }
      }
    }
  }
};

/// Second product in f32: V f32 rows [key][channel], P f32 [key][row]. f16_buffered rounds the sum to f16
/// after each 32 keys.
template <class V>
struct FloatValues {
  using F = typename V::F;

  static inline void store_weights(float* p, std::int64_t key, int group, F weight) {
    V::store(p + key * (V::kLanes * V::kGroups) + group * V::kLanes, weight);
  }

  static inline void accumulate(const TileJob& job, std::int64_t key0, const float* p, const RowState<V>& row,
                                float* o) {
    const int chunk = job.spec.f16_products > 0 ? 32 * job.spec.f16_products : job.key_tile;
    F alpha[V::kGroups];
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) alpha[g] = row.alpha[g];
    for (int k = 0; k < job.key_tile; k += chunk) {
      const int end = k + chunk < job.key_tile ? k + chunk : job.key_tile;
      accumulate_chunk(job, key0, k, end, p, alpha, row.beta, o);
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) alpha[g] = V::set(1.0F);
    }
  }

 private:
  /// O = O * alpha + beta * sum over keys [begin, end) of the tile.
  __attribute__((noinline)) static void accumulate_chunk(const TileJob& job, std::int64_t key0, int begin,
                                                         int end, const float* p,
                                                         const F (&alpha)[V::kGroups],
                                                         const F (&beta)[V::kGroups], float* o) {
    constexpr int kRows = V::kLanes * V::kGroups;
    const auto* values = static_cast<const float*>(job.v) + key0 * job.value_channels;
    const bool f16 = job.spec.f16_products > 0;
    for (int d = 0; d < job.value_channels; d += V::kChannelUnroll) {
      F acc[V::kChannelUnroll][V::kGroups];
      OCTAVO_UNROLL for (int j = 0; j < V::kChannelUnroll; ++j) {
        OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) acc[j][g] = V::zero();
      }
      for (int k = begin; k < end;) {
        int stop = f16 ? k + 32 : end;
        asm("" : "+r"(stop));
        for (; k < stop; ++k) {
          F weight[V::kGroups];
          OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) weight[g] =
              V::load_float_operand(p + k * kRows + g * V::kLanes);
          OCTAVO_UNROLL for (int j = 0; j < V::kChannelUnroll; ++j) {
            const F value =
                V::broadcast_float(values + static_cast<std::int64_t>(k) * job.value_channels + d + j);
            OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) V::fma_chain(acc[j][g], weight[g], value);
          }
        }
        if (f16) {
          OCTAVO_UNROLL for (int j = 0; j < V::kChannelUnroll; ++j) {
            OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) acc[j][g] = V::round_to_f16(acc[j][g]);
          }
        }
      }
      OCTAVO_UNROLL for (int j = 0; j < V::kChannelUnroll; ++j) {
        OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
          float* at = o + static_cast<std::ptrdiff_t>(d + j) * kRows + g * V::kLanes;
          V::store(at, V::fma(V::load(at), alpha[g], V::mul(acc[j][g], beta[g])));
        }
      }
    }
  }
};

template <class V, class Scores, class Values>
struct Attention {
  using F = typename V::F;
  static constexpr int kRows = V::kLanes * V::kGroups;

  static constexpr std::size_t scratch_bytes(int key_tile) {
    return static_cast<std::size_t>(key_tile) * kRows * 2 * sizeof(float);
  }

  static void run(const TileJob& job) {
    float* s = reinterpret_cast<float*>(job.scratch);
    float* p = s + static_cast<std::ptrdiff_t>(job.key_tile) * kRows;
    RowState<V> row;
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      row.m[g] = V::set(-__builtin_inff());
      row.l[g] = V::zero();
    }
    for (int i = 0; i < job.value_channels * kRows; i += V::kLanes) V::store(job.out + i, V::zero());

    for (std::int64_t i = job.tile_begin; i < job.tile_end; ++i) {
      const std::int64_t tile = job.spec.reverse ? job.tile_end - 1 - (i - job.tile_begin) : i;
      const std::int64_t key0 = tile * job.key_tile;
      F top[V::kGroups];
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) top[g] = V::set(-__builtin_inff());
      Scores::run(job, key0, s, top);
      if (job.key_term != nullptr || job.addend != nullptr) add_terms(job, key0, s, top);
      if (key0 < job.full_begin || key0 + job.key_tile > job.full_end) hide_keys(job, key0, s, top);
      update_max(job.spec, top, row);
      exponentiate_and_pack(job, s, p, row);
      Values::accumulate(job, key0, p, row, job.out);
    }
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      V::store(job.m + g * V::kLanes, row.m[g]);
      V::store(job.l + g * V::kLanes, row.l[g]);
    }
  }

 private:
  static void add_terms(const TileJob& job, std::int64_t key0, float* s, F (&top)[V::kGroups]) {
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) top[g] = V::set(-__builtin_inff());
    for (int k = 0; k < job.key_tile; ++k) {
      const F term = V::set(job.key_term != nullptr ? job.key_term[key0 + k] : 0.0F);
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
        float* at = s + static_cast<std::ptrdiff_t>(k) * kRows + g * V::kLanes;
        F value = V::add(V::load(at), term);
        if (job.addend != nullptr)
          value = add_or_hide<V>(value, V::load(job.addend + (key0 + k) * kRows + g * V::kLanes));
        top[g] = V::max(value, top[g]);
        V::store(at, value);
      }
    }
  }

  static void hide_keys(const TileJob& job, std::int64_t key0, float* s, F (&top)[V::kGroups]) {
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      const typename V::I begin = V::load_int(job.row_begin + g * V::kLanes);
      const typename V::I end = V::load_int(job.row_end + g * V::kLanes);
      F highest = V::set(-__builtin_inff());
      for (int k = 0; k < job.key_tile; ++k) {
        float* at = s + static_cast<std::ptrdiff_t>(k) * kRows + g * V::kLanes;
        const F value = V::hide(V::load(at), static_cast<std::int32_t>(key0 + k), begin, end);
        highest = V::max(value, highest);
        V::store(at, value);
      }
      top[g] = highest;
    }
  }

  static inline void update_max(const SoftmaxSpec& spec, const F (&top)[V::kGroups], RowState<V>& row) {
    // A row that has seen nothing has m = -inf; 0 in its place as the reference keeps -inf - -inf out of the
    // exponent.
    const F nothing = V::set(-0x1p127F);
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      const F m = V::max(top[g], row.m[g]);
      const F seen = V::select_greater(m, nothing, m, V::zero());
      row.alpha[g] = V::exp2(V::sub(row.m[g], seen));
      row.reference[g] = seen;
      row.beta[g] = V::set(1.0F);
      if (spec.tile_max) {
        row.reference[g] = V::select_greater(top[g], nothing, top[g], V::zero());
        row.beta[g] = V::exp2(V::sub(top[g], seen));
      }
      row.m[g] = m;
    }
  }

  static inline void exponentiate_and_pack(const TileJob& job, const float* s, float* p, RowState<V>& row) {
    switch (job.spec.weight) {
      case WeightKind::e4m3_exact:
        return weights<WeightKind::e4m3_exact>(job, s, p, row);
      case WeightKind::e4m3_direct:
      case WeightKind::e4m3_mixed:
        return weights<WeightKind::e4m3_mixed>(job, s, p, row);
      case WeightKind::bf16:
        return weights<WeightKind::bf16>(job, s, p, row);
      case WeightKind::f16:
        return weights<WeightKind::f16>(job, s, p, row);
    }
  }

  template <WeightKind kKind>
  static inline void weights(const TileJob& job, const float* s, float* p, RowState<V>& row) {
    const SoftmaxSpec& spec = job.spec;
    F shift[V::kGroups];
    F sum[V::kGroups];
    const F log2_p_range = V::set(spec.log2_p_range);
    const F p_range = V::set(spec.p_range);
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      shift[g] = V::sub(log2_p_range, row.reference[g]);
      sum[g] = V::zero();
    }
    const bool quantized = spec.quantized_normaliser;
    const F bias = V::set(numerics::kDirectBias);
    for (int k = 0; k < job.key_tile; ++k) {
      const bool direct = kKind == WeightKind::e4m3_mixed && k / 8 % spec.mixed_period < spec.mixed_direct;
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
        const F s2 = V::load(s + static_cast<std::ptrdiff_t>(k) * kRows + g * V::kLanes);
        if (direct) {
          const F weight = direct_e4m3<V>(V::add(s2, shift[g]), bias);
          sum[g] = V::add(sum[g], weight);
          Values::store_weights(p, k, g, weight);
          continue;
        }
        // P_r as a product, not in the exponent: the emulator's operations in its order, so that no weight
        // near a rounding tie falls to the other side.
        const F exact = V::mul(V::exp2(V::sub(s2, row.reference[g])), p_range);
        F weight = exact;
        if constexpr (kKind == WeightKind::e4m3_exact || kKind == WeightKind::e4m3_mixed)
          weight = grid_e4m3<V>(exact);
        if constexpr (kKind == WeightKind::bf16) weight = grid_bf16<V>(exact);
        if constexpr (kKind == WeightKind::f16) weight = V::round_to_f16(exact);
        sum[g] = V::add(sum[g], quantized ? weight : exact);
        Values::store_weights(p, k, g, weight);
      }
    }
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) row.l[g] =
        V::fma(row.l[g], row.alpha[g], V::mul(sum[g], row.beta[g]));
  }
};

}  // namespace octavo::cpu
