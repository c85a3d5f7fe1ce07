// Symmetric int8 and int4 payloads and the scale of a group. The most negative code (-128, -8) is never
// used: a symmetric range keeps -x and x at the same distance and lets abs() fit.
#pragma once

#include "numerics/config.hpp"
#include "numerics/rounding.hpp"

namespace octavo::numerics {

inline constexpr int kInt8Limit = 127;
inline constexpr int kInt4Limit = 7;

// Below this a group counts as all zero: x / delta would otherwise divide by a number near underflow.
// There is no larger floor, so inputs of size 1e-8 keep their information.
inline constexpr float kZeroGroupAmax = 0x1p-100f;

// clamp(nearest even integer of x_over_delta, -limit, limit); NaN gives 0. 0 < limit <= 2^22.
// Clamping first is the same (limit is an integer) and keeps the rounding exact for any x.
OCTAVO_HD constexpr int quantize_integer(float x_over_delta, int limit) {
  const float bound = static_cast<float>(limit);
  if (!(x_over_delta == x_over_delta)) return 0;
  const float clamped = x_over_delta > bound ? bound : x_over_delta < -bound ? -bound : x_over_delta;
  return static_cast<int>(round_even(clamped));
}

// Two's complement nibbles, low = even channel in bits 0-3, high = odd channel in bits 4-7; both in [-8, 7].
OCTAVO_HD constexpr uint8_t pack_int4(int low, int high) {
  return static_cast<uint8_t>((static_cast<unsigned>(low) & 0xF) | (static_cast<unsigned>(high) & 0xF) << 4);
}
OCTAVO_HD constexpr int unpack_int4_low(uint8_t packed) { return ((packed & 0xF) ^ 8) - 8; }
OCTAVO_HD constexpr int unpack_int4_high(uint8_t packed) { return ((packed >> 4) ^ 8) - 8; }

// delta of a group with largest magnitude amax whose payload reaches +-limit; 1 for a zero group.
OCTAVO_HD constexpr float group_delta(float amax, float limit) {
  return amax < kZeroGroupAmax ? 1.0f : amax / limit;
}

}  // namespace octavo::numerics
