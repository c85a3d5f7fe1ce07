// 16-bit codes on AVX-512: 32 lanes, two keys of 16 rows.
//
// The exponential is one lookup (vpermi2w, 64 mantissas) and one variable shift; four keys' weights end as
// the four bytes of a row's 32-bit lane, which is what vpdpbusd takes as its unsigned operand.
#pragma once

#include <concepts>

#include "cpu/isa/avx512.hpp"
#include "cpu/isa/codes.hpp"
#include "numerics/cpu8_table.hpp"

namespace octavo::cpu {

template <class V>
requires std::derived_from<V, Avx512>
struct Codes<V> {
  using I = Avx512::I;
  using C = __m512i;
  using ValueElement = std::int8_t;
  static constexpr bool kFused =
      true;  // weights are made in the first pass over V: the two other pipes of Zen 5 do it
  static constexpr bool kFusedMultiplyAdd = true;  // V::fma rounds once
  static constexpr int kStepUnroll = 1;
  static constexpr int kSumKeys = 1 << 20;  // s32 sums

  OCTAVO_INLINE C set_code(int x) { return _mm512_set1_epi16(static_cast<short>(x)); }
  OCTAVO_INLINE C load_codes(const std::byte* p) { return _mm512_load_si512(p); }
  OCTAVO_INLINE void store_codes(std::byte* p, C x) { _mm512_store_si512(p, x); }
  OCTAVO_INLINE C pack(I a, I b) { return _mm512_packs_epi32(a, b); }
  OCTAVO_INLINE C best(C a, C b) { return _mm512_max_epi16(a, b); }
  OCTAVO_INLINE C add_code(C a, C b) { return _mm512_add_epi16(a, b); }
  OCTAVO_INLINE I row_best(C x) {
    const __m512i most = _mm512_max_epi16(x, _mm512_shuffle_epi32(x, _MM_PERM_BADC));
    return _mm512_srai_epi32(_mm512_unpacklo_epi16(most, most), 16);
  }
  OCTAVO_INLINE C hide(C x, C key, C begin, C end) {
    const __mmask32 seen = _mm512_cmple_epi16_mask(begin, key) & _mm512_cmpgt_epi16_mask(end, key);
    return _mm512_mask_blend_epi16(seen, set_code(kLowestCode), x);
  }

  struct Constants {
    C low = _mm512_loadu_si512(numerics::kCpu8Table.data());
    C high = _mm512_loadu_si512(numerics::kCpu8Table.data() + 32);
    C half = set_code(128);
    C high_bytes = set_code(0xFF00);
    // words (k0, k2) of four rows, then (k1, k3): to k0, k1, k2, k3 of each row
    C order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
  };

  OCTAVO_INLINE C scaled(const std::byte* codes, C top, const Constants& c) {
    const __m512i d = _mm512_sub_epi16(top, load_codes(codes));
    const __m512i mantissa = _mm512_permutex2var_epi16(c.low, d, c.high);  // takes 6 bits of d
    return _mm512_add_epi16(_mm512_srlv_epi16(mantissa, _mm512_srli_epi16(d, numerics::kCpu8StepsLog2)),
                            c.half);
  }
  OCTAVO_INLINE I weights(const std::byte* codes, std::ptrdiff_t stride, C top, const Constants& c) {
    const __m512i first = _mm512_srli_epi16(scaled(codes, top, c), 8);
    const __m512i both =
        _mm512_ternarylogic_epi32(first, scaled(codes + stride, top, c), c.high_bytes, 0xF8);  // a | (b & c)
    return _mm512_shuffle_epi8(both, c.order);
  }

  OCTAVO_INLINE void add_weights(I& sum, I weights) { Avx512::dot(sum, weights, _mm512_set1_epi8(1)); }
  OCTAVO_INLINE I sum_of(I sum) { return sum; }
  /// Keys (u8) times queries, and weights (u8) times values: the unsigned operand comes first in Avx512::dot.
  OCTAVO_INLINE void dot_keys(I& a0, I& a1, I key, I q0, I q1) {
    Avx512::dot(a0, key, q0);
    Avx512::dot(a1, key, q1);
  }
  OCTAVO_INLINE void dot_values(I& a0, I& a1, I value, I w0, I w1) {
    Avx512::dot(a0, w0, value);
    Avx512::dot(a1, w1, value);
  }

  template <class Element>
  OCTAVO_INLINE void narrow(const I (&x)[1], Element* to) {  // the low byte of each, so s8 and u8 alike
    static_assert(sizeof(Element) == 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(x[0]));
  }
  static constexpr int kTranspose = 16;
  /// 16 x 16 words; columns beyond a row's last word are never used.
  OCTAVO_INLINE void transpose(const std::int8_t* rows, std::ptrdiff_t pitch, I (&columns)[kTranspose]) {
    I a[16];
    I b[16];
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(rows + i * pitch);
    for (int i = 0; i < 16; i += 2) {
      b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      for (int j = 0; j < 2; ++j) {
        a[i + 2 * j] = _mm512_unpacklo_epi64(b[i + j], b[i + j + 2]);
        a[i + 2 * j + 1] = _mm512_unpackhi_epi64(b[i + j], b[i + j + 2]);
      }
    }
    for (int i = 0; i < 16; i += 8) {
      for (int j = 0; j < 4; ++j) {
        b[i + j] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0x88);
        b[i + j + 4] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0xDD);
      }
    }
    for (int j = 0; j < 8; ++j) {
      columns[j] = _mm512_shuffle_i32x4(b[j], b[j + 8], 0x88);
      columns[j + 8] = _mm512_shuffle_i32x4(b[j], b[j + 8], 0xDD);
    }
  }

  OCTAVO_INLINE void store_weights(std::byte* p, I weights) { _mm512_store_si512(p, weights); }
};

}  // namespace octavo::cpu
