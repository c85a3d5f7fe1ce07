// From scores to weights: scales, the reference that weights are taken against, exponentials, 8- or 16-bit
// weights laid out as the second product wants them.
//
// `exact`: reference = running maximum; 2^x on the special-function unit (16 a clock: the wall of 8-bit
// attention at head dim 64). `direct`: an e4m3 byte read as an integer is 8 * (log2 x + 7), so one fused
// multiply-add and a conversion give the byte. Its reference is an integer that moves only when a row's
// largest code would pass the limit, then to the next integer above the tile's maximum: no shuffle, no
// rescaling in the common tile, exact factors in the rare one.
#pragma once

#include "cuda/sm90/general.cuh"
#include "numerics/exp2.hpp"

namespace octavo::cuda::sm90 {

/// State of a thread's two rows, index 0 the upper, 1 the lower.
template <class C>
struct Rows {
  float reference[2];
  float sum[2];
  float q_scale[2];  ///< base-2 logit per unit of the score, without K's scale if that changes along the keys
  // f16 scores, direct: code = score * slope + constant, two equal halves each
  std::uint32_t slope[2];
  std::uint32_t constant[2];
};

/// What a tile did to the references: the factors that older sums take, and whether any row of the warp
/// moved.
struct Moved {
  float factor[2] = {1.0F, 1.0F};
  bool any = false;
};

inline constexpr float kSmallestScale = 0x1p-120F;  // 0 * -infinity would be NaN
inline constexpr float kSmallestSlope = 0x1p-24F;   // the smallest f16
inline constexpr float kUnset =
    60000.0F;  // a code that passes every limit, so that the first tile sets the reference
inline constexpr float kLargestReference =
    8000.0F;  // beyond, the f16 constant overflows: the row becomes NaN instead of wrong

/// NaN stays NaN.
OCTAVO_DEVICE float at_least(float x, float least) { return x < least ? least : x; }

template <class C>
OCTAVO_DEVICE void start(Rows<C>& r, const Arguments& a, float q_scale0, float q_scale1) {
  r.reference[0] = r.reference[1] = -INFINITY;
  r.sum[0] = r.sum[1] = 0.0F;
  r.q_scale[0] = at_least(q_scale0, kSmallestScale);
  r.q_scale[1] = at_least(q_scale1, kSmallestScale);
  if constexpr (C::kHalfScores) {
    OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
      const float slope = at_least(8.0F * r.q_scale[i], kSmallestSlope);
      r.slope[i] = ptx::pack_f16(slope, slope);
      r.constant[i] = ptx::pack_f16(kUnset, kUnset);
    }
  }
}

/// The code a weight of reference 0 gets, less 8 log2(p): numerics' line, raised by P's range.
OCTAVO_DEVICE float direct_offset(const Arguments& a) { return fmaf(8.0F, a.p_log2, numerics::kDirectBias); }
/// Codes up to this leave the reference alone.
OCTAVO_DEVICE float direct_limit(const Arguments& a) { return fmaf(8.0F, a.slack, direct_offset(a)); }

/// f16 scores, direct. Compares the very codes that the weights will be, so that none can pass the limit.
template <class C>
OCTAVO_DEVICE Moved update_half(Rows<C>& r, const Arguments& a,
                                const std::uint32_t (&s)[C::kScoreRegisters]) {
  std::uint32_t upper;
  std::uint32_t lower;
  half_maxima<C>(s, upper, lower);
  Moved moved;
  const float limit = direct_limit(a);
  const std::uint32_t over = ptx::pack_f16(-limit, -limit);
  const std::uint32_t code = ptx::max_f16x2(ptx::fma_f16x2(upper, r.slope[0], r.constant[0]),
                                            ptx::fma_f16x2(lower, r.slope[1], r.constant[1]));
  // code - limit <= 0 in both halves leaves either a sign bit or a zero
  const std::uint32_t excess = ptx::max_f16x2(ptx::add_f16x2(code, over), 0U);
  moved.any = __any_sync(~0U, excess != 0);
  if (__builtin_expect(moved.any, 0)) {
    const float limit16 = -ptx::low_f16(over);
    OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
      const std::uint32_t m = i == 0 ? upper : lower;
      const float top = row_max(fmaxf(ptx::low_f16(m), ptx::high_f16(m)));
      const float row_code = ptx::low_f16(ptx::fma_f16x2(ptx::pack_f16(top, top), r.slope[i], r.constant[i]));
      if (row_code > limit16) {
        const float next = ceilf(top * r.q_scale[i]);
        moved.factor[i] = ptx::exp2_approx(r.reference[i] - next);  // both integers: exact; the first time 0
        r.reference[i] = next;
        const float constant = fmaf(-8.0F, next, direct_offset(a));
        r.constant[i] = ptx::pack_f16(constant, constant);
        if (!(next <= kLargestReference)) r.sum[i] = __int_as_float(0x7FC00000);
      }
    }
  }
  return moved;
}

template <class C>
OCTAVO_DEVICE void direct_half(const Rows<C>& r, const std::uint32_t (&s)[C::kScoreRegisters],
                               std::uint32_t (&p)[C::kWeightRegisters]) {
  constexpr std::uint32_t k1024 =
      0x64006400U;  // adding it leaves the rounded integer in the low byte of each half
  OCTAVO_UNROLL for (int i = 0; i < C::kKeys / 16; ++i) {
    const auto code = [&](int at, int row) {
      return ptx::add_f16x2(ptx::fma_relu_f16x2(s[at], r.slope[row], r.constant[row]), k1024);
    };
    p[2 * i] = __byte_perm(code(4 * i, 0), code(4 * i + 2, 0), 0x6420);
    p[2 * i + 1] = __byte_perm(code(4 * i + 1, 1), code(4 * i + 3, 1), 0x6420);
  }
}

/// 32-bit scores: base-2 logit per unit of the score for [64-key block][row].
template <class C>
struct Scales {
  float of[2][2];
};

template <class C>
OCTAVO_DEVICE float direct_code(typename C::Score s, float slope, float constant) {
  if constexpr (C::kIntScores) {
    return fmaf(__int_as_float(s), slope, constant);
  } else {
    return fmaf(s, slope, constant);
  }
}

/// Slopes and constants of the direct code, [block][row]; with integer scores the constant takes kMagic away
/// again.
template <class C>
struct Line {
  float slope[2][2];
  float constant[2][2];

  OCTAVO_DEVICE Line(const Rows<C>& r, const Arguments& a, const Scales<C>& scale) {
    OCTAVO_UNROLL for (int row = 0; row < 2; ++row) {
      const float base =
          r.reference[row] == -INFINITY ? kUnset : fmaf(-8.0F, r.reference[row], direct_offset(a));
      OCTAVO_UNROLL for (int b = 0; b < 2; ++b) {
        slope[b][row] = 8.0F * scale.of[b][row];
        constant[b][row] = C::kIntScores && !C::kGeneral ? fmaf(-kMagic, slope[b][row], base) : base;
      }
    }
  }
};

/// 32-bit scores: moves the references where the tile's maxima ask for it.
template <class C>
OCTAVO_DEVICE Moved update(Rows<C>& r, const Arguments& a, const typename C::Score (&s)[C::kScoreRegisters],
                           const Scales<C>& scale) {
  float top[2] = {-INFINITY, -INFINITY};
  OCTAVO_UNROLL for (int b = 0; b < C::kKeys / 64; ++b) {
    float upper;
    float lower;
    block_maxima<C>(s, b, upper, lower);
    top[0] = fmaxf(top[0], upper * scale.of[b][0]);
    top[1] = fmaxf(top[1], lower * scale.of[b][1]);
  }
  Moved moved;
  if constexpr (C::kDirect) {
    const float limit = 8.0F * a.slack;
    moved.any = __any_sync(~0U, fmaf(8.0F, top[0] - r.reference[0], -limit) > 0.0F ||
                                    fmaf(8.0F, top[1] - r.reference[1], -limit) > 0.0F);
    if (__builtin_expect(moved.any, 0)) {
      OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
        const float row_top = row_max(top[i]);
        if (fmaf(8.0F, row_top - r.reference[i], -limit) > 0.0F) {
          const float next = ceilf(row_top);
          moved.factor[i] = ptx::exp2_approx(r.reference[i] - next);
          r.reference[i] = next;
        }
      }
    }
  } else {
    bool changed = false;
    OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
      const float next = fmaxf(r.reference[i], row_max(top[i]));
      changed = changed || next > r.reference[i];
      moved.factor[i] = next > r.reference[i] ? ptx::exp2_approx(r.reference[i] - next) : 1.0F;
      r.reference[i] = next;
    }
    moved.any = __any_sync(~0U, changed);
  }
  return moved;
}

/// 32-bit scores: the tile's weights, and with `exact` their sums before rounding.
template <class C>
OCTAVO_DEVICE void weigh(const Rows<C>& r, const Arguments& a,
                         const typename C::Score (&s)[C::kScoreRegisters], const Scales<C>& scale,
                         std::uint32_t (&p)[C::kWeightRegisters], float (&part)[2]) {
  if constexpr (C::kDirect) {
    // A NaN scale must show: conversions to bytes turn it into 0.
    OCTAVO_UNROLL for (int row = 0; row < 2; ++row) part[row] =
        a.zero * (scale.of[0][row] + scale.of[1][row]);
    const Line<C> line(r, a, scale);
    OCTAVO_UNROLL for (int i = 0; i < C::kKeys / 16; ++i) {
      const int b = C::kBlockScales ? i / 4 : 0;
      const auto code = [&](int at, int row) {
        return direct_code<C>(s[8 * i + at], line.slope[b][row], line.constant[b][row]);
      };
      p[2 * i] = ptx::pack_u8(code(0, 0), code(1, 0), code(4, 0), code(5, 0));
      p[2 * i + 1] = ptx::pack_u8(code(2, 1), code(3, 1), code(6, 1), code(7, 1));
    }
  } else {
    part[0] = part[1] = 0.0F;
    float offset[2];  // a row that has seen no key: every score is -infinity and every weight 0
    OCTAVO_UNROLL for (int row = 0; row < 2; ++row) offset[row] =
        r.reference[row] == -INFINITY ? 0.0F : a.p_log2 - r.reference[row];
    OCTAVO_UNROLL for (int i = 0; i < C::kKeys / 16; ++i) {
      const int b = C::kBlockScales ? i / 4 : 0;
      float w[8];
      OCTAVO_UNROLL for (int e = 0; e < 8; ++e) {
        const int row = e / 2 % 2;
        w[e] = ptx::exp2_approx(fmaf(value<C>(s[8 * i + e]), scale.of[b][row], offset[row]));
        part[row] += w[e];
      }
      if constexpr (C::kWideValues) {
        const auto pack = [](float x, float y) {
          return C::kValues == Mma::bf16_f32 ? ptx::pack_bf16(x, y) : ptx::pack_f16(x, y);
        };
        p[4 * i] = pack(w[0], w[1]);
        p[4 * i + 1] = pack(w[2], w[3]);
        p[4 * i + 2] = pack(w[4], w[5]);
        p[4 * i + 3] = pack(w[6], w[7]);
      } else {
        p[2 * i] = ptx::pack_e4m3(w[0], w[1], w[4], w[5]);
        p[2 * i + 1] = ptx::pack_e4m3(w[2], w[3], w[6], w[7]);
      }
    }
  }
}

}  // namespace octavo::cuda::sm90
