// Second product on bf16 pairs: weights and values of the e4m3 and bf16 grids are exact in bf16, so nothing
// is rounded that FloatValues would not round. Rung above FloatValues: half the bytes, and vdpbf16ps does two
// keys a step.
//
// Weights: [key / 2][row][2], two keys of a row in a 32-bit lane. The same array is the B operand of a tile
// product (amx/tile_values.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/attend.hpp"

namespace octavo::cpu {

/// A bf16 as the upper half of an f32 whose lower half is zero.
static inline std::uint32_t bfloat_word(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

/// Weights in pairs: the even key of a pair comes first and takes the lower half of the lane.
template <class V>
struct BfloatWeights {
  using F = typename V::F;

  static inline void store_weights(float* p, std::int64_t key, int group, F weight) {
    float* at = p + key / 2 * (V::kLanes * V::kGroups) + group * V::kLanes;
    if (key % 2 == 0) {
      V::store(at, V::from_bits(V::template shift_right<16>(V::bits(weight))));
    } else {
      V::store(at, V::from_bits(V::add_int(V::bits(V::load(at)), V::bits(weight))));
    }
  }
};

template <class V>
struct BfloatValues : BfloatWeights<V> {
  using F = typename V::F;

  /// V of key n to pairs [n / 2][channels][2]. Rows come in order.
  static inline void store_values(void* payload, std::int64_t n, const float* row, int channels) {
    auto* to = static_cast<std::uint32_t*>(payload) + n / 2 * channels;
    if (n % 2 == 0) {
      for (int i = 0; i < channels; ++i) to[i] = bfloat_word(row[i]) >> 16;
    } else {
      for (int i = 0; i < channels; ++i) to[i] |= bfloat_word(row[i]);
    }
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
  /// O = O * alpha + beta * sum over keys [begin, end) of the tile; multiples of 32.
  static inline void accumulate_chunk(const TileJob& job, std::int64_t key0, int begin, int end,
                                      const float* p, const F (&alpha)[V::kGroups],
                                      const F (&beta)[V::kGroups], float* o) {
    constexpr int kRows = V::kLanes * V::kGroups;
    const std::ptrdiff_t pitch = job.value_channels;
    const auto* values = static_cast<const float*>(job.v) + key0 / 2 * pitch;  // pairs
    const bool f16 = job.spec.f16_products > 0;
    for (int d = 0; d < job.value_channels; d += V::kChannelUnroll) {
      F acc[V::kChannelUnroll][V::kGroups];
      OCTAVO_UNROLL for (int j = 0; j < V::kChannelUnroll; ++j) {
        OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) acc[j][g] = V::zero();
      }
      for (int k = begin / 2; k < end / 2;) {
        int stop = f16 ? k + 16 : end / 2;
        asm("" : "+r"(stop));  // a known trip count makes GCC 12 spill the accumulators
        for (; k < stop; ++k) {
          F weight[V::kGroups];
          OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) weight[g] =
              V::load_float_operand(p + k * kRows + g * V::kLanes);
          OCTAVO_UNROLL for (int j = 0; j < V::kChannelUnroll; ++j) {
            const F value = V::broadcast_float(values + k * pitch + d + j);
            OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) V::dot_pairs(acc[j][g], weight[g], value);
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

}  // namespace octavo::cpu
