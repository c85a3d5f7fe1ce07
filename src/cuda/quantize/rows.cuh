// Rows in registers: what the passes over K, V and Q share.
//
// 8 threads hold a row: thread `slice` the channels 64 c + 8 slice + i, i < 8, of each chunk c of 64 channels
// (one chunk or two). So a load of 16 bytes a thread covers whole lines, and a butterfly of the rotation
// stays in a thread (strides 1, 2, 4 and 64) or moves to the thread beside (8, 16, 32).
#pragma once

#include <cstdint>

#include "cuda/quantize/arguments.hpp"
#include "cuda/quantize/convert.cuh"

namespace octavo::cuda {

inline constexpr unsigned kWholeWarp = 0xFFFFFFFFU;

/// Blocks a multiprocessor is to hold, from the registers that a kernel needs: bytes in flight hide memory's
/// latency.
constexpr int blocks_per_sm(Access access, int chunks) {
  const bool f32 = access == Access::f32;
  return chunks == 1 ? (f32 ? 3 : 4) : (f32 ? 1 : 2);
}

/// The place of a thread in its block.
struct Lane {
  int warp = static_cast<int>(threadIdx.x) >> 5;
  int group = (static_cast<int>(threadIdx.x) >> 3) & 3;  ///< of 8 threads, which hold one row
  int slice = static_cast<int>(threadIdx.x) & 7;
};

/// A row's part of one thread, as loaded.
template <Access kAccess, int kChunks>
struct RawRow {
  static constexpr int kVectors = kAccess == Access::f32 ? 2 : 1;  ///< of a chunk
  uint4 vectors[kChunks * kVectors];
};
template <int kChunks>
struct RawRow<Access::any, kChunks> {
  float values[kChunks * 8];
};

__device__ inline float load_element(const std::byte* at, DType dtype) {
  if (dtype == DType::f32) return *reinterpret_cast<const float*>(at);
  float low = 0.0F;
  float high = 0.0F;
  const std::uint32_t word = *reinterpret_cast<const std::uint16_t*>(at);
  if (dtype == DType::f16) {
    widen_x2<false>(word, low, high);
  } else {
    widen_x2<true>(word, low, high);
  }
  return low;
}

/// Where a thread's slice of row `row` begins.
__device__ __forceinline__ const std::byte* slice_of_row(const CallerRows& rows, const std::byte* base,
                                                         int row, int slice) {
  return base + static_cast<unsigned>(row) * rows.token_stride +
         static_cast<unsigned>(8 * slice) * rows.channel_stride;
}

/// Zeros where the row is not valid and beyond the head dim. kOnce: nobody reads the row again.
template <bool kOnce, Access kAccess, int kChunks>
__device__ __forceinline__ void load_slice(const CallerRows& rows, const std::byte* from, int slice,
                                           bool valid, RawRow<kAccess, kChunks>& raw) {
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int channel = 64 * c + 8 * slice;
    if constexpr (kAccess == Access::any) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        raw.values[8 * c + i] = valid && channel + i < rows.head_dim
                                    ? load_element(from + (64 * c + i) * rows.channel_stride, rows.dtype)
                                    : 0.0F;
      }
    } else {
      constexpr int kVectors = RawRow<kAccess, kChunks>::kVectors;
      const bool in = valid && channel < rows.head_dim;  // a whole chunk: head dims here are multiples of 8
#pragma unroll
      for (int n = 0; n < kVectors; ++n) {
        const std::byte* at = from + 64 * c * (2 * kVectors) + 16 * n;
        raw.vectors[kVectors * c + n] = !in ? uint4{0, 0, 0, 0} : kOnce ? load_once(at) : load_again(at);
      }
    }
  }
}

template <Access kAccess, int kChunks>
__device__ __forceinline__ void widen_row(const RawRow<kAccess, kChunks>& raw, float (&x)[kChunks * 8]) {
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if constexpr (kAccess == Access::any) {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[8 * c + i] = raw.values[8 * c + i];
    } else if constexpr (kAccess == Access::f32) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const uint4 v = raw.vectors[2 * c + n];
        float* to = x + 8 * c + 4 * n;
        to[0] = __uint_as_float(v.x);
        to[1] = __uint_as_float(v.y);
        to[2] = __uint_as_float(v.z);
        to[3] = __uint_as_float(v.w);
      }
    } else {
      constexpr bool kBf16 = kAccess == Access::bf16;
      const uint4 v = raw.vectors[c];
      float* to = x + 8 * c;
      widen_x2<kBf16>(v.x, to[0], to[1]);
      widen_x2<kBf16>(v.y, to[2], to[3]);
      widen_x2<kBf16>(v.z, to[4], to[5]);
      widen_x2<kBf16>(v.w, to[6], to[7]);
    }
  }
}

/// Two neighbours' float per channel of this thread, 32 bytes a chunk, from [padded_dim].
template <int kChunks>
__device__ __forceinline__ void load_channels(const float* from, int slice, float (&x)[kChunks * 8]) {
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float4 v = *reinterpret_cast<const float4*>(from + 64 * c + 8 * slice + 4 * n);
      float* to = x + 8 * c + 4 * n;
      to[0] = v.x;
      to[1] = v.y;
      to[2] = v.z;
      to[3] = v.w;
    }
  }
}
template <int kChunks>
__device__ __forceinline__ void store_channels(float* to, int slice, const float (&x)[kChunks * 8]) {
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float* from = x + 8 * c + 4 * n;
      *reinterpret_cast<float4*>(to + 64 * c + 8 * slice + 4 * n) = {from[0], from[1], from[2], from[3]};
    }
  }
}

/// +1 or -1 of each channel.
template <int kChunks>
__device__ __forceinline__ void load_signs(const RotationSpec& rotation, int slice,
                                           float (&sign)[kChunks * 8]) {
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const std::uint32_t bits = rotation.signs[2 * c + (slice >> 2)] >> (8 * (slice & 3));
#pragma unroll
    for (int i = 0; i < 8; ++i) sign[8 * c + i] = (bits & 1U << i) != 0 ? -1.0F : 1.0F;
  }
}

/// butterflies() of the first `size` channels, kAll: of all that there are.
template <bool kAll, int kRows, int kChunks>
__device__ __forceinline__ void butterflies_of(float (&x)[kRows][kChunks * 8], int size, int slice) {
#pragma unroll
  for (int stride = 1; stride < 8; stride *= 2) {
    if (!kAll && stride >= size) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kChunks * 8; ++i) {
        if ((i & stride) != 0) continue;
        const float low = x[r][i];
        const float high = x[r][i + stride];
        x[r][i] = low + high;
        x[r][i + stride] = low - high;
      }
    }
  }
#pragma unroll
  for (int step = 1; step < 8; step *= 2) {
    if (!kAll && 8 * step >= size) return;
    const float sign = (slice & step) != 0 ? -1.0F : 1.0F;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kChunks * 8; ++i)
        x[r][i] = __fmaf_rn(x[r][i], sign, __shfl_xor_sync(kWholeWarp, x[r][i], step));
    }
  }
  if constexpr (kChunks == 2) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float low = x[r][i];
        const float high = x[r][i + 8];
        x[r][i] = low + high;
        x[r][i + 8] = low - high;
      }
    }
  }
}

/// The butterflies of numerics::hadamard_rotate() in its order, so with its bits, for kRows rows at once; its
/// scale is left to the caller, its signs were applied. Without a branch at each stride where the rotation
/// spans all channels, as it always does with two chunks.
template <int kRows, int kChunks>
__device__ __forceinline__ void butterflies(float (&x)[kRows][kChunks * 8], int size, int slice) {
  if (size == kChunks * 64) {
    butterflies_of<true, kRows, kChunks>(x, size, slice);
  } else if constexpr (kChunks == 1) {
    butterflies_of<false, kRows, kChunks>(x, size, slice);
  }
}

/// Over the 8 threads of a row.
__device__ __forceinline__ float row_max(float m) {
#pragma unroll
  for (int step = 1; step < 8; step *= 2) m = ptx::max_nan(m, __shfl_xor_sync(kWholeWarp, m, step));
  return m;
}
/// Over the rows of a warp, whose 8 threads agree.
__device__ __forceinline__ float warp_max(float m) {
#pragma unroll
  for (int step = 8; step < 32; step *= 2) m = ptx::max_nan(m, __shfl_xor_sync(kWholeWarp, m, step));
  return m;
}

/// Reduces four rows over their 8 threads with 4 shuffles instead of 12: at each step a thread gives away
/// half of its rows. The thread of slice s gets row s mod 4.
template <class Reduce>
__device__ __forceinline__ float reduce_rows(const float (&v)[kRowsPerThread], int slice, Reduce reduce) {
  const bool odd = (slice & 1) != 0;
  const bool high = (slice & 2) != 0;
  const float low_row = reduce(odd ? v[1] : v[0], __shfl_xor_sync(kWholeWarp, odd ? v[0] : v[1], 1));
  const float high_row = reduce(odd ? v[3] : v[2], __shfl_xor_sync(kWholeWarp, odd ? v[2] : v[3], 1));
  const float row =
      reduce(high ? high_row : low_row, __shfl_xor_sync(kWholeWarp, high ? low_row : high_row, 2));
  return reduce(row, __shfl_xor_sync(kWholeWarp, row, 4));
}

template <int kValues>
__device__ __forceinline__ float largest(const float (&x)[kValues]) {
  float m = 0.0F;
#pragma unroll
  for (int i = 0; i < kValues; ++i) m = ptx::max_nan(m, fabsf(x[i]));
  return m;
}

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= 3.402823466e38F; }

/// Does the caller's row hold NaN or Inf, in every step-th channel from `first` on? Asked only when something
/// came out non-finite, to tell the caller's from an overflow here; small rather than fast, so that it costs
/// no registers.
__device__ __noinline__ inline bool given_non_finite(const CallerRows& rows, const std::byte* row, int first,
                                                     int step) {
#pragma unroll 1
  for (int channel = first; channel < rows.head_dim; channel += step) {
    if (!is_finite(load_element(row + channel * rows.channel_stride, rows.dtype))) return true;
  }
  return false;
}

/// What values are divided by on their way to the grid, and its reciprocal.
struct Divisor {
  float value = 1.0F;
  float inverse = 1.0F;
};

/// The part of the rotation's scale that is not left to the divisor.
template <int kRows, int kChunks>
__device__ __forceinline__ void apply_scale(float (&x)[kRows][kChunks * 8], const RotationSpec& rotation) {
  if (rotation.left == rotation.scale) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < kChunks * 8; ++i) x[r][i] *= rotation.scale;
  }
}

/// NaN becomes -limit.
template <int kRows, int kValues>
__device__ __forceinline__ void clamp_to(float limit, float (&x)[kRows][kValues]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) x[r][i] = fminf(fmaxf(x[r][i], -limit), limit);
  }
}

/// Bytes of a value of payload.
__device__ __forceinline__ int payload_bytes(Format format) {
  return format == Format::f16 || format == Format::bf16 ? 2 : 1;
}

/// A row of payload: x / by on the grid, zeros unless `kept`.
struct PayloadRow {
  std::byte* to = nullptr;
  Divisor by;
  bool kept = false;
  bool stored = false;  ///< else it is not there
};

/// kRows rows to their payload, 8 or 16 bytes a chunk of each.
template <int kRows, int kChunks>
__device__ __forceinline__ void store_payload(const PayloadRow (&rows)[kRows], int slice,
                                              const GridSpec& grid, float (&x)[kRows][kChunks * 8]) {
  const auto store_halves = [&](auto pack) {  // divided by a power of two
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::uint32_t mask = rows[r].kept ? 0xFFFFFFFFU : 0U;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        std::uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* from = x[r] + 8 * c + 2 * i;
          w[i] = pack(from[0] * rows[r].by.inverse, from[1] * rows[r].by.inverse) & mask;
        }
        if (rows[r].stored)
          *reinterpret_cast<uint4*>(rows[r].to + 128 * c + 16 * slice) = {w[0], w[1], w[2], w[3]};
      }
    }
  };
  const auto store_bytes = [&](auto pack) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::uint32_t mask = rows[r].kept ? 0xFFFFFFFFU : 0U;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const float* from = x[r] + 8 * c;
        const uint2 w = {pack(from[0], from[1], from[2], from[3]) & mask,
                         pack(from[4], from[5], from[6], from[7]) & mask};
        if (rows[r].stored) *reinterpret_cast<uint2*>(rows[r].to + 64 * c + 8 * slice) = w;
      }
    }
  };
  if (grid.format == Format::f16) return store_halves(ptx::pack_f16);
  if (grid.format == Format::bf16) return store_halves(ptx::pack_bf16);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < kChunks * 8; ++i) x[r][i] = quotient(x[r][i], rows[r].by.value, rows[r].by.inverse);
  }
  if (grid.clamps) clamp_to(grid.limit, x);
  if (grid.format == Format::e4m3) return store_bytes(ptx::pack_e4m3);
  store_bytes(int8_x4);
}

}  // namespace octavo::cuda
