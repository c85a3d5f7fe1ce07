// What every header of numerics/ shares: the host/device marker and the few float primitives that must
// not change with the compiler. The formats below this folder are defined once; the reference, the CPU
// tiers and the CUDA kernels all include these headers (nvcc needs --expt-relaxed-constexpr).
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__)
#define OCTAVO_HD __host__ __device__
#else
#define OCTAVO_HD
#endif

namespace octavo::numerics {

OCTAVO_HD constexpr uint32_t float_bits(float x) { return std::bit_cast<uint32_t>(x); }
OCTAVO_HD constexpr uint64_t double_bits(double x) { return std::bit_cast<uint64_t>(x); }
OCTAVO_HD constexpr float float_from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }
OCTAVO_HD constexpr double double_from_bits(uint64_t bits) { return std::bit_cast<double>(bits); }

// a + b with its own rounding. nvcc merges a product in the caller with a plain sum here, which would round
// the product and the sum together; on the host ISO mode (-std=c++20) keeps expressions apart.
OCTAVO_HD constexpr float add_f32(float a, float b) {
#if defined(__CUDA_ARCH__)
  if (!std::is_constant_evaluated()) return __fadd_rn(a, b);
#endif
  return a + b;
}

}  // namespace octavo::numerics
