// Boolean mask, additive bias and smooth_q's term, read element by element: right for any strides, not fast.
// Only the `general` instances contain it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/sm90/scores.cuh"

namespace octavo::cuda::sm90 {

inline constexpr float kLog2e = 0x1.715476p+0F;

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

  /// `row` counts packed rows of the sequence; rows beyond `rows` repeat the last, whose output nobody
  /// stores.
  OCTAVO_DEVICE RowExtras(const Arguments& a, const SequenceRow& s, int sequence, int head, int row,
                          int rows) {
    const int r = min(row, rows - 1);
    const int token = r / a.group;
    const int q_head = head * a.group + (r - token * a.group);
    if (a.mask.data != nullptr) {
      mask = static_cast<const std::uint8_t*>(a.mask.data) + s.batch * a.mask.batch + q_head * a.mask.head +
             token * a.mask.token;
    }
    if (a.bias.data != nullptr) {
      bias = a.bias.data;
      bias_at = s.batch * a.bias.batch + q_head * a.bias.head + token * a.bias.token;
    }
    if (a.correction != nullptr) {
      correction =
          a.correction + (q_head * a.q_blocks + s.q_block + token / kQueryBlock) * a.key_rows + s.k_row;
    }
  }

  /// What is added to the base-2 logit of a key, -infinity where it is hidden.
  [[nodiscard]] OCTAVO_DEVICE float add(const Arguments& a, int key, int keys) const {
    if (key >= keys) return -INFINITY;
    if (mask != nullptr && mask[key * a.mask.last] == 0) return -INFINITY;
    float x = 0.0F;
    if (bias != nullptr) x = load_float(bias, a.bias.dtype, bias_at + key * a.bias.last) * kLog2e;
    if (correction != nullptr) x += correction[key];
    return x;
  }
};

/// Turns 32-bit scores into base-2 logits, in place. scale[block][row].
template <class C>
OCTAVO_DEVICE void settle(typename C::Score (&s)[C::kScoreRegisters], const Arguments& a,
                          const RowExtras& upper, const RowExtras& lower, int key, int keys,
                          const float (&scale)[2][2]) {
  const auto logit = [](typename C::Score x, float unit, float extra) {
    float dot;
    if constexpr (C::kIntScores) {
      dot = __int_as_float(x) - kMagic;
    } else {
      dot = static_cast<float>(x);
    }
    const float y = extra == -INFINITY || dot == -INFINITY ? -INFINITY : fmaf(dot, unit, extra);
    if constexpr (C::kIntScores) {
      return __float_as_int(y);
    } else {
      return y;
    }
  };
  OCTAVO_UNROLL for (int g = 0; g < C::kKeys / 8; ++g) {
    const int at = key + 8 * g;
    const int block = C::kBlockScales ? g / 8 : 0;
    s[4 * g] = logit(s[4 * g], scale[block][0], upper.add(a, at, keys));
    s[4 * g + 1] = logit(s[4 * g + 1], scale[block][0], upper.add(a, at + 1, keys));
    s[4 * g + 2] = logit(s[4 * g + 2], scale[block][1], lower.add(a, at, keys));
    s[4 * g + 3] = logit(s[4 * g + 3], scale[block][1], lower.add(a, at + 1, keys));
  }
}

/// f16 scores: the bias joins them in their own unit and format; hidden keys become -infinity.
template <class C>
OCTAVO_DEVICE void settle_half(std::uint32_t (&s)[C::kScoreRegisters], const Arguments& a,
                               const RowExtras& upper, const RowExtras& lower, int key, int keys,
                               float scale0, float scale1) {
  const float unit0 = 1.0F / scale0;
  const float unit1 = 1.0F / scale1;
  OCTAVO_UNROLL for (int g = 0; g < C::kKeys / 8; ++g) {
    const int at = key + 8 * g;
    s[2 * g] = ptx::pack_f16(fmaf(upper.add(a, at, keys), unit0, ptx::low_f16(s[2 * g])),
                             fmaf(upper.add(a, at + 1, keys), unit0, ptx::high_f16(s[2 * g])));
    s[2 * g + 1] = ptx::pack_f16(fmaf(lower.add(a, at, keys), unit1, ptx::low_f16(s[2 * g + 1])),
                                 fmaf(lower.add(a, at + 1, keys), unit1, ptx::high_f16(s[2 * g + 1])));
  }
}

}  // namespace octavo::cuda::sm90
