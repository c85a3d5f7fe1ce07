// AVX2 + FMA + F16C: 8 lanes, 16 registers.
//
// Zen 3: vpmaddwd and vfmadd 2 a cycle, vpaddd 3, loads 2. INT8 products run on 16-bit lanes (vpmaddwd):
// vpmaddubsw saturates on u8 x s8 pairs, and undoing that costs as many multiplies.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "numerics/exp2.hpp"

#define OCTAVO_INLINE static inline __attribute__((always_inline))

namespace octavo::cpu {

struct Avx2 {
  using F = __m256;
  using I = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kGroups =
      2;  // 16 rows: 2 x 4 accumulators, 2 operands, 1 broadcast, 1 temporary of 16 registers
  static constexpr int kKeyUnroll = 4;
  static constexpr int kChannelUnroll = 4;  // 8 FMA chains hide a latency of 4 at 2 a cycle

  OCTAVO_INLINE F zero() { return _mm256_setzero_ps(); }
  OCTAVO_INLINE F set(float x) { return _mm256_set1_ps(x); }
  OCTAVO_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
  OCTAVO_INLINE void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  OCTAVO_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
  OCTAVO_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  OCTAVO_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  OCTAVO_INLINE F div(F a, F b) { return _mm256_div_ps(a, b); }
  OCTAVO_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  /// The second operand when either is NaN, as the instruction has it.
  OCTAVO_INLINE F max(F a, F b) { return _mm256_max_ps(a, b); }
  OCTAVO_INLINE F min(F a, F b) { return _mm256_min_ps(a, b); }
  OCTAVO_INLINE F round_even(F x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  OCTAVO_INLINE F abs(F x) { return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF))); }
  OCTAVO_INLINE bool any_greater(F a, F b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
  }
  /// a > b ? x : y
  OCTAVO_INLINE F select_greater(F a, F b, F x, F y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
  }

  OCTAVO_INLINE I set_int(std::int32_t x) { return _mm256_set1_epi32(x); }
  OCTAVO_INLINE I load_int(const std::int32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  OCTAVO_INLINE F to_float(I x) { return _mm256_cvtepi32_ps(x); }
  OCTAVO_INLINE I to_int(F x) { return _mm256_cvtps_epi32(x); }  // nearest even
  OCTAVO_INLINE I bits(F x) { return _mm256_castps_si256(x); }
  OCTAVO_INLINE F from_bits(I x) { return _mm256_castsi256_ps(x); }
  OCTAVO_INLINE I add_int(I a, I b) { return _mm256_add_epi32(a, b); }
  OCTAVO_INLINE I sub_int(I a, I b) { return _mm256_sub_epi32(a, b); }
  OCTAVO_INLINE I and_int(I a, I b) { return _mm256_and_si256(a, b); }
  OCTAVO_INLINE I max_int(I a, I b) { return _mm256_max_epi32(a, b); }
  template <int kBits>
  OCTAVO_INLINE I shift_left(I x) {
    return _mm256_slli_epi32(x, kBits);
  }
  template <int kBits>
  OCTAVO_INLINE I shift_right(I x) {
    return _mm256_srli_epi32(x, kBits);
  }

  /// -inf in lanes whose key is outside [begin, end).
  OCTAVO_INLINE F hide(F s, std::int32_t key, I begin, I end) {
    const I k = _mm256_set1_epi32(key);
    const I hidden = _mm256_or_si256(_mm256_cmpgt_epi32(begin, k),
                                     _mm256_andnot_si256(_mm256_cmpgt_epi32(end, k), _mm256_set1_epi32(-1)));
    return _mm256_blendv_ps(s, _mm256_set1_ps(-__builtin_inff()), _mm256_castsi256_ps(hidden));
  }

  OCTAVO_INLINE F round_to_f16(F x) {
    return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  OCTAVO_INLINE F load_f16(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  OCTAVO_INLINE F load_bf16(const void* p) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))), 16));
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
    p = _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
    return _mm256_and_ps(p, _mm256_cmp_ps(x, set(numerics::kExp2Min), _CMP_NLT_UQ));  // NaN stays
  }

  // ---- INT8 products on 16-bit lanes
  // -------------------------------------------------------------------------------------
  using KeyElement = std::int16_t;
  using QueryElement = std::int16_t;
  static constexpr int kPack = 2;       // channels of a 32-bit lane
  static constexpr int kKeyOffset = 0;  // added to a stored key
  /// acc += k . q over the kPack channels of each lane. asm: GCC 12 copies accumulators around the intrinsic.
  OCTAVO_INLINE void dot(I& acc, I k, I q) {
    I t;
    asm("vpmaddwd %3,%2,%1\n\tvpaddd %1,%0,%0" : "+x"(acc), "=&x"(t) : "x"(k), "x"(q));
  }
  OCTAVO_INLINE I broadcast(const void* p) {
    std::int32_t w;
    std::memcpy(&w, p, sizeof w);
    I x = _mm256_set1_epi32(w);
    asm("" : "+x"(x));  // keep it in a register: folded into every user, the load ports would saturate
    return x;
  }
  OCTAVO_INLINE I load_operand(const void* p) {
    I x = _mm256_load_si256(static_cast<const __m256i*>(p));
    asm("" : "+x"(x));
    return x;
  }
  OCTAVO_INLINE void fma_chain(F& acc, F a, F b) { asm("vfmadd231ps %2,%1,%0" : "+x"(acc) : "x"(a), "x"(b)); }
  OCTAVO_INLINE F broadcast_float(const float* p) {
    F x = _mm256_broadcast_ss(p);
    asm("" : "+x"(x));
    return x;
  }
  OCTAVO_INLINE F load_float_operand(const float* p) {
    F x = _mm256_load_ps(p);
    asm("" : "+x"(x));
    return x;
  }
};

}  // namespace octavo::cpu
