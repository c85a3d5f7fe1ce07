// Q to payload: a block takes 128 tokens of one query head, 4 rows a thread, and packs them between the rows
// of the other heads of the group. Clamp, the LSE's dot product with K's mean, centre, rotate, largest
// magnitude, round. A thread holds the four rows (equal mod 8 in 32) of a per_thread scale; per_warp and
// per_block meet in shared memory.
#pragma once

#include "cuda/quantize/rows.cuh"
#include "cuda/quantize/tiles.cuh"

namespace octavo::cuda {

/// Mean of the block's rows, per channel, taken from every row; q_mean gets it rotated and in base-2 logits.
template <int kChunks>
__device__ __forceinline__ void subtract_mean(const QArguments& a, int block, int head, int count,
                                              const Lane& lane, float (&x)[kRowsPerThread][kChunks * 8],
                                              const bool (&valid)[kRowsPerThread],
                                              float (*sums)[kChunks * 64]) {
  constexpr int kDim = kChunks * 64;
#pragma unroll
  for (int i = 0; i < kChunks * 8; ++i) {
    float sum = 0.0F;
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) sum += valid[r] ? x[r][i] : 0.0F;
    sum += __shfl_xor_sync(kWholeWarp, sum, 8);
    sum += __shfl_xor_sync(kWholeWarp, sum, 16);
    if (lane.group == 0) sums[lane.warp][64 * (i / 8) + 8 * lane.slice + i % 8] = sum;
  }
  __syncthreads();
  float mean[1][kChunks * 8];
  float sign[kChunks * 8];
  load_signs<kChunks>(a.rotation, lane.slice, sign);
#pragma unroll
  for (int i = 0; i < kChunks * 8; ++i) {
    double sum = 0.0;
#pragma unroll
    for (int w = 0; w < kQuantizeWarps; ++w)
      sum += static_cast<double>(sums[w][64 * (i / 8) + 8 * lane.slice + i % 8]);
    mean[0][i] = static_cast<float>(sum / count);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) x[r][i] -= mean[0][i];
    mean[0][i] *= sign[i];
  }
  butterflies<1, kChunks>(mean, a.rotation.size, lane.slice);
  if (lane.warp != 0 || lane.group != 0) return;
  const float factor = a.scale < 0.0F ? -a.logit_factor : a.logit_factor;
#pragma unroll
  for (int i = 0; i < kChunks * 8; ++i) mean[0][i] = mean[0][i] * a.rotation.scale * factor;
  store_channels<kChunks>(a.q_mean + static_cast<std::int64_t>(head * a.q_blocks + block) * kDim, lane.slice,
                          mean[0]);
}

/// Rows between the sequence's last one and the next multiple of 64.
template <int kChunks>
__device__ __forceinline__ void clear_padding(const QArguments& a, const SequenceRow& sequence, int kv_head,
                                              int row_bytes) {
  const int rows = static_cast<int>(sequence.q_len) * a.group.value();
  const std::int64_t first = kv_head * a.q_rows + static_cast<int>(sequence.q_row) + rows;
  const int count = round_up_to_rows(rows, kRowAlign) - rows;
  const int pieces = count * (row_bytes / 16);
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kQuantizeThreads)
    *reinterpret_cast<uint4*>(a.q + first * row_bytes + 16 * i) = {0, 0, 0, 0};
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kQuantizeThreads) {
    a.q_scale[first + i] = 0.0F;
    a.lse_shift[first + i] = 0.0F;
  }
}

/// The block'th tile of 128 tokens of a head. kLoadsFirst: the caller's rows before it waits for the
/// predecessors, as quantize_keys_values() does; else the kernel has waited.
template <Access kAccess, int kChunks, bool kSmooth, bool kLoadsFirst = false>
__device__ __forceinline__ void quantize_queries(const QArguments& a, int block) {
  constexpr int kDim = kChunks * 64;
  __shared__ float warp_tops[kQuantizeWarps];
  const Lane lane;
  const int slot = a.heads.quotient(block);
  const int head = block - slot * a.heads.value();
  const Tile tile = query_tile(a.sequences, slot, a.tiles_each);
  const int group = a.group.value();
  const int kv_head = a.group.quotient(head);
  const int member = head - kv_head * group;
  const int count = rows_of(tile, tile.sequence.q_len, kTileRows);
  const std::byte* base = rows_at(a.rows, tile, head, tile.sequence.q_begin);
  const auto token = [&](int r) { return 32 * (lane.warp >> 1) + 8 * r + 4 * (lane.warp & 1) + lane.group; };

  RawRow<kAccess, kChunks> raw[kRowsPerThread];
  bool valid[kRowsPerThread];
  const std::byte* from = slice_of_row(a.rows, base, token(0), lane.slice);
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    valid[r] = token(r) < count;
    load_slice<true>(a.rows, from + 8 * r * a.rows.token_stride, lane.slice, valid[r], raw[r]);
  }
  if constexpr (kLoadsFirst) ptx::wait_for_predecessors();
  float x[kRowsPerThread][kChunks * 8];
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) widen_row(raw[r], x[r]);

  // What there is one of per row is reduced to, and computed by, the thread whose slice mod 4 is the row.
  const int own = token(lane.slice & 3);
  const bool own_valid = own < count;
  bool bad = false;  // the caller gave NaN or Inf
  float given = -1.0F;
  if (a.given != nullptr) {
    given = a.given[tile.index * a.given_sequence_stride + head * a.given_head_stride];
    float tops[kRowsPerThread];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      tops[r] = largest(x[r]);
#pragma unroll
      for (int i = 0; i < kChunks * 8; ++i) {
        const float clamped = fminf(fmaxf(x[r][i], -given), given);
        x[r][i] = x[r][i] == x[r][i] ? clamped : x[r][i];
      }
    }
    bad = !is_finite(reduce_rows(tops, lane.slice, ptx::max_nan));
  }

  float shift = 0.0F;
  if (a.k_mean != nullptr) {
    float mean[kChunks * 8];
    load_channels<kChunks>(a.k_mean + first_channel(a.sequences, kv_head, tile.index, kDim), lane.slice,
                           mean);
    float dots[kRowsPerThread] = {};
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
#pragma unroll
      for (int i = 0; i < kChunks * 8; ++i) dots[r] = __fmaf_rn(x[r][i], mean[i], dots[r]);
    }
    shift = a.scale * reduce_rows(dots, lane.slice, [](float p, float q) { return p + q; });
  }
  if constexpr (kSmooth) {
    __shared__ float sums[kQuantizeWarps][kDim];
    subtract_mean<kChunks>(a, slot, head, count, lane, x, valid, sums);
  }

  if (a.rotation.size > 0) {
    float sign[kChunks * 8];
    load_signs<kChunks>(a.rotation, lane.slice, sign);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
#pragma unroll
      for (int i = 0; i < kChunks * 8; ++i) x[r][i] *= sign[i];
    }
    butterflies<kRowsPerThread, kChunks>(x, a.rotation.size, lane.slice);
  }

  float tops[kRowsPerThread];
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) tops[r] = largest(x[r]);
  float own_top = reduce_rows(tops, lane.slice, ptx::max_nan) * a.rotation.scale;
  if (!own_valid) own_top = 0.0F;
  if (own_valid && (bad || !is_finite(own_top))) {
    if (a.given == nullptr)
      bad = given_non_finite(a.rows, base + own * a.rows.token_stride, lane.slice >> 2, 2);
    if (bad) flag(a.nonfinite, kBadQ);
  }
  float top = ptx::max_nan(own_top, __shfl_xor_sync(kWholeWarp, own_top, 1));
  top = ptx::max_nan(top, __shfl_xor_sync(kWholeWarp, top, 2));

  auto* head_top =
      reinterpret_cast<std::uint32_t*>(a.head_absmax) + first_channel(a.sequences, head, tile.index, 1);
  if (a.absmax_only) {  // bits of floats that are not negative compare as integers, NaN above all
    top = warp_max(top);
    if ((threadIdx.x & 31U) == 0) atomicMax(head_top, __float_as_uint(top));
    return;
  }
  if (a.given != nullptr) {
    top = given;
  } else if (a.q_group == Granularity::per_head) {
    top = __uint_as_float(*head_top);
  } else if (a.q_group == Granularity::per_block || a.q_group == Granularity::per_warp) {
    top = warp_max(top);
    if ((threadIdx.x & 31U) == 0) warp_tops[lane.warp] = top;
    __syncthreads();
    top = ptx::max_nan(warp_tops[lane.warp], warp_tops[lane.warp ^ 1]);
    if (a.q_group == Granularity::per_block) {
#pragma unroll
      for (int w = 0; w < kQuantizeWarps; ++w) top = ptx::max_nan(top, warp_tops[w]);
    }
  }

  const int value_bytes = payload_bytes(a.grid.format);
  const int row_bytes = value_bytes * kDim;
  const int first_row =
      kv_head * a.q_rows + static_cast<int>(tile.sequence.q_row) + tile.first * group + member;
  float delta = 1.0F;
  if (value_bytes == 1) {
    if (a.given == nullptr && a.q_group == Granularity::per_token) top = own_top;
    delta = finite_delta(top, a.grid);
    if (!is_finite(own_top))
      delta = __uint_as_float(0x7FC00000U);  // NaN of its own, though the scale was given
  }
  if (own_valid && lane.slice < kRowsPerThread) {
    const int row = first_row + own * group;
    a.q_scale[row] = delta * a.logit_factor;
    a.lse_shift[row] = shift;
  }
  apply_scale<kRowsPerThread, kChunks>(x, a.rotation);
  Divisor own_by;
  own_by.value = delta * (a.scale < 0.0F ? -a.rotation.left_inverse : a.rotation.left_inverse);
  own_by.inverse = __frcp_rn(own_by.value);
  PayloadRow rows[kRowsPerThread];
  std::byte* to = a.q + static_cast<std::int64_t>(first_row + token(0) * group) * row_bytes;
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    Divisor by;
    by.value = __shfl_sync(kWholeWarp, own_by.value, r, 8);
    by.inverse = __shfl_sync(kWholeWarp, own_by.inverse, r, 8);
    rows[r] = {to + 8 * r * group * static_cast<std::int64_t>(row_bytes), by, is_finite(by.value), valid[r]};
  }
  store_payload<kRowsPerThread, kChunks>(rows, lane.slice, a.grid, x);
  if (member == 0 && tile.first + kTileRows >= tile.sequence.q_len)
    clear_padding<kChunks>(a, tile.sequence, kv_head, row_bytes);
}

}  // namespace octavo::cuda
