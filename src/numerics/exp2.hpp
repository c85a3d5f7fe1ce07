// The exponentials of the softmax: `exact` (f32 polynomial) and `direct` (the e4m3 byte of the weight taken
// straight from its logarithm: an e4m3 byte read as an integer is 8 * (log2 x + 7), linear between powers of
// two). `mixed` says which keys of a tile take which. The `table` form of the CPU is in cpu8_table.hpp.
#pragma once

#include "numerics/config.hpp"
#include "numerics/e4m3.hpp"
#include "numerics/float16.hpp"
#include "numerics/rounding.hpp"

namespace octavo::numerics {

// 2^r on [-0.5, 0.5], c0 + c1 r + ... + c5 r^5, minimax in relative error with c0 fixed at 1 so that integer
// arguments give exact powers of two. Approximation error 1.1e-7 after rounding the coefficients to f32.
// Device code must read an element through a constexpr scalar, as below: nvcc gives the array no device
// address.
inline constexpr float kExp2Poly[6] = {1.0f,           0x1.62e42ap-1f, 0x1.ebf9bcp-3f,
                                       0x1.c6b752p-5f, 0x1.3cea88p-7f, 0x1.5bba14p-10f};
inline constexpr float kExp2Min = -126.0f;  // 2^-126 is the smallest normal f32; below it the result is 0

// 2^x. Relative error <= 2.5e-7 over [-126, 128) (1.1e-7 polynomial, 2^-24 last rounding, the rest from inner
// ones); 0 below -126, infinity from 128 on, NaN stays NaN. A SIMD kernel that takes r = x - round_even(x)
// and the same Horner order with fused multiply-adds returns the same bits; one without FMA stays within
// 4e-7.
OCTAVO_HD constexpr float exp2_exact(float x) {
  if (!(x == x)) return x;
  if (x < kExp2Min) return 0.0f;
  if (x >= 128.0f) return float_from_bits(0x7F800000);
  const float n = round_even(x);
  const float r = x - n;  // exact: both are multiples of x's last bit and |r| <= 0.5
  constexpr float c0 = kExp2Poly[0], c1 = kExp2Poly[1], c2 = kExp2Poly[2];
  constexpr float c3 = kExp2Poly[3], c4 = kExp2Poly[4], c5 = kExp2Poly[5];
  float p = fma_f32(c5, r, c4);
  p = fma_f32(p, r, c3);
  p = fma_f32(p, r, c2);
  p = fma_f32(p, r, c1);
  p = fma_f32(p, r, c0);
  // Adding n to the exponent field cannot leave the normal range: n = 128 only with r < 0, where p < 1, and
  // n = -126 only with r >= 0, where p >= 1.
  return float_from_bits(float_bits(p) + (static_cast<uint32_t>(static_cast<int>(n)) << 23));
}

// The straight line through the powers of two lies above log2; lowering the code by 0.46 of a step centres
// the weights, so that LSE is unbiased and direct keys can stand beside exact ones.
inline constexpr float kDirectCentre = 0.46f;
// code = 8 * t + kDirectBias: the bias 7 of the exponent times 8 codes an octave, less the centring.
inline constexpr float kDirectBias = 8.0f * 7.0f - kDirectCentre;

namespace detail {

// Nearest even, from 0 to 0x7E (0x7F would be NaN); NaN gives 0x7F so that it stays visible.
OCTAVO_HD constexpr uint8_t saturate_direct_code(float code) {
  if (!(code == code)) return 0x7F;
  constexpr float top = static_cast<float>(kE4m3MaxCode);
  const float clamped = code > top ? top : code < 0.0f ? 0.0f : code;
  return static_cast<uint8_t>(static_cast<int>(round_even(clamped)));
}

}  // namespace detail

// e4m3 byte of about 2^t, t = log2(p * P_r): sat(rne(8 * (t + 7) - 0.46)). -infinity gives 0. 8 * t is exact,
// so 8 * t + kDirectBias has one rounding with or without FMA. Against 2^t the line is off by
// -3.9% .. +2.0%, with the rounding of the code -8.0% .. +6.5%, for codes of normal values (8 and more); the
// mean is 0.
OCTAVO_HD constexpr uint8_t exp2_direct_e4m3(float t) {
  return detail::saturate_direct_code(8.0f * t + kDirectBias);
}

// The same after an f16 accumulator, in f16: code = s * a8 + b rounded once to f16, then to an integer. a8 is
// f16(8 * combined scale), b is f16(the row constant, kDirectBias included).
OCTAVO_HD constexpr uint8_t exp2_direct_e4m3_f16(uint16_t s, uint16_t a8, uint16_t b) {
  return detail::saturate_direct_code(f16_to_f32(fma_f16(s, a8, b)));
}

// mixed(n/m): of every m groups of 8 keys (key_in_tile in logical order) the first n are direct.
OCTAVO_HD constexpr bool mixed_is_direct(int key_in_tile, int n, int m) { return key_in_tile / 8 % m < n; }

}  // namespace octavo::numerics
