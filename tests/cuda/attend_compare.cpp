#include "cuda/attend_compare.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

namespace octavo::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

}  // namespace

Tolerance tolerance_of(const Recipe& r, const AttendShape& s) {
  const bool exact_scores = r.qk_format == Format::int8 || r.qk_format == Format::int4;
  const bool wide = r.v_format == Format::f16 || r.v_format == Format::bf16;
  const bool half = wide && !exact_scores;
  Tolerance t{2e-2, 0.15, 1e-3, 0.13, false};
  if (half) t = {2e-3, 0.01, 1e-3, 0.0, false};
  if (exact_scores) t = {2e-3, 0.02, 1e-3, 0.0, true};
  if (exact_scores && r.exp2 == Exp2::direct) t = {2e-2, 0.05, 1e-3, 0.13, true};
  if (exact_scores && r.smooth_q) t.exact_scores = false;  // its second term is a sum in f32
  // Exponentials differ by 2^-22, so a weight near the middle of two e4m3 values may round to the other one:
  // a step of 2^-3 of it at most, and of l where it is alone. A sum of unrounded weights does not see that.
  if (exact_scores && !wide && r.normaliser == Normaliser::quantized) t.lse_flips = 0.13;
  if (!s.f32_out) t.l2 += s.dtype == DType::bf16 ? 0x1p-9 : s.dtype == DType::f16 ? 0x1p-12 : 0.0;
  return t;
}

double rows_that_flip(const Recipe& r, const AttendCase& c, const Difference& d) {
  if (r.exp2 != Exp2::direct || (r.qk_format != Format::int8 && r.qk_format != Format::int4)) return 1.0;
  const double unit = c.largest_logit() / (r.q_range * r.k_range);  // nats; norms for largest magnitudes
  return 1.0 + std::min(1.0, 0.375 * 8.0 * std::numbers::log2e * unit) * static_cast<double>(d.rows);
}

Difference difference(const AttendCase& c, const reference::RowLists& rows, const AttendResult& got,
                      const AttendResult& want) {
  Difference d;
  double square = 0;
  double size = 0;
  double sum = 0;
  double size1 = 0;
  double lse_square = 0;
  double worst = -1;
  std::int64_t lines = 0;
  const std::int64_t channels = c.shape().head_dim;
  c.each_row(rows, [&](std::int64_t line, const Sequence& s, std::int64_t h, std::int64_t row) {
    double here = 0;
    std::int64_t at = 0;
    for (std::int64_t i = 0; i < channels; ++i) {
      const double a = got.o[static_cast<std::size_t>(line * channels + i)];
      const double b = want.o[static_cast<std::size_t>(line * channels + i)];
      d.not_finite += std::isfinite(a) ? 0 : 1;
      const double e = std::abs(a - b);
      if (!(e * e <= here)) at = i;
      here = std::isnan(e) ? kInf : std::max(here, e * e);
      square += e * e;
      size += b * b;
      sum += e;
      size1 += std::abs(b);
    }
    if (here > worst) {
      worst = here;
      const auto index = static_cast<std::size_t>(line * channels + at);
      d.worst = "sequence " + std::to_string(s.index) + " head " + std::to_string(h) + " row " +
                std::to_string(row) + " channel " + std::to_string(at) + ": " + std::to_string(got.o[index]) +
                ", expected " + std::to_string(want.o[index]) + " (" + std::to_string(c.visible(s, row)) +
                " keys)";
    }
    ++d.rows;
    if (!c.shape().lse) return;
    const double a = got.lse[static_cast<std::size_t>(line)];
    const double b = want.lse[static_cast<std::size_t>(line)];
    d.not_finite += std::isnan(a) ? 1 : 0;
    if (a == b) return;  // -infinity, too
    const double e = std::isnan(a - b) ? static_cast<double>(kInf) : std::abs(a - b);
    d.lse_max = std::max(d.lse_max, e);
    lse_square += e * e;
    ++lines;
  });
  d.l2 = std::sqrt(square / std::max(size, 1e-300));
  d.l1 = sum / std::max(size1, 1e-300);
  d.lse_rms = lines > 0 ? std::sqrt(lse_square / static_cast<double>(lines)) : 0.0;
  return d;
}

testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return testing::AssertionFailure() << a.size() << " elements and " << b.size();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0)
      return testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
  }
  return testing::AssertionSuccess();
}

}  // namespace octavo::test
