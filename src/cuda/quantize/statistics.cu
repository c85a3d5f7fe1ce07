// Means of K and V and the range of V: one pass over both, then a small kernel.
//
// A block sums 512 keys of one head of K or V: 32 rows a step, 8 threads a row, 16 rows a thread. 16-bit
// inputs are summed in f32, where 16 of them lose nothing unless their magnitudes lie 2^9 apart; f32 inputs
// carry the error of each addition along; from there on everything is f64, in a fixed order. Bytes: 2 per
// value at 3 instructions, so memory decides.
#include <type_traits>

#include "cuda/quantize/kernels.hpp"
#include "cuda/quantize/launch.cuh"
#include "cuda/quantize/rows.cuh"
#include "cuda/quantize/tiles.cuh"

namespace octavo::cuda {
namespace {

constexpr int kWarps = kQuantizeThreads / 32;
constexpr int kRowsPerStep = kQuantizeThreads / 8;
constexpr float kSumScale =
    0x1p-16F;  // so that sums of finite values stay finite; part of a fused multiply-add
constexpr float kInfinity = __builtin_huge_valf();

/// Sums of a thread's channels; for f32 inputs with what rounding took (two-sum).
template <bool kCompensated, int kValues>
struct Sums {
  float sum[kValues] = {};
  float lost[kCompensated ? kValues : 1] = {};

  __device__ __forceinline__ void add(int i, float x, float weight) {
    if constexpr (kCompensated) {
      const float y = __fmul_rn(x, weight);
      const float s = __fadd_rn(sum[i], y);
      const float from_y = __fsub_rn(s, sum[i]);
      const float error = __fadd_rn(__fsub_rn(sum[i], __fsub_rn(s, from_y)), __fsub_rn(y, from_y));
      lost[i] = __fadd_rn(lost[i], error);
      sum[i] = s;
    } else {
      sum[i] = __fmaf_rn(x, weight, sum[i]);
    }
  }
  __device__ __forceinline__ double total(int i) const {
    if constexpr (kCompensated) return static_cast<double>(sum[i]) + static_cast<double>(lost[i]);
    return static_cast<double>(sum[i]);
  }
};

/// Least and most of a thread's channels.
template <int kChunks>
struct Extrema {
  float least[kChunks * 8];
  float most[kChunks * 8];

  __device__ __forceinline__ Extrema() {
#pragma unroll
    for (int i = 0; i < kChunks * 8; ++i) {
      least[i] = kInfinity;
      most[i] = -kInfinity;
    }
  }
  template <class Raw>
  __device__ __forceinline__ void take(const Raw&, const float (&x)[kChunks * 8]) {
#pragma unroll
    for (int i = 0; i < kChunks * 8; ++i) {
      least[i] = min_nan(least[i], x[i]);
      most[i] = ptx::max_nan(most[i], x[i]);
    }
  }
  __device__ __forceinline__ void widen(float (&low)[kChunks * 8], float (&high)[kChunks * 8]) const {
#pragma unroll
    for (int i = 0; i < kChunks * 8; ++i) {
      low[i] = least[i];
      high[i] = most[i];
    }
  }
};

/// The same of 16-bit inputs, two in a word.
template <bool kBf16, int kChunks>
struct PackedExtrema {
  std::uint32_t least[kChunks * 4];
  std::uint32_t most[kChunks * 4];

  __device__ __forceinline__ PackedExtrema() {
    constexpr std::uint32_t kInfinities = kBf16 ? 0x7F807F80U : 0x7C007C00U;
#pragma unroll
    for (int i = 0; i < kChunks * 4; ++i) {
      least[i] = kInfinities;
      most[i] = kInfinities | 0x80008000U;
    }
  }
  template <class Raw>
  __device__ __forceinline__ void take(const Raw& raw, const float (&)[kChunks * 8]) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const std::uint32_t w[4] = {raw.vectors[c].x, raw.vectors[c].y, raw.vectors[c].z, raw.vectors[c].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        least[4 * c + i] = min_nan_x2<kBf16>(least[4 * c + i], w[i]);
        most[4 * c + i] = max_nan_x2<kBf16>(most[4 * c + i], w[i]);
      }
    }
  }
  __device__ __forceinline__ void widen(float (&low)[kChunks * 8], float (&high)[kChunks * 8]) const {
#pragma unroll
    for (int i = 0; i < kChunks * 4; ++i) {
      widen_x2<kBf16>(least[i], low[2 * i], low[2 * i + 1]);
      widen_x2<kBf16>(most[i], high[2 * i], high[2 * i + 1]);
    }
  }
};

template <int kChunks>
struct SharedPartials {
  double sum[kWarps][kChunks * 64];
  float least[kWarps][kChunks * 64];
  float most[kWarps][kChunks * 64];
};

/// One partial of K or V.
template <Access kAccess, int kChunks, bool kIsV>
__device__ __forceinline__ void partial(const KvArguments& a, const CallerRows& rows, const Tile& tile,
                                        int head, SharedPartials<kChunks>& shared) {
  constexpr int kValues = kChunks * 8;
  // 16 KB in flight a block: four to eight vectors a thread
  constexpr int kAtOnce = kAccess == Access::any ? 2 : (kAccess == Access::f32 ? 4 : 8) / kChunks;
  const Lane lane;
  const std::int64_t left = tile.sequence.k_len - tile.first;
  const int count = static_cast<int>(left < kPartialKeys ? left : kPartialKeys);
  const std::byte* base = rows.data + tile.sequence.batch * rows.batch_stride + head * rows.head_stride +
                          (tile.sequence.k_begin + tile.first) * rows.token_stride;

  Sums<kAccess == Access::f32 || kAccess == Access::any, kValues> sums;
  constexpr bool kPacked = kAccess == Access::f16 || kAccess == Access::bf16;
  std::conditional_t<kPacked, PackedExtrema<kAccess == Access::bf16, kChunks>, Extrema<kChunks>> extrema;
  const int own = 4 * lane.warp + lane.group;
  for (int begin = 0; begin < count; begin += kRowsPerStep * kAtOnce) {
    RawRow<kAccess, kChunks> raw[kAtOnce];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      // Rows past the end repeat the last one, which changes no extremum, with weight 0.
      const int row = min(begin + kRowsPerStep * r + own, count - 1);
      load_slice<false>(rows, slice_of_row(rows, base, row, lane.slice), lane.slice, true, raw[r]);
    }
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const float weight = begin + kRowsPerStep * r + own < count ? kSumScale : 0.0F;
      float x[kValues];
      widen_row(raw[r], x);
#pragma unroll
      for (int i = 0; i < kValues; ++i) sums.add(i, x[i], weight);
      if constexpr (kIsV) extrema.take(raw[r], x);
    }
  }

  float least[kValues];
  float most[kValues];
  if constexpr (kIsV) extrema.widen(least, most);
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    double total = sums.total(i);
    total += __shfl_xor_sync(kWholeWarp, total, 8);
    total += __shfl_xor_sync(kWholeWarp, total, 16);
    const int channel = 64 * (i / 8) + 8 * lane.slice + i % 8;
    if (lane.group == 0) shared.sum[lane.warp][channel] = total;
    if constexpr (kIsV) {
#pragma unroll
      for (int step = 8; step < 32; step *= 2) {
        least[i] = min_nan(least[i], __shfl_xor_sync(kWholeWarp, least[i], step));
        most[i] = ptx::max_nan(most[i], __shfl_xor_sync(kWholeWarp, most[i], step));
      }
      if (lane.group == 0) {
        shared.least[lane.warp][channel] = least[i];
        shared.most[lane.warp][channel] = most[i];
      }
    }
  }
  __syncthreads();

  const int channel = static_cast<int>(threadIdx.x);
  if (channel >= kChunks * 64) return;
  double total = 0.0;
  float low = kInfinity;
  float high = -kInfinity;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    total += shared.sum[w][channel];
    if constexpr (kIsV) {
      low = min_nan(low, shared.least[w][channel]);
      high = ptx::max_nan(high, shared.most[w][channel]);
    }
  }
  const std::int64_t slot = first_slot(tile.sequence, tile.index, kPartialKeys) + tile.first / kPartialKeys;
  float* to = a.scratch + (head * a.partials + slot) * (kPartialValues * kChunks * 64) + channel;
  const float rounded = static_cast<float>(total);
  to[(kIsV ? kVHigh : kKHigh) * kChunks * 64] = rounded;
  to[(kIsV ? kVLow : kKLow) * kChunks * 64] = static_cast<float>(total - static_cast<double>(rounded));
  if constexpr (kIsV) {
    to[kVLeast * kChunks * 64] = low;
    to[kVMost * kChunks * 64] = high;
  }
}

template <Access kAccess, int kChunks>
__global__ void __launch_bounds__(kQuantizeThreads) statistics(const __grid_constant__ KvArguments a) {
  __shared__ SharedPartials<kChunks> shared;
  ptx::admit_successor();
  ptx::wait_for_predecessors();
  if (blockIdx.x == 0 && threadIdx.x == 0) *a.nonfinite = 0;
  int work = static_cast<int>(blockIdx.x);
  bool values = a.value_statistics;
  if (a.smooth_k && a.value_statistics) {
    values = (work & 1) != 0;
    work >>= 1;
  }
  const int slot = a.heads.quotient(work);
  const int head = work - slot * a.heads.value();
  const Tile tile = key_tile(a.sequences, slot, kPartialKeys, a.partials_each);
  if (tile.first >= tile.sequence.k_len) return;
  if (values) {
    partial<kAccess, kChunks, true>(a, a.v_rows, tile, head, shared);
  } else {
    partial<kAccess, kChunks, false>(a, a.k_rows, tile, head, shared);
  }
}

/// Which share of a channel's mean long sums lose as those of kKeptSum do. Products are cut towards zero, so
/// values of both signs cancel: erf(|mean| / (sigma sqrt 2)) of them is left for normal ones. Their range is
/// about 8 sigma.
__device__ __forceinline__ float cut_share(float mean, float least, float most) {
  constexpr float kRangeInSigmas = 8.0F;
  constexpr float kInverseSqrt2 = 0.70710678F;
  const float half_range = 0.5F * most - 0.5F * least;  // finite
  return mean == 0.0F ? 0.0F : erff(0.5F * kRangeInSigmas * kInverseSqrt2 * (fabsf(mean) / half_range));
}

constexpr int kFinishThreads = 512;

/// One block a head and sequence; `parts` threads share a channel, each takes every parts-th partial.
template <int kDim>
__global__ void __launch_bounds__(kFinishThreads) finish(const __grid_constant__ KvArguments a) {
  constexpr int kParts = kFinishThreads / kDim;
  __shared__ double k_sum[kParts][kDim];
  __shared__ double v_sum[kParts][kDim];
  __shared__ float v_least[kParts][kDim];
  __shared__ float v_most[kParts][kDim];
  __shared__ float amax_of[kDim];
  ptx::admit_successor();
  ptx::wait_for_predecessors();

  const int channel = static_cast<int>(threadIdx.x) % kDim;
  const int part = static_cast<int>(threadIdx.x) / kDim;
  const int index = a.heads.quotient(static_cast<int>(blockIdx.x));
  const int head = static_cast<int>(blockIdx.x) - index * a.heads.value();
  const SequenceRow sequence = a.sequences[index];
  float* slots =
      a.scratch + (head * a.partials + first_slot(sequence, index, kPartialKeys)) * (kPartialValues * kDim);
  const std::int64_t count = (sequence.k_len + kPartialKeys - 1) / kPartialKeys;

  double k_total = 0.0;
  double v_total = 0.0;
  float least = kInfinity;
  float most = -kInfinity;
#pragma unroll 4
  for (std::int64_t i = part; i < count; i += kParts) {
    const float* from = slots + i * (kPartialValues * kDim) + channel;
    if (a.smooth_k)
      k_total += static_cast<double>(from[kKHigh * kDim]) + static_cast<double>(from[kKLow * kDim]);
    if (a.value_statistics) {
      v_total += static_cast<double>(from[kVHigh * kDim]) + static_cast<double>(from[kVLow * kDim]);
      least = min_nan(least, from[kVLeast * kDim]);
      most = ptx::max_nan(most, from[kVMost * kDim]);
    }
  }
  k_sum[part][channel] = k_total;
  v_sum[part][channel] = v_total;
  v_least[part][channel] = least;
  v_most[part][channel] = most;
  __syncthreads();
  if (threadIdx.x == 0) {
    if (blockIdx.x == 0 && !a.smooth_k && !a.value_statistics) *a.nonfinite = 0;
    slots[0] = 0.0F;  // where a per_head K gathers its largest magnitude next
  }

  const bool own = part == 0;
  if (own) {
#pragma unroll
    for (int p = 1; p < kParts; ++p) {
      k_total += k_sum[p][channel];
      v_total += v_sum[p][channel];
      least = min_nan(least, v_least[p][channel]);
      most = ptx::max_nan(most, v_most[p][channel]);
    }
    const double keys =
        static_cast<double>(sequence.k_len > 0 ? sequence.k_len : 1) * static_cast<double>(kSumScale);
    const float k_mean = a.smooth_k ? static_cast<float>(k_total / keys) : 0.0F;
    const float v_mean = a.value_mean ? static_cast<float>(v_total / keys) : 0.0F;
    const float centre = a.smooth_v ? v_mean : 0.0F;
    // Rounding keeps order, so the extrema give the largest magnitude of what is left.
    float amax = 0.0F;
    if (count > 0 && a.value_statistics && channel < a.v_rows.head_dim)
      amax = ptx::max_nan(fabsf(least - centre), fabsf(most - centre));
    amax_of[channel] = amax;

    const std::int64_t at = (head * a.sequences.count + index) * kDim + channel;
    a.k_mean[at] = k_mean;
    a.v_mean[at] = a.smooth_v || !a.value_mean ? v_mean : v_mean * cut_share(v_mean, least, most);
    if (count > 0 && a.smooth_k && !(fabs(k_total) < 0x1p1000)) flag(a.nonfinite, kBadK);
    if (count > 0 && a.value_statistics && !(fabsf(least) < kInfinity && fabsf(most) < kInfinity))
      flag(a.nonfinite, kBadV);
  }
  __syncthreads();
  if (!own) return;
  float amax = amax_of[channel];
  if (a.value_scale == ValueScale::per_head) {
    for (int c = 0; c < kDim; ++c) amax = ptx::max_nan(amax, amax_of[c]);
  }
  const std::int64_t at = (head * a.sequences.count + index) * kDim + channel;
  float delta = channel < a.v_rows.head_dim ? 1.0F : 0.0F;
  if (delta != 0.0F && a.value_scale != ValueScale::none) delta = finite_delta(amax, a.v_grid);
  a.v_scale[at] = delta;
  slots[kVHigh * kDim + channel] =
      delta == 0.0F ? 0.0F : 1.0F / delta;  // what the payload is multiplied with
}

}  // namespace

Status launch_statistics(const KvArguments& a, Access access, cudaStream_t stream) {
  const std::int64_t tensors = (a.smooth_k ? 1 : 0) + (a.value_statistics ? 1 : 0);
  const std::int64_t pieces = a.sequences.table != nullptr ? a.key_rows / kPartialKeys + a.sequences.count
                                                           : a.sequences.count * a.partials_each.value();
  return launch("the statistics pass over K and V", OCTAVO_CHOOSE_ROWS(statistics, access, a.padded_dim),
                tensors * a.heads.value() * pieces, kQuantizeThreads, stream, a);
}

Status launch_finish(const KvArguments& a, cudaStream_t stream) {
  return launch("ending the statistics of K and V", a.padded_dim == 64 ? finish<64> : finish<128>,
                a.sequences.count * a.heads.value(), kFinishThreads, stream, a);
}

}  // namespace octavo::cuda
