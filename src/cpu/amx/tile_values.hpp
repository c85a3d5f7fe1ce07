// Second product on tiles: O^T = V^T P^T in bf16, 16 channels by 32 keys times 32 keys by 32 rows. The left
// operand V^T is stored as tiles (tile_pack.hpp), the right one P in pairs of keys as BfloatWeights writes
// it.
//
// f32 sums: two channel tiles by two groups of rows at a time over the whole key tile, one load a product;
// the sums leave the tiles once and are folded into O while the next ones are made.
//
// f16_buffered rounds the sum after every 32 keys, which is one product deep. A product that started from the
// rounded sum would wait for it (out of the tile, through the vector units, back in); instead every product
// starts from zero and the vector units do x = f16(x + product). So products are independent, and three are
// in flight: one is issued, the one before is stored, the one before that is added (two sets of sums,
// tile_scores.hpp).
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
  static constexpr int kTileSums = T::kRows * kRows;  // of one channel tile, [channels][rows]

  static inline void accumulate(const TileJob& job, std::int64_t key0, const float* p, const RowState<V>& row,
                                float* o) {
    if (job.spec.f16_products > 0) {
      accumulate_f16(job, key0, p, row, o);
    } else {
      accumulate_f32(job, key0, p, row, o);
    }
  }

 private:
  static constexpr std::ptrdiff_t kPitch = kRows * 4;

  static const std::byte* values_at(const TileJob& job, std::int64_t key, int channel_tile) {
    return static_cast<const std::byte*>(job.v) + key * job.value_channels * 2 + channel_tile * T::kBytes;
  }

  template <int kFirst>
  static inline void zero() {
    T::template zero<kFirst>();
    T::template zero<kFirst + 1>();
  }

  /// Two sums, one channel tile.
  template <int kFirst>
  static inline void store(float* sums) {
    T::template store<kFirst>(sums, kPitch);
    T::template store<kFirst + 1>(sums + V::kLanes, kPitch);
  }

  static inline void load_weights(const float* p, int key) {
    T::template load<6>(p + key / 2 * kRows, kPitch);
    T::template load<7>(p + key / 2 * kRows + V::kLanes, kPitch);
  }

  /// Sums kFirst and kFirst + 1 += V^T P^T over 32 keys.
  template <int kFirst, int kLeft>
  static inline void multiply(const std::byte* values) {
    T::template load<kLeft>(values, T::kRowBytes);
    T::template dot_bf16<kFirst, kLeft, 6>();
    T::template dot_bf16<kFirst + 1, kLeft, 7>();
  }

  // ---- f32 sums

  static inline void accumulate_f32(const TileJob& job, std::int64_t key0, const float* p,
                                    const RowState<V>& row, float* o) {
    alignas(64) float sums[2 * kTileSums];
    const int tiles = job.value_channels / T::kRows;
    int done = 0;
    for (int c = 0; c < tiles; c += 2) {  // the fold-in reads the sums before the next ones take their place
      const bool pair = c + 1 < tiles;
      zero<0>();
      zero<2>();
      for (int k = 0; k < job.key_tile; k += kDepth) {
        load_weights(p, k);
        multiply<0, 4>(values_at(job, key0 + k, c));
        if (pair) multiply<2, 5>(values_at(job, key0 + k, c + 1));
      }
      if (c > 0) fold(sums, 2 * kTileSums, row, o + done * kTileSums);
      store<0>(sums);
      if (pair) store<2>(sums + kTileSums);
      done = c;
    }
    fold(sums, (tiles - done) * kTileSums, row, o + done * kTileSums);
  }

  /// O = O * alpha + beta * sums.
  static inline void fold(const float* sums, int count, const RowState<V>& row, float* o) {
    for (int i = 0; i < count; i += kRows) {
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
        const int at = i + g * V::kLanes;
        V::store(o + at, V::fma(V::load(o + at), row.alpha[g], V::mul(V::load(sums + at), row.beta[g])));
      }
    }
  }

  // ---- f16 sums, added up in f32

  /// One product: all channels of 32 keys in turn, then the next 32 keys.
  struct Unit {
    int k = 0;  ///< first key, within the key tile
    int c = 0;  ///< channel tile
    void advance(int tiles) {
      if (++c < tiles) return;
      c = 0;
      k += kDepth;
    }
  };

  static inline void accumulate_f16(const TileJob& job, std::int64_t key0, const float* p,
                                    const RowState<V>& row, float* o) {
    alignas(64) float product[2][kTileSums];
    alignas(64) float running[256 * kRows];  // f16 sums of the buffers, [channels][rows]
    const int tiles = job.value_channels / T::kRows;
    const int units = job.key_tile / kDepth * tiles;
    Unit issued;
    Unit added;
    for (int u = 0; u < units + 2; ++u) {
      const bool even = u % 2 == 0;
      if (u < units) {
        if (issued.c == 0) load_weights(p, issued.k);
        const std::byte* values = values_at(job, key0 + issued.k, issued.c);
        if (even) {
          zero<0>();
          multiply<0, 4>(values);
        } else {
          zero<2>();
          multiply<2, 5>(values);
        }
        issued.advance(tiles);
      }
      if (u >= 2) {
        const int at = added.c * kTileSums;
        add_f16(job, added.k, product[u % 2], row, running + at, o + at);
        added.advance(tiles);
      }
      if (u >= 1 && u <= units) {
        if (even) {
          store<2>(product[1]);
        } else {
          store<0>(product[0]);
        }
      }
    }
  }

  /// running = f16(running + product); at the end of a buffer O = O * alpha + beta * running, alpha only with
  /// the first buffer of the key tile.
  static inline void add_f16(const TileJob& job, int key, const float* product, const RowState<V>& row,
                             float* running, float* o) {
    const int buffer = kDepth * job.spec.f16_products;
    const bool first = key % buffer == 0;
    const bool last = (key + kDepth) % buffer == 0 || key + kDepth == job.key_tile;
    F alpha[V::kGroups];
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) alpha[g] = key < buffer ? row.alpha[g] : V::set(1.0F);
    for (int i = 0; i < kTileSums; i += kRows) {
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
        const int at = i + g * V::kLanes;
        F sum = V::load(product + at);
        if (!first) sum = V::add(sum, V::load(running + at));
        sum = V::round_to_f16(sum);
        if (last) {
          V::store(o + at, V::fma(V::load(o + at), alpha[g], V::mul(sum, row.beta[g])));
        } else {
          V::store(running + at, sum);
        }
      }
    }
  }
};

}  // namespace octavo::cpu
