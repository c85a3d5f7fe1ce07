#include "cuda/runtime.hpp"
#include "cuda/sm90/extras.hpp"
#include "cuda/sm90/write_rows.cuh"

namespace octavo::cuda::sm90 {
namespace {

constexpr int kThreads = 256;
constexpr int kMeans =
    16;  // query blocks a thread block takes at once: their means fit in registers and shared memory

/// A block has kThreads keys of one sequence and key head, a thread one of them; it walks the query blocks of
/// the group's heads in that sequence.
__global__ void __launch_bounds__(kThreads)
    correct(const float* q_mean, const float* k_exact, float* correction, Arguments a, int dim, int chunks) {
  __shared__ float mean[kMeans][128];
  ptx::admit_successor();
  ptx::wait_for_predecessors();
  const int pair = static_cast<int>(blockIdx.x) / chunks;
  const int sequence = a.kv_heads.quotient(pair);
  const int head = pair - sequence * a.kv_heads.value();
  const SequenceRow s = a.sequences[sequence];
  const std::int64_t key =
      static_cast<std::int64_t>(static_cast<int>(blockIdx.x) - pair * chunks) * kThreads + threadIdx.x;
  if (key - threadIdx.x >= s.k_len) return;
  const int blocks = static_cast<int>((s.q_len + kQueryBlock - 1) / kQueryBlock);
  const int lines = a.group.value() * blocks;
  const float* k = k_exact + ((a.first_head + head) * a.key_rows + s.k_row + min(key, s.k_len - 1)) * dim;
  for (int first = 0; first < lines; first += kMeans) {
    const int count = min(kMeans, lines - first);
    const auto place = [&](int i, int& q_head) {  // of line first + i: its head, and its block
      const int in_group = (first + i) / blocks;
      q_head = head * a.group.value() + in_group;
      return first + i - in_group * blocks;
    };
    __syncthreads();
    for (int i = threadIdx.x; i < count * dim; i += kThreads) {
      int q_head = 0;
      const int block = place(i / dim, q_head);
      mean[i / dim][i % dim] = q_mean[(q_head * a.q_blocks + s.q_block + block) * dim + i % dim];
    }
    __syncthreads();
    float sum[kMeans] = {};
    for (int d = 0; d < dim; ++d) {
      const float x = k[d];
      OCTAVO_UNROLL for (int i = 0; i < kMeans; ++i) sum[i] = fmaf(mean[i][d], x, sum[i]);
    }
    if (key < s.k_len) {
      OCTAVO_UNROLL for (int i = 0; i < kMeans; ++i) {
        if (i >= count) continue;
        int q_head = 0;
        const int block = place(i, q_head);
        correction[q_head * a.terms + s.term + block * s.k_len + key] = sum[i];
      }
    }
  }
}

/// A kernel rather than a memset, which would not overlap with its neighbours.
__global__ void clear(int* counter) {
  ptx::admit_successor();
  ptx::wait_for_predecessors();
  *counter = 0;
}

/// A warp has one row of one split tile, of which at most `filled` hold queries; a lane every 32nd of its
/// kLines * 32 channels.
template <int kLines>
__global__ void __launch_bounds__(kThreads) merge(Arguments a, int rows_of_tile, int filled) {
  constexpr int kParts = 16;  // that are loaded at once
  ptx::admit_successor();
  const std::int64_t line = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  const int tile = static_cast<int>(line / filled);  // among the split ones
  const int in_tile = static_cast<int>(line - static_cast<std::int64_t>(tile) * filled);
  const int index = a.whole + tile * a.splits.value();
  if (index >= a.items) return;
  const Item item = decode(a, index);
  ptx::wait_for_predecessors();
  const SequenceRow s = a.sequences[item.sequence];
  const int row = item.tile * rows_of_tile + in_tile;
  if (row >= s.q_len * a.group.value()) return;
  const std::int64_t first_part = static_cast<std::int64_t>(item.part) * rows_of_tile + in_tile;
  const auto part_at = [&](int i) { return first_part + static_cast<std::int64_t>(i) * rows_of_tile; };
  const int parts = a.splits.value();
  const auto lse_of = [&](int i) { return i < parts ? a.partial_lse[part_at(i)] : -INFINITY; };
  float part[kParts][kLines];
  const auto load = [&](int group) {
    OCTAVO_UNROLL for (int i = 0; i < kParts; ++i) {
      if (group + i >= parts) break;
      const float* from = a.partial_out + part_at(group + i) * a.head_dim + lane;
      OCTAVO_UNROLL for (int c = 0; c < kLines; ++c) part[i][c] =
          lane + 32 * c < a.head_dim ? from[32 * c] : 0.0F;
    }
  };
  load(0);  // not behind the LSEs: most often these are all
  // A lane has every 32nd part's LSE; without a key it is -infinity.
  const float first_lse = lse_of(lane);
  float top = first_lse;
  for (int i = lane + 32; i < parts; i += 32) top = ptx::max_nan(top, lse_of(i));
  OCTAVO_UNROLL for (int step = 1; step < 32; step *= 2) top =
      ptx::max_nan(top, __shfl_xor_sync(~0U, top, step));
  // Parts are added in their order.
  float total = 0.0F;
  float x[kLines] = {};
  for (int first = 0; first < parts && top != -INFINITY; first += 32) {
    const float lse = first == 0 ? first_lse : lse_of(first + lane);
    const float weight = __expf(lse - top);
    const unsigned sees_keys = __ballot_sync(~0U, lse != -INFINITY);
    for (int group = first; group < min(first + 32, parts); group += kParts) {
      if (group > 0) load(group);
      OCTAVO_UNROLL for (int i = 0; i < kParts; ++i) {
        if (group + i >= parts) break;
        const int of = group - first + i;
        const float w = __shfl_sync(~0U, weight, of);
        if ((sees_keys >> of & 1U) == 0) continue;
        total += w;
        OCTAVO_UNROLL for (int c = 0; c < kLines; ++c) x[c] = fmaf(w, part[i][c], x[c]);
      }
    }
  }
  const int token = a.group.quotient(row);
  const int q_head = item.head * a.group.value() + (row - token * a.group.value());
  const std::int64_t at = s.batch * a.out.batch + q_head * a.out.head + (s.q_begin + token) * a.out.token;
  OCTAVO_UNROLL for (int c = 0; c < kLines; ++c) {
    const int channel = lane + 32 * c;
    if (channel < a.head_dim)
      store_pair(a.out, at + channel * a.out.last, false, total == 0.0F ? 0.0F : x[c] / total, 0.0F);
  }
  if (lane == 0 && a.lse.data != nullptr) {
    static_cast<float*>(
        a.lse.data)[s.batch * a.lse.batch + q_head * a.lse.head + (s.q_begin + token) * a.lse.token] =
        top == -INFINITY ? -INFINITY : top + __logf(total);
  }
}

}  // namespace

Status launch_correction(const float* q_mean, const float* k_exact, float* correction, const Arguments& a,
                         int padded_dim, std::int64_t longest_keys, cudaStream_t stream) {
  const std::int64_t chunks = pieces(longest_keys, kThreads);
  const int chunk_count = static_cast<int>(chunks);
  const void* pointers[] = {&q_mean, &k_exact, &correction, &a, &padded_dim, &chunk_count};
  return launch_kernel({reinterpret_cast<const void*>(&correct), "the term of smooth_q",
                        a.sequences.count * a.kv_heads.value() * chunks, kThreads},
                       pointers, stream);
}

Status launch_clear(int* counter, cudaStream_t stream) {
  const void* pointers[] = {&counter};
  return launch_kernel({reinterpret_cast<const void*>(&clear), "clearing the tile counter", 1, 1}, pointers,
                       stream);
}

Status launch_merge(const Arguments& a, int rows_of_tile, int filled, cudaStream_t stream) {
  const std::int64_t lines = static_cast<std::int64_t>((a.items - a.whole) / a.splits.value()) * filled;
  const void* pointers[] = {&a, &rows_of_tile, &filled};
  const auto kernel = a.head_dim <= 64 ? &merge<2> : &merge<4>;
  return launch_kernel({reinterpret_cast<const void*>(kernel), "the merge of split keys",
                        pieces(lines * 32, kThreads), kThreads},
                       pointers, stream);
}

}  // namespace octavo::cuda::sm90
