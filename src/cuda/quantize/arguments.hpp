// What the quantizers' kernels get by value: where everything lies, and the recipe in numbers. Plain data.
// Rows, slots, blocks and channels are counted in 32 bits over all heads, which the kernels' table sees to
// (sm90/kernels.cpp, accepts_size); bytes are not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/index_divisor.hpp"
#include "cuda/layout.hpp"
#include "octavo/recipe.hpp"
#include "octavo/tensor.hpp"

namespace octavo::cuda {

inline constexpr int kQuantizeThreads = 256;  ///< 8 warps of 4 rows, 8 threads a row
inline constexpr int kQuantizeWarps = kQuantizeThreads / 32;
inline constexpr int kTileRows = 128;  ///< keys or query tokens of a block: 4 rows a thread
inline constexpr int kRowsPerThread = 4;
inline constexpr int kPartialKeys = 512;   ///< keys of one partial sum, as the layout's scratch has room for
inline constexpr int kPartialValues = 6;   ///< floats of a channel in it: PartialSlot
inline constexpr std::uint32_t kBadK = 1;  ///< bits of the non-finite flag
inline constexpr std::uint32_t kBadV = 2;
inline constexpr std::uint32_t kBadQ = 4;

/// How the caller's rows are read: 16-byte vectors of that dtype, or element by element.
enum class Access : std::uint8_t { f32, f16, bf16, any };

/// The caller's tensor: element (batch, head, token, channel) by strides in bytes.
struct CallerRows {
  const std::byte* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t channel_stride = 0;
  int head_dim = 0;
  DType dtype = DType::f32;
};

/// The rotation; size 0: none. Bit c of signs: channel c is negated first. What is defined by the rounded
/// product with the scale cannot be divided by delta / scale unless the scale is a power of two.
struct RotationSpec {
  int size = 0;
  float scale = 1.0F;
  float left = 1.0F;  ///< its part that may be left to the divisor: all of a power of two, else none
  float left_inverse = 1.0F;
  std::uint32_t signs[4] = {0, 0, 0, 0};
};

/// Grid of a payload.
struct GridSpec {
  Format format = Format::int8;
  float range = 1.0F;  ///< R: delta = amax / R
  float inverse_range = 1.0F;
  float limit = 1.0F;   ///< largest magnitude on the grid, R' of e4m3
  bool clamps = false;  ///< values beyond the limit can come
};

/// What the statistics pass leaves of 512 keys, [kPartialValues][padded_dim] floats. A sum is two floats,
/// high and low, together as good as 48 bits.
enum PartialSlot : int { kKHigh, kKLow, kVHigh, kVLow, kVLeast, kVMost };

struct KvArguments {
  CallerRows k_rows;
  CallerRows v_rows;
  SequenceList sequences;
  IndexDivisor heads;
  int padded_dim = 64;
  int key_rows = 0;
  int row_align = 64;          ///< rows up to whose multiple a sequence's end is padded
  int partials = 0;            ///< slots of a head in scratch
  IndexDivisor partials_each;  ///< of a sequence, where all are alike
  IndexDivisor spans_each;
  int span = 1;  ///< tiles of 128 keys that a block takes one after the other

  std::byte* k = nullptr;
  std::byte* v = nullptr;
  float* k_scale = nullptr;
  float* k_mean = nullptr;
  float* v_scale = nullptr;
  float* v_mean = nullptr;
  float* k_exact = nullptr;  ///< null: not wanted
  float* scratch = nullptr;
  std::uint32_t* nonfinite = nullptr;

  GridSpec k_grid;
  GridSpec v_grid;
  RotationSpec rotation;
  Granularity k_group = Granularity::per_block;
  ValueScale value_scale = ValueScale::per_channel;
  bool smooth_k = false;
  bool smooth_v = false;
  bool value_mean = false;        ///< v_mean is wanted, smooth_v or not
  bool value_statistics = false;  ///< V's sums and extrema are needed
  bool absmax_only = false;       ///< the extra pass of a per_head K
};

struct QArguments {
  CallerRows rows;
  SequenceList sequences;
  IndexDivisor heads;  ///< of queries
  IndexDivisor group;  ///< of them read the same keys
  int padded_dim = 64;
  int q_rows = 0;
  int q_blocks = 0;
  IndexDivisor tiles_each;  ///< of a sequence, where all are alike

  std::byte* q = nullptr;
  float* q_scale = nullptr;
  float* lse_shift = nullptr;
  float* q_mean = nullptr;       ///< null: no smooth_q
  float* head_absmax = nullptr;  ///< [kv_heads][group][sequences]
  std::uint32_t* nonfinite = nullptr;
  const float* k_mean = nullptr;  ///< of the first head; null: no smooth_k
  const float* given = nullptr;   ///< q_absmax; null: not given
  std::int64_t given_head_stride = 0;
  std::int64_t given_sequence_stride = 0;

  GridSpec grid;
  RotationSpec rotation;
  Granularity q_group = Granularity::per_token;
  float scale = 1.0F;
  float logit_factor = 1.0F;  ///< |scale| * log2(e)
  bool absmax_only = false;
};

}  // namespace octavo::cuda
