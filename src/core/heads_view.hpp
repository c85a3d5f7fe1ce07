// q, k, v, out in one canonical form, whatever layout the caller uses: element (sequence, head, token,
// channel) by four strides.
#pragma once

#include <cstdint>

#include "octavo/attention.hpp"

namespace octavo {

/// Head dims are 1 to this.
inline constexpr std::int64_t kMaxHeadDim = 256;

template <class Pointer>
struct BasicHeadsView {
  Pointer data = nullptr;
  DType dtype = DType::f32;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t channel_stride = 0;

  /// Offset in elements of channel 0; `token` counts within the batch entry (dense) or over all tokens
  /// (packed).
  [[nodiscard]] std::int64_t offset(std::int64_t batch, std::int64_t head, std::int64_t token) const {
    return batch * batch_stride + head * head_stride + token * token_stride;
  }
};
using HeadsView = BasicHeadsView<const void*>;
using MutableHeadsView = BasicHeadsView<void*>;

template <class Pointer>
BasicHeadsView<Pointer> heads_view(const BasicTensorView<Pointer>& t, Layout layout) {
  const auto& s = t.strides;
  switch (layout) {
    case Layout::hnd:
      return {t.data, t.dtype, s[0], s[1], s[2], s[3]};
    case Layout::nhd:
      return {t.data, t.dtype, s[0], s[2], s[1], s[3]};
    case Layout::thd:
      return {t.data, t.dtype, 0, s[1], s[0], s[2]};
  }
  return {};
}

/// LSE [B, Hq, Lq], packed [Hq, tokens]: offset of (sequence, head, row).
inline std::int64_t lse_offset(const MutableTensorView& lse, bool packed, const Sequence& sequence,
                               std::int64_t head, std::int64_t row) {
  return packed ? head * lse.strides[0] + (sequence.q_begin + row) * lse.strides[1]
                : sequence.batch * lse.strides[0] + head * lse.strides[1] + row * lse.strides[2];
}

/// The keys a row may see before mask and bias: [begin, end), clipped to the valid keys. Empty when begin >=
/// end.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
KeyRange visible_keys(const Problem& problem, const Sequence& sequence, std::int64_t row);

/// mask and bias as four strides over [B, Hq, Lq, Lk], 0 where they broadcast. data is null when not given.
struct BroadcastView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t strides[4] = {0, 0, 0, 0};
  [[nodiscard]] std::int64_t offset(std::int64_t batch, std::int64_t head, std::int64_t row,
                                    std::int64_t key) const {
    return batch * strides[0] + head * strides[1] + row * strides[2] + key * strides[3];
  }
};
BroadcastView broadcast_view(const TensorView& t);

/// q_absmax of a query head, or a negative number when it was not given.
float given_q_absmax(const Problem& problem, const Sequence& sequence, std::int64_t head);

}  // namespace octavo
