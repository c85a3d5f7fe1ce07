// What a tier's kernels are handed: plain structs of pointers and numbers, made by the driver (driver.cpp)
// and the same for every tier. Tier files include only such headers, so that no function compiled for AVX-512
// can be the copy that the linker keeps for everybody.
//
// The scheme of every tier is transposed: S^T = K Q^T and O^T = V^T P^T. Queries sit in the lanes of a
// vector, so that maximum, sum and rescaling are vertical; keys and value channels enter as broadcasts, and
// nothing is reduced across lanes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octavo/recipe.hpp"
#include "octavo/tensor.hpp"

namespace octavo::cpu {

/// Rows of Q a tile has at most; a tile never straddles two blocks of 128 rows.
inline constexpr int kMaxTileRows = 32;
/// Rows of Q that per_block scales and smooth_q means cover, and the rows of a work item.
inline constexpr int kQueryBlock = 128;
/// Keys are padded to this, the largest quantization block of K.
inline constexpr int kKeyBlock = 64;
/// Head dims are padded to this: one 64-byte row of int8, four vectors of f32.
inline constexpr int kChannelBlock = 16;

/// How a weight is formed and rounded (recipe fields exp2 and p_format).
enum class WeightKind : std::uint8_t { e4m3_exact, e4m3_direct, e4m3_mixed, bf16, f16 };

/// The softmax and second product of a recipe, as a kernel needs them.
struct SoftmaxSpec {
  WeightKind weight = WeightKind::e4m3_exact;
  float p_range = 1.0F;  ///< P_r, cancels against the normaliser
  float log2_p_range = 0.0F;
  bool tile_max = false;  ///< p_reference
  bool reverse = false;   ///< key_order
  bool quantized_normaliser = false;
  int mixed_direct = 0;
  int mixed_period = 1;
  int f16_products = 0;  ///< f16_buffered(n): n; 0 = f32 sums
};

/// One tile of query rows of one head against the keys of one sequence.
struct TileJob {
  int rows = 0;            ///< of the tier: kLanes * kGroups
  int channels = 0;        ///< of Q and K: head dim (a power of two when rotated) padded to kChannelBlock
  int value_channels = 0;  ///< of V and O: head dim padded to kChannelBlock
  int key_tile = 0;        ///< multiple of 16
  std::int64_t keys_padded = 0;

  const void* q = nullptr;              ///< packed for the tier, this tile
  const float* q_scale = nullptr;       ///< [rows]: delta_q * scale * log2(e)
  const std::int32_t* q_sum = nullptr;  ///< [rows]: sum of the row's int8, for tiers that store K + 128
  const void* k = nullptr;              ///< packed for the tier, key 0
  const float* k_scale = nullptr;       ///< [keys_padded]: delta_k, 0 in the padding
  const float* key_term = nullptr;      ///< [keys_padded] smooth_q's second term in base 2, or null
  const float* addend = nullptr;        ///< [keys_padded][rows] mask and bias in base 2, -inf hides, or null
  const void* v = nullptr;              ///< packed for the tier, key 0

  std::int64_t tile_begin = 0;  ///< key tiles that any row sees
  std::int64_t tile_end = 0;
  std::int64_t full_begin = 0;  ///< keys that every row sees: tiles inside need no masking
  std::int64_t full_end = 0;
  const std::int32_t* row_begin = nullptr;  ///< [rows]: first visible key
  const std::int32_t* row_end = nullptr;    ///< [rows]: one past the last; padding rows have begin = end = 0

  SoftmaxSpec spec{};
  std::byte* scratch = nullptr;  ///< scratch_bytes of the tier, 64-byte aligned

  float* out = nullptr;  ///< [value_channels][rows]: sum of phat * vhat, not yet divided by l
  float* m = nullptr;    ///< [rows]: row maximum in base 2, -inf when a row saw nothing
  float* l = nullptr;    ///< [rows]: sum of weights, times P_r
};

/// Where rows of f32, f16 or bf16 come from.
struct RowSource {
  const void* data = nullptr;  ///< row 0, channel 0
  DType dtype = DType::f32;
  std::int64_t token_stride = 0;  ///< elements
  std::int64_t channel_stride = 0;
  int head_dim = 0;
};

/// How Q or K is brought to its format. Blocks are 128 query rows or 64 keys.
struct OperandSpec {
  Format format = Format::int8;
  Granularity group = Granularity::per_block;
  float range = 127.0F;  ///< what payloads are clamped to: the range on the format's own grid
  bool rotate = false;
  std::uint64_t rotate_seed = 0;
  int channels = 0;
};

/// A block of keys (at most kKeyBlock) of one head, or of query rows (at most 128).
struct BlockJob {
  RowSource source{};
  std::int64_t begin = 0;  ///< first row or key of the block
  int count = 0;           ///< valid rows; the rest of the block is padding
  bool queries = false;    ///< query rows, not keys: decides the groups
  OperandSpec spec{};
  float divisor = 127.0F;  ///< delta = absmax / divisor
  float given_delta =
      0.0F;            ///< > 0: one delta for all (per_head, q_absmax); else from the block's own absmax
  float clamp = 0.0F;  ///< > 0: values are clamped to +-clamp first (q_absmax)
  const float* mean = nullptr;  ///< [head_dim] subtracted from every row (smooth_k), or null

  bool smooth_rows = false;           ///< smooth_q: subtract the mean of the block's rows
  float* row_mean = nullptr;          ///< [channels] that mean
  const float* key_mean = nullptr;    ///< [head_dim]: q . kbar is wanted, before smooth_q
  float* key_mean_product = nullptr;  ///< [count] q . kbar

  float* scratch = nullptr;  ///< [128][256] f32
  void* payload = nullptr;   ///< packed for the tier; Q: of the block's tiles, K: row `begin`
  float* scale = nullptr;    ///< [padded rows]: delta * factor, 0 in the padding
  float factor = 1.0F;
  std::int32_t* sum =
      nullptr;  ///< [padded rows] sums of the row's integers (Q, tiers with kKeyOffset), or null
  float* centred =
      nullptr;     ///< [count][channels] K' unrounded and unrotated (smooth_q's second term), or null
  int padded = 0;  ///< rows to write, zeros beyond `count`
};

/// How V is brought to its format.
struct ValueSpec {
  Format format = Format::e4m3;
  ValueScale scale = ValueScale::per_channel;
  float range = 448.0F;  ///< what payloads are clamped to
  bool smooth = false;
  int channels = 0;
};

/// V of one sequence and key head.
struct ValueJob {
  RowSource source{};
  std::int64_t count = 0;
  std::int64_t padded = 0;  ///< keys to write, zeros beyond `count`
  ValueSpec spec{};
  float divisor = 448.0F;  ///< delta = absmax / divisor
  void* payload = nullptr;
  float* delta = nullptr;    ///< [channels]
  float* mean = nullptr;     ///< [channels], zeros without smooth_v
  float* scratch = nullptr;  ///< [128][256] f32
};

}  // namespace octavo::cpu
