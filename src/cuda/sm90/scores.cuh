// First product: issue S = Q K^T, hide what a row may not see, find row maxima.
//
// A thread holds two rows of its warp's 16, `lane / 4` and that + 8, and of every 8 keys the two at 2 * (lane
// % 4). In registers: f16 scores s[2g], s[2g + 1] = keys 8g + 2t, + 1 of the upper and of the lower row;
// 32-bit scores s[4g .. 4g + 3] = upper row, upper row, lower row, lower row.
#pragma once

#include "cuda/sm90/config.cuh"
#include "cuda/sm90/tiles.cuh"

namespace octavo::cuda::sm90 {

/// Integer sums start from the bits of 1.5 * 2^23, so that they end as the float kMagic + sum: no conversion.
inline constexpr int kMagicBits = 0x4B400000;
inline constexpr float kMagic = 12582912.0F;
inline constexpr std::uint32_t kHiddenHalves = 0xFC00FC00U;  // two f16 -infinity

template <class C>
OCTAVO_DEVICE void issue_scores(typename C::Score (&s)[C::kScoreRegisters], std::uint32_t q,
                                std::uint32_t k) {
  constexpr auto kSwizzle = C::kChunkBytes == 64 ? ptx::Swizzle::bytes64 : ptx::Swizzle::bytes128;
  constexpr int kStride = 8 * C::kChunkBytes;  // bytes between groups of 8 rows
  constexpr int kStepsOfChunk = C::kChunkBytes / 32;
  if constexpr (C::kIntScores) {
    OCTAVO_UNROLL for (int i = 0; i < C::kScoreRegisters; ++i) s[i] = kMagicBits;
  }
  ptx::wgmma_fence();
  OCTAVO_UNROLL for (int step = 0; step < C::kRowBytes / 32; ++step) {
    const int chunk = step / kStepsOfChunk;
    const int within = step % kStepsOfChunk * 2;  // 32 bytes, in units of 16
    ptx::ScoreProduct<C::kScores, C::kKeys>::issue(
        s, ptx::descriptor(q + chunk * (C::kRows * C::kChunkBytes / 16) + within, kSwizzle, kStride),
        ptx::descriptor(k + chunk * (C::kKeys * C::kChunkBytes / 16) + within, kSwizzle, kStride),
        C::kIntScores || step > 0 ? 1 : 0);
  }
  ptx::wgmma_commit();
}

template <class C>
OCTAVO_DEVICE typename C::Score hidden_score() {
  if constexpr (C::kIntScores) {
    return static_cast<int>(0xFF800000);  // -infinity's bits: the smallest integer that a maximum meets
  } else {
    return -INFINITY;
  }
}

/// Hides keys outside [begin, end) of each row. `key` is the thread's first key.
template <class C>
OCTAVO_DEVICE void hide(typename C::Score (&s)[C::kScoreRegisters], int key, int begin0, int end0, int begin1,
                        int end1) {
  OCTAVO_UNROLL for (int g = 0; g < C::kKeys / 8; ++g) {
    const int a = key + 8 * g;
    const int b = a + 1;
    if constexpr (C::kHalfScores) {
      const auto bits = [&](int begin, int end) {
        return (a < begin || a >= end ? 0xFC00U : 0U) | (b < begin || b >= end ? 0xFC000000U : 0U);
      };
      const auto keep = [](std::uint32_t hidden) {
        return ((hidden & 0x8000U) != 0 ? 0U : 0xFFFFU) | ((hidden & 0x80000000U) != 0 ? 0U : 0xFFFF0000U);
      };
      const std::uint32_t upper = bits(begin0, end0);
      const std::uint32_t lower = bits(begin1, end1);
      s[2 * g] = (s[2 * g] & keep(upper)) | upper;
      s[2 * g + 1] = (s[2 * g + 1] & keep(lower)) | lower;
    } else {
      if (a < begin0 || a >= end0) s[4 * g] = hidden_score<C>();
      if (b < begin0 || b >= end0) s[4 * g + 1] = hidden_score<C>();
      if (a < begin1 || a >= end1) s[4 * g + 2] = hidden_score<C>();
      if (b < begin1 || b >= end1) s[4 * g + 3] = hidden_score<C>();
    }
  }
}

/// A score as a number; integer sums lose their offset, exactly.
template <class C>
OCTAVO_DEVICE float value(typename C::Score s) {
  if constexpr (C::kIntScores) {
    return C::kGeneral ? __int_as_float(s) : __int_as_float(s) - kMagic;
  } else {
    return static_cast<float>(s);
  }
}

template <class T>
OCTAVO_DEVICE T larger(T a, T b) {
  if constexpr (sizeof(T) == 4 && T(0.5F) != T(0)) {
    return fmaxf(a, b);
  } else {
    return max(a, b);
  }
}

/// Row maxima over the 64 keys of scale block `block`, in the thread's own keys. Four chains, which ptxas
/// turns into three-input maxima where the type has them.
template <class C>
OCTAVO_DEVICE void block_maxima(const typename C::Score (&s)[C::kScoreRegisters], int block, float& upper,
                                float& lower) {
  using Score = typename C::Score;
  const int at = block * 32;
  Score a = s[at];
  Score b = s[at + 1];
  Score c = s[at + 2];
  Score d = s[at + 3];
  OCTAVO_UNROLL for (int i = 4; i < 32; i += 4) {
    a = larger(a, s[at + i]);
    b = larger(b, s[at + i + 1]);
    c = larger(c, s[at + i + 2]);
    d = larger(d, s[at + i + 3]);
  }
  if constexpr (C::kIntScores &&
                C::kGeneral) {  // already logits: floats of any sign, whose bits have another order
    upper = lower = -INFINITY;
    OCTAVO_UNROLL for (int i = 0; i < 32; i += 4) {
      upper = fmaxf(upper, fmaxf(__int_as_float(s[at + i]), __int_as_float(s[at + i + 1])));
      lower = fmaxf(lower, fmaxf(__int_as_float(s[at + i + 2]), __int_as_float(s[at + i + 3])));
    }
  } else {
    upper = value<C>(larger(a, b));
    lower = value<C>(larger(c, d));
  }
}

/// Packed f16 maxima of the thread's keys, each half still its own.
template <class C>
OCTAVO_DEVICE void half_maxima(const std::uint32_t (&s)[C::kScoreRegisters], std::uint32_t& upper,
                               std::uint32_t& lower) {
  std::uint32_t a = s[0];
  std::uint32_t b = s[1];
  std::uint32_t c = s[2];
  std::uint32_t d = s[3];
  OCTAVO_UNROLL for (int i = 4; i < C::kScoreRegisters; i += 4) {
    a = ptx::max_f16x2(a, s[i]);
    b = ptx::max_f16x2(b, s[i + 1]);
    c = ptx::max_f16x2(c, s[i + 2]);
    d = ptx::max_f16x2(d, s[i + 3]);
  }
  upper = ptx::max_f16x2(a, c);
  lower = ptx::max_f16x2(b, d);
}

/// Maximum over the four threads of a row.
OCTAVO_DEVICE float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0U, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0U, x, 2));
}
OCTAVO_DEVICE float row_sum(float x) {
  x += __shfl_xor_sync(~0U, x, 1);
  return x + __shfl_xor_sync(~0U, x, 2);
}

}  // namespace octavo::cuda::sm90
