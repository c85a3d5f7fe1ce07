// Operands of tile products, from what the quantizers of the other tiers write.
//
//   Q, K of the float family   values on the e4m3 or bf16 grid, exact in bf16; rewritten in place from f32:
//                              Q [channels / 2][row][2], K rows of `bfloat_channels`, blocks of 64 keys where
//                              they were
//   V in bf16                  [key / 32][channel / 16] tiles of 16 channels by 32 keys
//   V in s8                    [key / 64][channel / 16] tiles of 16 channels by 64 keys
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/amx/tile_scores.hpp"
#include "cpu/bfloat_values.hpp"
#include "cpu/quantize.hpp"

namespace octavo::cpu {

template <class V>
struct TilePacking {
  static constexpr int kRows = V::kLanes * V::kGroups;
  static constexpr int kTileChannels = 16;

  static bool quantize_queries(const BlockJob& job) {
    const bool finite = Quantizer<V>::quantize_queries(job);
    if (is_integer(job.spec.format)) return finite;
    auto* tile = static_cast<std::byte*>(job.payload);
    for (int n = 0; n < job.padded; n += kRows) {
      pair_channels(tile, job.spec.channels);
      tile += static_cast<std::ptrdiff_t>(job.spec.channels) * kRows * 4;
    }
    return finite;
  }

  static bool quantize_keys(const BlockJob& job) {
    const bool finite = Quantizer<V>::quantize_keys(job);
    if (is_integer(job.spec.format)) return finite;
    const int channels = job.spec.channels;
    const int padded = bfloat_channels(channels);
    auto* to = static_cast<std::uint16_t*>(job.payload);
    for (int n = 0; n < job.padded; ++n, to += padded) {  // to is never ahead of the row that is read
      const auto* row = static_cast<const float*>(job.payload) + static_cast<std::ptrdiff_t>(n) * channels;
      for (int c = 0; c < channels; ++c) to[c] = upper_half(load_word(row + c));
      for (int c = channels; c < padded; ++c) to[c] = 0;
    }
    return finite;
  }

  static bool quantize_bfloat_values(const ValueJob& job) {
    auto* tiles = static_cast<std::uint16_t*>(job.payload);
    const int channels = job.spec.channels;
    return Quantizer<V>::quantize_values(job, [&](std::int64_t n, const float* row) {
      std::uint16_t* to = tiles + n / 32 * 32 * channels + n % 32;
      for (int c = 0; c < channels; ++c) to[c * 32] = upper_half(bfloat_word(row[c]));
    });
  }

  static bool quantize_s8_values(const ValueJob& job) {
    auto* tiles = static_cast<std::int8_t*>(job.payload);
    const int channels = job.spec.channels;
    return Quantizer<V>::quantize_values(job, [&](std::int64_t n, const float* row) {
      std::int8_t* to = tiles + n / 64 * 64 * channels + n % 64;
      for (int c = 0; c < channels; ++c) to[c * 64] = static_cast<std::int8_t>(row[c]);
    });
  }

 private:
  static bool is_integer(Format format) { return format == Format::int8 || format == Format::int4; }

  static std::uint32_t load_word(const float* at) {  // may have been overwritten as u16: no float access
    std::uint32_t word;
    std::memcpy(&word, at, sizeof word);
    return word;
  }
  static std::uint16_t upper_half(std::uint32_t word) { return static_cast<std::uint16_t>(word >> 16); }

  /// One query tile, f32 [channels][rows] to bf16 [channels / 2][rows][2], zeros up to bfloat_channels.
  static void pair_channels(std::byte* tile, int channels) {
    constexpr std::ptrdiff_t kBytes = kRows * 4;
    for (int c = 0; c < channels; c += 2) {
      OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
        const std::byte* from = tile + c * kBytes + g * V::kLanes * 4;
        const auto even = V::load_int(reinterpret_cast<const std::int32_t*>(from));
        const auto odd = V::load_int(reinterpret_cast<const std::int32_t*>(from + kBytes));
        V::store(reinterpret_cast<float*>(tile + c / 2 * kBytes + g * V::kLanes * 4),
                 V::from_bits(V::add_int(V::template shift_right<16>(even), odd)));
      }
    }
    const std::ptrdiff_t used = channels / 2 * kBytes;
    std::memset(tile + used, 0, static_cast<std::size_t>(bfloat_channels(channels) / 2 * kBytes - used));
  }
};

}  // namespace octavo::cpu
