// The rotation that spreads a dominating channel over all of them: x -> (signs * x) H / sqrt(n). H is the
// natural-order Walsh-Hadamard matrix, H[i][j] = (-1)^popcount(i & j); with the same signs on Q and K it is
// orthonormal and leaves every dot product unchanged. The random signs keep a constant vector from becoming
// one spike.
#pragma once

#include "numerics/config.hpp"

namespace octavo::numerics {

OCTAVO_HD constexpr int next_power_of_two(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

// +1 or -1, a function of (seed, channel) alone: top bit of the splitmix64 output number `channel`.
OCTAVO_HD constexpr float hadamard_sign(uint64_t seed, int channel) {
  uint64_t z = seed + (static_cast<uint64_t>(channel) + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return ((z ^ (z >> 31)) >> 63) != 0 ? -1.0f : 1.0f;
}

// 1 / sqrt(n) for a power of two n, correctly rounded.
OCTAVO_HD constexpr float hadamard_scale(int n) {
  float scale = 1.0f;
  for (; n >= 4; n /= 4) scale *= 0.5f;
  return n == 2 ? scale * 0x1.6a09e6p-1f : scale;  // sqrt(1/2)
}

// In place, n a power of two. Butterflies with strides 1, 2, 4, ... and the scale last: a SIMD version in
// that order returns the same bits.
OCTAVO_HD constexpr void hadamard_rotate(float* x, int n, uint64_t seed) {
  for (int channel = 0; channel < n; ++channel) x[channel] *= hadamard_sign(seed, channel);
  for (int stride = 1; stride < n; stride *= 2) {
    for (int base = 0; base < n; base += 2 * stride) {
      for (int i = base; i < base + stride; ++i) {
        const float low = x[i];
        const float high = x[i + stride];
        x[i] = low + high;
        x[i + stride] = low - high;
      }
    }
  }
  const float scale = hadamard_scale(n);
  for (int channel = 0; channel < n; ++channel) x[channel] *= scale;
}

}  // namespace octavo::numerics
