// What an attention kernel gets by value: where everything lies, and the recipe's numbers. Plain data, the
// same on host and device.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/index_divisor.hpp"
#include "cuda/layout.hpp"

namespace octavo::cuda::sm90 {

/// "No limit" of a window side; sequences are shorter (plan refuses longer ones).
inline constexpr int kNoLimit = 1 << 29;

/// A tensor of (batch or packed, head, token, channel or key) by strides in elements; data null: not given.
struct StridedTensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t token = 0;
  std::int64_t last = 0;
};

/// Tensor maps of rank 4: (element, row, head, plane), V^T (key row, channel, head, plane). V^T tiles come in
/// boxes of 128 keys and, where a tile is no multiple of it, a narrower rest.
struct Maps {
  CUtensorMap q;
  CUtensorMap k;
  CUtensorMap v;
  CUtensorMap v_rest;
};

struct Arguments {
  // operands beside the tensor maps
  const float* q_scale = nullptr;    ///< [kv_heads][q_rows]; null: `scale` for all
  const float* lse_shift = nullptr;  ///< [kv_heads][q_rows]; null: 0
  float scale = 0.0F;                ///< base-2 logit per unit of q . k
  const float* k_scale = nullptr;    ///< [heads][key_rows / 64][4]
  const float* v_scale = nullptr;    ///< [heads][sequences][padded_dim]
  const float* v_mean = nullptr;
  SequenceList sequences{};
  std::int64_t q_rows = 0;
  std::int64_t key_rows = 0;
  IndexDivisor kv_heads;
  int first_head = 0;  ///< of the K and V buffer
  IndexDivisor group;
  int head_dim = 0;
  // The caller's own tensors in place of quantized ones: a plane of the tensor maps for each sequence, and
  // query heads that are not packed, each of which reads key head `head / head_group`.
  bool planes = false;
  int head_group = 1;

  // visibility: token i sees keys [i + shift - left, i + shift + right], shift = keys - queries if
  // bottom_right
  int left = kNoLimit;
  int right = kNoLimit;
  bool bottom_right = false;
  StridedTensor mask{};  ///< boolean, dtype is not looked at
  StridedTensor bias{};
  const float* correction = nullptr;  ///< smooth_q's term in base-2 logits, [q heads][terms]
  std::int64_t terms = 0;             ///< of all sequences, each [128-query block][key]
  std::int64_t q_blocks = 0;

  // recipe
  float p_log2 = 0.0F;  ///< log2(P_r)
  float offset =
      0.0F;  ///< exact: p_log2; direct: the code of a weight of 1, 8 * p_log2 + numerics::kDirectBias
  float headroom = 0.0F;         ///< direct: octaves above a tile's maximum, to which its reference moves
  float limit = 0.0F;            ///< direct: codes above move a row's reference
  std::uint32_t half_limit = 0;  ///< the same as two f16
  int flush_tiles = 1;           ///< products of so many key tiles share a tensor-core accumulator
  bool reverse = false;
  bool quantized_normaliser = false;
  bool smooth_v = false;  ///< v_mean was taken from V

  // output
  StridedTensor out{};
  StridedTensor lse{};  ///< `last` unused

  // schedule: items [0, whole) are query tiles with all their keys, the others parts of the remaining tiles'
  // keys
  int tiles = 0;  ///< query tiles of the longest sequence
  // Pairs (sequence, key head) are walked in blocks, so that the K and V of a block stay in L2.
  IndexDivisor head_block;       ///< pairs of a block
  IndexDivisor last_head_block;  ///< of the last one
  IndexDivisor block_tiles;      ///< query tiles of a block
  int last_block = 0;
  int items = 0;
  int whole = 0;
  IndexDivisor splits;  ///< parts of a tile's keys, of `split_tiles` key tiles each
  int split_tiles = 0;  ///< 0: even parts of each sequence's keys
  bool longest_first = false;
  int* counter = nullptr;        ///< next item; null: blocks take every gridDim.x-th item
  float* partial_out = nullptr;  ///< [items - whole][rows of a tile][head_dim], normalised
  float* partial_lse = nullptr;  ///< [items - whole][rows of a tile], natural logarithm

  // Always 0. The compiler cannot know, which keeps it from proving what it must not (see ptx/registers.cuh).
  float zero = 0.0F;
  int never = 0;
};

}  // namespace octavo::cuda::sm90
