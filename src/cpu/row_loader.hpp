// Rows of f32, f16 or bf16 as f32, and the sums and largest magnitudes of their channels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/tile_job.hpp"

namespace octavo::cpu {

/// The loops over a row are templates and lambdas several deep; left to themselves compilers call some of
/// them, with the vectors they share in memory, at half the speed.
#define OCTAVO_INLINE_LAMBDA __attribute__((always_inline))

/// Magnitudes are compared as integers: the bits of |x| order as |x| does, and a NaN is above every number,
/// so one value that is not finite shows in the maximum whatever came before or after it.
template <class V>
struct RowLoader {
  using F = typename V::F;
  using I = typename V::I;
  static constexpr int kColumns =
      4;  // vectors whose sums are in flight together: hides the latency of an addition

  static bool is_finite(float x) { return x - x == 0.0F; }

  OCTAVO_INLINE I magnitude(F x) { return V::bits(V::abs(x)); }

  /// Largest of a vector of magnitudes, NaN above all.
  static float largest(I top) {
    std::int32_t lanes[V::kLanes];
    std::memcpy(lanes, &top, sizeof lanes);
    std::int32_t most = 0;
    for (const std::int32_t lane : lanes) most = lane > most ? lane : most;
    float x;
    std::memcpy(&x, &most, sizeof x);
    return x;
  }

  static inline float add_lanes(F x) {
    float lanes[V::kLanes];
    V::store(lanes, x);
    float sum = 0.0F;
    for (const float lane : lanes) sum += lane;
    return sum;
  }

  static constexpr int kVectors = kChannelBlock / V::kLanes;  // of a block of channels

  /// visit(channel, x) for the blocks of one row, zeros beyond the head dim up to `channels`.
  template <class Visit>
  OCTAVO_INLINE void visit_blocks(const RowSource& source, std::int64_t row, int channels, Visit visit) {
    const std::byte* from = row_at(source, row);
    const int whole = source.channel_stride == 1 ? source.head_dim / kChannelBlock * kChannelBlock : 0;
    with_dtype(source.dtype, [&](auto dtype) OCTAVO_INLINE_LAMBDA {
      constexpr DType kDType = dtype();
      for (int i = 0; i < whole; i += kChannelBlock) {
        F x[kVectors];
        for (int k = 0; k < kVectors; ++k) x[k] = load<kDType>(from, i + k * V::kLanes);
        visit(i, x);
      }
    });
    for (int i = whole; i < channels; i += kChannelBlock) {
      F x[kVectors];
      for (int k = 0; k < kVectors; ++k) x[k] = load_part(source, from, i + k * V::kLanes);
      visit(i, x);
    }
  }

  /// One row as f32.
  static void load_row(const RowSource& source, std::int64_t row, float* to, int channels) {
    visit_blocks(source, row, channels, [to](int i, F(&x)[kVectors]) OCTAVO_INLINE_LAMBDA {
      for (int k = 0; k < kVectors; ++k) V::store(to + i + k * V::kLanes, x[k]);
    });
  }

  /// A running f32 sum and the rounding errors it left behind: together as good as a sum in double.
  struct ExactSum {
    F high = V::zero();
    F low = V::zero();
    inline __attribute__((always_inline)) void add(F x) {
      const F sum = V::add(high, x);
      const F part = V::sub(sum, high);
      low = V::add(low, V::add(V::sub(high, V::sub(sum, part)), V::sub(x, part)));
      high = sum;
    }
  };

  /// high + low [channels] = sums of `count` rows.
  static void sum_rows(const RowSource& source, std::int64_t count, float* high, float* low, int channels) {
    over_columns(source, channels, [&](auto load_at, int i, auto vectors) OCTAVO_INLINE_LAMBDA {
      ExactSum sum[vectors()];
      for (std::int64_t n = 0; n < count; ++n) {
        const std::byte* from = row_at(source, n);
        for (int c = 0; c < vectors(); ++c) sum[c].add(load_at(from, i + c * V::kLanes));
      }
      for (int c = 0; c < vectors(); ++c) {
        V::store(high + i + c * V::kLanes, sum[c].high);
        V::store(low + i + c * V::kLanes, sum[c].low);
      }
    });
  }

  /// top[channels] = largest |x - mean| of `count` rows; NaN or inf when a value of the channel is.
  static void absmax_rows(const RowSource& source, std::int64_t count, const float* mean, float* top,
                          int channels) {
    over_columns(source, channels, [&](auto load_at, int i, auto vectors) OCTAVO_INLINE_LAMBDA {
      I most[vectors()];
      F centre[vectors()];
      for (int c = 0; c < vectors(); ++c) {
        most[c] = V::set_int(0);
        centre[c] = V::load(mean + i + c * V::kLanes);
      }
      for (std::int64_t n = 0; n < count; ++n) {
        const std::byte* from = row_at(source, n);
        for (int c = 0; c < vectors(); ++c) {
          most[c] = V::max_int(magnitude(V::sub(load_at(from, i + c * V::kLanes), centre[c])), most[c]);
        }
      }
      for (int c = 0; c < vectors(); ++c) V::store(top + i + c * V::kLanes, V::from_bits(most[c]));
    });
  }

 private:
  template <DType kDType>
  struct Constant {
    constexpr DType operator()() const { return kDType; }
  };
  template <int kCount>
  struct Count {
    constexpr int operator()() const { return kCount; }
  };

  template <class Body>
  OCTAVO_INLINE void with_dtype(DType dtype, Body body) {
    if (dtype == DType::f32) return body(Constant<DType::f32>{});
    if (dtype == DType::f16) return body(Constant<DType::f16>{});
    return body(Constant<DType::bf16>{});
  }

  static std::int64_t size_of_element(const RowSource& source) { return source.dtype == DType::f32 ? 4 : 2; }
  static inline const std::byte* row_at(const RowSource& source, std::int64_t row) {
    return static_cast<const std::byte*>(source.data) + row * source.token_stride * size_of_element(source);
  }
  /// Channels that whole vectors can load.
  static int whole_vectors(const RowSource& source) {
    return source.channel_stride == 1 ? source.head_dim / V::kLanes * V::kLanes : 0;
  }

  template <DType kDType>
  OCTAVO_INLINE F load(const std::byte* row, int channel) {
    if constexpr (kDType == DType::f32) return V::load(reinterpret_cast<const float*>(row) + channel);
    if constexpr (kDType == DType::f16) return V::load_f16(row + channel * 2);
    if constexpr (kDType == DType::bf16) return V::load_bf16(row + channel * 2);
  }

  /// A vector at a tail or of strided channels, zeros behind the last channel: gathered, then loaded.
  /// A function of its own, so that the loops that never come here keep their registers.
  __attribute__((noinline)) static F load_part(const RowSource& source, const std::byte* row, int channel) {
    if (channel >= source.head_dim) return V::zero();
    const std::int64_t size = size_of_element(source);
    const int rest = source.head_dim - channel;
    alignas(64) std::byte packed[V::kLanes * 4] = {};
    for (int j = 0; j < (rest < V::kLanes ? rest : V::kLanes); ++j) {
      std::memcpy(packed + j * size, row + (channel + j) * source.channel_stride * size,
                  static_cast<std::size_t>(size));
    }
    F x = V::zero();
    with_dtype(source.dtype, [&](auto dtype) OCTAVO_INLINE_LAMBDA { x = load<dtype()>(packed, 0); });
    return x;
  }

  /// body(load_at(row, channel), channel, vectors) for all channels, several vectors at once where the source
  /// allows.
  template <class Body>
  OCTAVO_INLINE void over_columns(const RowSource& source, int channels, Body body) {
    const int whole = whole_vectors(source);
    int i = 0;
    with_dtype(source.dtype, [&](auto dtype) OCTAVO_INLINE_LAMBDA {
      constexpr DType kDType = dtype();
      const auto load_at = [](const std::byte* row, int channel)
                               OCTAVO_INLINE_LAMBDA { return load<kDType>(row, channel); };
      for (; i + kColumns * V::kLanes <= whole; i += kColumns * V::kLanes)
        body(load_at, i, Count<kColumns>{});
      for (; i < whole; i += V::kLanes) body(load_at, i, Count<1>{});
    });
    const auto load_at = [&source](const std::byte* row, int channel) {
      return load_part(source, row, channel);
    };
    for (; i < channels; i += V::kLanes) body(load_at, i, Count<1>{});
  }
};

}  // namespace octavo::cpu
