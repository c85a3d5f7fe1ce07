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

#include "cpu/isa/codes.hpp"
#include "cpu/isa/grids.hpp"
#include "cpu/row_loader.hpp"
#include "cpu/tile_job.hpp"
#include "numerics/hadamard.hpp"
#include "numerics/integers.hpp"

namespace octavo::cpu {

template <class V>
struct Quantizer {
  using F = typename V::F;
  using I = typename V::I;

  /// Largest |x| of a block after clamping, smoothing and rotation; inf or NaN when a value is not finite.
  static float block_absmax(const BlockJob& job) {
    I magnitudes[kQueryBlock];
    if (!prepare(job, magnitudes)) return __builtin_inff();
    I top = V::set_int(0);
    for (int n = 0; n < job.count; ++n) top = V::max_int(magnitudes[n], top);
    return Rows::largest(top);
  }

  /// Quantizes a block of query rows into tiles of kLanes * kGroups rows: [channels /
  /// kPack][group][lane][kPack]. False: a value is not finite (the block is written all the same).
  static bool quantize_queries(const BlockJob& job) {
    float delta[kQueryBlock];
    const bool finite = find_deltas(job, delta);
    constexpr int kRows = V::kLanes * V::kGroups;
    const std::ptrdiff_t tile_elements = static_cast<std::ptrdiff_t>(job.spec.channels) * kRows;
    if (is_integer(job.spec.format)) {
      Divider divider;
      const Rounded rows = rounded(job);
      for (int n = 0; n < job.padded; n += V::kLanes) {
        auto* tile = static_cast<typename V::QueryElement*>(job.payload) + n / kRows * tile_elements;
        pack_queries(job, rows, n, delta, divider, tile + n % kRows * V::kPack);
      }
      return finite;
    }
    to_grid_rows(job, delta);
    for (int n = 0; n < job.padded; ++n) {
      const float* row = job.scratch + static_cast<std::ptrdiff_t>(n) * job.spec.channels;
      float* to = static_cast<float*>(job.payload) + n / kRows * tile_elements + n % kRows;
      for (int c = 0; c < job.spec.channels; ++c) to[static_cast<std::ptrdiff_t>(c) * kRows] = row[c];
    }
    return finite;
  }

  /// Quantizes a block of keys into rows.
  static bool quantize_keys(const BlockJob& job) {
    float delta[kQueryBlock];
    const bool finite = find_deltas(job, delta);
    const std::ptrdiff_t channels = job.spec.channels;
    if (is_integer(job.spec.format)) {
      auto* to = static_cast<typename V::KeyElement*>(job.payload);
      Divider divider;
      const Rounded rows = rounded(job);
      for (int n = 0; n < job.count; ++n) {
        divider.set(delta[n]);
        narrow_row<V::kKeyOffset>(rows, n, job.spec, divider, to + n * channels);
      }
      for (std::ptrdiff_t i = job.count * channels; i < job.padded * channels; ++i)
        to[i] = static_cast<typename V::KeyElement>(V::kKeyOffset);
    } else {
      to_grid_rows(job, delta);
      std::memcpy(job.payload, job.scratch, static_cast<std::size_t>(job.padded * channels) * sizeof(float));
    }
    return finite;
  }

  /// V to rows of f32 grid values [padded][channels], which Values then packs.
  template <class Pack>
  static bool quantize_values(const ValueJob& job, Pack pack) {
    const bool finite = value_deltas(job);
    const int channels = job.spec.channels;
    float* row = job.scratch;
    for (std::int64_t n = 0; n < job.padded; ++n) {
      if (n < job.count) {
        Rows::load_row(job.source, n, row, channels);
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

  /// Means and deltas of V's channels; false when a value is not finite.
  static bool value_deltas(const ValueJob& job) {
    const int channels = job.spec.channels;
    float* top = job.scratch + kQueryBlock * 2;
    for (int i = 0; i < channels; ++i) job.mean[i] = 0.0F;
    if (job.spec.smooth && job.count > 0)
      mean_of(job.source, job.count, job.scratch + kQueryBlock * 4, job.mean, channels);
    Rows::absmax_rows(job.source, job.count, job.mean, top, channels);
    bool finite = true;
    float head_top = 0.0F;
    for (int i = 0; i < channels; ++i) {
      finite = finite && Rows::is_finite(top[i]);
      head_top = top[i] > head_top ? top[i] : head_top;
    }
    const bool scaled = job.spec.scale != ValueScale::none;
    for (int i = 0; i < channels; ++i) {
      job.delta[i] = !scaled ? 1.0F
                             : numerics::group_delta(
                                   job.spec.scale == ValueScale::per_head ? head_top : top[i], job.divisor);
    }
    return finite;
  }

  /// Means of `count` rows, rounded once from sums as good as double: the emulator's bits. sums:
  /// [2][channels].
  static void mean_of(const RowSource& source, std::int64_t count, float* sums, float* mean, int channels) {
    Rows::sum_rows(source, count, sums, sums + channels, channels);
    for (int i = 0; i < channels; ++i) {
      mean[i] = rounded_mean(sums[i], sums[channels + i], count);
    }
  }

  /// term[n] = factor * (mean . centred[n]): smooth_q's second term for one block of query rows.
  static void key_terms(const float* mean, const float* centred, std::int64_t keys, int channels,
                        float factor, float* term) {
    for (std::int64_t n = 0; n < keys; ++n) {
      F sum = V::zero();
      for (int i = 0; i < channels; i += V::kLanes)
        sum = V::fma(V::load(mean + i), V::load(centred + n * channels + i), sum);
      term[n] = factor * Rows::add_lanes(sum);
    }
  }

  /// x / delta, correctly rounded, of a vector of deltas. Two fused steps from the product with the
  /// reciprocal give the quotient's own bits (Markstein), as long as the remainder x - q * delta is exact:
  /// not so for deltas near the ends of the range, and not without a fused multiply-add. Those divide.
  class Divider {
   public:
    Divider() = default;
    explicit Divider(F delta)
        : delta_(delta),
          minus_(V::sub(V::zero(), delta)),
          reciprocal_(V::div(V::set(1.0F), delta)),
          divides_(!Codes<V>::kFusedMultiplyAdd || V::any_greater(V::set(0x1p-60F), delta) ||
                   V::any_greater(delta, V::set(0x1p60F))) {}

    /// One delta for all lanes; rows of a group come one after the other, so it is often the last one.
    inline void set(float delta) {
      if (delta == last_) return;
      *this = Divider(V::set(delta));
      last_ = delta;
    }

    [[nodiscard]] bool divides() const { return divides_; }
    template <bool kDivides>
    [[nodiscard]] inline __attribute__((always_inline)) F quotient(F x) const {
      if constexpr (kDivides) return V::div(x, delta_);
      const F q = V::mul(x, reciprocal_);
      return V::fma(V::fma(q, minus_, x), reciprocal_, q);
    }

   private:
    F delta_ = V::zero();
    F minus_ = V::zero();
    F reciprocal_ = V::zero();
    bool divides_ = true;
    float last_ = 0.0F;
  };

  /// Nearest integer within +-limit. The limit is an integer, so clamping first is the same.
  struct Limit {
    explicit Limit(float range) : high(V::set(range)), low(V::set(-range)) {}
    inline __attribute__((always_inline)) I nearest(F quotient) const {
      return V::to_int(V::max(V::min(quotient, high), low));
    }
    F high;
    F low;
  };

 private:
  using Rows = RowLoader<V>;
  static constexpr int kVectors = Rows::kVectors;

  static bool is_integer(Format format) { return format == Format::int8 || format == Format::int4; }

  static inline F clamp(F x, F limit) {
    return V::max(V::sub(V::zero(), limit), V::min(limit, x));
  }  // NaN stays

  /// Centring is cheap enough to be done twice: only what mixes rows or channels needs the block in scratch
  /// between finding the deltas and rounding to integers.
  static bool needs_scratch(const BlockJob& job) {
    return !is_integer(job.spec.format) || job.smooth_rows || job.spec.rotate || job.centred != nullptr ||
           job.clamp > 0.0F || (job.mean != nullptr && job.key_mean_product != nullptr);
  }

  /// What rounding reads: the caller's rows, to be centred, or scratch.
  struct Rounded {
    RowSource source;
    std::int64_t begin;
    const float* mean;
  };
  static Rounded rounded(const BlockJob& job) {
    const int channels = job.spec.channels;
    if (needs_scratch(job)) return {{job.scratch, DType::f32, channels, 1, channels}, 0, nullptr};
    return {job.source, job.begin, job.mean};
  }

  /// One row in integers, plus kOffset.
  template <int kOffset, class Element>
  OCTAVO_INLINE void narrow_row(const Rounded& rows, int n, const OperandSpec& spec, const Divider& divider,
                                Element* to) {
    if (divider.divides()) return narrow<kOffset, true>(rows, n, spec, divider, to);
    narrow<kOffset, false>(rows, n, spec, divider, to);
  }

  template <int kOffset, bool kDivides, class Element>
  OCTAVO_INLINE void narrow(const Rounded& rows, int n, const OperandSpec& spec, const Divider& divider,
                            Element* to) {
    const Limit limit(spec.range);
    const Divider own = divider;
    const auto block = [&](int i, F(&x)[kVectors]) OCTAVO_INLINE_LAMBDA {
      I integers[kVectors];
      OCTAVO_UNROLL for (int k = 0; k < kVectors; ++k) {
        integers[k] = limit.nearest(own.template quotient<kDivides>(x[k]));
        if constexpr (kOffset != 0) integers[k] = V::add_int(integers[k], V::set_int(kOffset));
      }
      Codes<V>::narrow(integers, to + i);
    };
    const float* mean = rows.mean;
    if (mean == nullptr) return Rows::visit_blocks(rows.source, rows.begin + n, spec.channels, block);
    Rows::visit_blocks(rows.source, rows.begin + n, spec.channels,
                       [&](int i, F(&x)[kVectors]) OCTAVO_INLINE_LAMBDA {
                         OCTAVO_UNROLL for (int k = 0; k < kVectors; ++k) x[k] =
                             V::sub(x[k], V::load(mean + i + k * V::kLanes));
                         block(i, x);
                       });
  }

  /// kLanes rows from n on, zeros from job.count on, to one group of a tile.
  static inline void pack_queries(const BlockJob& job, const Rounded& source, int n, const float* delta,
                                  Divider& divider, typename V::QueryElement* to) {
    constexpr int kRows = V::kLanes * V::kGroups;
    constexpr int kWords = Codes<V>::kTranspose;
    const int words = job.spec.channels / V::kPack;
    alignas(64) typename V::QueryElement rows[V::kLanes][256];
    for (int i = 0; i < V::kLanes; ++i) {
      if (n + i < job.count) {
        divider.set(delta[n + i]);
        narrow_row<0>(source, n + i, job.spec, divider, rows[i]);
      } else {
        std::memset(rows[i], 0, sizeof rows[i]);
      }
    }
    I sum = V::set_int(0);
    for (int word = 0; word < words; word += kWords) {
      I columns[kWords];
      Codes<V>::transpose(&rows[0][0] + word * V::kPack, 256, columns);
      for (int i = 0; i < (words - word < kWords ? words - word : kWords); ++i) {
        std::memcpy(to + (word + i) * kRows * V::kPack, &columns[i], sizeof(I));
        if constexpr (V::kKeyOffset != 0) V::dot(sum, V::set_int(0x01010101), columns[i]);
      }
    }
    if constexpr (V::kKeyOffset != 0) {
      if (job.sum != nullptr) std::memcpy(job.sum + n, &sum, sizeof sum);
    }
  }

  /// Largest magnitudes of row n after centring, of channels kLanes apart.
  template <bool kCentre>
  OCTAVO_INLINE I measure(const BlockJob& job, int n, I& given) {
    I top = V::set_int(0);
    I raw = V::set_int(0);
    const float* mean = job.mean;
    Rows::visit_blocks(
        job.source, job.begin + n, job.spec.channels, [&](int i, F(&x)[kVectors]) OCTAVO_INLINE_LAMBDA {
          OCTAVO_UNROLL for (int k = 0; k < kVectors; ++k) {
            raw = V::max_int(Rows::magnitude(x[k]), raw);
            if constexpr (kCentre)
              top = V::max_int(Rows::magnitude(V::sub(x[k], V::load(mean + i + k * V::kLanes))), top);
          }
        });
    given = V::max_int(raw, given);
    return kCentre ? top : raw;
  }

  /// The same of a row that goes to scratch.
  static inline I measure_and_store(const BlockJob& job, int n, I& given) {
    float* row = job.scratch + static_cast<std::ptrdiff_t>(n) * job.spec.channels;
    Rows::load_row(job.source, job.begin + n, row, job.spec.channels);
    given = V::max_int(row_absmax(job, n), given);
    for (int i = 0; i < job.spec.channels; i += V::kLanes) {
      F x = V::load(row + i);
      if (job.clamp > 0.0F) x = clamp(x, V::set(job.clamp));
      if (job.mean != nullptr) x = V::sub(x, V::load(job.mean + i));
      V::store(row + i, x);
    }
    return row_absmax(job, n);
  }

  /// sum of x * key_mean over a row; the order of additions is part of the result.
  OCTAVO_INLINE float product_with(const RowSource& source, std::int64_t n, const float* key_mean,
                                   int channels) {
    F sum = V::zero();
    Rows::visit_blocks(source, n, channels, [&sum, key_mean](int i, F(&x)[kVectors]) OCTAVO_INLINE_LAMBDA {
      OCTAVO_UNROLL for (int k = 0; k < kVectors; ++k) sum =
          V::fma(x[k], V::load(key_mean + i + k * V::kLanes), sum);
    });
    return Rows::add_lanes(sum);
  }

  /// Clamps, smooths and rotates the block, in scratch if that is needed; magnitudes[n]: maximum of row n
  /// over channels kLanes apart. False when a value is not finite.
  static bool prepare(const BlockJob& job, I* magnitudes) {
    const int channels = job.spec.channels;
    const bool store = needs_scratch(job);
    I given = V::set_int(0);
    for (int n = 0; n < job.count; ++n) {
      if (store) {
        magnitudes[n] = measure_and_store(job, n, given);
      } else {
        magnitudes[n] = job.mean != nullptr ? measure<true>(job, n, given) : measure<false>(job, n, given);
      }
    }
    if (job.key_mean_product != nullptr) {
      const Rounded rows = rounded(job);
      for (int n = 0; n < job.count; ++n)
        job.key_mean_product[n] = product_with(rows.source, rows.begin + n, job.key_mean, channels);
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
    if (job.smooth_rows || job.spec.rotate) {
      for (int n = 0; n < job.count; ++n) magnitudes[n] = row_absmax(job, n);
    }
    return Rows::is_finite(Rows::largest(given));
  }

  static float rounded_mean(float high, float low, std::int64_t count) {
    return static_cast<float>((static_cast<double>(high) + static_cast<double>(low)) /
                              static_cast<double>(count));
  }

  static void subtract_row_mean(const BlockJob& job) {
    const int channels = job.spec.channels;
    for (int i = 0; i < channels; i += V::kLanes) {
      typename Rows::ExactSum sum;
      for (int n = 0; n < job.count; ++n)
        sum.add(V::load(job.scratch + static_cast<std::ptrdiff_t>(n) * channels + i));
      float high[V::kLanes];
      float low[V::kLanes];
      V::store(high, sum.high);
      V::store(low, sum.low);
      for (int lane = 0; lane < V::kLanes; ++lane)
        job.row_mean[i + lane] = rounded_mean(high[lane], low[lane], job.count);
      const F mean = V::load(job.row_mean + i);
      for (int n = 0; n < job.count; ++n) {
        float* at = job.scratch + static_cast<std::ptrdiff_t>(n) * channels + i;
        V::store(at, V::sub(V::load(at), mean));
      }
    }
  }

  static inline I row_absmax(const BlockJob& job, int n) {
    const float* row = job.scratch + static_cast<std::ptrdiff_t>(n) * job.spec.channels;
    I top = V::set_int(0);
    for (int i = 0; i < job.spec.channels; i += V::kLanes)
      top = V::max_int(Rows::magnitude(V::load(row + i)), top);
    return top;
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

  /// Prepares the block and finds the delta of each row; writes the scales. False when a value is not finite.
  static bool find_deltas(const BlockJob& job, float* delta) {
    I magnitudes[kQueryBlock];
    const bool finite = prepare(job, magnitudes);
    if (job.spec.group == Granularity::none || job.given_delta > 0.0F) {
      for (int n = 0; n < job.count; ++n) delta[n] = job.given_delta > 0.0F ? job.given_delta : 1.0F;
    } else {
      I top[kQueryBlock];
      float of_group[kQueryBlock];
      const int groups = job.count == 0 ? 0 : group_count(job.spec.group, job.queries, job.count);
      for (int g = 0; g < groups; ++g) top[g] = V::set_int(0);
      for (int n = 0; n < job.count; ++n) {
        I& most = top[group_of(job.spec.group, job.queries, n)];
        most = V::max_int(magnitudes[n], most);
      }
      for (int g = 0; g < groups; ++g)
        of_group[g] = numerics::group_delta(Rows::largest(top[g]), job.divisor);
      for (int n = 0; n < job.count; ++n) delta[n] = of_group[group_of(job.spec.group, job.queries, n)];
    }
    for (int n = 0; n < job.count; ++n) job.scale[n] = delta[n] * job.factor;
    for (int n = job.count; n < job.padded; ++n) job.scale[n] = 0.0F;
    return finite;
  }

  /// Groups that the first `count` rows of a block can be in.
  static int group_count(Granularity group, bool queries, int count) {
    switch (group) {
      case Granularity::per_warp:
        return queries ? (count + 31) / 32 : 1;
      case Granularity::per_thread:
        return queries ? (count + 31) / 32 * 8 : 4;
      case Granularity::per_token:
        return count;
      default:
        return 1;
    }
  }

  /// Rounds the block in place: values on the grid, as f32.
  static void to_grid_rows(const BlockJob& job, const float* delta) {
    const std::ptrdiff_t channels = job.spec.channels;
    for (int n = 0; n < job.count; ++n) {
      float* row = job.scratch + n * channels;
      for (int i = 0; i < job.spec.channels; i += V::kLanes)
        V::store(row + i, to_grid(job.spec.format, job.spec.range, V::load(row + i), V::set(delta[n])));
    }
    if (job.padded > job.count)
      std::memset(job.scratch + job.count * channels, 0,
                  static_cast<std::size_t>((job.padded - job.count) * channels) * sizeof(float));
  }

  static inline F to_grid(Format format, float range, F x, F delta) {
    switch (format) {
      case Format::int8:
      case Format::int4:
        return V::to_float(Limit(range).nearest(V::div(x, delta)));
      case Format::e4m3: {
        const F limit = V::set(range);  // grid-rounded by the driver
        return V::max(V::sub(V::zero(), limit), V::min(limit, grid_e4m3<V>(V::div(x, delta))));  // NaN stays
      }
      case Format::f16:
        return V::round_to_f16(x);
      case Format::bf16:
        return grid_bf16<V>(x);
      default:
        return x;
    }
  }
};

}  // namespace octavo::cpu
