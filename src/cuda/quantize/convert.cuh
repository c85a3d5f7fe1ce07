// Conversions in hardware, each with the bits of src/numerics (tests/cuda/convert_test.cu compares them over
// all inputs).
#pragma once

#include <cstdint>

#include "cuda/ptx/registers.cuh"

namespace octavo::cuda {

/// Smaller of two; NaN if any is.
__device__ __forceinline__ float min_nan(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

/// Two 16-bit values of a word at once.
template <bool kBf16>
__device__ __forceinline__ std::uint32_t max_nan_x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t r;
  if constexpr (kBf16) {
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  }
  return r;
}
template <bool kBf16>
__device__ __forceinline__ std::uint32_t min_nan_x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t r;
  if constexpr (kBf16) {
    asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  } else {
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  }
  return r;
}

/// Both values of a word, low half first.
template <bool kBf16>
__device__ __forceinline__ void widen_x2(std::uint32_t word, float& low, float& high) {
  if constexpr (kBf16) {
    low = __uint_as_float(word << 16);
    high = __uint_as_float(word & 0xFFFF0000U);
  } else {
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
        : "=f"(low), "=f"(high)
        : "r"(word));
  }
}

/// x / divisor with the quotient's own bits, `inverse` being 1 / divisor: payload is defined by the rounded
/// quotient, and among 16-bit inputs many are exact ties, which a product with the reciprocal alone rounds
/// either way.
__device__ __forceinline__ float quotient(float x, float divisor, float inverse) {
  const float near = __fmul_rn(x, inverse);
  return __fmaf_rn(__fmaf_rn(-near, divisor, x), inverse, near);
}

/// Nearest even integers, |x| < 2^22: adding 1.5 * 2^23 leaves them in the low bits.
__device__ __forceinline__ std::uint32_t int8_x4(float a, float b, float c, float d) {
  const float x[4] = {a, b, c, d};
  const auto code = [&](int i) { return __float_as_uint(__fadd_rn(x[i], ptx::kMagic)); };
  const std::uint32_t low = __byte_perm(code(0), code(1), 0x0040);
  const std::uint32_t high = __byte_perm(code(2), code(3), 0x0040);
  return __byte_perm(low, high, 0x5410);
}

/// Read once: evicted first, so that payload stays in L2 for the attention kernel.
__device__ __forceinline__ uint4 load_once(const std::byte* from) {
  return __ldcs(reinterpret_cast<const uint4*>(from));
}
__device__ __forceinline__ uint4 load_again(const std::byte* from) {
  return __ldg(reinterpret_cast<const uint4*>(from));
}

}  // namespace octavo::cuda
