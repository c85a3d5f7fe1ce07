// Where the parts of quantized Q, K and V lie in their buffers. One block for each (sequence, head), heads
// within sequences.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/heads_view.hpp"
#include "cpu/tier.hpp"
#include "octavo/attention.hpp"

namespace octavo::cpu {

/// The three ways a tier runs attention.
enum class Family : std::uint8_t { int8, float32, cpu8 };

const AttentionOps& attention_ops(const TierOps& tier, Family family);

/// Head dims as the kernels see them.
int qk_channels(const Problem& problem, const Recipe& recipe);
int value_channels(const Problem& problem);

/// K and V of one (sequence, key head); null parts are not there.
struct KvBlock {
  std::byte* keys = nullptr;     ///< packed for the tier
  float* key_scale = nullptr;    ///< [padded]
  float* key_mean = nullptr;     ///< [channels]
  float* centred = nullptr;      ///< [padded][channels] with smooth_q
  std::byte* values = nullptr;   ///< packed for the tier
  float* value_delta = nullptr;  ///< [value channels]
  float* value_mean = nullptr;   ///< [value channels]
};

/// Q of one (sequence, query head).
struct QBlock {
  std::byte* rows = nullptr;          ///< packed for the tier
  float* scale = nullptr;             ///< [padded] delta_q * scale * log2(e)
  std::int32_t* sum = nullptr;        ///< [padded]
  float* key_mean_product = nullptr;  ///< [padded] q . kbar
  float* row_mean = nullptr;          ///< [blocks of 128][channels] with smooth_q
};

class BufferLayout {
 public:
  BufferLayout(const TierOps& tier, Family family, const Problem& problem, const Recipe& recipe);

  [[nodiscard]] std::int64_t padded_keys(const Sequence& s) const;
  [[nodiscard]] std::int64_t padded_rows(const Sequence& s) const;
  [[nodiscard]] std::size_t kv_bytes(std::int64_t heads) const;
  [[nodiscard]] std::size_t q_bytes() const;
  /// `sequence` indexes problem.sequences; `heads` is that of the buffer.
  [[nodiscard]] KvBlock kv(std::byte* base, std::int64_t sequence, std::int64_t head,
                           std::int64_t heads) const;
  [[nodiscard]] QBlock q(std::byte* base, std::int64_t sequence, std::int64_t head) const;
  [[nodiscard]] int channels() const { return channels_; }
  [[nodiscard]] int values() const { return values_; }
  [[nodiscard]] int tile_rows() const { return tier_.rows; }

 private:
  [[nodiscard]] std::size_t kv_block_bytes(std::int64_t keys) const;
  [[nodiscard]] std::size_t q_block_bytes(std::int64_t rows) const;

  const TierOps& tier_;
  const Problem& problem_;
  const Recipe& recipe_;
  std::size_t query_bytes_;
  std::size_t key_bytes_;
  std::size_t value_bytes_;
  int channels_;
  int values_;
  std::vector<std::size_t> kv_offset_;  // bytes of one head before each sequence, and the total
  std::vector<std::size_t> q_offset_;
};

}  // namespace octavo::cpu
