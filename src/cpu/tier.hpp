// The tiers: which instruction sets this build has kernels for, which of them run here, and what each offers.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "cpu/tile_job.hpp"
#include "octavo/status.hpp"

namespace octavo::cpu {

/// One way to run both products: how V is packed, and the kernel that reads it. Q and K are packed alike for
/// all integer kernels.
struct AttentionOps {
  std::size_t value_bytes = 0;  ///< of one key and channel
  bool (*quantize_values)(const ValueJob&) = nullptr;
  std::size_t (*scratch_bytes)(int key_tile) = nullptr;
  void (*run)(const TileJob&) = nullptr;
  bool f16_queries = true;  ///< runs qk_format f16
  bool f16_values = true;   ///< runs p_format and v_format f16
};

struct TierOps {
  std::string_view name;
  int rows = 0;                 ///< query rows of a tile
  std::size_t query_bytes = 0;  ///< of one packed integer of Q
  std::size_t key_bytes = 0;    ///< of one packed integer of K
  bool query_sums = false;      ///< the integer kernels need row sums of Q

  bool (*quantize_queries)(const BlockJob&) = nullptr;
  bool (*quantize_keys)(const BlockJob&) = nullptr;
  float (*block_absmax)(const BlockJob&) = nullptr;
  void (*mean_of)(const RowSource&, std::int64_t count, float* sums, float* mean, int channels) = nullptr;
  void (*key_terms)(const float* mean, const float* centred, std::int64_t keys, int channels, float factor,
                    float* term) = nullptr;

  AttentionOps int8;     ///< INT8/INT4 QK, weights and values on the e4m3 or a 16-bit grid
  AttentionOps float32;  ///< 16-bit and e4m3 QK in f32, same second product
  AttentionOps cpu8;     ///< INT8 QK, u8 weights, s8 values
};

// One function for each tier file; compiled for that instruction set, so only called when it runs here.
const TierOps& portable_tier();
const TierOps& avx2_tier();
const TierOps& avx512_tier();
const TierOps& avx512bf16_tier();
const TierOps& amx_tier();

/// A tier as the kernel table sees it.
struct TierInfo {
  std::string_view name;       ///< value of OCTAVO_CPU_TIER
  std::string_view requires_;  ///< instruction sets, for `octavo info`
  bool (*runs_here)() = nullptr;
  const TierOps& (*ops)() = nullptr;
  int rank = 0;  ///< higher is faster
};
std::span<const TierInfo> tiers();

/// May this tier be used: it runs here, and OCTAVO_CPU_TIER does not name another one.
bool tier_enabled(const TierInfo& tier);
/// ok, or why OCTAVO_CPU_TIER cannot be honoured: unknown name, or a tier that this processor lacks. Never
/// ignored.
Status forced_tier_status();

/// ok, or what of an effective recipe's operands these kernels do not run: a 16-bit format left to another
/// tier, groups finer than the kernel reads.
Status accepts_operands(const AttentionOps& ops, const Recipe& recipe);

}  // namespace octavo::cpu
