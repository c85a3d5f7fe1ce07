// Boolean mask, additive bias and smooth_q's term, read element by element: right for any strides, not fast.
// Only the `general` instances contain it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <numbers>

#include "cuda/sm90/scores.cuh"

namespace octavo::cuda::sm90 {

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

/// f16 scores: what is added joins them in their own unit and format. A hidden key is -infinity whatever the
/// scale is: a NaN there is none of the row's.
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

}  // namespace octavo::cuda::sm90
