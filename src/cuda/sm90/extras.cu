#include "cuda/runtime.hpp"
#include "cuda/sm90/extras.hpp"
#include "cuda/sm90/output.cuh"

namespace octavo::cuda::sm90 {
namespace {

constexpr int kThreads = 256;
constexpr int kMeans =
    16;  // query blocks a thread block takes at once: their means fit in registers and shared memory

/// A thread has one key of one key head, and walks the query blocks of the group's heads.
__global__ void __launch_bounds__(kThreads)
    correct(const float* q_mean, const float* k_exact, float* correction, Arguments a, int dim) {
  __shared__ float mean[kMeans][128];
  const std::int64_t key = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int head = blockIdx.y;
  const std::int64_t lines = a.group * a.q_blocks;  // q_mean is [kv_heads][group][q_blocks], so is correction
  const float* k = k_exact + ((a.first_head + head) * a.key_rows + min(key, a.key_rows - 1)) * dim;
  for (std::int64_t first = 0; first < lines; first += kMeans) {
    const int count = static_cast<int>(min(static_cast<std::int64_t>(kMeans), lines - first));
    __syncthreads();
    for (int i = threadIdx.x; i < count * dim; i += kThreads)
      mean[i / dim][i % dim] = q_mean[(head * lines + first) * dim + i];
    __syncthreads();
    float sum[kMeans] = {};
    for (int d = 0; d < dim; ++d) {
      const float x = k[d];
      OCTAVO_UNROLL for (int i = 0; i < kMeans; ++i) sum[i] = fmaf(mean[i][d], x, sum[i]);
    }
    if (key < a.key_rows) {
      OCTAVO_UNROLL for (int i = 0; i < kMeans; ++i) {
        if (i < count) correction[(head * lines + first + i) * a.key_rows + key] = sum[i];
      }
    }
  }
}

/// A warp has one packed row.
__global__ void __launch_bounds__(kThreads) merge(Arguments a, StridedTensor out, StridedTensor lse) {
  const std::int64_t line = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  const std::int64_t rows_of_pair =
      static_cast<std::int64_t>(a.tiles);  // here: packed rows of the longest sequence
  const std::int64_t pair = line / rows_of_pair;
  const int row = static_cast<int>(line - pair * rows_of_pair);
  const int sequence = static_cast<int>(pair / a.kv_heads);
  if (sequence >= a.sequences.count) return;
  const int head = static_cast<int>(pair - static_cast<std::int64_t>(sequence) * a.kv_heads);
  const SequenceRow s = a.sequences[sequence];
  if (row >= s.q_len * a.group) return;
  const std::int64_t first = static_cast<std::int64_t>(head) * a.splits * a.q_rows + s.q_row + row;
  float top = -INFINITY;
  for (int i = 0; i < a.splits; ++i) top = fmaxf(top, a.partial_lse[first + i * a.q_rows]);
  float total = 0.0F;
  float x[4] = {};
  for (int i = 0; i < a.splits && top > -INFINITY; ++i) {
    const float part = a.partial_lse[first + i * a.q_rows];
    if (part == -INFINITY) continue;  // a split without visible keys
    const float w = __expf(part - top);
    total += w;
    OCTAVO_UNROLL for (int c = 0; c < 4; ++c) {
      const int channel = lane + 32 * c;
      if (channel < a.head_dim)
        x[c] = fmaf(w, a.partial_out[(first + i * a.q_rows) * a.head_dim + channel], x[c]);
    }
  }
  const int token = row / a.group;
  const int q_head = head * a.group + (row - token * a.group);
  const std::int64_t at = s.batch * out.batch + q_head * out.head + (s.q_begin + token) * out.token;
  OCTAVO_UNROLL for (int c = 0; c < 4; ++c) {
    const int channel = lane + 32 * c;
    if (channel < a.head_dim)
      store_pair(out, at + channel * out.last, false,
                 total > 0.0F       ? x[c] / total
                 : top == -INFINITY ? 0.0F
                                    : top,
                 0.0F);
  }
  if (lane == 0 && lse.data != nullptr) {
    static_cast<float*>(lse.data)[s.batch * lse.batch + q_head * lse.head + (s.q_begin + token) * lse.token] =
        top == -INFINITY ? -INFINITY : top + __logf(total);
  }
}

}  // namespace

Status launch_correction(const float* q_mean, const float* k_exact, float* correction, const Arguments& a,
                         int padded_dim, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((a.key_rows + kThreads - 1) / kThreads),
                  static_cast<unsigned>(a.kv_heads));
  correct<<<grid, kThreads, 0, stream>>>(q_mean, k_exact, correction, a, padded_dim);
  return check_launch("the term of smooth_q");
}

Status launch_merge(const Arguments& a, const StridedTensor& out, const StridedTensor& lse,
                    cudaStream_t stream) {
  Arguments rows = a;
  const std::int64_t lines = a.sequences.count * a.kv_heads * static_cast<std::int64_t>(a.tiles);
  merge<<<static_cast<unsigned>((lines * 32 + kThreads - 1) / kThreads), kThreads, 0, stream>>>(rows, out,
                                                                                                lse);
  return check_launch("the merge of split keys");
}

}  // namespace octavo::cuda::sm90
