// Independent reference for every encoder: rounds by comparing with the exact midpoints between neighbouring
// values of a format. Nothing here shares code with src/numerics.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace octavo::test {

// Value of a small binary float from its definition: sign, exponent field, mantissa field.
inline double decode_by_definition(unsigned code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = static_cast<int>(code) & ((1 << mantissa_bits) - 1);
  const double sign = (code >> (exponent_bits + mantissa_bits)) & 1 ? -1.0 : 1.0;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

// Code of the value nearest to magnitude, ties to the even code. ascending[i] is the value of code i; a
// magnitude beyond the last midpoint gives the last code. Number must represent midpoints exactly.
template <class Number>
unsigned nearest_even_code(Number magnitude, const std::vector<Number>& ascending) {
  const auto above = std::lower_bound(ascending.begin(), ascending.end(), magnitude);
  const auto high = static_cast<std::size_t>(above - ascending.begin());
  if (high == 0) return 0;
  if (high == ascending.size()) return static_cast<unsigned>(high - 1);
  const Number middle = (ascending[high - 1] + ascending[high]) / 2;
  if (magnitude < middle) return static_cast<unsigned>(high - 1);
  if (magnitude > middle) return static_cast<unsigned>(high);
  return static_cast<unsigned>(high % 2 == 0 ? high : high - 1);
}

// Magnitudes of the f16 codes 0 .. 0x7C00, the last one (infinity) as 65536: the value whose midpoint with
// 65504 is the overflow threshold.
inline std::vector<double> f16_magnitudes() {
  std::vector<double> values;
  for (unsigned code = 0; code <= 0x7C00; ++code) values.push_back(decode_by_definition(code, 5, 10));
  return values;
}

inline std::uint16_t nearest_f16(double x) {
  static const std::vector<double> magnitudes = f16_magnitudes();
  const unsigned sign = std::signbit(x) ? 0x8000 : 0;
  return static_cast<std::uint16_t>(sign | nearest_even_code(std::fabs(x), magnitudes));
}

}  // namespace octavo::test
