// 16-bit codes on AVX2: 16 lanes, two keys of 8 rows.
//
// vpackssdw leaves, in each 128-bit half, four rows of the first key and then the same four rows of the
// second; a shuffle after the exponential brings the two weights of a row together, as vpmaddwd wants them.
// On Zen 3 that is as many instructions as shift and blend, and it saturates.
#pragma once

#include "cpu/isa/avx2.hpp"
#include "cpu/isa/codes.hpp"
#include "numerics/cpu8_table.hpp"

namespace octavo::cpu {

template <>
struct Codes<Avx2> {
  using I = Avx2::I;
  using C = __m256i;
  using ValueElement = std::int16_t;
  static constexpr bool kFused =
      false;  // 16 registers: constants of the exponential beside 8 accumulators would spill
  static constexpr bool kFusedMultiplyAdd = true;  // V::fma rounds once
  static constexpr int kStepUnroll =
      2;  // 64 turns for 256 keys: the end of a loop of 128 is not foreseen (Zen 3)
  static constexpr int kSumKeys = 256;  // 16-bit sums of 128 weights a lane: 128 * 255 < 2^15

  OCTAVO_INLINE C set_code(int x) { return _mm256_set1_epi16(static_cast<short>(x)); }
  OCTAVO_INLINE C load_codes(const std::byte* p) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
  }
  OCTAVO_INLINE void store_codes(std::byte* p, C x) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), x); }
  OCTAVO_INLINE C pack(I a, I b) { return _mm256_packs_epi32(a, b); }
  OCTAVO_INLINE C best(C a, C b) { return _mm256_max_epi16(a, b); }
  OCTAVO_INLINE C add_code(C a, C b) { return _mm256_add_epi16(a, b); }
  OCTAVO_INLINE I row_best(C x) {
    const __m256i most = _mm256_max_epi16(x, _mm256_shuffle_epi32(x, 0x4E));
    return _mm256_srai_epi32(_mm256_unpacklo_epi16(most, most), 16);
  }
  OCTAVO_INLINE C hide(C x, C key, C begin, C end) {
    const __m256i seen = _mm256_andnot_si256(_mm256_cmpgt_epi16(begin, key), _mm256_cmpgt_epi16(end, key));
    return _mm256_blendv_epi8(set_code(kLowestCode), x, seen);
  }

  /// Constants of weights(). The mantissa is that of numerics/cpu8_table.hpp, halved on its last step, vpavgw
  /// in place of vpaddw: (T >> 1) * 2^(8 - e), which vpmulhrsw rounds at 2^15, is T * 2^-(e + 8) rounded half
  /// up, which is what two floors with 128 between them are; the bit lost is below half a step.
  struct Constants {
    C far = set_code(0xFFFF - kFarthestStep);
    C slope = set_code(numerics::kCpu8Slope);
    C root = set_code(numerics::kCpu8Root);
    C lift = set_code(numerics::kCpu8Lift - 1);  // vpavgw adds 1
    C both = set_code(257);
    // The octave e in both bytes, turned into vpshufb indices of `power`: low byte e + 7, high byte e + 127,
    // which has its top bit set (giving 0) unless e = 0. 0x3F0 are the ones that the saturating add leaves
    // above e.
    C index = set_code(0x7F07 - 0x3F0 * 257);
    C power = _mm256_set_epi64x(0x0102040810204080, 0, 0x0102040810204080, 0);
    C pairs =
        _mm256_set_epi64x(0x0F0E07060D0C0504, 0x0B0A030209080100, 0x0F0E07060D0C0504, 0x0B0A030209080100);
  };

  OCTAVO_INLINE I weights(const std::byte* codes, std::ptrdiff_t, C top, const Constants& c) {
    // 0xFC00 + min(distance, 1023): the low 10 bits are octave and step, and one instruction cuts the
    // distance.
    const __m256i d = _mm256_adds_epu16(_mm256_sub_epi16(top, load_codes(codes)), c.far);
    const __m256i u = _mm256_slli_epi16(d, 16 - numerics::kCpu8StepsLog2);
    const __m256i q =
        _mm256_sub_epi16(c.root, _mm256_mulhi_epu16(u, _mm256_sub_epi16(c.slope, _mm256_srli_epi16(u, 5))));
    const __m256i half = _mm256_avg_epu16(_mm256_mulhi_epu16(q, q), c.lift);
    const __m256i octave = _mm256_srli_epi16(d, numerics::kCpu8StepsLog2);
    const __m256i power =
        _mm256_shuffle_epi8(c.power, _mm256_add_epi16(_mm256_mullo_epi16(octave, c.both), c.index));
    return _mm256_shuffle_epi8(_mm256_mulhrs_epi16(half, power), c.pairs);
  }

  OCTAVO_INLINE void add_weights(I& sum, I weights) { sum = _mm256_add_epi16(sum, weights); }
  OCTAVO_INLINE I sum_of(I sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
  /// a0 += x . y0, a1 += x . y1 over the kPack products of each lane. Both products come first: Zen 3 then
  /// spends 5.0 cycles on the 16 instructions of a step of 4 keys, 5.4 when products and sums alternate, as
  /// sums take fewer of the multipliers' two slots.
  OCTAVO_INLINE void dot_keys(I& a0, I& a1, I x, I y0, I y1) {
    I t0;
    I t1;
    asm("vpmaddwd %5,%4,%2\n\tvpmaddwd %6,%4,%3\n\tvpaddd %2,%0,%0\n\tvpaddd %3,%1,%1"
        : "+x"(a0), "+x"(a1), "=&x"(t0), "=&x"(t1)
        : "x"(x), "x"(y0), "x"(y1));
  }
  OCTAVO_INLINE void dot_values(I& a0, I& a1, I value, I w0, I w1) { dot_keys(a0, a1, value, w0, w1); }

  OCTAVO_INLINE void narrow(const I (&x)[2], std::int16_t* to) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(x[0], x[1]), 0xD8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), packed);
  }
  static constexpr int kTranspose = 8;
  OCTAVO_INLINE void transpose(const std::int16_t* rows, std::ptrdiff_t pitch, I (&columns)[kTranspose]) {
    I a[8];
    I b[8];
    for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows + i * pitch));
    for (int i = 0; i < 8; i += 2) {
      b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
      b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      a[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
      a[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
      a[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
      a[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
      columns[i] = _mm256_permute2x128_si256(a[i], a[i + 4], 0x20);
      columns[i + 4] = _mm256_permute2x128_si256(a[i], a[i + 4], 0x31);
    }
  }

  OCTAVO_INLINE void store_weights(std::byte* p, I weights) { store_codes(p, weights); }
};

}  // namespace octavo::cpu
