// First product: issue S = Q K^T, hide what a row may not see, find row maxima.
//
// A thread holds two rows of its warp's 16, `lane / 4` and that + 8, and of every 8 keys the two at 2 * (lane
// % 4). In registers: f16 scores s[2g], s[2g + 1] = keys 8g + 2t, + 1 of the upper and of the lower row;
// 32-bit scores s[4g .. 4g + 3] = upper row, upper row, lower row, lower row.
#pragma once

#include "cuda/sm90/config.cuh"
#include "cuda/sm90/tiles.cuh"

namespace octavo::cuda::sm90 {

inline constexpr float kUnsetReference = -0x1.FFFFFEp127F;  // direct weights; no finite logit is lower

/// Where the weights are direct, integer sums start from the bits of 1.5 * 2^23, so that they end as the
/// float ptx::kMagic + sum: no conversion, and the offset disappears in the constant of the one multiply-add
/// that follows. With `exact` that constant's rounding would show, so sums start from 0 and are converted.
inline constexpr int kMagicBits = 0x4B400000;

template <class C>
OCTAVO_DEVICE void start_scores(typename C::Score (&s)[C::kScoreRegisters]) {
  if constexpr (C::kMagicScores) {
    OCTAVO_UNROLL for (int i = 0; i < C::kScoreRegisters; ++i) s[i] = kMagicBits;
  }
}
/// Of a piece, whose first key is at `k`. Fences and commits are the caller's.
template <class C>
OCTAVO_DEVICE void issue_scores(typename C::Score (&s)[C::kScoreRegisters], std::uint32_t q,
                                std::uint32_t k) {
  constexpr auto kSwizzle = C::kChunkBytes == 64 ? ptx::Swizzle::bytes64 : ptx::Swizzle::bytes128;
  constexpr std::uint32_t kHigh = ptx::descriptor_high(kSwizzle, 8 * C::kChunkBytes);  // groups of 8 rows
  constexpr int kStepsOfChunk = C::kChunkBytes / 32;
  OCTAVO_UNROLL for (int step = 0; step < C::kRowBytes / 32; ++step) {
    const int chunk = step / kStepsOfChunk;
    const int within = step % kStepsOfChunk * 2;  // 32 bytes, in units of 16
    ptx::ScoreProduct<C::kScores, C::kPiece>::issue(
        s, ptx::descriptor(q + chunk * (C::kRows * C::kChunkBytes / 16) + within, kHigh),
        ptx::descriptor(k + chunk * (C::kKeys * C::kChunkBytes / 16) + within, kHigh),
        C::kMagicScores || step > 0 ? 1 : 0);
  }
}

/// Keys that each of a thread's rows may see.
struct Limits {
  int begin[2];
  int end[2];
  [[nodiscard]] OCTAVO_DEVICE bool hides(int row, int key) const {
    return key < begin[row] || key >= end[row];
  }
};

/// Hides keys outside the limits. `key` is the thread's first key.
template <class C>
OCTAVO_DEVICE void hide(typename C::Score (&s)[C::kScoreRegisters], int key, const Limits& limits) {
  OCTAVO_UNROLL for (int i = 0; i < C::kScoreRegisters; ++i) {
    if constexpr (C::kHalfScores) {
      const int at = key + 8 * (i / 2);
      if (limits.hides(i % 2, at)) s[i] = (s[i] & 0xFFFF0000U) | 0xFC00U;  // f16 -infinity
      if (limits.hides(i % 2, at + 1)) s[i] = (s[i] & 0xFFFFU) | 0xFC000000U;
    } else if (limits.hides(i / 2 % 2, key + 8 * (i / 4) + i % 2)) {
      if constexpr (C::kIntScores) {
        s[i] = static_cast<int>(0xFF800000);  // -infinity's bits: below all of kMagicScores
      } else {
        s[i] = -INFINITY;
      }
    }
  }
}

/// Of integers from 0, which have no -infinity: scores as numbers, in place, hidden ones -infinity. Other
/// arithmetic stays what it is in tiles that every row sees whole, bit by bit.
template <class C>
OCTAVO_DEVICE void settle_scores(typename C::Score (&s)[C::kScoreRegisters], int key, const Limits& limits) {
  static_assert(C::kIntScores && !C::kMagicScores);
  OCTAVO_UNROLL for (int i = 0; i < C::kScoreRegisters; ++i) {
    const bool hidden = limits.hides(i / 2 % 2, key + 8 * (i / 4) + i % 2);
    s[i] = __float_as_int(hidden ? -INFINITY : static_cast<float>(s[i]));
  }
}

/// A 32-bit score as a number. Settled scores are numbers already, their bits a float's: logits where extras
/// joined them (general instances).
template <class C, bool kSettled>
OCTAVO_DEVICE float value(typename C::Score s) {
  if constexpr (!C::kIntScores) {
    return s;
  } else if constexpr (kSettled) {
    return __int_as_float(s);
  } else if constexpr (C::kMagicScores) {
    return __int_as_float(s) - ptx::kMagic;  // exact
  } else {
    return static_cast<float>(s);
  }
}

/// With direct weights NaN wins: the conversion to bytes would make it a weight of 0. Exact ones show it
/// themselves.
template <class C>
OCTAVO_DEVICE int larger(int a, int b) {
  return max(a, b);
}
template <class C>
OCTAVO_DEVICE float larger(float a, float b) {
  return C::kDirect ? ptx::max_nan(a, b) : fmaxf(a, b);
}

/// Row maxima over the 64 keys of scale block `block`, in the thread's own keys. Integers compare as they are
/// (with kMagic too: all are positive floats, and kMagic stays in them); of integers and halves ptxas makes
/// three-input maxima.
template <class C, bool kSettled>
OCTAVO_DEVICE void block_maxima(const typename C::Score (&s)[C::kScoreRegisters], int block,
                                float (&top)[2]) {
  using Score = std::conditional_t<C::kIntScores && !kSettled, int, float>;
  const auto score = [&](int i) -> Score {
    if constexpr (C::kIntScores && kSettled) {
      return __int_as_float(s[block * 32 + i]);
    } else {
      return s[block * 32 + i];
    }
  };
  Score m[4] = {score(0), score(1), score(2), score(3)};
  OCTAVO_UNROLL for (int i = 4; i < 32; ++i) m[i % 4] = larger<C>(m[i % 4], score(i));
  const Score upper = larger<C>(m[0], m[1]);
  const Score lower = larger<C>(m[2], m[3]);
  if constexpr (C::kMagicScores && !kSettled) {
    top[0] = __int_as_float(upper);
    top[1] = __int_as_float(lower);
  } else if constexpr (C::kIntScores && !kSettled) {
    top[0] = static_cast<float>(upper);
    top[1] = static_cast<float>(lower);
  } else {
    top[0] = upper;
    top[1] = lower;
  }
}

/// Packed f16 maxima of the thread's keys, each half still its own.
template <class C>
OCTAVO_DEVICE void half_maxima(const std::uint32_t (&s)[C::kScoreRegisters], std::uint32_t (&top)[2]) {
  std::uint32_t m[4] = {s[0], s[1], s[2], s[3]};
  OCTAVO_UNROLL for (int i = 4; i < C::kScoreRegisters; ++i) m[i % 4] = ptx::max_f16x2(m[i % 4], s[i]);
  top[0] = ptx::max_f16x2(m[0], m[2]);
  top[1] = ptx::max_f16x2(m[1], m[3]);
}

/// Maximum over the four threads of a row.
OCTAVO_DEVICE float row_max(float x) {
  x = ptx::max_nan(x, __shfl_xor_sync(~0U, x, 1));
  return ptx::max_nan(x, __shfl_xor_sync(~0U, x, 2));
}
OCTAVO_DEVICE float row_sum(float x) {
  x += __shfl_xor_sync(~0U, x, 1);
  return x + __shfl_xor_sync(~0U, x, 2);
}

}  // namespace octavo::cuda::sm90
