// From scores to weights: scales, the reference that weights are taken against, exponentials, 8- or 16-bit
// weights laid out as the second product wants them.
//
// `exact`: reference = running maximum; 2^x on the special-function unit (16 a clock: the wall of 8-bit
// attention at head dim 64). `direct`: an e4m3 byte read as an integer is 8 * (log2 x + 7), so one fused
// multiply-add and a conversion give the byte. Its reference is a whole octave that moves only when a row's
// largest code would pass the limit, then to `headroom` octaves above the tile's maximum: no shuffle, no
// rescaling in the common tile, exact factors in the rare one.
#pragma once

#include "cuda/sm90/general.cuh"

namespace octavo::cuda::sm90 {

/// State of a thread's two rows, index 0 the upper, 1 the lower. Logits are in octaves, with direct weights
/// in codes, of which an octave has 8.
template <class C>
struct Rows {
  static constexpr float kUnit = C::kDirect ? 8.0F : 1.0F;
  float reference[2];
  float sum[2];
  float scale[C::kHalfScores ? 1 : 2];  ///< 32-bit scores: logit per unit, see row_scale()
  // f16 scores: code = score * slope + constant, two equal halves each
  std::uint32_t slope[2];
  std::uint32_t constant[2];
  std::uint32_t
      limit;        ///< codes above move the references: Arguments::half_limit, -infinity while one is unset
  float anchor[2];  ///< code at which a piece's scores are 0: see settle_codes()
};

/// What a tile did to the references: the factors that older sums take, and whether any row of the warp
/// moved.
struct Moved {
  float factor[2];  ///< direct weights: set where `any` is
  bool any = false;
};

// 0 * -infinity would be NaN. Times the smallest K scale, 2^-107, this is still an f32; logits of a smaller
// scale are 0.
inline constexpr float kSmallestScale = 0x1p-42F;
inline constexpr float kSmallestSlope = 0x1p-24F;  // of f16
inline constexpr float kLargestCodeScale = 10.0F;
inline constexpr float kUnsetConstant = 60000.0F;  // f16, until the first tile sets it: codes past the limit
inline constexpr std::uint32_t kUnsetLimit = 0xFC00FC00U;  // two f16 -infinity
inline constexpr float kLargestReference =
    8000.0F;  // octaves; beyond, the f16 constant overflows: NaN instead of wrong
inline constexpr float kLargestStepped = 0x1p26F;  // codes; beyond, f32 has not every octave

/// NaN stays NaN.
OCTAVO_DEVICE float at_least(float x, float least) { return x < least ? least : x; }

template <class C>
OCTAVO_DEVICE void start(Rows<C>& r, const Arguments& a, float scale0, float scale1) {
  r.reference[0] = r.reference[1] = C::kDirect ? kUnsetReference : -INFINITY;
  r.sum[0] = r.sum[1] = 0.0F;
  r.limit = kUnsetLimit;
  const float scale[2] = {scale0, scale1};
  OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
    if constexpr (C::kHalfScores) {
      // A NaN scale marks the keys that the row sees, where they are settled, and no other. By its bits: of
      // the result of at_least() the compiler believes that it is no NaN.
      const bool nan = (__float_as_uint(scale[i]) & 0x7FFFFFFFU) > 0x7F800000U;
      const float slope = scores_are_codes<C>(a) ? 1.0F
                          : C::kGeneral && nan   ? kSmallestSlope
                                                 : at_least(scale[i], kSmallestSlope);
      r.slope[i] = ptx::pack_f16(slope, slope);
      r.constant[i] = ptx::pack_f16(kUnsetConstant, kUnsetConstant);
    } else {
      r.scale[i] = scale[i];
    }
  }
}

/// Logit (with direct weights: code) per unit of the score in one row, without K's scale where that changes
/// along the keys.
template <class C>
OCTAVO_DEVICE float row_scale(const Shared<C>& shared, const Arguments& a, const Item& item,
                              const SequenceRow& s, std::uint32_t slot, int row, int rows) {
  float scale = a.scale;
  if constexpr (C::kVectors) {
    scale = row < rows ? ptx::load_shared(shared.q_scale(slot) + 4 * (row - item.tile * C::kRows)) : 0.0F;
    if constexpr (C::kHeadScale) scale *= ptx::load_shared(shared.k_scale(slot) + 4 * (threadIdx.x & 3));
  } else if (a.q_scale != nullptr) {
    scale = row < rows ? __ldg(a.q_scale + item.head * a.q_rows + s.q_row + row) : 0.0F;
  }
  return at_least(scale, kSmallestScale) * Rows<C>::kUnit;
}

/// Turns a piece's f16 scores into codes, less their anchors, and sets the constants that belong to those.
template <class C, class Extras>
OCTAVO_DEVICE void settle_codes(Rows<C>& r, const Arguments& a, std::uint32_t (&s)[C::kScoreRegisters],
                                int key, const float (&scale)[2], const Extras& extras) {
  OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
    r.anchor[i] = settle_row_codes<C>(s, i, key, scale[i], r.reference[i], extras(i));
    const float constant = fminf(a.offset - (r.reference[i] - r.anchor[i]), kUnsetConstant);
    r.constant[i] = ptx::pack_f16(constant, constant);
  }
}

/// Where a reference moves to: a whole octave, in codes.
OCTAVO_DEVICE float octave_above(const Arguments& a, float code) {
  return 8.0F * (ceilf(0.125F * code) + a.headroom);
}

/// f16 scores. Compares the very codes that the weights will be, so that none can pass the limit. A row
/// without a reference gets one from the first tile it sees, whatever the codes.
/// `scale_of(i)`: row_scale() of the upper and lower row, read again: keeping them costs registers.
template <class C, class ScaleOf>
OCTAVO_DEVICE Moved update_half(Rows<C>& r, const Arguments& a, const std::uint32_t (&s)[C::kScoreRegisters],
                                const ScaleOf& scale_of) {
  std::uint32_t top[2];
  half_maxima<C>(s, top);
  Moved moved;
  const std::uint32_t code = ptx::max_f16x2(ptx::fma_f16x2(top[0], r.slope[0], r.constant[0]),
                                            ptx::fma_f16x2(top[1], r.slope[1], r.constant[1]));
  // While a row has no reference even codes of f16's -infinity count: scores far below 0 are no hidden keys.
  moved.any = __any_sync(~0U, r.limit == kUnsetLimit || ptx::any_above_f16x2(code, r.limit));
  if (__builtin_expect(moved.any, 0)) {
    // Every item comes here with its first keys, and finds none of this in the instruction cache: both rows
    // side by side, without branches.
    const float limit = ptx::low_f16(a.half_limit);
    const bool codes = scores_are_codes<C>(a);
    const float largest = codes ? kLargestStepped : 8.0F * kLargestReference;
    OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
      const auto constant = [&](float reference) {
        const float above = codes ? reference - r.anchor[i] : reference;
        return ptx::pack_f16(a.offset - above, a.offset - above);
      };
      const float row_top = row_max(fmaxf(ptx::low_f16(top[i]), ptx::high_f16(top[i])));
      const std::uint32_t tops = ptx::pack_f16(row_top, row_top);
      const auto passes = [&](std::uint32_t c) {
        return ptx::low_f16(ptx::fma_f16x2(tops, r.slope[i], c)) > limit;
      };
      const bool moves = passes(r.constant[i]) || (r.reference[i] == kUnsetReference && row_top > -INFINITY);
      float next = octave_above(a, codes ? r.anchor[i] + row_top : row_top * scale_of(i));
      std::uint32_t next_constant = constant(next);
      // Beyond some thousand octaves slope and constant (of codes: reference and anchor, beyond some million)
      // are rounded by more codes than the headroom has: the largest must not pass the limit, where bytes
      // stop being weights.
      while (__builtin_expect(moves && fabsf(next) <= largest && passes(next_constant), 0)) {
        next += 8.0F;
        next_constant = constant(next);
      }
      const float factor =
          ptx::exp2_approx(0.125F * (r.reference[i] - next));  // whole octaves: exact; the first time 0
      moved.factor[i] = moves ? factor : 1.0F;
      r.reference[i] = moves ? next : r.reference[i];
      r.constant[i] = moves ? next_constant : r.constant[i];
      const bool right = codes ? fabsf(next) < INFINITY && !passes(next_constant) : fabsf(next) <= largest;
      if (moves && !right) r.sum[i] = __int_as_float(0x7FC00000);
    }
    r.limit =
        r.reference[0] == kUnsetReference || r.reference[1] == kUnsetReference ? kUnsetLimit : a.half_limit;
  }
  return moved;
}

template <class C>
OCTAVO_DEVICE void direct_half(const Rows<C>& r, const std::uint32_t (&s)[C::kScoreRegisters],
                               std::uint32_t (&p)[C::kWeightRegisters]) {
  constexpr std::uint32_t k1024 =
      0x64006400U;  // adding it leaves the rounded integer in the low byte of each half
  OCTAVO_UNROLL for (int i = 0; i < C::kPiece / 16; ++i) {
    const auto code = [&](int at, int row) {
      return ptx::add_f16x2(ptx::fma_relu_f16x2(s[at], r.slope[row], r.constant[row]), k1024);
    };
    p[2 * i] = __byte_perm(code(4 * i, 0), code(4 * i + 2, 0), 0x6420);
    p[2 * i + 1] = __byte_perm(code(4 * i + 1, 1), code(4 * i + 3, 1), 0x6420);
  }
}

/// 32-bit scores: logit per unit of the score for [64-key block of a piece][row].
template <class C>
struct Scales {
  static constexpr int kBlocks = C::kBlockScales ? C::kPiece / 64 : 1;
  float of[kBlocks][2];
};

/// Whether a tile may hide all keys of a row: where such tiles are settled, the others show every row all.
template <class C, bool kSettled>
inline constexpr bool kMayHide = kSettled || !C::kSettles;

/// Exact weights of scores: 2^(score * scale + offset), 2^(logit + offset) of logits. Settled scores that are
/// hidden stay hidden whatever their scale is: a NaN there is none of the row's.
template <class C, bool kSettled>
OCTAVO_DEVICE float weight_of(float score, float scale, float offset) {
  if constexpr (kSettled && C::kGeneral) {
    return ptx::exp2_approx(score + offset);
  } else {
    const float w = ptx::exp2_approx(fmaf(score, scale, offset));
    return kSettled && score == -INFINITY ? 0.0F : w;
  }
}

/// 32-bit scores, exact: moves the references where the maxima of this piece ask for it.
template <class C, bool kSettled>
OCTAVO_DEVICE Moved update(Rows<C>& r, const typename C::Score (&s)[C::kScoreRegisters],
                           const Scales<C>& scale) {
  float top[2];
  OCTAVO_UNROLL for (int b = 0; b < C::kPiece / 64; ++b) {
    float block[2];
    block_maxima<C, kSettled>(s, b, block);
    OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
      const bool final = kSettled && (C::kGeneral || block[i] == -INFINITY);
      const float logit = final ? block[i] : block[i] * scale.of[b % Scales<C>::kBlocks][i];
      top[i] = b == 0 ? logit : ptx::max_nan(top[i], logit);
    }
  }
  float next[2];
  OCTAVO_UNROLL for (int i = 0; i < 2; ++i) next[i] = fmaxf(r.reference[i], row_max(top[i]));
  Moved moved;
  moved.any = __any_sync(~0U, next[0] > r.reference[0] || next[1] > r.reference[1]);
  // Without a branch other arithmetic fills the time that shuffles and the vote take.
  moved.factor[0] = moved.factor[1] = 1.0F;
  if (!C::kBranches || moved.any) {
    OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
      moved.factor[i] = ptx::exp2_approx(r.reference[i] - next[i]);
      if (kMayHide<C, kSettled> && next[i] == -INFINITY) moved.factor[i] = 1.0F;
      r.reference[i] = next[i];
      r.sum[i] *= moved.factor[i];
    }
  }
  return moved;
}

/// What turns a 32-bit score into a weight's code: score * scale + constant[block][row]. Of settled scores,
/// which may be as large as a bias, the reference goes first: beside it the code of a weight of 1 would be
/// lost.
template <class C, bool kSettled>
OCTAVO_DEVICE float code_of(float score, float scale, float constant, const Arguments& a) {
  return kSettled ? score - constant + a.offset : fmaf(score, scale, constant);
}
template <class C, bool kSettled>
OCTAVO_DEVICE void code_constants(const Rows<C>& r, const Arguments& a, const Scales<C>& scale,
                                  float (&constant)[Scales<C>::kBlocks][2]) {
  OCTAVO_UNROLL for (int row = 0; row < 2; ++row) {
    OCTAVO_UNROLL for (int b = 0; b < Scales<C>::kBlocks; ++b) {
      constant[b][row] = kSettled ? r.reference[row] : a.offset - r.reference[row];
      if constexpr (C::kMagicScores && !kSettled)
        constant[b][row] = fmaf(-ptx::kMagic, scale.of[b][row], constant[b][row]);
    }
  }
}

/// 32-bit scores, direct: moves the references where codes would pass the limit, and leaves the constants of
/// this piece's codes.
template <class C, bool kSettled>
OCTAVO_DEVICE Moved update_direct(Rows<C>& r, const Arguments& a,
                                  const typename C::Score (&s)[C::kScoreRegisters], const Scales<C>& scale,
                                  float (&constant)[Scales<C>::kBlocks][2]) {
  constexpr int kBlocks = C::kPiece / 64;
  code_constants<C, kSettled>(r, a, scale, constant);
  float block[kBlocks][2];
  float code[2];
  OCTAVO_UNROLL for (int b = 0; b < kBlocks; ++b) {
    block_maxima<C, kSettled>(s, b, block[b]);
    OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
      const int at = b % Scales<C>::kBlocks;
      const float x = code_of<C, kSettled>(block[b][i], scale.of[at][i], constant[at][i], a);
      code[i] = b == 0 ? x : ptx::max_nan(code[i], x);
    }
  }
  Moved moved;
  // Not "greater": a NaN scale must show, and conversions to bytes would turn its weights into 0.
  moved.any = __any_sync(~0U, !(code[0] <= a.limit) || !(code[1] <= a.limit));
  if (__builtin_expect(moved.any, 0)) {
    OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
      float top = 0.0F;
      OCTAVO_UNROLL for (int b = 0; b < kBlocks; ++b) {
        const float score = C::kMagicScores && !kSettled ? block[b][i] - ptx::kMagic : block[b][i];  // exact
        const float logit = kSettled ? score : score * scale.of[b % Scales<C>::kBlocks][i];
        top = b == 0 ? logit : ptx::max_nan(top, logit);
      }
      const float row_top = row_max(top);
      const bool moves = !(row_max(code[i]) <= a.limit);
      const float next = octave_above(a, row_top);
      const float factor = ptx::exp2_approx(0.125F * (r.reference[i] - next));
      moved.factor[i] = moves ? factor : 1.0F;
      r.reference[i] = moves ? next : r.reference[i];
      // Beyond 10 codes a unit the constants are rounded by whole codes, which could pass the limit: NaN
      // instead of wrong, as are references that f32 has not.
      bool wrong = !(fabsf(next) < INFINITY);
      OCTAVO_UNROLL for (int b = 0; b < Scales<C>::kBlocks; ++b) wrong |=
          C::kMagicScores && !kSettled && !(scale.of[b][i] <= kLargestCodeScale);
      if (moves && wrong) r.sum[i] = __int_as_float(0x7FC00000);
    }
    code_constants<C, kSettled>(r, a, scale, constant);
  }
  return moved;
}

/// 32-bit scores, direct: the tile's weights.
template <class C, bool kSettled>
OCTAVO_DEVICE void weigh_direct(const Arguments& a, const typename C::Score (&s)[C::kScoreRegisters],
                                const Scales<C>& scale, const float (&constant)[Scales<C>::kBlocks][2],
                                std::uint32_t (&p)[C::kWeightRegisters]) {
  constexpr int kBlocks = Scales<C>::kBlocks;
  OCTAVO_UNROLL for (int i = 0; i < C::kPiece / 16; ++i) {
    const auto code = [&](int at) {
      const int row = at / 2 % 2;
      const int b = i / 4 % kBlocks;
      float x;
      if constexpr (C::kIntScores) {
        x = __int_as_float(s[8 * i + at]);
      } else {
        x = s[8 * i + at];
      }
      return code_of<C, kSettled>(x, scale.of[b][row], constant[b][row], a);
    };
    p[2 * i] = ptx::pack_u8(code(0), code(1), code(4), code(5));
    p[2 * i + 1] = ptx::pack_u8(code(2), code(3), code(6), code(7));
  }
}

/// 16-bit weights of 16 keys.
template <class C>
OCTAVO_DEVICE void pack_wide(std::uint32_t (&p)[C::kWeightRegisters], int i, const float (&w)[8]) {
  const auto pack = [](float x, float y) {
    return C::kValues == Mma::bf16_f32 ? ptx::pack_bf16(x, y) : ptx::pack_f16(x, y);
  };
  OCTAVO_UNROLL for (int e = 0; e < 4; ++e) p[4 * i + e] = pack(w[2 * e], w[2 * e + 1]);
}

/// 32-bit scores, exact: the weights, and before rounding their sums. With kLatePack they replace the scores.
template <class C, bool kSettled>
OCTAVO_DEVICE void weigh(Rows<C>& r, const Arguments& a, typename C::Score (&s)[C::kScoreRegisters],
                         const Scales<C>& scale, std::uint32_t (&p)[C::kWeightRegisters]) {
  float offset[2];
  OCTAVO_UNROLL for (int row = 0; row < 2; ++row) {
    offset[row] = a.offset - r.reference[row];
    // A row that has seen no key: every score is -infinity and every weight 0.
    if (kMayHide<C, kSettled> && r.reference[row] == -INFINITY) offset[row] = 0.0F;
  }
  // ptxas would put the multiply-adds of all keys in front, where they take the time of the first
  // exponentials, and leave the last ones nothing to overlap with: those of 16 keys wait for exponentials of
  // the 16 before.
  float before[2] = {};
  OCTAVO_UNROLL for (int i = 0; i < C::kPiece / 16; ++i) {
    const int b = i / 4 % Scales<C>::kBlocks;
    if (C::kOrdered && i > 0) {
      OCTAVO_UNROLL for (int row = 0; row < 2; ++row) offset[row] = fmaf(before[row], a.zero, offset[row]);
    }
    float w[8];
    OCTAVO_UNROLL for (int e = 0; e < 8; ++e) {
      const int row = e / 2 % 2;
      const float x = value<C, kSettled>(s[8 * i + e]);
      w[e] = weight_of<C, kSettled>(x, scale.of[b][row], offset[row]);
      r.sum[row] += w[e];
    }
    before[0] = w[0];
    before[1] = w[2];
    if constexpr (C::kLatePack) {
      OCTAVO_UNROLL for (int e = 0; e < 8; ++e) {
        if constexpr (C::kIntScores) {
          s[8 * i + e] = __float_as_int(w[e]);
        } else {
          s[8 * i + e] = w[e];
        }
      }
    } else if constexpr (C::kWideValues) {
      pack_wide<C>(p, i, w);
    } else {
      p[2 * i] = ptx::pack_e4m3(w[0], w[1], w[4], w[5]);
      p[2 * i + 1] = ptx::pack_e4m3(w[2], w[3], w[6], w[7]);
    }
  }
}

/// kLatePack: the second half of weigh().
template <class C>
OCTAVO_DEVICE void pack_late(const typename C::Score (&s)[C::kScoreRegisters],
                             std::uint32_t (&p)[C::kWeightRegisters]) {
  OCTAVO_UNROLL for (int i = 0; i < C::kPiece / 16; ++i) {
    float w[8];
    OCTAVO_UNROLL for (int e = 0; e < 8; ++e) w[e] = value<C, true>(s[8 * i + e]);
    pack_wide<C>(p, i, w);
  }
}

}  // namespace octavo::cuda::sm90
