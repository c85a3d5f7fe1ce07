// K and V to payload: even blocks take 128 keys of K, odd ones the same keys of V, so that the
// arithmetic of the one (rotation, 18 instructions a value) runs beside the bytes of the other (5).
//
// K, 4 keys a thread: centre and sign (one fused multiply-add), butterflies, largest magnitude, divide,
// 8-byte stores. A warp holds the 16 keys that share a per_thread scale, so only coarser groups meet in
// shared memory.
//
// V, 4 keys a thread, the four that lie side by side in the permuted order, so a thread makes whole words of
// V^T; those cross to channel rows through shared memory, 16-byte pieces swizzled by channel: no bank
// conflict either way.
#pragma once

#include "cuda/quantize/rows.cuh"
#include "cuda/quantize/tiles.cuh"

namespace octavo::cuda {

inline constexpr std::uint32_t kOnes = 0x38383838U;  // four times 1.0 in e4m3
// 1, 1.125, 1.25, 1.375 and back; 0.5 more is 4 more in each byte. The rows are 1 up, 1.5 down, 1 down, 1.5
// up: kKeptSum at every key.
inline constexpr std::uint32_t kRising = 0x3B3A3938U;
inline constexpr std::uint32_t kFalling = 0x38393A3BU;
inline constexpr std::uint32_t kHalfMore = 0x04040404U;

template <Access kAccess, int kChunks>
__device__ __forceinline__ void quantize_keys(const KvArguments& a, const Tile& tile, int head,
                                              float* warp_tops) {
  constexpr int kDim = kChunks * 64;
  const Lane lane;
  const int count = rows_of(tile, tile.sequence.k_len, kTileRows);
  const int rows_here = round_up_to_rows(count, a.row_align);
  const std::byte* base = rows_at(a.k_rows, tile, head, tile.sequence.k_begin);
  const int block = lane.warp >> 2;  // of 64 keys
  const int column = lane.warp & 3;  // floor((key mod 8) / 2)
  const auto key = [&](int r) {
    return 64 * block + 8 * (2 * r + (lane.group >> 1)) + 2 * column + (lane.group & 1);
  };

  RawRow<kAccess, kChunks> raw[kRowsPerThread];
  const std::byte* from = slice_of_row(a.k_rows, base, key(0), lane.slice);
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r)
    load_slice<true>(a.k_rows, from + 16 * r * a.k_rows.token_stride, lane.slice, key(r) < count, raw[r]);
  ptx::wait_for_predecessors();

  // (x - mean) * sign as one fused multiply-add, which rounds once like the subtraction
  float x[kRowsPerThread][kChunks * 8];
  {
    float sign[kChunks * 8];
    float minus_mean[kChunks * 8];
    load_signs<kChunks>(a.rotation, lane.slice, sign);
    load_channels<kChunks>(a.k_mean + first_channel(a.sequences, head, tile.index, kDim), lane.slice,
                           minus_mean);
#pragma unroll
    for (int i = 0; i < kChunks * 8; ++i) minus_mean[i] *= -sign[i];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      widen_row(raw[r], x[r]);
#pragma unroll
      for (int i = 0; i < kChunks * 8; ++i) x[r][i] = __fmaf_rn(x[r][i], sign[i], minus_mean[i]);
    }
  }
  butterflies<kRowsPerThread, kChunks>(x, a.rotation.size, lane.slice);

  float top = 0.0F;
  const bool known = a.k_group == Granularity::per_head && !a.absmax_only;
  if (!known) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const float m = largest(x[r]);
      top = ptx::max_nan(top, key(r) < count ? m : 0.0F);
    }
    top = warp_max(row_max(top)) * a.rotation.scale;
    if (!is_finite(top) && !a.smooth_k) {  // with smooth_k the sums told
#pragma unroll 1
      for (int r = 0; r < kRowsPerThread; ++r) {
        if (key(r) < count &&
            given_non_finite(a.k_rows, base + key(r) * a.k_rows.token_stride, lane.slice, 8))
          flag(a.nonfinite, kBadK);
      }
    }
  }

  auto* head_top = reinterpret_cast<std::uint32_t*>(slots_of(a, head, tile.sequence, tile.index, kDim));
  if (a.absmax_only) {  // bits of floats that are not negative compare as integers, NaN above all
    if ((threadIdx.x & 31U) == 0) atomicMax(head_top, __float_as_uint(top));
    return;
  }
  float delta = 1.0F;
  if (known) {
    top = __uint_as_float(*head_top);
  } else if (a.k_group != Granularity::none && a.k_group != Granularity::per_thread) {
    if ((threadIdx.x & 31U) == 0) warp_tops[lane.warp] = top;
    __syncthreads();
    top = ptx::max_nan(ptx::max_nan(warp_tops[4 * block], warp_tops[4 * block + 1]),
                       ptx::max_nan(warp_tops[4 * block + 2], warp_tops[4 * block + 3]));
  }
  if (64 * block >= rows_here) return;
  const bool scaled = a.k_group != Granularity::none;
  if (scaled) delta = finite_delta(top, a.k_grid);
  const int first_row = head * a.key_rows + static_cast<int>(tile.sequence.k_row) + tile.first;
  if ((threadIdx.x & 31U) == 0) a.k_scale[(first_row / 64 + block) * 4 + column] = delta;

  const bool usable = is_finite(delta);
  apply_scale<kRowsPerThread, kChunks>(x, a.rotation);
  Divisor by;
  by.value = delta * a.rotation.left_inverse;
  by.inverse = __frcp_rn(by.value);
  if (a.k_exact != nullptr) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      float exact[kChunks * 8];
#pragma unroll
      for (int i = 0; i < kChunks * 8; ++i) exact[i] = key(r) < count ? x[r][i] * a.rotation.left : 0.0F;
      store_channels<kChunks>(a.k_exact + static_cast<std::int64_t>(first_row + key(r)) * kDim, lane.slice,
                              exact);
    }
  }
  PayloadRow rows[kRowsPerThread];
  const int row_bytes = payload_bytes(a.k_grid.format) * kDim;
  std::byte* to = a.k + static_cast<std::int64_t>(first_row + key(0)) * row_bytes;
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r)
    rows[r] = {to + 16 * r * row_bytes, by, key(r) < count && usable, true};
  store_payload<kRowsPerThread, kChunks>(rows, lane.slice, a.k_grid, x);
}

/// The words of V^T of 128 keys: [channel][8 pieces of 16 keys], and which channels are finite.
template <int kChunks>
struct SharedValues {
  uint4 pieces[kChunks * 64][8];
  std::uint32_t finite[kChunks * 64];
};

/// A piece of 16 keys in its place: the 8 slices of a warp's store and the 8 pieces of a row's load meet 32
/// banks each.
__device__ __forceinline__ int swizzled(int channel, int piece) { return piece ^ (channel >> 3 & 7); }

/// Word of four keys in a row beyond the channels.
__device__ inline std::uint32_t ones_word(int row) {
  if (row % 2 == 0) return kOnes;
  return (row == 1 || row == 7 ? kRising : kFalling) + (row == 3 || row == 7 ? kHalfMore : 0);
}

/// Words of the rows beyond the channels, in permuted order: in the even ones for the valid keys of every
/// fourth 32-key block, in the odd ones for all valid keys.
__device__ inline uint4 ones_piece(int row, int piece, int count) {
  uint4 ones = {0, 0, 0, 0};
  if (row % 2 == 0 && piece / 2 != row / 2) return ones;
  std::uint32_t* words = &ones.x;
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    std::uint32_t mask = 0;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      if (16 * piece + 8 * (b / 2) + 2 * t + b % 2 < count) mask |= 0xFFU << (8 * b);
    }
    words[t] = ones_word(row) & mask;
  }
  return ones;
}

template <Access kAccess, int kChunks>
__device__ __forceinline__ void quantize_values(const KvArguments& a, const Tile& tile, int head,
                                                SharedValues<kChunks>& shared) {
  constexpr int kDim = kChunks * 64;
  const Lane lane;
  const int count = rows_of(tile, tile.sequence.k_len, kTileRows);
  const int rows_here = round_up_to_rows(count, a.row_align);
  const std::byte* base = rows_at(a.v_rows, tile, head, tile.sequence.k_begin);
  const auto key = [&](int r) { return 16 * lane.warp + 8 * (r / 2) + 2 * lane.group + r % 2; };

  RawRow<kAccess, kChunks> raw[kRowsPerThread];
  const std::byte* from = slice_of_row(a.v_rows, base, key(0), lane.slice);
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r)
    load_slice<true>(a.v_rows, from + (8 * (r / 2) + r % 2) * a.v_rows.token_stride, lane.slice,
                     key(r) < count, raw[r]);
  ptx::wait_for_predecessors();

  float x[kRowsPerThread][kChunks * 8];
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) widen_row(raw[r], x[r]);
  if (a.smooth_v) {
    float mean[kChunks * 8];
    load_channels<kChunks>(a.v_mean + first_channel(a.sequences, head, tile.index, kDim), lane.slice, mean);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
#pragma unroll
      for (int i = 0; i < kChunks * 8; ++i) x[r][i] -= mean[i];
    }
  }

  const int first_row = static_cast<int>(tile.sequence.k_row) + tile.first;
  if (a.v_grid.format != Format::e4m3) {
    PayloadRow rows[kRowsPerThread];
    std::byte* to = a.v + static_cast<std::int64_t>(head * a.key_rows + first_row + key(0)) * (2 * kDim);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const bool valid = key(r) < count;
      if (valid && !a.value_statistics && !is_finite(largest(x[r]))) flag(a.nonfinite, kBadV);
      rows[r] = {to + (8 * (r / 2) + r % 2) * (2 * kDim), Divisor{}, valid, key(r) < rows_here};
    }
    store_payload<kRowsPerThread, kChunks>(rows, lane.slice, a.v_grid, x);
    return;
  }

  float inverse[kChunks * 8];
  load_channels<kChunks>(slots_of(a, head, tile.sequence, tile.index, kDim) + kVHigh * kDim, lane.slice,
                         inverse);
  float divisor[kChunks * 8];
  load_channels<kChunks>(a.v_scale + first_channel(a.sequences, head, tile.index, kDim), lane.slice, divisor);
  std::uint32_t valid = 0;
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) valid |= key(r) < count ? 0xFFU << (8 * r) : 0U;
#pragma unroll
  for (int i = 0; i < kChunks * 8; ++i) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) x[r][i] = quotient(x[r][i], divisor[i], inverse[i]);
  }
  if (a.v_grid.clamps) clamp_to(a.v_grid.limit, x);
  if (lane.warp == 0 && lane.group == 0) {
#pragma unroll
    for (int i = 0; i < kChunks * 8; ++i)
      shared.finite[64 * (i / 8) + 8 * lane.slice + i % 8] = is_finite(divisor[i]) ? 0xFFFFFFFFU : 0U;
  }
#pragma unroll
  for (int i = 0; i < kChunks * 8; ++i) {
    const int channel = 64 * (i / 8) + 8 * lane.slice + i % 8;
    auto* words = reinterpret_cast<std::uint32_t*>(&shared.pieces[channel][swizzled(channel, lane.warp)]);
    words[lane.group] = ptx::pack_e4m3(x[0][i], x[1][i], x[2][i], x[3][i]) & valid;
  }
  __syncthreads();

  const int piece = static_cast<int>(threadIdx.x) & 7;
  if (16 * piece >= rows_here) return;
  const std::int64_t key_rows = a.key_rows;
  std::byte* out = a.v + head * static_cast<int>(kDim + kOnesRows) * key_rows + (first_row + 16 * piece);
#pragma unroll
  for (int n = 0; n < 2 * kChunks; ++n) {
    const int channel = (static_cast<int>(threadIdx.x) >> 3) + 32 * n;
    uint4 w = shared.pieces[channel][swizzled(channel, piece)];
    const std::uint32_t finite = shared.finite[channel];
    w.x &= finite;
    w.y &= finite;
    w.z &= finite;
    w.w &= finite;
    *reinterpret_cast<uint4*>(out + channel * key_rows) = w;
  }
  if (threadIdx.x < 8 * kOnesRows) {
    const int row = static_cast<int>(threadIdx.x) >> 3;
    *reinterpret_cast<uint4*>(out + (kDim + row) * key_rows) = ones_piece(row, piece, count);
  }
}

/// The work'th block's tiles. Loads the first before it waits: finish() admits its successors only when it
/// has waited itself, and whatever runs between (passes for a largest magnitude) starts after that, so what
/// wrote the caller's rows and the table of sequences has ended.
template <Access kAccess, int kChunks>
__device__ __forceinline__ void quantize_keys_values(const KvArguments& a, int work,
                                                     SharedValues<kChunks>& shared) {
  bool values = false;
  if (!a.absmax_only) {
    values = (work & 1) != 0;
    work >>= 1;
  }
  const int slot = a.heads.quotient(work);
  const int head = work - slot * a.heads.value();
  Tile tile = key_tile(a.sequences, slot, a.span * kTileRows, a.spans_each);
  for (int n = 0; n < a.span && tile.first < tile.sequence.k_len; ++n) {
    if (n > 0) __syncthreads();  // the last tile's words in shared memory were read
    if (values) {
      quantize_values<kAccess, kChunks>(a, tile, head, shared);
    } else {
      quantize_keys<kAccess, kChunks>(a, tile, head, reinterpret_cast<float*>(&shared));
    }
    tile.first += kTileRows;
  }
}

}  // namespace octavo::cuda
