// bfloat16: the upper half of an f32 (8 exponent, 7 mantissa bits). Nearest even; overflow goes to
// infinity; NaN stays NaN even when its payload sits in the dropped bits.
#pragma once

#include "numerics/config.hpp"

namespace octavo::numerics {

OCTAVO_HD constexpr float bf16_to_f32(uint16_t bf16) {
  return float_from_bits(static_cast<uint32_t>(bf16) << 16);
}

OCTAVO_HD constexpr uint16_t f32_to_bf16(float x) {
  const uint32_t bits = float_bits(x);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>((bits >> 16) | 0x0040);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

OCTAVO_HD constexpr float round_to_bf16(float x) { return bf16_to_f32(f32_to_bf16(x)); }

}  // namespace octavo::numerics
