// The host's answer: f64 means, numerics/ for everything else, loops in the order of docs/numerics.md. What
// the device computed earlier in the chain (means, scales) is checked and then taken as it is, so that a
// difference in its last bit does not hide one that matters further on.
#include "cuda/quantize_check.hpp"

#include <cmath>
#include <limits>
#include <numbers>

#include "numerics/bfloat16.hpp"
#include "numerics/e4m3.hpp"
#include "numerics/float16.hpp"
#include "numerics/hadamard.hpp"
#include "numerics/integers.hpp"

namespace octavo::test {
namespace {

using cuda::KvLayout;
using cuda::QLayout;
using cuda::SequenceRow;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <class T>
T read(const std::vector<std::byte>& bytes, std::size_t section, std::int64_t index) {
  T value{};
  std::memcpy(&value, bytes.data() + section + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

/// Rows [begin, begin + count) of a head, `padded` channels of which those past the head dim are 0.
struct Rows {
  std::int64_t count;
  std::int64_t padded;
  std::vector<float> data;

  Rows(const DeviceTensor& t, Layout layout, std::int64_t batch, std::int64_t head, std::int64_t begin,
       std::int64_t n, std::int64_t channels, std::int64_t width)
      : count(n), padded(width), data(static_cast<std::size_t>(n * width)) {
    const HeadsView view = t.heads(layout);
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t c = 0; c < channels; ++c)
        at(i, c) = read_element(view.data, view.dtype,
                                view.offset(batch, head, begin + i) + c * view.channel_stride);
    }
  }
  float& at(std::int64_t i, std::int64_t c) { return data[static_cast<std::size_t>(i * padded + c)]; }
  float* row(std::int64_t i) { return data.data() + i * padded; }
  void rotate(const Recipe& r, std::int64_t head_dim) {
    if (r.rotate != Rotation::hadamard) return;
    const int size = numerics::next_power_of_two(static_cast<int>(head_dim));
    for (std::int64_t i = 0; i < count; ++i) numerics::hadamard_rotate(row(i), size, r.rotate_seed);
  }
};

bool close(float got, double want, double tolerance) {
  if (!std::isfinite(want)) return !std::isfinite(got);
  return std::abs(static_cast<double>(got) - want) <= tolerance;
}

/// max |x|, NaN when any is not finite.
struct Absmax {
  float top = 0.0F;
  void take(float x) {
    if (!std::isfinite(x) || std::isnan(top)) {
      top = kNaN;
    } else {
      top = std::max(top, std::abs(x));
    }
  }
  [[nodiscard]] float delta(float range) const {
    return std::isnan(top) ? kNaN : numerics::group_delta(top, range);
  }
};

bool is_wide(Format f) { return f == Format::f16 || f == Format::bf16; }

/// The value of a payload element.
float payload(const std::vector<std::byte>& bytes, std::size_t section, std::int64_t index, Format format) {
  switch (format) {
    case Format::e4m3:
      return numerics::e4m3_to_f32(read<std::uint8_t>(bytes, section, index));
    case Format::f16:
      return numerics::f16_to_f32(read<std::uint16_t>(bytes, section, index));
    case Format::bf16:
      return numerics::bf16_to_f32(read<std::uint16_t>(bytes, section, index));
    default:
      return read<std::int8_t>(bytes, section, index);
  }
}

/// Is `got` the grid value next to x / delta, the f32 quotient? With slack, where x is not known to its last
/// bit, either of two that are as good as equally near.
bool on_grid(float got, float x, float delta, Format format, float range, double slack) {
  if (is_wide(format)) {
    const float want = format == Format::f16 ? numerics::round_to_f16(x) : numerics::round_to_bf16(x);
    if (std::isnan(want)) return std::isnan(got);
    return got == want || (slack > 0.0 && std::abs(got - x) <= std::abs(want - x) + slack);
  }
  if (std::isnan(delta)) return got == 0.0F;
  const bool fp8 = format == Format::e4m3;
  const float limit = fp8 ? numerics::round_to_e4m3(range) : range;
  const float y = std::clamp(x / delta, -limit, limit);
  const float nearest = fp8 ? numerics::round_to_e4m3(y)
                            : static_cast<float>(numerics::quantize_integer(y, static_cast<int>(range)));
  if (got == nearest || slack == 0.0) return got == nearest;
  const double miss = std::abs(static_cast<double>(got) - static_cast<double>(y));
  return miss <= std::abs(static_cast<double>(nearest) - static_cast<double>(y)) +
                     5e-7 * std::abs(static_cast<double>(y)) + slack;
}

std::string where(const char* what, std::int64_t head, std::int64_t sequence, std::int64_t row,
                  std::int64_t channel) {
  return std::string(what) + " of head " + std::to_string(head) + ", sequence " + std::to_string(sequence) +
         ", row " + std::to_string(row) + ", channel " + std::to_string(channel);
}

/// Channel means in f64, of finite sums.
std::vector<double> means(Rows& x, std::int64_t first, std::int64_t count) {
  std::vector<double> mean(static_cast<std::size_t>(x.padded), 0.0);
  for (std::int64_t i = first; i < first + count; ++i) {
    for (std::int64_t c = 0; c < x.padded; ++c)
      mean[static_cast<std::size_t>(c)] += static_cast<double>(x.at(i, c));
  }
  for (double& m : mean) m /= static_cast<double>(std::max<std::int64_t>(count, 1));
  return mean;
}

/// Checks a stored mean (0 unless `stored`) and takes it from the rows where `smooth`. False at the first
/// difference, which is reported.
bool take_mean(Rows& x, const std::vector<std::byte>& bytes, std::size_t section, std::int64_t at,
               bool stored, bool smooth, const char* what, std::int64_t head, std::int64_t sequence) {
  const std::vector<double> want = means(x, 0, x.count);
  for (std::int64_t c = 0; c < x.padded; ++c) {
    double least = INFINITY;
    double most = -INFINITY;
    for (std::int64_t i = 0; i < x.count; ++i) {
      least = std::min(least, static_cast<double>(x.at(i, c)));
      most = std::max(most, static_cast<double>(x.at(i, c)));
    }
    const double top = x.count == 0 ? 0.0 : std::max(std::abs(least), std::abs(most));
    const auto got = read<float>(bytes, section, at + c);
    double mean = stored ? want[static_cast<std::size_t>(c)] : 0.0;
    double tolerance = stored ? 1e-7 * top + 1e-7 * std::abs(mean) : 0.0;
    if (stored && !smooth && mean != 0.0) {  // the share that long sums lose, of values of 8 sigma's range
      mean *= std::erf(8.0 * std::abs(mean) / (most - least) / std::sqrt(2.0));
      tolerance = 1e-6 * top;
    }
    if (!close(got, mean, tolerance)) {
      ADD_FAILURE() << where(what, head, sequence, -1, c) << " is " << got << ", should be " << mean;
      return false;
    }
    if (!smooth) continue;
    for (std::int64_t i = 0; i < x.count; ++i) x.at(i, c) -= got;
  }
  return true;
}

std::int64_t query_group(Granularity group, std::int64_t row) {
  switch (group) {
    case Granularity::per_block:
      return row / 128;
    case Granularity::per_warp:
      return row / 32;
    case Granularity::per_thread:
      return row / 32 * 8 + row % 8;
    case Granularity::per_token:
      return row;
    default:
      return 0;
  }
}

}  // namespace

Quantized quantize(const QuantizeCase& c, std::uint8_t poison) {
  const KvLayout keys(c.problem, c.recipe, c.problem.kv_heads);
  const QLayout queries(c.problem, c.recipe);
  const DeviceBytes kv(keys.bytes, poison);
  const DeviceBytes qq(queries.bytes, poison);
  // Without check_finite nobody reads the flag, and nobody clears it.
  EXPECT_EQ(fill_device(qq.data() + queries.nonfinite, 0, sizeof(std::uint32_t)), cudaSuccess);
  Status s = cuda::quantize_kv(c.call(), c.k.view, c.v.view, kv.data());
  EXPECT_TRUE(s.ok()) << s.message();
  s = cuda::quantize_q(c.call(), c.q.view, {kv.data(), c.problem.kv_heads, 0}, qq.data());
  EXPECT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(kv.guard_intact() && qq.guard_intact()) << "bytes behind a buffer were written";
  return {kv.read(), qq.read()};
}

void check_keys(const QuantizeCase& c, const Quantized& got) {
  const Recipe& r = c.recipe;
  const Problem& p = c.problem;
  const KvLayout at(p, r, p.kv_heads);
  const std::vector<SequenceRow> rows = sequence_rows(p, r);
  for (std::int64_t head = 0; head < p.kv_heads; ++head) {
    for (std::int64_t s = 0; s < at.sequences; ++s) {
      const SequenceRow& seq = rows[static_cast<std::size_t>(s)];
      Rows x(c.k, c.shape.layout, seq.batch, head, seq.k_begin, seq.k_len, p.head_dim, at.padded_dim);
      if (!take_mean(x, got.kv, at.k_mean, (head * at.sequences + s) * at.padded_dim, r.smooth_k, r.smooth_k,
                     "K mean", head, s))
        return;
      x.rotate(r, p.head_dim);

      Absmax whole;
      for (const float value : x.data) whole.take(value);
      for (std::int64_t first = 0; first < (seq.k_len + at.row_align - 1) / at.row_align * at.row_align;
           first += 64) {
        Absmax top[4];
        Absmax block;
        for (std::int64_t i = first; i < std::min(first + 64, seq.k_len); ++i) {
          for (std::int64_t d = 0; d < at.padded_dim; ++d) {
            top[i % 8 / 2].take(x.at(i, d));
            block.take(x.at(i, d));
          }
        }
        const std::int64_t row = head * at.key_rows + seq.k_row + first;
        float delta[4];
        for (std::int64_t t = 0; t < 4; ++t) {
          const float want = r.k_group == Granularity::none         ? 1.0F
                             : r.k_group == Granularity::per_head   ? whole.delta(r.k_range)
                             : r.k_group == Granularity::per_thread ? top[t].delta(r.k_range)
                                                                    : block.delta(r.k_range);
          delta[t] = read<float>(got.kv, at.k_scale, row / 64 * 4 + t);
          if (!close(delta[t], want, 1e-6 * static_cast<double>(std::abs(want)))) {
            ADD_FAILURE() << where("K scale", head, s, first, t) << " is " << delta[t] << ", should be "
                          << want;
            return;
          }
        }
        for (std::int64_t i = first; i < first + 64; ++i) {
          for (std::int64_t d = 0; d < at.padded_dim; ++d) {
            const bool valid = i < seq.k_len;
            const std::int64_t index = (row + i - first) * at.padded_dim + d;
            const float have = payload(got.kv, at.k, index, r.qk_format);
            const float value = valid ? x.at(i, d) : 0.0F;
            if (valid ? !on_grid(have, value, delta[i % 8 / 2], r.qk_format, r.k_range, 0.0) : have != 0.0F) {
              ADD_FAILURE() << where("K", head, s, i, d) << " is " << have << ", should be " << value << " / "
                            << delta[i % 8 / 2];
              return;
            }
            if (!r.smooth_q) continue;
            const auto exact = read<float>(got.kv, at.k_exact, index);
            if (exact != value && !(std::isnan(exact) && std::isnan(value))) {
              ADD_FAILURE() << where("exact K", head, s, i, d) << " is " << exact << ", should be " << value;
              return;
            }
          }
        }
      }
    }
  }
}

void check_values(const QuantizeCase& c, const Quantized& got) {
  const Recipe& r = c.recipe;
  const Problem& p = c.problem;
  const KvLayout at(p, r, p.kv_heads);
  const std::vector<SequenceRow> rows = sequence_rows(p, r);
  for (std::int64_t head = 0; head < p.kv_heads; ++head) {
    for (std::int64_t s = 0; s < at.sequences; ++s) {
      const SequenceRow& seq = rows[static_cast<std::size_t>(s)];
      Rows x(c.v, c.shape.layout, seq.batch, head, seq.k_begin, seq.k_len, p.head_dim, at.padded_dim);
      const std::int64_t channels = (head * at.sequences + s) * at.padded_dim;
      if (!take_mean(x, got.kv, at.v_mean, channels, r.smooth_v || r.v_format == Format::e4m3, r.smooth_v,
                     "V mean", head, s))
        return;

      Absmax whole;
      for (const float value : x.data) whole.take(value);
      for (std::int64_t d = 0; d < at.padded_dim; ++d) {
        Absmax top;
        for (std::int64_t i = 0; i < seq.k_len; ++i) top.take(x.at(i, d));
        const float want = d >= p.head_dim                        ? 0.0F
                           : r.v_scale == ValueScale::none        ? 1.0F
                           : r.v_scale == ValueScale::per_channel ? top.delta(r.v_range)
                                                                  : whole.delta(r.v_range);
        const auto delta = read<float>(got.kv, at.v_scale, channels + d);
        if (!close(delta, want, 1e-6 * static_cast<double>(std::abs(want)))) {
          ADD_FAILURE() << where("V scale", head, s, -1, d) << " is " << delta << ", should be " << want;
          return;
        }
        for (std::int64_t i = 0; i < (seq.k_len + at.row_align - 1) / at.row_align * at.row_align; ++i) {
          const std::int64_t key = i % 16;
          const std::int64_t place = seq.k_row + i / 16 * 16 + key % 8 / 2 * 4 + key / 8 * 2 + key % 2;
          const std::int64_t index =
              at.v_element == 1 ? (head * (at.padded_dim + cuda::kOnesRows) + d) * at.key_rows + place
                                : (head * at.key_rows + seq.k_row + i) * at.padded_dim + d;
          const float have = payload(got.kv, at.v, index, r.v_format);
          const bool valid = i < seq.k_len && d < p.head_dim;
          if (valid ? !on_grid(have, x.at(i, d), delta, r.v_format, r.v_range, 0.0) : have != 0.0F) {
            ADD_FAILURE() << where("V", head, s, i, d) << " is " << have << ", should be "
                          << (valid ? x.at(i, d) : 0.0F) << " / " << delta;
            return;
          }
          if (at.v_element != 1 || d >= cuda::kOnesRows) continue;
          const std::int64_t one =
              (head * (at.padded_dim + cuda::kOnesRows) + at.padded_dim + d) * at.key_rows + place;
          const float step = 0.125F * static_cast<float>(place % 4);
          const float odd[] = {1.0F + step, 1.875F - step, 1.375F - step, 1.5F + step};
          float want_one = 0.0F;
          if (i < seq.k_len) {
            if (d % 2 != 0)
              want_one = odd[d / 2];
            else if (i / 32 % 4 == d / 2)
              want_one = 1.0F;
          }
          if (payload(got.kv, at.v, one, Format::e4m3) != want_one) {
            ADD_FAILURE() << where("ones row", head, s, i, d) << " should be " << want_one;
            return;
          }
        }
      }
    }
  }
}

void check_queries(const QuantizeCase& c, const Quantized& got) {
  const Recipe& r = c.recipe;
  const Problem& p = c.problem;
  const KvLayout keys(p, r, p.kv_heads);
  const QLayout at(p, r);
  const std::vector<SequenceRow> rows = sequence_rows(p, r);
  const float factor = std::abs(p.scale) * std::numbers::log2e_v<float>;
  const double slack =
      r.smooth_q ? 1e-4 : 0.0;  // the mean of 128 rows is not stored, its last bits may differ
  for (std::int64_t head = 0; head < p.q_heads; ++head) {
    const std::int64_t kv_head = head / p.group();
    for (std::int64_t s = 0; s < at.sequences; ++s) {
      const SequenceRow& seq = rows[static_cast<std::size_t>(s)];
      Rows x(c.q, c.shape.layout, seq.batch, head, seq.q_begin, seq.q_len, p.head_dim, at.padded_dim);
      const float given = c.shape.given ? c.absmax[static_cast<std::size_t>(s * p.q_heads + head)] : -1.0F;
      const auto first_row = kv_head * at.q_rows + seq.q_row + head % p.group();
      std::vector<bool> bad(static_cast<std::size_t>(seq.q_len));
      for (std::int64_t i = 0; i < seq.q_len; ++i) {
        double dot = 0.0;
        double size = 0.0;
        for (std::int64_t d = 0; d < at.padded_dim; ++d) {
          if (given > 0.0F) x.at(i, d) = std::clamp(x.at(i, d), -given, given);
          const auto mean = static_cast<double>(
              read<float>(got.kv, keys.k_mean, (kv_head * at.sequences + s) * at.padded_dim + d));
          dot += static_cast<double>(x.at(i, d)) * mean;
          size += std::abs(static_cast<double>(x.at(i, d)) * mean);
          bad[static_cast<std::size_t>(i)] = bad[static_cast<std::size_t>(i)] || !std::isfinite(x.at(i, d));
        }
        const auto shift = read<float>(got.q, at.lse_shift, first_row + i * p.group());
        const double want = r.smooth_k ? static_cast<double>(p.scale) * dot : 0.0;
        if (!close(shift, want,
                   r.smooth_k ? 1e-6 * std::abs(static_cast<double>(p.scale)) * size + 1e-37 : 0.0)) {
          ADD_FAILURE() << where("LSE shift", head, s, i, -1) << " is " << shift << ", should be " << want;
          return;
        }
      }
      for (std::int64_t first = 0; r.smooth_q && first < seq.q_len; first += 128) {
        const std::int64_t count = std::min<std::int64_t>(128, seq.q_len - first);
        Rows mean = x;
        const std::vector<double> m = means(x, first, count);
        for (std::int64_t d = 0; d < at.padded_dim; ++d) {
          mean.at(first, d) = static_cast<float>(m[static_cast<std::size_t>(d)]);
          for (std::int64_t i = first; i < first + count; ++i)
            x.at(i, d) -= static_cast<float>(m[static_cast<std::size_t>(d)]);
        }
        mean.rotate(r, p.head_dim);
        for (std::int64_t d = 0; d < at.padded_dim; ++d) {
          const std::int64_t index = (head * at.q_blocks + seq.q_block + first / 128) * at.padded_dim + d;
          const double want =
              static_cast<double>(mean.at(first, d)) * static_cast<double>(p.scale) * std::numbers::log2e;
          const auto have = read<float>(got.q, at.q_mean, index);
          if (!close(have, want, 3e-6 * static_cast<double>(std::abs(p.scale)))) {
            ADD_FAILURE() << where("Q mean", head, s, first, d) << " is " << have << ", should be " << want;
            return;
          }
        }
      }
      x.rotate(r, p.head_dim);

      std::vector<Absmax> tops(static_cast<std::size_t>(seq.q_len + 8));
      for (std::int64_t i = 0; i < seq.q_len; ++i) {
        for (std::int64_t d = 0; d < at.padded_dim; ++d)
          tops[static_cast<std::size_t>(query_group(r.q_group, i))].take(x.at(i, d));
      }
      for (std::int64_t i = 0; i < seq.q_len; ++i) {
        float delta = 1.0F;
        if (r.q_group != Granularity::none) {
          delta = given > 0.0F ? numerics::group_delta(given, r.q_range)
                               : tops[static_cast<std::size_t>(query_group(r.q_group, i))].delta(r.q_range);
          if (bad[static_cast<std::size_t>(i)]) delta = kNaN;
        }
        const std::int64_t row = first_row + i * p.group();
        const auto have_scale = read<float>(got.q, at.q_scale, row);
        const double want_scale = static_cast<double>(delta) * static_cast<double>(factor);
        if (!close(have_scale, want_scale, (r.smooth_q ? 1e-5 : 1e-6) * std::abs(want_scale))) {
          ADD_FAILURE() << where("Q scale", head, s, i, -1) << " is " << have_scale << ", should be "
                        << want_scale;
          return;
        }
        for (std::int64_t d = 0; d < at.padded_dim; ++d) {
          const float value = p.scale < 0.0F ? -x.at(i, d) : x.at(i, d);
          const float have = payload(got.q, at.q, row * at.padded_dim + d, r.qk_format);
          if (!on_grid(have, value, delta, r.qk_format, r.q_range, slack)) {
            ADD_FAILURE() << where("Q", head, s, i, d) << " is " << have << ", should be " << value << " / "
                          << delta;
            return;
          }
        }
      }
      const std::int64_t end = seq.q_len * p.group();
      for (std::int64_t i = end; i < (end + 63) / 64 * 64; ++i) {  // padding behind the last row of the group
        const std::int64_t row = kv_head * at.q_rows + seq.q_row + i;
        bool zero =
            read<float>(got.q, at.q_scale, row) == 0.0F && read<float>(got.q, at.lse_shift, row) == 0.0F;
        for (std::int64_t d = 0; d < at.padded_dim; ++d)
          zero = zero && payload(got.q, at.q, row * at.padded_dim + d, r.qk_format) == 0.0F;
        if (!zero) {
          ADD_FAILURE() << where("Q padding", head, s, i, -1) << " is not zero";
          return;
        }
      }
    }
  }
}

}  // namespace octavo::test
