// The last step of an item: O = sums / l and the LSE to where the caller wants them, or to a part's place.
#pragma once

#include "cuda/sm90/output.cuh"

namespace octavo::cuda::sm90 {

/// Two neighbouring channels, element by element.
OCTAVO_DEVICE void store_pair(const StridedTensor& out, std::int64_t at, bool both, float x, float y) {
  if (out.dtype == DType::f32) {
    auto* p = static_cast<float*>(out.data) + at;
    p[0] = x;
    if (both) p[out.last] = y;
    return;
  }
  auto* p = static_cast<std::uint16_t*>(out.data) + at;
  const std::uint32_t packed = out.dtype == DType::f16 ? ptx::pack_f16(x, y) : ptx::pack_bf16(x, y);
  p[0] = static_cast<std::uint16_t>(packed);
  if (both) p[out.last] = static_cast<std::uint16_t>(packed >> 16);
}

/// True where `channels` neighbouring channels of every row, a power of two, can be written in one store of
/// that many bytes.
OCTAVO_DEVICE bool side_by_side(const StridedTensor& t, int channels, int bytes) {
  return t.last == 1 && ((t.batch | t.head | t.token) & (channels - 1)) == 0 &&
         reinterpret_cast<std::uintptr_t>(t.data) % bytes == 0;
}

/// Four threads with four words each: thread t gets the t-th word of every one.
OCTAVO_DEVICE void transpose_in_quad(std::uint32_t (&w)[4], int t) {
  const auto exchange = [&](std::uint32_t& low, std::uint32_t& high, int distance) {
    const bool upper = (t & distance) != 0;
    const std::uint32_t got = __shfl_xor_sync(~0U, upper ? low : high, distance);
    (upper ? low : high) = got;
  };
  exchange(w[0], w[1], 1);
  exchange(w[2], w[3], 1);
  exchange(w[0], w[2], 2);
  exchange(w[1], w[3], 2);
}

/// Where the thread's two rows go: elements from the start of `out`, which may be negative; kNoRow for rows
/// beyond the sequence.
struct Destination {
  static constexpr std::int64_t kNoRow = std::int64_t{-1} << 63;
  StridedTensor out;
  std::int64_t at[2] = {kNoRow, kNoRow};

  [[nodiscard]] OCTAVO_DEVICE bool row(int i) const { return at[i] != kNoRow; }
};

/// Row sums to 1 / l, and the LSE: ln 2 * (reference + log2 l) + what smoothing took; without a key 0 and
/// -infinity. l: of all four threads of a row.
template <class C>
OCTAVO_DEVICE Destination end_rows(Rows<C>& r, const Shared<C>& shared, const Arguments& a, const Item& item,
                                   const SequenceRow& s, std::uint32_t slot, float (&l)[2], int row0,
                                   int rows) {
  constexpr float kLn2 = 0x1.62e43p-1F;
  const Visibility visible(a, s);
  const bool partial = item.part >= 0;
  const bool first = (ptx::thread_index() & 3) == 0;
  Destination to;
  to.out = partial ? StridedTensor{a.partial_out, DType::f32, 0, 0, 0, 1} : a.out;
  OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
    const int row = row0 + 8 * i;
    if (row >= rows) continue;
    const int token = a.group.quotient(row);
    if (visible.begin(token) >= visible.end(token)) l[i] = 0.0F;  // whatever a NaN scale made of it
    const int q_head = item.head * a.group.value() + (row - token * a.group.value());
    const int in_tile = row - item.tile * C::kRows;
    const std::int64_t line = static_cast<std::int64_t>(item.part) * C::kRows + in_tile;
    to.at[i] = partial ? line * a.head_dim
                       : s.batch * to.out.batch + q_head * to.out.head + (s.q_begin + token) * to.out.token;
    if (!first || (!partial && a.lse.data == nullptr)) continue;
    float shift = 0.0F;
    if constexpr (C::kVectors) {
      shift = ptx::load_shared(shared.lse_shift(slot) + 4 * in_tile);
    } else if (a.lse_shift != nullptr) {
      shift = a.lse_shift[item.head * a.q_rows + s.q_row + row];
    }
    const float lse = l[i] == 0.0F
                          ? -INFINITY
                          : fmaf(kLn2, r.reference[i] / Rows<C>::kUnit - a.p_log2 + __log2f(l[i]), shift);
    if (partial) {
      a.partial_lse[line] = lse;
    } else {
      static_cast<float*>(
          a.lse.data)[s.batch * a.lse.batch + q_head * a.lse.head + (s.q_begin + token) * a.lse.token] = lse;
    }
  }
  return to;
}

/// Of both rows: their sums, and the share of V's mean that each gets back: all of it where smoothing took
/// it, else what the accumulators lost.
template <class C>
OCTAVO_DEVICE void sum_rows(const Output<C>& o, const Rows<C>& r, const Shared<C>& shared, const Arguments& a,
                            bool flushed, float (&l)[2], float (&inverse)[2], float (&share)[2]) {
  const float2 columns = flushed_columns(o, shared, flushed);
  const float column[2] = {columns.x, columns.y};
  const bool rounded = !C::kDirect && C::kFlushes && a.quantized_normaliser;
  OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
    l[i] = row_sum(rounded ? column[i] : r.sum[i]);
    inverse[i] = l[i] == 0.0F ? 0.0F : ptx::reciprocal(l[i]);
    share[i] = a.smooth_v ? 1.0F : 0.0F;
    if constexpr (C::kShares) {  // each thread of the four has one of the columns
      const float all = row_sum(column[i]);
      if (!a.smooth_v) share[i] = 1.0F - all * inverse[i] * (1.0F / kKeptSum);
    }
  }
}

/// O = sums * delta_V / l + a share of V's mean. The item is read again: what tells where its rows go would
/// cost the main loop a dozen registers.
template <class C>
OCTAVO_DEVICE void write_rows(const Output<C>& o, Rows<C>& r, const Shared<C>& shared, const Arguments& a,
                              std::uint32_t slot, int warpgroup, bool flushed) {
  const Item item = published(shared, slot);
  const SequenceRow s = a.sequences[item.sequence];
  const int rows = static_cast<int>(s.q_len) * a.group.value();
  const int row0 = item.tile * C::kRows + warpgroup * 64 + row_of_thread();
  const int t = ptx::thread_index() & 3;
  float l[2];
  float inverse[2];
  float share[2];
  sum_rows(o, r, shared, a, flushed, l, inverse, share);
  const Destination to = end_rows(r, shared, a, item, s, slot, l, row0, rows);

  /// the thread's two channels 8c + 2t, + 1 of both rows, finished
  const auto finished = [&](int c, float2(&y)[2]) {
    float4 x = final_sums(o, shared, 4 * c, flushed);
    x = make_float4(x.x * inverse[0], x.y * inverse[0], x.z * inverse[1], x.w * inverse[1]);
    if constexpr (!C::kWideValues) {
      const float2 scale = ptx::load_shared_pair(shared.v_scale(slot) + 32 * c + 8 * t);
      const float2 mean = ptx::load_shared_pair(shared.v_mean(slot) + 32 * c + 8 * t);
      x = make_float4(fmaf(x.x, scale.x, share[0] * mean.x), fmaf(x.y, scale.y, share[0] * mean.y),
                      fmaf(x.z, scale.x, share[1] * mean.x), fmaf(x.w, scale.y, share[1] * mean.y));
    }
    y[0] = make_float2(x.x, x.y);
    y[1] = make_float2(x.z, x.w);
  };
  // 16 bytes a store where rows allow it, else two channels. As few instructions as can be: every item finds
  // the cache full of the main loop's.
  const bool vectors = side_by_side(a.out, 8, 16);
  const auto write_16bit = [&](const auto& pack) {
    auto* out = static_cast<std::uint16_t*>(to.out.data);
    OCTAVO_UNROLL for (int first = 0; first < C::kDim / 8; first += 4) {
      std::uint32_t w[2][4];
      OCTAVO_UNROLL for (int c = 0; c < 4; ++c) {
        float2 y[2];
        finished(first + c, y);
        OCTAVO_UNROLL for (int i = 0; i < 2; ++i) w[i][c] = pack(y[i].x, y[i].y);
      }
      OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
        if (vectors) {
          transpose_in_quad(w[i], t);
          if (to.row(i))
            *reinterpret_cast<uint4*>(out + to.at[i] + 8 * first + 8 * t) = {w[i][0], w[i][1], w[i][2],
                                                                             w[i][3]};
        } else if (to.row(i)) {
          OCTAVO_UNROLL for (int c = 0; c < 4; ++c) *
              reinterpret_cast<std::uint32_t*>(out + to.at[i] + 8 * (first + c) + 2 * t) = w[i][c];
        }
      }
    }
  };
  const bool whole =
      a.head_dim == C::kDim && (item.part >= 0 || side_by_side(a.out, 2, a.out.dtype == DType::f32 ? 8 : 4));
  if (whole && to.out.dtype == DType::f16) {
    write_16bit([](float x, float y) { return ptx::pack_f16(x, y); });
  } else if (whole && to.out.dtype == DType::bf16) {
    write_16bit([](float x, float y) { return ptx::pack_bf16(x, y); });
  } else {
    OCTAVO_UNROLL for (int c = 0; c < C::kDim / 8; ++c) {
      float2 y[2];
      finished(c, y);
      const int channel = 8 * c + 2 * t;
      OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
        if (!to.row(i) || channel >= a.head_dim) continue;
        if (whole) {
          *reinterpret_cast<float2*>(static_cast<float*>(to.out.data) + to.at[i] + channel) = y[i];
        } else {
          store_pair(to.out, to.at[i] + channel * to.out.last, channel + 1 < a.head_dim, y[i].x, y[i].y);
        }
      }
    }
  }
  // Rows without a key are 0, also where a scale or mean is NaN. Other threads wrote what this one clears.
  __syncwarp();
  OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
    if (__builtin_expect(l[i] == 0.0F && to.row(i), 0)) {
      for (int channel = 2 * t; channel < a.head_dim; channel += 8)
        store_pair(to.out, to.at[i] + channel * to.out.last, channel + 1 < a.head_dim, 0.0F, 0.0F);
    }
  }
}

}  // namespace octavo::cuda::sm90
