// Rounding to integers, sums that can be rounded again without a double-rounding error, and a*b+c in one
// rounding. Everything assumes the default rounding mode (nearest, ties to even).
#pragma once

#include "numerics/config.hpp"

namespace octavo::numerics {

// Nearest integer, ties to even, as a float. Exact for |x| <= 2^22: at 1.5 * 2^23 a float's last bit is
// worth 1, so the sum does the rounding. No libm call, and the same trick every SIMD kernel uses.
OCTAVO_HD constexpr float round_even(float x) {
  constexpr float magic = 12582912.0f;  // 1.5 * 2^23: the 1.5 keeps negative x in the same binade
  return add_f32(add_f32(x, magic), -magic);
}

// a + b rounded to odd: when the sum is not a double, of its two neighbours the one with an odd last bit.
// Rounding that once more to any format of at most 51 significant bits gives the correctly rounded exact
// sum, because an odd last bit can never be mistaken for a tie or an exact value. a and b finite, no
// overflow.
OCTAVO_HD constexpr double add_round_to_odd(double a, double b) {
  const double sum = a + b;
  const double b_part = sum - a;
  const double error = (a - (sum - b_part)) + (b - b_part);  // exact: a + b == sum + error
  const uint64_t bits = double_bits(sum);
  if (error == 0.0 || (bits & 1) != 0) return sum;
  const bool away_from_zero = (error > 0.0) == (sum > 0.0);
  return double_from_bits(away_from_zero ? bits + 1 : bits - 1);
}

// a * b + c rounded once. The compile-time form is exact for finite arguments (the product of two floats is a
// double), so both forms return the same bits. Kernels evaluate polynomials with the hardware's fused
// multiply-add.
OCTAVO_HD constexpr float fma_f32(float a, float b, float c) {
  if (std::is_constant_evaluated()) {
    return static_cast<float>(add_round_to_odd(static_cast<double>(a) * static_cast<double>(b), c));
  }
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

}  // namespace octavo::numerics
