// IEEE binary16: 1 sign, 5 exponent (bias 15), 10 mantissa bits; largest value 65504, smallest step 2^-24.
// Conversions round to nearest even and overflow to infinity; NaN stays NaN (quiet, sign and top payload
// bits kept, as F16C does).
#pragma once

#include "numerics/config.hpp"

namespace octavo::numerics {

inline constexpr float kF16Max = 65504.0f;

namespace detail {

// Rounds the wider IEEE format (mantissa_bits, bias; Bits its unsigned image) to f16 in one step.
// quantum_anchor is the power of two whose last mantissa bit is worth 2^-24, f16's subnormal step.
template <int mantissa_bits, int bias, class Bits, class Float>
OCTAVO_HD constexpr uint16_t encode_f16(Bits bits, Float quantum_anchor) {
  constexpr int total_bits = static_cast<int>(sizeof(Bits)) * 8;
  constexpr int shift = mantissa_bits - 10;
  constexpr Bits one = 1;
  constexpr Bits infinity = static_cast<Bits>(2 * bias + 1) << mantissa_bits;
  // 65520, halfway between 65504 and the next binade's 65536: the tie goes to even, which is infinity.
  constexpr Bits overflow = (static_cast<Bits>(bias + 15) << mantissa_bits) | (Bits{0x7FF} << (shift - 1));
  constexpr Bits smallest_normal = static_cast<Bits>(bias - 14) << mantissa_bits;

  const auto sign = static_cast<uint16_t>((bits >> (total_bits - 16)) & 0x8000);
  const Bits magnitude = bits & ~(one << (total_bits - 1));
  Bits code = 0;
  if (magnitude > infinity) {
    code = 0x7E00 | ((magnitude >> shift) & 0x3FF);
  } else if (magnitude >= overflow) {
    code = 0x7C00;
  } else if (magnitude >= smallest_normal) {
    const Bits rebiased = magnitude - (static_cast<Bits>(bias - 15) << mantissa_bits);
    code = (rebiased + (one << (shift - 1)) - 1 + ((rebiased >> shift) & 1)) >> shift;
  } else {
    const Float sum = std::bit_cast<Float>(magnitude) + quantum_anchor;
    code = std::bit_cast<Bits>(sum) - std::bit_cast<Bits>(quantum_anchor);
  }
  return static_cast<uint16_t>(sign | static_cast<uint16_t>(code));
}

}  // namespace detail

OCTAVO_HD constexpr float f16_to_f32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7FFF;
  if (magnitude > 0x7C00) return float_from_bits(sign | 0x7FC00000 | (magnitude << 13));
  if (magnitude == 0x7C00) return float_from_bits(sign | 0x7F800000);
  if (magnitude >= 0x0400) return float_from_bits(sign | ((magnitude << 13) + (uint32_t{127 - 15} << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return float_from_bits(sign | float_bits(subnormal));
}

OCTAVO_HD constexpr uint16_t f32_to_f16(float x) {
  return detail::encode_f16<23, 127>(float_bits(x), 0x1p-1f);
}

// One rounding. Going through f32 would round twice: 1 + 2^-11 + 2^-30 would become 1.
OCTAVO_HD constexpr uint16_t f64_to_f16(double x) {
  return detail::encode_f16<52, 1023>(double_bits(x), 0x1p28);
}

// The nearest f16 value, infinity when |x| >= 65520.
OCTAVO_HD constexpr float round_to_f16(float x) { return f16_to_f32(f32_to_f16(x)); }
OCTAVO_HD constexpr double round_to_f16(double x) { return static_cast<double>(f16_to_f32(f64_to_f16(x))); }

// a * b + c, exact, rounded once. Every NaN result is 0x7FFF, the pattern CUDA's half fma returns.
// The product is exact in double (22 bits). The double sum then suffices: where it is inexact, its rounding
// is not seen. A product that reaches a quarter of c's f16 step has its last bit within 35 bits of c's top:
// exact. A smaller product leaves c whatever its low bits are. A product above c matters below 2^17 only
// (beyond, the result is infinite), and from there down to 2^-24 or, below 2^-3, down to 2^-48 are at most 46
// bits: exact.
OCTAVO_HD constexpr uint16_t fma_f16(uint16_t a, uint16_t b, uint16_t c) {
  constexpr uint16_t nan = 0x7FFF;
  constexpr int infinity = 0x7C00;
  const int a_magnitude = a & 0x7FFF;
  const int b_magnitude = b & 0x7FFF;
  const int c_magnitude = c & 0x7FFF;
  if (a_magnitude > infinity || b_magnitude > infinity || c_magnitude > infinity) return nan;
  if (a_magnitude == infinity || b_magnitude == infinity) {
    const auto product = static_cast<uint16_t>(((a ^ b) & 0x8000) | infinity);
    if (a_magnitude == 0 || b_magnitude == 0) return nan;
    return c_magnitude == infinity && c != product ? nan : product;
  }
  if (c_magnitude == infinity) return c;
  const double product = static_cast<double>(f16_to_f32(a)) * static_cast<double>(f16_to_f32(b));
  return f64_to_f16(product + static_cast<double>(f16_to_f32(c)));
}

}  // namespace octavo::numerics
