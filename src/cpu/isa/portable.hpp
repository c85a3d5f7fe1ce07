// Any x86-64: 8 lanes as GCC/Clang vector extensions, which the compiler lowers to SSE2. The ladder's first
// rung: the same four steps as every tier, in plain C++; the rungs above replace these few functions.
#pragma once

#include <emmintrin.h>

#include <cstdint>
#include <cstring>

#include "numerics/bfloat16.hpp"
#include "numerics/exp2.hpp"
#include "numerics/float16.hpp"

#define OCTAVO_INLINE static inline __attribute__((always_inline))

namespace octavo::cpu {

struct Portable {
  using F = float __attribute__((vector_size(32)));
  using I = std::int32_t __attribute__((vector_size(32)));
  using U = std::uint32_t __attribute__((vector_size(32)));
  static constexpr int kLanes = 8;
  static constexpr int kGroups = 2;
  static constexpr int kKeyUnroll = 2;  // 16 SSE registers hold 4 accumulators of 8 lanes
  static constexpr int kChannelUnroll = 2;

  OCTAVO_INLINE F set(float x) { return F{x, x, x, x, x, x, x, x}; }
  OCTAVO_INLINE F zero() { return set(0.0F); }
  OCTAVO_INLINE I set_int(std::int32_t x) { return I{x, x, x, x, x, x, x, x}; }
  OCTAVO_INLINE F load(const float* p) {
    F x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  OCTAVO_INLINE void store(float* p, F x) { std::memcpy(p, &x, sizeof x); }
  OCTAVO_INLINE I load_int(const std::int32_t* p) {
    I x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  OCTAVO_INLINE I bits(F x) { return reinterpret_cast<I>(x); }
  OCTAVO_INLINE F from_bits(I x) { return reinterpret_cast<F>(x); }
  /// mask lanes (all ones or zeros) ? x : y
  OCTAVO_INLINE F choose(I mask, F x, F y) { return from_bits((mask & bits(x)) | (~mask & bits(y))); }

  OCTAVO_INLINE F add(F a, F b) { return a + b; }
  OCTAVO_INLINE F sub(F a, F b) { return a - b; }
  OCTAVO_INLINE F mul(F a, F b) { return a * b; }
  OCTAVO_INLINE F div(F a, F b) { return a / b; }
  OCTAVO_INLINE F fma(F a, F b, F c) { return a * b + c; }  // two roundings: SSE2 has no fused form
  OCTAVO_INLINE F max(F a, F b) { return choose(a > b, a, b); }
  OCTAVO_INLINE F min(F a, F b) { return choose(a < b, a, b); }
  OCTAVO_INLINE F abs(F x) { return from_bits(bits(x) & set_int(0x7FFFFFFF)); }
  OCTAVO_INLINE bool any_greater(F a, F b) {
    const I mask = a > b;
    bool any = false;
    for (int i = 0; i < kLanes; ++i) any = any || mask[i] != 0;
    return any;
  }
  OCTAVO_INLINE F select_greater(F a, F b, F x, F y) { return choose(a > b, x, y); }
  /// Nearest even for |x| < 2^22, x itself beyond: 1.5 * 2^23 has no fraction bits left.
  OCTAVO_INLINE F round_even(F x) {
    const F magic = set(12582912.0F);
    const F rounded = (x + magic) - magic;
    return choose(abs(x) < set(4194304.0F), rounded, x);
  }
  OCTAVO_INLINE F to_float(I x) { return __builtin_convertvector(x, F); }
  OCTAVO_INLINE I to_int(F x) { return __builtin_convertvector(round_even(x), I); }
  // Wrap as the instructions do: the bits of Inf and NaN pass through the grids of grids.hpp too.
  OCTAVO_INLINE I add_int(I a, I b) {
    return reinterpret_cast<I>(reinterpret_cast<U>(a) + reinterpret_cast<U>(b));
  }
  OCTAVO_INLINE I sub_int(I a, I b) {
    return reinterpret_cast<I>(reinterpret_cast<U>(a) - reinterpret_cast<U>(b));
  }
  OCTAVO_INLINE I and_int(I a, I b) { return a & b; }
  OCTAVO_INLINE I max_int(I a, I b) {
    const I mask = a > b;
    return (mask & a) | (~mask & b);
  }
  template <int kBits>
  OCTAVO_INLINE I shift_left(I x) {
    return x << kBits;
  }
  template <int kBits>
  OCTAVO_INLINE I shift_right(I x) {  // logical
    return reinterpret_cast<I>(reinterpret_cast<U>(x) >> kBits);
  }

  OCTAVO_INLINE F hide(F s, std::int32_t key, I begin, I end) {
    const I k = set_int(key);
    return choose((begin <= k) & (end > k), s, set(-__builtin_inff()));
  }

  OCTAVO_INLINE F round_to_f16(F x) {
    F y = x;
    for (int i = 0; i < kLanes; ++i) y[i] = numerics::round_to_f16(x[i]);
    return y;
  }
  OCTAVO_INLINE F load_f16(const void* p) {
    std::uint16_t h[kLanes];
    std::memcpy(h, p, sizeof h);
    F y = zero();
    for (int i = 0; i < kLanes; ++i) y[i] = numerics::f16_to_f32(h[i]);
    return y;
  }
  OCTAVO_INLINE F load_bf16(const void* p) {
    std::uint16_t h[kLanes];
    std::memcpy(h, p, sizeof h);
    F y = zero();
    for (int i = 0; i < kLanes; ++i) y[i] = numerics::bf16_to_f32(h[i]);
    return y;
  }

  /// a * b + c rounded once, but for ties of ties: the product is exact in double. The weights of this tier
  /// then equal those of the tiers with fused multiply-add, bit for bit, and none falls to the other side of
  /// a rounding tie.
  OCTAVO_INLINE F fused(F a, F b, F c) {
    using Doubles = double __attribute__((vector_size(64)));
    const Doubles product = __builtin_convertvector(a, Doubles) * __builtin_convertvector(b, Doubles);
    return __builtin_convertvector(product + __builtin_convertvector(c, Doubles), F);
  }

  OCTAVO_INLINE F exp2(F x) {
    const F c = max(set(-127.0F), x);  // in this order a NaN stays
    const F n = round_even(c);
    const F r = c - n;
    F p = fused(set(numerics::kExp2Poly[5]), r, set(numerics::kExp2Poly[4]));
    p = fused(p, r, set(numerics::kExp2Poly[3]));
    p = fused(p, r, set(numerics::kExp2Poly[2]));
    p = fused(p, r, set(numerics::kExp2Poly[1]));
    p = fused(p, r, set(numerics::kExp2Poly[0]));
    p = from_bits(bits(p) + (__builtin_convertvector(n, I) << 23));
    return choose(x < set(numerics::kExp2Min), zero(), p);
  }

  // ---- INT8 products on 16-bit lanes, as AVX2
  // ----------------------------------------------------------------------------
  using KeyElement = std::int16_t;
  using QueryElement = std::int16_t;
  static constexpr int kPack = 2;
  static constexpr int kKeyOffset = 0;
  OCTAVO_INLINE void dot(I& acc, I k, I q) {
    __m128i a[2], b[2], t[2];
    std::memcpy(a, &k, sizeof a);
    std::memcpy(b, &q, sizeof b);
    t[0] = _mm_madd_epi16(a[0], b[0]);  // SSE2, so part of every x86-64
    t[1] = _mm_madd_epi16(a[1], b[1]);
    I sum;
    std::memcpy(&sum, t, sizeof sum);
    acc += sum;
  }
  OCTAVO_INLINE I broadcast(const void* p) {
    std::int32_t w;
    std::memcpy(&w, p, sizeof w);
    return set_int(w);
  }
  OCTAVO_INLINE I load_operand(const void* p) {
    I x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  OCTAVO_INLINE void fma_chain(F& acc, F a, F b) { acc += a * b; }
  OCTAVO_INLINE F broadcast_float(const float* p) { return set(*p); }
  OCTAVO_INLINE F load_float_operand(const float* p) { return load(p); }
};

}  // namespace octavo::cpu
