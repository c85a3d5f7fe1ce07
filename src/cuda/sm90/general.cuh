// Boolean mask, additive bias and smooth_q's term, read element by element: right for any strides, not fast.
// Only the `general` instances contain it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <numbers>

#include "cuda/sm90/scores.cuh"

namespace octavo::cuda::sm90 {

/// f16 scores become codes where a bias or smooth_q's term joins them, else they stay products.
template <class C>
OCTAVO_DEVICE bool scores_are_codes(const Arguments& a) {
  return C::kGeneral && C::kHalfScores && (a.bias.data != nullptr || a.correction != nullptr);
}

OCTAVO_DEVICE float load_float(const void* data, DType dtype, std::int64_t at) {
  switch (dtype) {
    case DType::f16:
      return __half2float(static_cast<const __half*>(data)[at]);
    case DType::bf16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
    default:
      return static_cast<const float*>(data)[at];
  }
}

/// One query row's view of mask, bias and correction.
struct RowExtras {
  const std::uint8_t* mask = nullptr;
  const void* bias = nullptr;
  std::int64_t bias_at = 0;
  const float* correction = nullptr;

  /// `row` counts packed rows of the sequence.
  OCTAVO_DEVICE RowExtras(const Arguments& a, const SequenceRow& s, int head, int row) {
    const int token = a.group.quotient(row);
    const int q_head = head * a.group.value() + (row - token * a.group.value());
    if (a.mask.data != nullptr) {
      mask = static_cast<const std::uint8_t*>(a.mask.data) + s.batch * a.mask.batch + q_head * a.mask.head +
             token * a.mask.token;
    }
    if (a.bias.data != nullptr) {
      bias = a.bias.data;
      bias_at = s.batch * a.bias.batch + q_head * a.bias.head + token * a.bias.token;
    }
    if (a.correction != nullptr) {
      correction = a.correction + q_head * a.terms + s.term + token / kQueryBlock * s.k_len;
    }
  }

  /// What is added to the base-2 logit of a key of the sequence, -infinity where it is hidden.
  [[nodiscard]] OCTAVO_DEVICE float add(const Arguments& a, int key, int keys) const {
    if (key >= keys) return -INFINITY;
    if (mask != nullptr && mask[key * a.mask.last] == 0) return -INFINITY;
    float x = 0.0F;
    if (bias != nullptr)
      x = load_float(bias, a.bias.dtype, bias_at + key * a.bias.last) * std::numbers::log2e_v<float>;
    if (correction != nullptr) x += correction[key];
    return x;
  }
};

/// Turns 32-bit scores into logits (in codes where weights are direct), in place; scale[block][row].
/// `extras(row)` gives what is added to a key's logit; one row after the other, to hold the pointers of one.
template <class C, int kBlocks, class Extras>
OCTAVO_DEVICE void settle(typename C::Score (&s)[C::kScoreRegisters], int key, const Limits& limits,
                          const float (&scale)[kBlocks][2], const Extras& extras) {
  OCTAVO_UNROLL for (int row = 0; row < 2; ++row) {
    const auto extra = extras(row);
    OCTAVO_UNROLL for (int i = 2 * row; i < C::kScoreRegisters; i += i % 2 == 0 ? 1 : 3) {
      const int at = key + 8 * (i / 4) + i % 2;
      const float dot = value<C, false>(s[i]);
      const float added = limits.hides(row, at) ? -INFINITY : extra(at);
      const float logit = added == -INFINITY ? -INFINITY : fmaf(dot, scale[i / 32 % kBlocks][row], added);
      if constexpr (C::kIntScores) {
        s[i] = __float_as_int(logit);
      } else {
        s[i] = logit;
      }
    }
  }
}

/// f16 scores and a boolean mask alone: hidden keys become -infinity whatever the scale is, the others NaN
/// where it is. `extras` gives 0 or -infinity; the product with it is there for the NaN.
template <class C, class Extras>
OCTAVO_DEVICE void settle_half(std::uint32_t (&s)[C::kScoreRegisters], int key, const float (&scale)[2],
                               const Extras& extras) {
  OCTAVO_UNROLL for (int row = 0; row < 2; ++row) {
    const auto extra = extras(row);
    const float unit = 1.0F / scale[row];
    OCTAVO_UNROLL for (int i = row; i < C::kScoreRegisters; i += 2) {
      const int at = key + 8 * (i / 2);
      const auto joined = [&](float score, float added) {
        return score == -INFINITY || added == -INFINITY ? -INFINITY : fmaf(added, unit, score);
      };
      s[i] = ptx::pack_f16(joined(ptx::low_f16(s[i]), extra(at)), joined(ptx::high_f16(s[i]), extra(at + 1)));
    }
  }
}

/// f16 scores that a bias or smooth_q's term joins: in their own unit it could pass f16's range, or leave
/// nothing of them in its 11 bits. They become codes less the row's anchor, which the largest of them
/// passes by kFar at most: its reference, or this piece's maximum where there is none or that lies farther
/// up. Returns the anchor.
template <class C, class Extra>
OCTAVO_DEVICE float settle_row_codes(std::uint32_t (&s)[C::kScoreRegisters], int row, int key, float scale,
                                     float reference, const Extra& extra) {
  constexpr float kFar = 256.0F;  // codes: up to here f16 rounds them to an eighth
  float code[C::kScoreRegisters];
  float top = -INFINITY;
  OCTAVO_UNROLL for (int i = 0; i < C::kScoreRegisters; ++i) {
    const std::uint32_t pair = s[i / 2 * 2 + row];
    const float score = i % 2 == 0 ? ptx::low_f16(pair) : ptx::high_f16(pair);
    const float added = extra(key + 8 * (i / 2) + i % 2);
    code[i] = score == -INFINITY || added == -INFINITY ? -INFINITY : fmaf(score, scale, added);
    top = ptx::max_nan(top, code[i]);
  }
  top = row_max(top);
  const bool unset = reference == kUnsetReference;
  const bool far = top > -INFINITY && (unset || top - reference > kFar);
  const float anchor = far ? top : unset ? 0.0F : reference;
  OCTAVO_UNROLL for (int i = 0; i < C::kScoreRegisters; i += 2) {
    const auto above = [&](float x) { return x == -INFINITY ? x : x - anchor; };
    s[i + row] = ptx::pack_f16(above(code[i]), above(code[i + 1]));
  }
  return anchor;
}

}  // namespace octavo::cuda::sm90
