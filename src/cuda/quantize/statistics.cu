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

constexpr int kRowsPerStep = kQuantizeThreads / 8;
constexpr float kSumScale =
    0x1p-16F;  // so that sums of finite values stay finite; part of a fused multiply-add
/// Blocks a multiprocessor is to hold: of 16-bit rows of 64 channels as many as blocks_per_sm() says, others
/// need the registers.
constexpr int statistics_blocks_per_sm(Access access, int chunks) {
  return access == Access::f32 || access == Access::any ? 1 : blocks_per_sm(access, chunks);
}
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
  /// Over the warp's rows.
  __device__ __forceinline__ void reduce(float (&low)[kChunks * 8], float (&high)[kChunks * 8]) const {
#pragma unroll
    for (int i = 0; i < kChunks * 8; ++i) {
      low[i] = least[i];
      high[i] = most[i];
#pragma unroll
      for (int step = 8; step < 32; step *= 2) {
        low[i] = min_nan(low[i], __shfl_xor_sync(kWholeWarp, low[i], step));
        high[i] = ptx::max_nan(high[i], __shfl_xor_sync(kWholeWarp, high[i], step));
      }
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
  __device__ __forceinline__ void reduce(float (&low)[kChunks * 8], float (&high)[kChunks * 8]) const {
#pragma unroll
    for (int i = 0; i < kChunks * 4; ++i) {
      std::uint32_t pair = least[i];
      std::uint32_t most_of = most[i];
#pragma unroll
      for (int step = 8; step < 32; step *= 2) {
        pair = min_nan_x2<kBf16>(pair, __shfl_xor_sync(kWholeWarp, pair, step));
        most_of = max_nan_x2<kBf16>(most_of, __shfl_xor_sync(kWholeWarp, most_of, step));
      }
      widen_x2<kBf16>(pair, low[2 * i], low[2 * i + 1]);
      widen_x2<kBf16>(most_of, high[2 * i], high[2 * i + 1]);
    }
  }
};

template <int kChunks>
struct SharedPartials {
  double sum[kQuantizeWarps][kChunks * 64];
  float least[kQuantizeWarps][kChunks * 64];
  float most[kQuantizeWarps][kChunks * 64];
};

/// Sums of a thread's channels over the warp's rows. At each of two steps a thread gives away half of its
/// channels, so that 3 shuffles of a double serve 4 channels; it keeps a quarter of them, those of number
/// group + 4 n.
template <int kValues>
__device__ __forceinline__ void reduce_sums(const double (&v)[kValues], int group,
                                            double (&sum)[kValues / 4]) {
  const bool odd = (group & 1) != 0;
  const bool high = (group & 2) != 0;
#pragma unroll
  for (int n = 0; n < kValues / 4; ++n) {
    const auto pair = [&](int i) {
      return (odd ? v[i + 1] : v[i]) + __shfl_xor_sync(kWholeWarp, odd ? v[i] : v[i + 1], 8);
    };
    const double first = pair(4 * n);
    const double second = pair(4 * n + 2);
    sum[n] = (high ? second : first) + __shfl_xor_sync(kWholeWarp, high ? first : second, 16);
  }
}

/// One partial of K or V.
template <Access kAccess, int kChunks, bool kIsV>
__device__ __forceinline__ void partial(const KvArguments& a, const CallerRows& rows, const Tile& tile,
                                        int head, SharedPartials<kChunks>& shared) {
  constexpr int kValues = kChunks * 8;
  // 16 KB in flight a block: four to eight vectors a thread
  constexpr int kAtOnce = kAccess == Access::any ? 2 : (kAccess == Access::f32 ? 4 : 8) / kChunks;
  const Lane lane;
  const int count = rows_of(tile, tile.sequence.k_len, kPartialKeys);
  const std::byte* base = rows_at(rows, tile, head, tile.sequence.k_begin);

  Sums<kAccess == Access::f32 || kAccess == Access::any, kValues> sums;
  constexpr bool kPacked = kAccess == Access::f16 || kAccess == Access::bf16;
  std::conditional_t<kPacked, PackedExtrema<kAccess == Access::bf16, kChunks>, Extrema<kChunks>> extrema;
  const int own = 4 * lane.warp + lane.group;
  RawRow<kAccess, kChunks> raw[kAtOnce];
  const auto load = [&](int row, int r) {
    // Rows past the end repeat the last one, which changes no extremum, with weight 0.
    load_slice<false>(rows, slice_of_row(rows, base, min(row, count - 1), lane.slice), lane.slice, true,
                      raw[r]);
  };
#pragma unroll
  for (int r = 0; r < kAtOnce; ++r) load(kRowsPerStep * r + own, r);
  for (int begin = 0; begin < count; begin += kRowsPerStep * kAtOnce) {
    const bool more = begin + kRowsPerStep * kAtOnce < count;
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int row = begin + kRowsPerStep * r + own;
      const float weight = row < count ? kSumScale : 0.0F;
      float x[kValues];
      widen_row(raw[r], x);
#pragma unroll
      for (int i = 0; i < kValues; ++i) sums.add(i, x[i], weight);
      if constexpr (kIsV) extrema.take(raw[r], x);
      if (more) load(row + kRowsPerStep * kAtOnce, r);
    }
  }

  const auto channel_of = [&](int i) { return 64 * (i / 8) + 8 * lane.slice + i % 8; };
  double totals[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) totals[i] = sums.total(i);
  double warp_totals[kValues / 4];
  reduce_sums(totals, lane.group, warp_totals);
#pragma unroll
  for (int n = 0; n < kValues / 4; ++n)
    shared.sum[lane.warp][channel_of(4 * n) + lane.group] = warp_totals[n];
  if constexpr (kIsV) {
    float least[kValues];
    float most[kValues];
    extrema.reduce(least, most);
    if (lane.group == 0) {
      store_channels<kChunks>(shared.least[lane.warp], lane.slice, least);
      store_channels<kChunks>(shared.most[lane.warp], lane.slice, most);
    }
  }
  __syncthreads();

  const int channel = static_cast<int>(threadIdx.x);
  if (channel >= kChunks * 64) return;
  double total = 0.0;
  float low = kInfinity;
  float high = -kInfinity;
#pragma unroll
  for (int w = 0; w < kQuantizeWarps; ++w) {
    total += shared.sum[w][channel];
    if constexpr (kIsV) {
      low = min_nan(low, shared.least[w][channel]);
      high = ptx::max_nan(high, shared.most[w][channel]);
    }
  }
  float* to = slots_of(a, head, tile.sequence, tile.index, kChunks * 64) +
              tile.first / kPartialKeys * (kPartialValues * kChunks * 64) + channel;
  const float rounded = static_cast<float>(total);
  to[(kIsV ? kVHigh : kKHigh) * kChunks * 64] = rounded;
  to[(kIsV ? kVLow : kKLow) * kChunks * 64] = static_cast<float>(total - static_cast<double>(rounded));
  if constexpr (kIsV) {
    to[kVLeast * kChunks * 64] = low;
    to[kVMost * kChunks * 64] = high;
  }
}

template <Access kAccess, int kChunks>
__global__ void __launch_bounds__(kQuantizeThreads, statistics_blocks_per_sm(kAccess, kChunks))
    statistics(const __grid_constant__ KvArguments a) {
  __shared__ SharedPartials<kChunks> shared;
  ptx::wait_for_predecessors();
  ptx::admit_successor();  // only now: see quantize_keys_values()
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

constexpr int kFinishThreads = 1024;

/// One block a head and sequence: one half of the threads for K, one for V. kParts threads of a half share a
/// channel, each takes every kParts-th partial.
template <int kDim>
__global__ void __launch_bounds__(kFinishThreads) finish(const __grid_constant__ KvArguments a) {
  constexpr int kParts = kFinishThreads / 2 / kDim;
  __shared__ double sums[2][kParts][kDim];
  __shared__ float v_least[kParts][kDim];
  __shared__ float v_most[kParts][kDim];
  ptx::wait_for_predecessors();
  ptx::admit_successor();  // only now: see quantize_keys_values()

  const bool values = threadIdx.x >= kFinishThreads / 2;
  const int channel = static_cast<int>(threadIdx.x) % kDim;
  const int part = static_cast<int>(threadIdx.x) / kDim % kParts;
  const int index = a.heads.quotient(static_cast<int>(blockIdx.x));
  const int head = static_cast<int>(blockIdx.x) - index * a.heads.value();
  const SequenceRow sequence = a.sequences[index];
  float* slots = slots_of(a, head, sequence, index, kDim);
  const int count = (static_cast<int>(sequence.k_len) + kPartialKeys - 1) / kPartialKeys;

  double total = 0.0;
  float least = kInfinity;
  float most = -kInfinity;
  if (values ? a.value_statistics : a.smooth_k) {
    const float* from = slots + (values ? kVHigh * kDim : kKHigh * kDim) + channel;
#pragma unroll 4
    for (int i = part; i < count; i += kParts) {
      const float* at = from + i * (kPartialValues * kDim);
      total += static_cast<double>(at[0]) + static_cast<double>(at[kDim]);
      if (values) {
        least = min_nan(least, at[(kVLeast - kVHigh) * kDim]);
        most = ptx::max_nan(most, at[(kVMost - kVHigh) * kDim]);
      }
    }
  }
  sums[values][part][channel] = total;
  if (values) {
    v_least[part][channel] = least;
    v_most[part][channel] = most;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    if (blockIdx.x == 0 && !a.smooth_k && !a.value_statistics) *a.nonfinite = 0;
    slots[0] = 0.0F;  // where a per_head K gathers its largest magnitude next
  }
  if (part != 0) return;

#pragma unroll
  for (int p = 1; p < kParts; ++p) total += sums[values][p][channel];
  const double keys =
      static_cast<double>(sequence.k_len > 0 ? sequence.k_len : 1) * static_cast<double>(kSumScale);
  const auto mean = static_cast<float>(total / keys);
  const int at = first_channel(a.sequences, head, index, kDim) + channel;
  if (!values) {
    a.k_mean[at] = a.smooth_k ? mean : 0.0F;
    if (count > 0 && a.smooth_k && !(fabs(total) < 0x1p1000)) flag(a.nonfinite, kBadK);
    return;
  }

#pragma unroll
  for (int p = 1; p < kParts; ++p) {
    least = min_nan(least, v_least[p][channel]);
    most = ptx::max_nan(most, v_most[p][channel]);
  }
  const bool used = channel < a.v_rows.head_dim;
  // Rounding keeps order, so the extrema give the largest magnitude of what is left.
  const float centre = a.smooth_v ? mean : 0.0F;
  float amax = 0.0F;
  if (count > 0 && a.value_statistics && used)
    amax = ptx::max_nan(fabsf(least - centre), fabsf(most - centre));
  if (a.value_scale == ValueScale::per_head) {
    __shared__ float warp_amax[kDim / 32];
#pragma unroll
    for (int step = 1; step < 32; step *= 2)
      amax = ptx::max_nan(amax, __shfl_xor_sync(kWholeWarp, amax, step));
    warp_amax[channel / 32] = amax;
    __syncthreads();  // of those that are still here
    for (const float other : warp_amax) amax = ptx::max_nan(amax, other);
  }
  float delta = used ? 1.0F : 0.0F;
  if (used && a.value_scale != ValueScale::none) delta = finite_delta(amax, a.v_grid);
  a.v_scale[at] = delta;
  slots[kVHigh * kDim + channel] = used ? 1.0F / delta : 0.0F;  // what the payload is multiplied with
  float v_mean = a.value_mean ? mean : 0.0F;
  if (!a.smooth_v && a.value_mean) v_mean *= cut_share(v_mean, least, most);
  a.v_mean[at] = v_mean;
  if (count > 0 && a.value_statistics && !(fabsf(least) < kInfinity && fabsf(most) < kInfinity))
    flag(a.nonfinite, kBadV);
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
