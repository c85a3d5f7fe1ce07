// The `table` exponential of the cpu8 recipe: a score is an integer code of 64 steps an octave, and its
// weight 255 * 2^(-d/64) a u8, d = max_code - code. AVX-512 looks the mantissa up (vpermi2w, 64 entries of 16
// bits), AVX2 has no such lookup and computes it; so the table is defined by the arithmetic and both agree
// bit for bit.
//
// Mantissa T[f] ~ 65279 * 2^(-f/64), two high-half 16-bit multiplies. A quadratic alone errs by 1.7e-3; here
// the first multiply makes a quadratic q ~ sqrt(T - kCpu8Lift) and the second squares it, and the lift makes
// q's second-order coefficient a power of two, so that it costs a shift. Constants found by search over the
// integers: relative error <= 7.3e-4 (0.19 of a u8 step at the top; half a code step is already 5.4e-3).
//
// AVX2, 16 weights from u16 distances d (all _mm256_, c(x) = set1_epi16(x)):
//   u = slli_epi16(d, 10)                                  // (d & 63) << 10, no mask needed
//   q = sub_epi16(c(57396), mulhi_epu16(u, sub_epi16(c(25381), srli_epi16(u, 5))))
//   T = add_epi16(c(14965), mulhi_epu16(q, q))
//   e = srli_epi16(min_epu16(d, c(1023)), 6)               // octaves; 9 and more end at 0
//   i = sub_epi8(or_si256(e, slli_epi16(e, 8)), c(8))      // bytes (e - 8, e)
//   p = shuffle_epi8(bytes {128,64,32,16,8,4,2,1, 0 x 8}, i)   // the word 2^(15 - e), 0 past 15
//   w = srli_epi16(add_epi16(mulhi_epu16(T, p), c(64)), 7) // ((T >> (e + 1)) + 64) >> 7 == ((T >> e) + 128)
//   >> 8
// AVX-512BW: T = permutex2var_epi16(lo, d, hi); w = srli(add(srlv(T, srli(d, 6)), 128), 8).
#pragma once

#include <array>
#include <cstddef>

#include "numerics/config.hpp"

namespace octavo::numerics {

inline constexpr int kCpu8StepsPerOctave = 64;
inline constexpr int kCpu8StepsLog2 = 6;

inline constexpr uint16_t kCpu8Slope = 25381;
inline constexpr uint16_t kCpu8Root = 57396;  // about sqrt((65279 - kCpu8Lift) * 65536)
inline constexpr uint16_t kCpu8Lift = 14965;

// _mm256_mulhi_epu16, one lane.
OCTAVO_HD constexpr uint16_t mulhi_u16(uint16_t a, uint16_t b) {
  return static_cast<uint16_t>((static_cast<uint32_t>(a) * static_cast<uint32_t>(b)) >> 16);
}

// T[f], 0 <= f < 64. T[0] is such that (T[0] + 128) >> 8 == 255 and the sum stays within 16 bits.
OCTAVO_HD constexpr uint16_t cpu8_mantissa(int f) {
  const auto u = static_cast<uint16_t>(f << 10);
  const auto q =
      static_cast<uint16_t>(kCpu8Root - mulhi_u16(u, static_cast<uint16_t>(kCpu8Slope - (u >> 5))));
  return static_cast<uint16_t>(kCpu8Lift + mulhi_u16(q, q));
}

inline constexpr std::array<uint16_t, 64> kCpu8Table = [] {
  std::array<uint16_t, 64> table{};
  for (int f = 0; f < 64; ++f) table[static_cast<std::size_t>(f)] = cpu8_mantissa(f);
  return table;
}();

// Weight (u8) at distance d >= 0 from the tile's largest code: 255 at 0, 1 at 575, 0 from 576 on.
OCTAVO_HD constexpr uint8_t cpu8_weight(int64_t d) {
  const int64_t octaves = d >> kCpu8StepsLog2;
  if (octaves >= 16) return 0;  // every bit of the mantissa is shifted out
  const int mantissa = cpu8_mantissa(static_cast<int>(d & (kCpu8StepsPerOctave - 1)));
  return static_cast<uint8_t>(((mantissa >> octaves) + 128) >> 8);
}

}  // namespace octavo::numerics
