// Rounding a vector of f32 to the grids of numerics/, for any tier: the same results as the scalar functions
// there, lane by lane (tests/cpu/isa_test.cpp holds every tier to them).
#pragma once

#include <cstdint>

namespace octavo::cpu {

/// Nearest e4m3 value, |x| <= 448 (1 + 2^-5): adding 1.5 * 2^(e + 20) leaves 3 fraction bits of a value of
/// exponent e, with the hardware's own ties to even; e is clamped to -6, where the subnormals' fixed step of
/// 2^-9 begins.
template <class V>
static inline __attribute__((always_inline)) typename V::F grid_e4m3(typename V::F x) {
  constexpr std::int32_t kSmallestNormal = 121 << 23;  // 2^-6
  const typename V::I exponent =
      V::max_int(V::and_int(V::bits(x), V::set_int(0x7F800000)), V::set_int(kSmallestNormal));
  const typename V::F anchor = V::from_bits(V::add_int(exponent, V::set_int((20 << 23) + 0x400000)));
  return V::sub(V::add(x, anchor), anchor);
}

/// Nearest bf16 value, ties to even, of a finite x.
template <class V>
static inline __attribute__((always_inline)) typename V::F grid_bf16(typename V::F x) {
  const typename V::I b = V::bits(x);
  const typename V::I odd = V::and_int(V::template shift_right<16>(b), V::set_int(1));
  return V::from_bits(V::and_int(V::add_int(V::add_int(b, V::set_int(0x7FFF)), odd),
                                 V::set_int(static_cast<std::int32_t>(0xFFFF0000))));
}

/// The value of the e4m3 byte sat(rne(8 * t + bias)), t = log2 of the weight: numerics::exp2_direct_e4m3
/// followed by decoding.
template <class V>
static inline __attribute__((always_inline)) typename V::F direct_e4m3(typename V::F t, typename V::F bias) {
  // min and max return their second operand when either is NaN: in this order a NaN stays.
  const typename V::F code = V::max(V::zero(), V::min(V::set(126.0F), V::fma(V::set(8.0F), t, bias)));
  const typename V::I n = V::to_int(code);
  const typename V::F whole = V::to_float(n);
  const typename V::F normal = V::from_bits(V::add_int(V::template shift_left<20>(n), V::set_int(120 << 23)));
  const typename V::F weight = V::select_greater(V::set(8.0F), whole, V::mul(whole, V::set(0x1p-9F)), normal);
  return V::add(weight, V::sub(code, code));  // + 0, or NaN: the integers above have lost it
}

}  // namespace octavo::cpu
