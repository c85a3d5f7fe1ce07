// cpu8 on tiles: the steps of attend_cpu8.hpp with both products on the tile unit, same codes and weights to
// the bit. Masks, row maxima, the f32 path and the update are that file's own.
//
// What can overlap decides the order. While tile products are in flight, 512-bit floating point issues once a
// cycle instead of twice, integers keep both; so products run beside the weights, which are integer work, and
// not beside the conversion of sums to codes. Cycles per score at head dim 64:
//   weights_and_scores  weights of this key tile 0.14, with K Q^T of the next tile and its stores (0.11) in
//   their
//                       shadow; every 64 keys the sums of the next tile become codes, 0.13, in the place of
//                       the codes that were just used
//   accumulate          V^T P^T 0.08, two channel tiles ahead of the fold-in, 0.03
// L1 at 256 keys: codes 16 KB, weights 8 KB, products 8 KB, O 8 KB; K and V stream through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

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
  static constexpr std::ptrdiff_t kChunkWeights = kDepth / 4 * kStepBytes;

  static void run(const TileJob& job) {
    std::byte* codes = job.scratch;
    std::byte* weights = codes + static_cast<std::ptrdiff_t>(job.key_tile) * kRows * 2;
    auto* wide = reinterpret_cast<float*>(codes + static_cast<std::ptrdiff_t>(job.key_tile) * kRows * 4);
    auto* products =
        reinterpret_cast<std::int32_t*>(wide);  // the f32 scores are done with when products come
    RowState<V> row;
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      row.m[g] = V::set(-__builtin_inff());
      row.l[g] = V::zero();
    }
    for (int i = 0; i < job.value_channels * kRows; i += V::kLanes) V::store(job.out + i, V::zero());

    const Range seen = Base::seen_keys(job);
    const std::int64_t count = job.tile_end - job.tile_begin;
    const auto keys_of = [&](std::int64_t i) {
      if (i >= count) return Range{};
      return cut((job.spec.reverse ? job.tile_end - 1 - i : job.tile_begin + i) * job.key_tile, job.key_tile,
                 seen);
    };
    bool narrow = job.key_term == nullptr && job.addend == nullptr && Base::codes_fit_32_bits(job);
    C reference[V::kGroups];
    C ahead[V::kGroups];  // best codes of the tile whose scores are already there
    if (narrow) weights_and_scores(job, {}, keys_of(0), codes, weights, products, reference, ahead, row);
    for (std::int64_t i = 0; i < count; ++i) {
      const Range keys = keys_of(i);
      const bool masked = keys.begin < job.full_begin || keys.end > job.full_end;
      F top[V::kGroups];
      if (narrow) {
        OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) reference[g] = ahead[g];
        if (masked) Base::hide_keys(job, keys, codes, reference);
        narrow = Base::row_maxima(job, keys, masked, reference, top);
      }
      if (!narrow) Base::wide_scores(job, keys, masked, wide, codes, reference, top, row);
      Base::update_max(top, row);
      weights_and_scores(job, keys, narrow ? keys_of(i + 1) : Range{}, codes, weights, products, reference,
                         ahead, row);
      accumulate(job, keys, weights, products, row);
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

  static int chunks_of(const Range& keys) { return static_cast<int>(keys.end - keys.begin) / kDepth; }

  // ---- softmax, and the first product of the next tile

  OCTAVO_STEP void weights_and_scores(const TileJob& job, const Range& keys, const Range& next,
                                      std::byte* codes, std::byte* weights, std::int32_t* products,
                                      const C (&reference)[V::kGroups], C (&ahead)[V::kGroups],
                                      RowState<V>& row) {
    const typename N::Constants constants;
    TileProducts<V, false> tiles(job);
    F scale[V::kGroups];
    C top[V::kGroups];
    C best[V::kGroups];
    I sum[V::kGroups];
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      scale[g] = V::mul(V::load(job.q_scale + g * V::kLanes), V::set(Base::kSteps));
      top[g] = reference[g];
      best[g] = N::set_code(kLowestCode);
      sum[g] = V::set_int(0);
    }
    // Steps of 16 keys: the sums of a step are stored behind the weights of 16 keys, when they are there.
    // Stores that wait would fill the scheduler.
    const auto chunk = [&](int i, auto has_weights, auto has_scores) {
      constexpr bool kWeights = decltype(has_weights)::value;
      constexpr bool kScores = decltype(has_scores)::value;
      std::byte* c = codes + i * (kDepth / 2 * kStepBytes);
      std::byte* w = weights + i * kChunkWeights;
      const std::int64_t key = next.begin + i * kDepth;
      if constexpr (kScores) tiles.template begin<0>(key);
      if constexpr (kWeights) make_weights<0>(c, w, top, constants, sum);
      if constexpr (kScores) tiles.template end<0>(products);
      if constexpr (kScores) tiles.template begin<1>(key + 16);
      if constexpr (kWeights) make_weights<1>(c, w, top, constants, sum);
      if constexpr (kScores) tiles.template end<1>(products + kProducts);
      if constexpr (kScores) tiles.template begin<0>(key + 32);
      if constexpr (kWeights) make_weights<2>(c, w, top, constants, sum);
      if constexpr (kScores) tiles.template end<0>(products + 2 * kProducts);
      if constexpr (kScores) tiles.template begin<1>(key + 48);
      if constexpr (kWeights) make_weights<3>(c, w, top, constants, sum);
      if constexpr (kScores) tiles.template end<1>(products + 3 * kProducts);
      if constexpr (kScores) encode(job.k_scale + key, products, scale, c, best);
    };
    const int now = chunks_of(keys);
    const int later = chunks_of(next);
    int i = 0;
    for (; i < now && i < later; ++i) chunk(i, std::true_type{}, std::true_type{});
    for (; i < now; ++i) chunk(i, std::true_type{}, std::false_type{});
    for (; i < later; ++i) chunk(i, std::false_type{}, std::true_type{});
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
      ahead[g] = best[g];
      if (now > 0) Base::add_sum(sum[g], g, row);
    }
  }

  /// Codes of 64 keys from their products.
  static inline void encode(const float* k_scale, const std::int32_t* products, const F (&scale)[V::kGroups],
                            std::byte* codes, C (&best)[V::kGroups]) {
    const F key_scale = V::set(k_scale[0]);  // a block of 64 keys has one
    F step[V::kGroups];
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) step[g] = V::mul(scale[g], key_scale);
    for (int k = 0; k < kDepth; k += 4) {
      OCTAVO_UNROLL for (int j = 0; j < 4; j += 2) {
        OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
          const std::int32_t* at = products + (k + j) * kRows + g * V::kLanes;
          const C pair = N::pack(V::to_int(V::mul(V::to_float(V::load_int(at)), step[g])),
                                 V::to_int(V::mul(V::to_float(V::load_int(at + kRows)), step[g])));
          best[g] = N::best(best[g], pair);
          N::store_codes(Base::code_at(codes, k + j, g), pair);
        }
      }
    }
  }

  /// Weights of the kQuarter-th 16 keys of a chunk.
  template <int kQuarter>
  static inline void make_weights(const std::byte* codes, std::byte* weights, const C (&top)[V::kGroups],
                                  const typename N::Constants& constants, I (&sum)[V::kGroups]) {
    codes += kQuarter * (kDepth / 8 * kStepBytes);
    weights += kQuarter * (kChunkWeights / 4);
    for (int k = 0; k < kDepth / 4; k += 4) {
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
        const I weight = N::weights(codes + g * kVectorBytes, kStepBytes, top[g], constants);
        N::add_weights(sum[g], weight);
        N::store_weights(weights + g * kVectorBytes, weight);
      }
      codes += 2 * kStepBytes;
      weights += kStepBytes;
    }
  }

  // ---- second product

  OCTAVO_STEP void accumulate(const TileJob& job, const Range& keys, const std::byte* weights,
                              std::int32_t* products, const RowState<V>& row) {
    const int chunks = chunks_of(keys);
    const int tiles = job.value_channels / 16;
    const auto* values = static_cast<const std::byte*>(job.v) + keys.begin * job.value_channels;
    const std::ptrdiff_t chunk_values = static_cast<std::ptrdiff_t>(kDepth) * job.value_channels;
    int done = 0;
    for (int c = 0; c < tiles; c += 2) {  // the fold-in reads the sums before the next ones take their place
      const bool pair = c + 1 < tiles;
      zero();
      for (int i = 0; i < chunks; ++i)
        multiply(values + i * chunk_values + c * T::kBytes, weights + i * kChunkWeights, pair);
      if (c > 0) fold(products, 2 * kProducts, row, job.out + done * kProducts);
      store(products, pair);
      done = c;
    }
    fold(products, (tiles - done) * kProducts, row, job.out + done * kProducts);
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
