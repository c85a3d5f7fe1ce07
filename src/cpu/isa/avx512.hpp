// AVX-512 (F, BW, DQ, VL, VBMI, VNNI): 16 lanes, 32 registers.
//
// Zen 5: vpdpbusd and vfmadd 2 a cycle beside adds, maxima and converts on two other pipes. Intel: two
// 512-bit pipes for everything, so the softmax cannot hide. K is stored as k + 128 (u8), because vpdpbusd is
// u8 x s8; the accumulators start at -128 * sum(q), which undoes it for free.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "numerics/exp2.hpp"

#define OCTAVO_INLINE static inline __attribute__((always_inline))

namespace octavo::cpu {

struct Avx512 {
  using F = __m512;
  using I = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kGroups = 2;  // 32 rows: 2 x 8 accumulators; more rows cost scratch, not speed
  static constexpr int kKeyUnroll = 8;
  static constexpr int kChannelUnroll = 8;  // 16 FMA chains; latency 4 at 2 a cycle needs 8

  OCTAVO_INLINE F zero() { return _mm512_setzero_ps(); }
  OCTAVO_INLINE F set(float x) { return _mm512_set1_ps(x); }
  OCTAVO_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
  OCTAVO_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  OCTAVO_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
  OCTAVO_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  OCTAVO_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  OCTAVO_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
  OCTAVO_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  /// The second operand when either is NaN, as the instruction has it.
  OCTAVO_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
  OCTAVO_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
  OCTAVO_INLINE F round_even(F x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  OCTAVO_INLINE F abs(F x) { return _mm512_and_ps(x, _mm512_castsi512_ps(_mm512_set1_epi32(0x7FFFFFFF))); }
  OCTAVO_INLINE bool any_greater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
  /// a > b ? x : y
  OCTAVO_INLINE F select_greater(F a, F b, F x, F y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x);
  }

  OCTAVO_INLINE I set_int(std::int32_t x) { return _mm512_set1_epi32(x); }
  OCTAVO_INLINE I load_int(const std::int32_t* p) { return _mm512_loadu_si512(p); }
  OCTAVO_INLINE F to_float(I x) { return _mm512_cvtepi32_ps(x); }
  OCTAVO_INLINE I to_int(F x) { return _mm512_cvtps_epi32(x); }  // nearest even
  OCTAVO_INLINE I bits(F x) { return _mm512_castps_si512(x); }
  OCTAVO_INLINE F from_bits(I x) { return _mm512_castsi512_ps(x); }
  OCTAVO_INLINE I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
  OCTAVO_INLINE I sub_int(I a, I b) { return _mm512_sub_epi32(a, b); }
  OCTAVO_INLINE I and_int(I a, I b) { return _mm512_and_si512(a, b); }
  OCTAVO_INLINE I max_int(I a, I b) { return _mm512_max_epi32(a, b); }
  template <int kBits>
  OCTAVO_INLINE I shift_left(I x) {
    return _mm512_slli_epi32(x, kBits);
  }
  template <int kBits>
  OCTAVO_INLINE I shift_right(I x) {
    return _mm512_srli_epi32(x, kBits);
  }

  /// -inf in lanes whose key is outside [begin, end).
  OCTAVO_INLINE F hide(F s, std::int32_t key, I begin, I end) {
    const I k = _mm512_set1_epi32(key);
    const __mmask16 seen = _mm512_mask_cmpgt_epi32_mask(_mm512_cmple_epi32_mask(begin, k), end, k);
    return _mm512_mask_blend_ps(seen, _mm512_set1_ps(-__builtin_inff()), s);
  }

  OCTAVO_INLINE F round_to_f16(F x) {
    return _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  OCTAVO_INLINE F load_f16(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  OCTAVO_INLINE F load_bf16(const void* p) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))), 16));
  }

  /// 2^x by numerics::kExp2Poly: 0 below -126, also for -inf. x <= 127.
  OCTAVO_INLINE F exp2(F x) {
    const F c = max(set(-127.0F), x);  // in this order a NaN stays
    const F n = round_even(c);
    const F r = sub(c, n);
    F p = fma(set(numerics::kExp2Poly[5]), r, set(numerics::kExp2Poly[4]));
    p = fma(p, r, set(numerics::kExp2Poly[3]));
    p = fma(p, r, set(numerics::kExp2Poly[2]));
    p = fma(p, r, set(numerics::kExp2Poly[1]));
    p = fma(p, r, set(numerics::kExp2Poly[0]));
    p = _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23)));
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, set(numerics::kExp2Min), _CMP_NLT_UQ), p);  // NaN stays
  }

  // ---- INT8 products
  // -------------------------------------------------------------------------------------------------------
  using KeyElement = std::uint8_t;
  using QueryElement = std::int8_t;
  static constexpr int kPack = 4;         // channels of a 32-bit lane
  static constexpr int kKeyOffset = 128;  // added to a stored key
  /// acc += k . q over the kPack channels of each lane. asm: GCC 12 copies accumulators around the intrinsic.
  OCTAVO_INLINE void dot(I& acc, I k, I q) { asm("vpdpbusd %2,%1,%0" : "+v"(acc) : "v"(k), "v"(q)); }
  OCTAVO_INLINE I broadcast(const void* p) {
    std::int32_t w;
    std::memcpy(&w, p, sizeof w);
    I x = _mm512_set1_epi32(w);
    asm("" : "+v"(x));  // keep it in a register: folded into every user, the load ports would saturate
    return x;
  }
  OCTAVO_INLINE I load_operand(const void* p) {
    I x = _mm512_load_si512(p);
    asm("" : "+v"(x));
    return x;
  }
  OCTAVO_INLINE void fma_chain(F& acc, F a, F b) { asm("vfmadd231ps %2,%1,%0" : "+v"(acc) : "v"(a), "v"(b)); }
  OCTAVO_INLINE F broadcast_float(const float* p) {
    F x = _mm512_set1_ps(*p);
    asm("" : "+v"(x));
    return x;
  }
  OCTAVO_INLINE F load_float_operand(const float* p) {
    F x = _mm512_load_ps(p);
    asm("" : "+v"(x));
    return x;
  }
};

}  // namespace octavo::cpu
