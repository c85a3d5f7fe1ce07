// Quantizers of every tier: rows of f32, f16 or bf16 to integers or grid values, packed as the tier's
// products want them.
//
// O(N D) beside attention's O(N^2 D), but at short N they show, so they are vector code too. Order of
// docs/numerics.md: subtract means, rotate, quantize, all in f32. Non-finite values are found on the way, by
// the largest magnitude being no finite number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/isa/grids.hpp"
#include "cpu/tile_job.hpp"
#include "numerics/hadamard.hpp"

namespace octavo::cpu {

inline constexpr float kZeroAbsmax =
    0x1p-100F;  // smaller groups count as zero: delta 1, payload 0 (numerics::group_delta)
inline constexpr int kQueryBlock = 128;

template <class V>
struct Quantizer {
  using F = typename V::F;
  using I = typename V::I;

  static float absmax_to_delta(float absmax, float range) {
    return absmax < kZeroAbsmax ? 1.0F : absmax / range;
  }

  /// One row as f32, zeros up to `channels`.
  static void load_row(const RowSource& source, std::int64_t row, float* to, int channels) {
    const int d = source.head_dim;
    const std::size_t size = source.dtype == DType::f32 ? 4 : 2;
    const auto* from = static_cast<const std::byte*>(source.data) +
                       row * source.token_stride * static_cast<std::int64_t>(size);
    int i = 0;
    if (source.channel_stride == 1) {
      for (; i + V::kLanes <= d; i += V::kLanes)
        V::store(to + i, load_vector(source.dtype, from + static_cast<std::size_t>(i) * size));
    }
    if (i < d) {  // a tail, or strided channels: gather into a vector's worth of bytes
      alignas(64) std::byte packed[4 * 16];
      for (; i < d; i += V::kLanes) {
        const int n = d - i < V::kLanes ? d - i : V::kLanes;
        std::memset(packed, 0, sizeof packed);
        for (int j = 0; j < n; ++j) {
          std::memcpy(packed + static_cast<std::size_t>(j) * size,
                      from + (i + j) * source.channel_stride * static_cast<std::int64_t>(size), size);
        }
        V::store(to + i, load_vector(source.dtype, packed));
      }
      i = (d + V::kLanes - 1) / V::kLanes * V::kLanes;
    }
    for (; i < channels; i += V::kLanes) V::store(to + i, V::zero());
  }

  /// Sums of `count` rows from `begin` on: sums[channels] += rows. f32 within 256 rows, then added up by the
  /// caller.
  static void add_rows(const RowSource& source, std::int64_t begin, std::int64_t count, float* scratch,
                       float* sums, int channels) {
    for (std::int64_t n = 0; n < count; ++n) {
      load_row(source, begin + n, scratch, channels);
      for (int i = 0; i < channels; i += V::kLanes)
        V::store(sums + i, V::add(V::load(sums + i), V::load(scratch + i)));
    }
  }

  /// Largest |x| of a block after clamping, smoothing and rotation; inf or NaN when a value is not finite.
  static float block_absmax(const BlockJob& job) {
    float rows[kQueryBlock];
    if (!prepare(job)) return __builtin_inff();
    row_absmax(job, rows);
    float top = 0.0F;
    for (int n = 0; n < job.count; ++n) top = rows[n] > top ? rows[n] : top;
    return top;
  }

  /// Quantizes a block of query rows into tiles of kLanes * kGroups rows: [channels /
  /// kPack][group][lane][kPack]. False: a value is not finite (the block is written all the same).
  static bool quantize_queries(const BlockJob& job) {
    const bool finite = quantize(job);
    constexpr int kRows = V::kLanes * V::kGroups;
    const bool integers = job.spec.format == Format::int8 || job.spec.format == Format::int4;
    const std::ptrdiff_t tile_elements = static_cast<std::ptrdiff_t>(job.spec.channels) * kRows;
    for (int n = 0; n < job.padded; ++n) {
      const float* row = job.scratch + static_cast<std::ptrdiff_t>(n) * job.spec.channels;
      const int tile = n / kRows;
      const int group = n % kRows / V::kLanes;
      const int lane = n % V::kLanes;
      if (integers) {
        auto* to = static_cast<typename V::QueryElement*>(job.payload) + tile * tile_elements +
                   (group * V::kLanes + lane) * V::kPack;
        std::int32_t sum = 0;
        for (int c = 0; c < job.spec.channels; c += V::kPack) {
          for (int j = 0; j < V::kPack; ++j) {
            const auto x = static_cast<std::int32_t>(row[c + j]);
            to[j] = static_cast<typename V::QueryElement>(x);
            sum += x;
          }
          to += static_cast<std::ptrdiff_t>(kRows) * V::kPack;
        }
        if (job.sum != nullptr) job.sum[n] = sum;
      } else {
        float* to = static_cast<float*>(job.payload) + tile * tile_elements + group * V::kLanes + lane;
        for (int c = 0; c < job.spec.channels; ++c) to[static_cast<std::ptrdiff_t>(c) * kRows] = row[c];
      }
    }
    return finite;
  }

  /// Quantizes a block of keys into rows.
  static bool quantize_keys(const BlockJob& job) {
    const bool finite = quantize(job);
    const bool integers = job.spec.format == Format::int8 || job.spec.format == Format::int4;
    const std::ptrdiff_t elements = static_cast<std::ptrdiff_t>(job.padded) * job.spec.channels;
    if (integers) {
      auto* to = static_cast<typename V::KeyElement*>(job.payload);
      for (std::ptrdiff_t i = 0; i < elements; ++i)
        to[i] =
            static_cast<typename V::KeyElement>(static_cast<std::int32_t>(job.scratch[i]) + V::kKeyOffset);
    } else {
      std::memcpy(job.payload, job.scratch, static_cast<std::size_t>(elements) * sizeof(float));
    }
    return finite;
  }

  /// V to rows of f32 grid values [padded][channels], which Values then packs. Means and deltas first.
  template <class Pack>
  static bool quantize_values(const ValueJob& job, Pack pack) {
    const int channels = job.spec.channels;
    float* row = job.scratch;
    float* top = job.scratch + kQueryBlock * 2;
    for (int i = 0; i < channels; ++i) job.mean[i] = 0.0F;
    for (int i = 0; i < channels; i += V::kLanes) V::store(top + i, V::zero());
    if (job.spec.smooth && job.count > 0)
      mean_of(job.source, job.count, row, job.scratch + kQueryBlock * 4, job.mean, channels);
    for (std::int64_t n = 0; n < job.count; ++n) {
      load_row(job.source, n, row, channels);
      for (int i = 0; i < channels; i += V::kLanes) {
        V::store(top + i, larger(V::abs(V::sub(V::load(row + i), V::load(job.mean + i))), V::load(top + i)));
      }
    }
    bool finite = true;
    float head_top = 0.0F;
    for (int i = 0; i < channels; ++i) {
      finite = finite && is_finite(top[i]);
      head_top = top[i] > head_top ? top[i] : head_top;
    }
    const bool scaled = job.spec.scale != ValueScale::none;
    for (int i = 0; i < channels; ++i) {
      job.delta[i] =
          !scaled ? 1.0F
                  : absmax_to_delta(job.spec.scale == ValueScale::per_head ? head_top : top[i], job.divisor);
    }
    for (std::int64_t n = 0; n < job.padded; ++n) {
      if (n < job.count) {
        load_row(job.source, n, row, channels);
        for (int i = 0; i < channels; i += V::kLanes) {
          const F x = V::sub(V::load(row + i), V::load(job.mean + i));
          V::store(row + i, to_grid(job.spec.format, job.spec.range, x, V::load(job.delta + i)));
        }
      } else {
        for (int i = 0; i < channels; i += V::kLanes) V::store(row + i, V::zero());
      }
      pack(n, row);
    }
    return finite;
  }

  /// Means of `count` rows: f32 sums of 256 rows, added up in double so that long sequences lose nothing.
  static void mean_of(const RowSource& source, std::int64_t count, float* row, float* partial, float* mean,
                      int channels) {
    double sums[256] = {};
    for (std::int64_t begin = 0; begin < count; begin += 256) {
      for (int i = 0; i < channels; i += V::kLanes) V::store(partial + i, V::zero());
      add_rows(source, begin, count - begin < 256 ? count - begin : 256, row, partial, channels);
      for (int i = 0; i < channels; ++i) sums[i] += static_cast<double>(partial[i]);
    }
    for (int i = 0; i < channels; ++i) mean[i] = static_cast<float>(sums[i] / static_cast<double>(count));
  }

  /// term[n] = factor * (mean . centred[n]): smooth_q's second term for one block of query rows.
  static void key_terms(const float* mean, const float* centred, std::int64_t keys, int channels,
                        float factor, float* term) {
    for (std::int64_t n = 0; n < keys; ++n) {
      F sum = V::zero();
      for (int i = 0; i < channels; i += V::kLanes)
        sum = V::fma(V::load(mean + i), V::load(centred + n * channels + i), sum);
      term[n] = factor * add_lanes(sum);
    }
  }

 private:
  static inline F load_vector(DType dtype, const std::byte* from) {
    if (dtype == DType::f32) {
      float lanes[V::kLanes];
      std::memcpy(lanes, from, sizeof lanes);
      return V::load(lanes);
    }
    return dtype == DType::f16 ? V::load_f16(from) : V::load_bf16(from);
  }

  static inline float add_lanes(F x) {
    float lanes[V::kLanes];
    V::store(lanes, x);
    float sum = 0.0F;
    for (const float lane : lanes) sum += lane;
    return sum;
  }

  static bool is_finite(float x) { return x - x == 0.0F; }
  /// max that keeps a NaN of x: V::max returns its second operand when either is NaN.
  static inline F larger(F x, F top) { return V::max(top, x); }

  /// Loads the block into scratch and clamps, smooths and rotates it. False when a value is not finite.
  static bool prepare(const BlockJob& job) {
    const int channels = job.spec.channels;
    F top = V::zero();
    for (int n = 0; n < job.count; ++n) {
      float* row = job.scratch + static_cast<std::ptrdiff_t>(n) * channels;
      load_row(job.source, job.begin + n, row, channels);
      for (int i = 0; i < channels; i += V::kLanes) {
        F x = V::load(row + i);
        top = larger(V::abs(x), top);
        if (job.clamp > 0.0F) x = V::max(V::min(x, V::set(job.clamp)), V::set(-job.clamp));
        if (job.mean != nullptr) x = V::sub(x, V::load(job.mean + i));
        V::store(row + i, x);
      }
      if (job.key_mean_product != nullptr) {
        F sum = V::zero();
        for (int i = 0; i < channels; i += V::kLanes)
          sum = V::fma(V::load(row + i), V::load(job.key_mean + i), sum);
        job.key_mean_product[n] = add_lanes(sum);
      }
    }
    if (job.smooth_rows && job.count > 0) subtract_row_mean(job);
    if (job.centred != nullptr) {
      std::memcpy(job.centred, job.scratch,
                  static_cast<std::size_t>(job.count) * static_cast<std::size_t>(channels) * sizeof(float));
    }
    if (job.spec.rotate) {
      const int n = numerics::next_power_of_two(job.source.head_dim);
      for (int r = 0; r < job.count; ++r)
        numerics::hadamard_rotate(job.scratch + static_cast<std::ptrdiff_t>(r) * channels, n,
                                  job.spec.rotate_seed);
    }
    float lanes[V::kLanes];
    V::store(lanes, top);
    bool finite = true;
    for (const float lane : lanes) finite = finite && is_finite(lane);
    return finite;
  }

  static void subtract_row_mean(const BlockJob& job) {
    const int channels = job.spec.channels;
    const F inverse = V::set(1.0F / static_cast<float>(job.count));
    for (int i = 0; i < channels; i += V::kLanes) {
      F sum = V::zero();
      for (int n = 0; n < job.count; ++n)
        sum = V::add(sum, V::load(job.scratch + static_cast<std::ptrdiff_t>(n) * channels + i));
      const F mean = V::mul(sum, inverse);
      V::store(job.row_mean + i, mean);
      for (int n = 0; n < job.count; ++n) {
        float* at = job.scratch + static_cast<std::ptrdiff_t>(n) * channels + i;
        V::store(at, V::sub(V::load(at), mean));
      }
    }
  }

  static void row_absmax(const BlockJob& job, float* rows) {
    for (int n = 0; n < job.count; ++n) {
      const float* row = job.scratch + static_cast<std::ptrdiff_t>(n) * job.spec.channels;
      F top = V::zero();
      for (int i = 0; i < job.spec.channels; i += V::kLanes) top = larger(V::abs(V::load(row + i)), top);
      float lanes[V::kLanes];
      V::store(lanes, top);
      float most = 0.0F;
      for (const float lane : lanes) most = lane > most || !is_finite(lane) ? lane : most;
      rows[n] = most;
    }
  }

  /// Group of row n of the block, by numerics.md; `queries` are blocks of 128, keys blocks of 64.
  static int group_of(Granularity group, bool queries, int n) {
    switch (group) {
      case Granularity::per_warp:
        return queries ? n / 32 : 0;
      case Granularity::per_thread:
        return queries ? n / 32 * 8 + n % 8 : n % 8 / 2;
      case Granularity::per_token:
        return n;
      default:
        return 0;
    }
  }

  /// Prepares the block, finds its deltas and rounds it in place (values on the grid, as f32).
  static bool quantize(const BlockJob& job) {
    const int channels = job.spec.channels;
    const bool finite = prepare(job);
    float delta[kQueryBlock];
    if (job.spec.group == Granularity::none || job.given_delta > 0.0F) {
      for (int n = 0; n < job.count; ++n) delta[n] = job.given_delta > 0.0F ? job.given_delta : 1.0F;
    } else {
      float rows[kQueryBlock];
      float groups[kQueryBlock] = {};
      row_absmax(job, rows);
      for (int n = 0; n < job.count; ++n) {
        float& top = groups[group_of(job.spec.group, job.queries, n)];
        top = rows[n] > top || !is_finite(rows[n]) ? rows[n] : top;
      }
      for (int n = 0; n < job.count; ++n)
        delta[n] = absmax_to_delta(groups[group_of(job.spec.group, job.queries, n)], job.divisor);
    }
    for (int n = 0; n < job.count; ++n) {
      float* row = job.scratch + static_cast<std::ptrdiff_t>(n) * channels;
      const F d = V::set(delta[n]);
      for (int i = 0; i < channels; i += V::kLanes)
        V::store(row + i, to_grid(job.spec.format, job.spec.range, V::load(row + i), d));
      job.scale[n] = delta[n] * job.factor;
    }
    for (int n = job.count; n < job.padded; ++n) {
      std::memset(job.scratch + static_cast<std::ptrdiff_t>(n) * channels, 0,
                  static_cast<std::size_t>(channels) * sizeof(float));
      job.scale[n] = 0.0F;
    }
    return finite;
  }

  static inline F to_grid(Format format, float range, F x, F delta) {
    switch (format) {
      case Format::int8:
      case Format::int4: {
        const F limit = V::set(range);
        return V::max(V::min(V::round_even(quotient(x, delta)), limit), V::sub(V::zero(), limit));
      }
      case Format::e4m3: {
        const F limit = V::set(range);  // grid-rounded by the driver
        return V::max(V::min(grid_e4m3<V>(V::div(x, delta)), limit), V::sub(V::zero(), limit));
      }
      case Format::f16:
        return V::round_to_f16(x);
      case Format::bf16:
        return grid_bf16<V>(x);
      default:
        return x;
    }
  }

  /// x / delta, close enough that rounding to an integer cannot differ from the true quotient's: the product
  /// with the reciprocal is within 2^-22 |x / delta| < 2^-14, so only values that near a tie are divided.
  static inline F quotient(F x, F delta) {
    const F fast = V::mul(x, V::div(V::set(1.0F), delta));
    const F distance = V::abs(V::sub(fast, V::round_even(fast)));
    return V::any_greater(distance, V::set(0.5F - 0x1p-13F)) ? V::div(x, delta) : fast;
  }
};

}  // namespace octavo::cpu
