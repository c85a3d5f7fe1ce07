// cpu8 on tiles: the steps of attend_cpu8.hpp with both products on the tile unit, same codes and weights to
// the bit. Masks, row maxima, the f32 path and the update are that file's own.
//
// Cycles per score at head dim 64, if nothing overlapped: K Q^T 0.06 + sums out 0.06, codes 0.13, weights
// 0.14, V^T P^T 0.06 + 0.03 out, fold-in 0.03. So products are issued one step ahead of the vector work that
// shares nothing with them:
//   scores      products of 16 keys while the previous 16 become codes
//   accumulate  weights of 64 keys, then their product with the first 32 channels, which runs while the next
//   64
//               weights are made; the other channels after that, one pair of channel tiles ahead of the
//               fold-in
// L1 at 256 keys: codes 16 KB, weights 8 KB, products 4 KB, O 8 KB. Products pass through 4 KB, never more:
// loads wait for earlier stores 4 KB away (tile_scores.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/amx/tile_scores.hpp"
#include "cpu/attend_cpu8.hpp"

namespace octavo::cpu {

template <class V>
struct TileCpu8 : Cpu8Attention<V> {
  using Base = Cpu8Attention<V>;
  using typename Base::C;
  using typename Base::F;
  using typename Base::I;
  using typename Base::N;
  using typename Base::Range;
  using T = typename V::Tiles;
  using Base::kRows;
  using Base::kStepBytes;
  using Base::kVectorBytes;
  static constexpr int kDepth = 64;  // keys of one product with V; tiles are cut in steps of this
  static constexpr int kProducts = kTileKeys * kRows;  // of one step of the first product, or a channel tile

  static void run(const TileJob& job) {
    std::byte* codes = job.scratch;
    std::byte* weights = codes + static_cast<std::ptrdiff_t>(job.key_tile) * kRows * 2;
    auto* wide = reinterpret_cast<float*>(codes + static_cast<std::ptrdiff_t>(job.key_tile) * kRows * 4);
    auto* products =
        reinterpret_cast<std::int32_t*>(wide);  // the f32 scores are done with when products come
    const typename N::Constants constants;
    RowState<V> row;
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      row.m[g] = V::set(-__builtin_inff());
      row.l[g] = V::zero();
    }
    for (int i = 0; i < job.value_channels * kRows; i += V::kLanes) V::store(job.out + i, V::zero());

    const Range seen = Base::seen_keys(job);
    bool narrow = job.key_term == nullptr && job.addend == nullptr && Base::codes_fit_32_bits(job);
    for (std::int64_t i = job.tile_begin; i < job.tile_end; ++i) {
      const std::int64_t tile = job.spec.reverse ? job.tile_end - 1 - (i - job.tile_begin) : i;
      const Range keys = cut(tile * job.key_tile, job.key_tile, seen);
      if (keys.begin >= keys.end) continue;
      const bool masked = keys.begin < job.full_begin || keys.end > job.full_end;
      F top[V::kGroups];
      C reference[V::kGroups];
      if (narrow) {
        scores(job, keys, codes, products, reference);
        if (masked) Base::hide_keys(job, keys, codes, reference);
        narrow = Base::row_maxima(job, keys, masked, reference, top);
      }
      if (!narrow) Base::wide_scores(job, keys, masked, wide, codes, reference, top, row);
      Base::update_max(top, row);
      accumulate(job, keys, codes, weights, products, reference, constants, row);
    }
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      V::store(job.m + g * V::kLanes, row.m[g]);
      V::store(job.l + g * V::kLanes, row.l[g]);
    }
  }

 private:
  static Range cut(std::int64_t begin, int tile, const Range& seen) {
    const std::int64_t end = begin + tile;
    return {seen.begin > begin ? seen.begin / kDepth * kDepth : begin,
            seen.end < end ? (seen.end + kDepth - 1) / kDepth * kDepth : end};
  }

  // ---- scores

  OCTAVO_STEP void scores(const TileJob& job, const Range& keys, std::byte* codes, std::int32_t* products,
                          C (&reference)[V::kGroups]) {
    TileProducts<V, false> tiles(job);
    F scale[V::kGroups];
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      scale[g] = V::mul(V::load(job.q_scale + g * V::kLanes), V::set(Base::kSteps));
      reference[g] = N::set_code(kLowestCode);
    }
    tiles.multiply(keys.begin, products);
    int turn = 0;
    for (std::int64_t key = keys.begin; key < keys.end; key += kTileKeys, turn ^= 1) {
      if (key + kTileKeys < keys.end) tiles.multiply(key + kTileKeys, products + (turn ^ 1) * kProducts);
      encode(job.k_scale + key, products + turn * kProducts, scale,
             codes + (key - keys.begin) / 2 * kStepBytes, reference);
    }
  }

  static inline void encode(const float* k_scale, const std::int32_t* products, const F (&scale)[V::kGroups],
                            std::byte* codes, C (&reference)[V::kGroups]) {
    const F key_scale = V::set(k_scale[0]);  // a block of 64 keys has one
    F step[V::kGroups];
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) step[g] = V::mul(scale[g], key_scale);
    for (int k = 0; k < kTileKeys; k += 4) {
      OCTAVO_UNROLL for (int j = 0; j < 4; j += 2) {
        OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
          const std::int32_t* at = products + (k + j) * kRows + g * V::kLanes;
          const C pair = N::pack(V::to_int(V::mul(V::to_float(V::load_int(at)), step[g])),
                                 V::to_int(V::mul(V::to_float(V::load_int(at + kRows)), step[g])));
          reference[g] = N::best(reference[g], pair);
          N::store_codes(Base::code_at(codes, k + j, g), pair);
        }
      }
    }
  }

  // ---- second product

  OCTAVO_STEP void accumulate(const TileJob& job, const Range& keys, const std::byte* codes,
                              std::byte* weights, std::int32_t* products, const C (&reference)[V::kGroups],
                              const typename N::Constants& constants, RowState<V>& row) {
    const int chunks = static_cast<int>(keys.end - keys.begin) / kDepth;
    const int tiles = job.value_channels / 16;
    const auto* values = static_cast<const std::byte*>(job.v) + keys.begin * job.value_channels;
    const std::ptrdiff_t chunk_values = static_cast<std::ptrdiff_t>(kDepth) * job.value_channels;
    constexpr std::ptrdiff_t kChunkWeights = kDepth / 4 * kStepBytes;

    I sum[V::kGroups];
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) sum[g] = V::set_int(0);
    zero();
    for (int i = 0; i < chunks; ++i) {
      make_weights(codes + i * (kDepth / 2 * kStepBytes), weights + i * kChunkWeights, reference, constants,
                   sum);
      multiply(values + i * chunk_values, weights + i * kChunkWeights, tiles > 1);
    }
    store(products, tiles > 1);
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) Base::add_sum(sum[g], g, row);

    int done = 0;
    for (int c = 2; c < tiles; c += 2) {  // the fold-in reads the sums before the next ones take their place
      const bool pair = c + 1 < tiles;
      zero();
      for (int i = 0; i < chunks; ++i)
        multiply(values + i * chunk_values + c * T::kBytes, weights + i * kChunkWeights, pair);
      fold(products, 2 * kProducts, row, job.out + done * kProducts);
      store(products, pair);
      done = c;
    }
    fold(products, (tiles - done) * kProducts, row, job.out + done * kProducts);
  }

  static inline void make_weights(const std::byte* codes, std::byte* weights,
                                  const C (&reference)[V::kGroups], const typename N::Constants& constants,
                                  I (&sum)[V::kGroups]) {
    for (int k = 0; k < kDepth; k += 4) {
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
        const I weight = N::weights(codes + g * kVectorBytes, kStepBytes, reference[g], constants);
        N::add_weights(sum[g], weight);
        N::store_weights(weights + g * kVectorBytes, weight);
      }
      codes += 2 * kStepBytes;
      weights += kStepBytes;
    }
  }

  static inline void zero() {
    T::template zero<0>();
    T::template zero<1>();
    T::template zero<2>();
    T::template zero<3>();
  }

  /// Sums of two channel tiles (or one) += V^T P^T over 64 keys.
  static inline void multiply(const std::byte* values, const std::byte* weights, bool pair) {
    T::template load<6>(weights, kStepBytes);
    T::template load<7>(weights + kVectorBytes, kStepBytes);
    T::template load<4>(values, T::kRowBytes);
    T::template dot_s8_u8<0, 4, 6>();
    T::template dot_s8_u8<1, 4, 7>();
    if (!pair) return;
    T::template load<5>(values + T::kBytes, T::kRowBytes);
    T::template dot_s8_u8<2, 5, 6>();
    T::template dot_s8_u8<3, 5, 7>();
  }

  static inline void store(std::int32_t* sums, bool pair) {
    T::template store<0>(sums, kStepBytes);
    T::template store<1>(sums + V::kLanes, kStepBytes);
    if (!pair) return;
    T::template store<2>(sums + 16 * kRows, kStepBytes);
    T::template store<3>(sums + 16 * kRows + V::kLanes, kStepBytes);
  }

  static inline void fold(const std::int32_t* sums, int count, const RowState<V>& row, float* o) {
    for (int i = 0; i < count; i += kRows) {
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
        const int at = i + g * V::kLanes;
        const F sum = V::mul(V::to_float(V::load_int(sums + at)), row.beta[g]);
        V::store(o + at, V::fma(V::load(o + at), row.alpha[g], sum));
      }
    }
  }
};

}  // namespace octavo::cpu
