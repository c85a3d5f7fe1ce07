// 16-bit codes on any x86-64: 16 lanes as two SSE2 registers, the exponential looked up one lane at a time.
// Same layout as AVX2 but for the order of lanes, which is plain here: [row][2 keys].
#pragma once

#include <array>

#include "cpu/isa/codes.hpp"
#include "cpu/isa/portable.hpp"
#include "numerics/cpu8_table.hpp"

namespace octavo::cpu {

template <>
struct Codes<Portable> {
  using I = Portable::I;
  using C = std::int16_t __attribute__((vector_size(32)));
  using ValueElement = std::int16_t;
  static constexpr bool kFused = false;
  static constexpr bool kFusedMultiplyAdd = false;  // V::fma rounds once
  static constexpr int kStepUnroll = 1;
  static constexpr int kSumKeys = 1 << 20;

  OCTAVO_INLINE C set_code(int x) { return C{} + static_cast<std::int16_t>(x); }
  OCTAVO_INLINE C load_codes(const std::byte* p) {
    C x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  OCTAVO_INLINE void store_codes(std::byte* p, C x) { std::memcpy(p, &x, sizeof x); }
  OCTAVO_INLINE C pack(I a, I b) {
    __m128i x[2], y[2], z[2];
    std::memcpy(x, &a, sizeof x);
    std::memcpy(y, &b, sizeof y);
    for (int i = 0; i < 2; ++i) {
      const __m128i narrow = _mm_packs_epi32(x[i], y[i]);
      z[i] = _mm_unpacklo_epi16(narrow, _mm_unpackhi_epi64(narrow, narrow));
    }
    C packed;
    std::memcpy(&packed, z, sizeof packed);
    return packed;
  }
  OCTAVO_INLINE C best(C a, C b) {
    const C larger = a > b;
    return (larger & a) | (~larger & b);
  }
  OCTAVO_INLINE C add_code(C a, C b) { return a + b; }
  OCTAVO_INLINE I row_best(C x) {
    const I pair = reinterpret_cast<I>(x);
    const I first = (pair << 16) >> 16;
    return Portable::max_int(first, pair >> 16);
  }
  OCTAVO_INLINE C hide(C x, C key, C begin, C end) {
    const C seen = (begin <= key) & (end > key);
    return (seen & x) | (~seen & set_code(kLowestCode));
  }

  struct Constants {};
  static constexpr auto kWeights = [] {
    std::array<std::int16_t, kFarthestStep + 1> table{};
    for (int d = 0; d <= kFarthestStep; ++d) table[static_cast<std::size_t>(d)] = numerics::cpu8_weight(d);
    return table;
  }();

  OCTAVO_INLINE I weights(const std::byte* codes, std::ptrdiff_t, C top, const Constants&) {
    using U = std::uint16_t __attribute__((vector_size(32)));  // wraps
    std::uint16_t d[16];
    std::int16_t w[16];
    const auto distance = reinterpret_cast<U>(top) - reinterpret_cast<U>(load_codes(codes));
    std::memcpy(d, &distance, sizeof d);
    for (int i = 0; i < 16; ++i) w[i] = kWeights[d[i] < kFarthestStep ? d[i] : kFarthestStep];
    I packed;
    std::memcpy(&packed, w, sizeof packed);
    return packed;
  }

  OCTAVO_INLINE void add_weights(I& sum, I weights) { sum += (weights & 0xFFFF) + (weights >> 16); }
  OCTAVO_INLINE I sum_of(I sum) { return sum; }
  OCTAVO_INLINE void dot_keys(I& a0, I& a1, I x, I y0, I y1) {
    Portable::dot(a0, x, y0);
    Portable::dot(a1, x, y1);
  }
  OCTAVO_INLINE void dot_values(I& a0, I& a1, I value, I w0, I w1) { dot_keys(a0, a1, value, w0, w1); }

  OCTAVO_INLINE void narrow(const I (&x)[2], std::int16_t* to) {
    __m128i wide[4];
    std::memcpy(wide, x, sizeof wide);
    const __m128i packed[2] = {_mm_packs_epi32(wide[0], wide[1]), _mm_packs_epi32(wide[2], wide[3])};
    std::memcpy(to, packed, sizeof packed);
  }
  static constexpr int kTranspose = 8;
  OCTAVO_INLINE void transpose(const std::int16_t* rows, std::ptrdiff_t pitch, I (&columns)[kTranspose]) {
    std::int32_t words[8][8];
    for (int lane = 0; lane < 8; ++lane) {
      for (int i = 0; i < 8; ++i)
        std::memcpy(&words[i][lane], rows + lane * pitch + i * 2, sizeof(std::int32_t));
    }
    std::memcpy(columns, words, sizeof words);
  }

  OCTAVO_INLINE void store_weights(std::byte* p, I weights) { std::memcpy(p, &weights, sizeof weights); }
};

}  // namespace octavo::cpu
