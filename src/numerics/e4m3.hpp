// FP8 e4m3 ("fn" flavour): 1 sign, 4 exponent (bias 7), 3 mantissa bits, no infinity. The two codes 0x7F and
// 0xFF are NaN, so the largest value is 0x7E = 448; the smallest step is 2^-9. Encoding saturates: weights
// and payloads are scaled to fit, and a saturated value is a far smaller fault than a NaN.
#pragma once

#include "numerics/config.hpp"

namespace octavo::numerics {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr uint8_t kE4m3MaxCode = 0x7E;

OCTAVO_HD constexpr float e4m3_to_f32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24;
  const uint32_t magnitude = code & 0x7F;
  if (magnitude == 0x7F) return float_from_bits(sign | 0x7FC00000);
  if (magnitude >= 0x08) return float_from_bits(sign | ((magnitude << 20) + (uint32_t{127 - 7} << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-9f;
  return float_from_bits(sign | float_bits(subnormal));
}

// Nearest even, saturating at +-448 (infinity too); NaN gives 0x7F with the sign of x.
OCTAVO_HD constexpr uint8_t f32_to_e4m3(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  uint32_t code = 0;
  if (magnitude > 0x7F800000) {
    code = 0x7F;
  } else if (magnitude >= float_bits(kE4m3Max)) {
    code = kE4m3MaxCode;
  } else if (magnitude >= float_bits(0x1p-6f)) {
    const uint32_t rebiased = magnitude - (uint32_t{127 - 7} << 23);
    code = (rebiased + 0x7FFFF + ((rebiased >> 20) & 1)) >> 20;
  } else {
    constexpr float anchor = 0x1p14f;  // its last bit is worth 2^-9, e4m3's subnormal step
    code = float_bits(add_f32(float_from_bits(magnitude), anchor)) - float_bits(anchor);
  }
  return static_cast<uint8_t>((bits >> 24 & 0x80) | code);
}

// The nearest value of the e4m3 grid, within [-448, 448].
OCTAVO_HD constexpr float round_to_e4m3(float x) { return e4m3_to_f32(f32_to_e4m3(x)); }

}  // namespace octavo::numerics
