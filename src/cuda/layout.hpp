// How quantized Q, K and V lie in device memory for the tensor-core kernels: the one place that quantizers
// and kernels agree on. Host and device read the same structs.
//
// Rows. Every sequence starts at a multiple of 64 rows, so scale blocks and key permutations never span two
// sequences; its keys at a multiple of key_row_align(), 128 with 16-bit V, whose kernels take 128 keys at a
// time: a weight of 0 does not hide a NaN, so no tile of V may hold another sequence's. The query heads of a
// key head are packed into rows: row = q_row + token * group + (head within the group), so a tile of queries
// serves all heads that read the same keys, and G = 1 is nothing special.
//
//   K        [heads][key_rows][padded_dim]         int8 (int4 recipes too: Hopper has no 4-bit
//                                                  product), e4m3, f16, bf16
//   V        [heads][padded_dim + 8][key_rows]     e4m3, transposed: 8-bit operands are read along keys
//            Inside each 16 keys, key 8h + 2t + b lies at 4t + 2h + b, the order in which a thread of the
//            first product holds its scores, so weights need no shuffle. Row padded_dim + 2c (c = 0..3)
//            is 1.0 for the valid keys of the 32-key blocks equal to c modulo 4: the sum of the rounded
//            weights comes out of the product, in four parts because a long sum loses its low bits in FP8
//            accumulators (docs/kernels/sm90.md). The odd rows hold 1 to 1.875 for every valid key: of the
//            key at byte b of a word 1 + b/8, 1.875 - b/8, 1.375 - b/8 and 1.5 + b/8, kKeptSum together.
//            Their sums lose the same share as the output's, which tells how much of V's mean to give back.
//   V        [heads][key_rows][padded_dim]         f16, bf16
//   k_scale  f32 [heads][key_rows / 64][4]         scale of the keys whose floor((key mod 8) / 2) is the last
//                                                  index; coarser granularities repeat it
//   k_mean   f32 [heads][sequences][padded_dim]    what smooth_k took away (before rotation)
//   v_scale  f32 [heads][sequences][padded_dim]    delta_V
//   v_mean   f32 [heads][sequences][padded_dim]    what smooth_v took away; e4m3 without it: the part of V's
//                                                  mean that long sums lose a share of (statistics.cu). 0 for
//                                                  padding and where there is no key
//   k_exact  f32 [heads][key_rows][padded_dim]     K after smoothing and rotation, only with smooth_q
//   Q        [kv_heads][q_rows][padded_dim]        as K; negated when the scale is negative
//   q_scale  f32 [kv_heads][q_rows]                delta_q * |scale| * log2(e); 16-bit: |scale| * log2(e)
//   lse_shift f32 [kv_heads][q_rows]               scale * (q . k_mean): what smoothing took from the LSE
//   q_mean   f32 [kv_heads][group][q_blocks][padded_dim]  mean of 128 query rows after rotation, times
//                                                  scale * log2(e); only with smooth_q; block = q_block +
//                                                  token / 128
//
// Payload is always finite: a NaN or Inf of the caller becomes payload 0 and a NaN scale (Q row, K block, V
// channel; for 16-bit payload the value itself), so that it stays in its own head and sequence, where
// neighbours' tiles may overlap. Rows between a sequence's end and the next one's start are zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "octavo/attention.hpp"

#if defined(__CUDACC__)
#define OCTAVO_HOST_DEVICE __host__ __device__
#else
#define OCTAVO_HOST_DEVICE
#endif

namespace octavo::cuda {

constexpr std::int64_t pieces(std::int64_t n, std::int64_t of) { return (n + of - 1) / of; }
constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return pieces(n, to) * to; }

inline constexpr std::int64_t kRowAlign = 64;     ///< of query rows, and keys of a scale
inline constexpr float kKeptSum = 5.75F;          ///< of a key's four odd rows beyond the channels
inline constexpr std::int64_t kOnesRows = 8;      ///< rows that V^T has beyond the channels
inline constexpr std::int64_t kQueryBlock = 128;  ///< query rows of a per_block scale and of smooth_q's mean

/// Channels of a row of payload: 64 or 128.
constexpr std::int64_t padded_channels(std::int64_t head_dim) { return head_dim <= 64 ? 64 : 128; }

/// The largest of a length over all sequences.
std::int64_t longest(const Problem& problem, std::int64_t Sequence::*length);

/// Rows that the keys of a sequence start at a multiple of: 64, or 128 with 16-bit V.
std::int64_t key_row_align(const Recipe& recipe);

/// One sequence, on the device.
struct SequenceRow {
  std::int64_t batch = 0;
  std::int64_t q_begin = 0;  ///< first token in the caller's q
  std::int64_t q_len = 0;
  std::int64_t k_begin = 0;
  std::int64_t k_len = 0;    ///< valid keys
  std::int64_t q_row = 0;    ///< first row in the Q buffer
  std::int64_t k_row = 0;    ///< first row in the K and V buffer
  std::int64_t q_block = 0;  ///< first 128-query block in q_mean
  std::int64_t term = 0;     ///< first element of smooth_q's term in a head's
};

/// All sequences: a table in device memory, or, where all are alike, the first one and the steps to the next.
struct SequenceList {
  const SequenceRow* table = nullptr;
  SequenceRow first{};
  std::int64_t q_row_step = 0;
  std::int64_t k_row_step = 0;
  std::int64_t q_block_step = 0;
  std::int64_t term_step = 0;
  std::int64_t count = 0;

  OCTAVO_HOST_DEVICE SequenceRow operator[](std::int64_t index) const {
    if (table != nullptr) return table[index];
    SequenceRow row = first;
    row.batch = index;
    row.q_row = index * q_row_step;
    row.k_row = index * k_row_step;
    row.q_block = index * q_block_step;
    row.term = index * term_step;
    return row;
  }
};

/// Sizes that follow from a problem and a recipe. Offsets in bytes from the start of the buffer, 1024-byte
/// aligned where the tensor-map hardware reads.
struct KvLayout {
  std::int64_t heads = 0;  ///< of the buffer, which may hold more than the problem reads
  std::int64_t sequences = 0;
  std::int64_t row_align = 0;  ///< key_row_align() of the recipe
  std::int64_t key_rows = 0;
  std::int64_t padded_dim = 0;
  std::int64_t k_element = 1;  ///< bytes
  std::int64_t v_element = 1;  ///< bytes; 1: transposed, with ones rows
  std::size_t table = 0;       ///< SequenceRow [sequences]; unused where all sequences are alike
  std::size_t nonfinite = 0;   ///< u32, not 0 when a NaN or Inf was met
  std::size_t k = 0;
  std::size_t v = 0;
  std::size_t k_scale = 0;
  std::size_t k_mean = 0;
  std::size_t v_scale = 0;
  std::size_t v_mean = 0;
  std::size_t k_exact = 0;
  std::size_t scratch = 0;  ///< of the quantizer
  std::size_t bytes = 0;

  KvLayout(const Problem& problem, const Recipe& recipe, std::int64_t buffer_heads);
};

struct QLayout {
  std::int64_t kv_heads = 0;
  std::int64_t group = 0;
  std::int64_t sequences = 0;
  std::int64_t q_rows = 0;
  std::int64_t q_blocks = 0;  ///< of one head, over all sequences
  std::int64_t padded_dim = 0;
  std::int64_t q_element = 1;
  std::size_t table = 0;
  std::size_t nonfinite = 0;  ///< u32, cleared and meaningful with check_finite alone
  std::size_t q = 0;
  std::size_t q_scale = 0;
  std::size_t lse_shift = 0;
  std::size_t q_mean = 0;
  std::size_t scratch = 0;
  std::size_t bytes = 0;

  QLayout(const Problem& problem, const Recipe& recipe);
};

/// Elements of smooth_q's term of one query head: for every sequence [128-query block][key].
std::int64_t term_elements(const Problem& problem);

/// True where `SequenceList` needs no table: dense layouts without kv_lengths.
bool uniform(const Problem& problem);
/// The list of a problem; `table` is where the device table lies (or will), ignored where the problem is
/// uniform.
SequenceList sequence_list(const Problem& problem, const Recipe& recipe, const SequenceRow* table);

/// Every sequence of a problem, as its table holds them.
std::vector<SequenceRow> sequence_rows(const Problem& problem, const Recipe& recipe);

}  // namespace octavo::cuda
