// Second product on tiles: O^T = V^T P^T in bf16, 16 channels by 32 keys times 32 keys by 16 rows. The left
// operand V^T is stored as tiles (tile_pack.hpp), the right one P in pairs of keys as BfloatWeights writes
// it. Two channel tiles by two groups of rows: sums in tiles 0-3, V in 4 and 5, P in 6 and 7.
//
// f16_buffered rounds the sum after every 32 keys, which is one product deep: the sums then go out to memory,
// are rounded by the vector units and come back as the start of the next product, all channels of 32 keys
// before the next 32, so that the products of one pair of channel tiles run while another is rounded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/bfloat_values.hpp"

namespace octavo::cpu {

template <class V>
struct TileValues : BfloatWeights<V> {
  using F = typename V::F;
  using T = typename V::Tiles;
  static constexpr int kRows = V::kLanes * V::kGroups;
  static constexpr int kDepth = 32;                   // keys of one product
  static constexpr int kPairFloats = 2 * 16 * kRows;  // sums of two channel tiles

  static inline void accumulate(const TileJob& job, std::int64_t key0, const float* p, const RowState<V>& row,
                                float* o) {
    if (job.spec.f16_products > 0) return accumulate_f16(job, key0, p, row, o);
    alignas(64) float sums[kPairFloats];
    const int tiles = job.value_channels / 16;
    int done = 0;
    for (int c = 0; c < tiles; c += 2) {  // the fold-in reads the sums before the next ones take their place
      const bool pair = c + 1 < tiles;
      zero();
      for (int k = 0; k < job.key_tile; k += kDepth) multiply(job, key0 + k, p + k / 2 * kRows, c, pair);
      if (c > 0) fold(sums, kPairFloats, row.alpha, row.beta, o + done * 16 * kRows);
      store(sums, pair);
      done = c;
    }
    fold(sums, (tiles - done) * 16 * kRows, row.alpha, row.beta, o + done * 16 * kRows);
  }

 private:
  /// sums of channel tiles c and c + 1 += V^T P^T over 32 keys.
  static inline void multiply(const TileJob& job, std::int64_t key, const float* p, int c, bool pair) {
    constexpr std::ptrdiff_t kPitch = kRows * 4;
    const auto* v = static_cast<const std::byte*>(job.v) + key * job.value_channels * 2 + c * T::kBytes;
    T::template load<6>(p, kPitch);
    T::template load<7>(p + V::kLanes, kPitch);
    T::template load<4>(v, T::kRowBytes);
    T::template dot_bf16<0, 4, 6>();
    T::template dot_bf16<1, 4, 7>();
    if (!pair) return;
    T::template load<5>(v + T::kBytes, T::kRowBytes);
    T::template dot_bf16<2, 5, 6>();
    T::template dot_bf16<3, 5, 7>();
  }

  static inline void zero() {
    T::template zero<0>();
    T::template zero<1>();
    T::template zero<2>();
    T::template zero<3>();
  }

  /// [channels][rows], as O.
  static inline void store(float* sums, bool pair) {
    constexpr std::ptrdiff_t kPitch = kRows * 4;
    T::template store<0>(sums, kPitch);
    T::template store<1>(sums + V::kLanes, kPitch);
    if (!pair) return;
    T::template store<2>(sums + 16 * kRows, kPitch);
    T::template store<3>(sums + 16 * kRows + V::kLanes, kPitch);
  }

  static inline void reload(const float* sums, bool pair) {
    constexpr std::ptrdiff_t kPitch = kRows * 4;
    T::template load<0>(sums, kPitch);
    T::template load<1>(sums + V::kLanes, kPitch);
    if (!pair) return;
    T::template load<2>(sums + 16 * kRows, kPitch);
    T::template load<3>(sums + 16 * kRows + V::kLanes, kPitch);
  }

  /// O = O * alpha + beta * sums.
  static inline void fold(const float* sums, int count, const F (&alpha)[V::kGroups],
                          const F (&beta)[V::kGroups], float* o) {
    for (int i = 0; i < count; i += kRows) {
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
        const int at = i + g * V::kLanes;
        V::store(o + at, V::fma(V::load(o + at), alpha[g], V::mul(V::load(sums + at), beta[g])));
      }
    }
  }

  static inline void round(float* sums, int count) {
    for (int i = 0; i < count; i += kRows) {
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
        float* at = sums + i + g * V::kLanes;
        V::store(at, V::round_to_f16(V::load(at)));
      }
    }
  }

  /// The last 32 keys of a buffer: rounded and folded at once.
  static inline void round_and_fold(const float* sums, int count, const F (&alpha)[V::kGroups],
                                    const F (&beta)[V::kGroups], float* o) {
    for (int i = 0; i < count; i += kRows) {
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
        const int at = i + g * V::kLanes;
        const F sum = V::round_to_f16(V::load(sums + at));
        V::store(o + at, V::fma(V::load(o + at), alpha[g], V::mul(sum, beta[g])));
      }
    }
  }

  static inline void accumulate_f16(const TileJob& job, std::int64_t key0, const float* p,
                                    const RowState<V>& row, float* o) {
    alignas(64) float sums[256 * kRows];  // [channels][rows]
    const int tiles = job.value_channels / 16;
    F alpha[V::kGroups];
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) alpha[g] = row.alpha[g];
    for (int k = 0, in_buffer = 0; k < job.key_tile; k += kDepth) {
      const bool last = ++in_buffer == job.spec.f16_products || k + kDepth == job.key_tile;
      const auto finish = [&](int c) {
        const int count = c + 1 < tiles ? kPairFloats : kPairFloats / 2;
        float* at = sums + c * 16 * kRows;
        if (last) {
          round_and_fold(at, count, alpha, row.beta, o + c * 16 * kRows);
        } else {
          round(at, count);
        }
      };
      for (int c = 0; c < tiles; c += 2) {
        const bool pair = c + 1 < tiles;
        if (in_buffer == 1) {
          zero();
        } else {
          reload(sums + c * 16 * kRows, pair);
        }
        multiply(job, key0 + k, p + k / 2 * kRows, c, pair);
        if (c > 0) finish(c - 2);
        store(sums + c * 16 * kRows, pair);
      }
      finish((tiles - 1) / 2 * 2);
      if (last) {
        OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) alpha[g] = V::set(1.0F);
        in_buffer = 0;
      }
    }
  }
};

}  // namespace octavo::cpu
