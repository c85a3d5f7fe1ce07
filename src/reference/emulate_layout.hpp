// The buffers of the emulator: flat arrays of f32, one after the other, head outermost.
//
// K and V (KvLayout), for each key head:
//   codes       [blocks][P][32]   K after smoothing, rotation and quantization, on its grid (an int8 code -3
//   is -3.0f).
//                                 P channels (D, or the power of two above it when rotated), 32 keys side by
//                                 side, so that the loop over keys vectorises; keys past the last one are 0.
//   delta       [blocks][32]      delta_k of each key's group
//   smoothed    [blocks][D][32]   K' = K - kbar, unquantized and unrotated; only with smooth_q, for its
//   second term values      [blocks][32][D]   V on its grid; rows past the last key are never read
//   value_delta [S][D]            delta_V of each channel
//   key_mean    [S][D]            kbar, 0 without smooth_k
//   value_mean  [S][D]            vbar, 0 without smooth_v
// Q (QLayout), for each query head:
//   codes       [rows][P]         Q on its grid
//   delta       [rows]            delta_q
//   lse_shift   [rows]            scale * (q . kbar), which the LSE gets back
//   mean        [blocks][D]       qbar of each 128 rows; only with smooth_q
// `blocks` counts blocks of 32 keys (128 rows) of all S sequences; each sequence starts a block of its own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numerics/hadamard.hpp"
#include "octavo/attention.hpp"

namespace octavo::reference {

inline constexpr std::int64_t kKeysPerBlock =
    32;  // a key tile is a multiple of 32 keys, so it is whole blocks
inline constexpr std::int64_t kRowsPerQueryMean = 128;  // q_group_rows

inline std::int64_t blocks_of(std::int64_t count, std::int64_t block) { return (count + block - 1) / block; }

/// Blocks before a sequence: whole entries when dense, begin / block + index when packed (that many always
/// suffice, and it takes no walk over the sequences before it).
inline std::int64_t first_block(bool packed, std::int64_t index, std::int64_t begin, std::int64_t length,
                                std::int64_t block) {
  return packed ? begin / block + index : index * blocks_of(length, block);
}
inline std::int64_t all_blocks(bool packed, std::int64_t sequences, std::int64_t length, std::int64_t block) {
  return packed ? length / block + sequences : sequences * blocks_of(length, block);
}

inline std::int64_t padded_channels(const Problem& problem, const Recipe& recipe) {
  return recipe.rotate == Rotation::hadamard ? numerics::next_power_of_two(static_cast<int>(problem.head_dim))
                                             : problem.head_dim;
}

/// Where the arrays of one (sequence, key head) start. F is float or const float.
template <class F>
struct KvHead {
  F* codes = nullptr;
  F* delta = nullptr;
  F* smoothed = nullptr;
  F* values = nullptr;
  F* value_delta = nullptr;
  F* key_mean = nullptr;
  F* value_mean = nullptr;
};

struct KvLayout {
  /// `heads`: of the buffer, which may hold more heads than the problem looks at.
  KvLayout(const Problem& p, const Recipe& recipe, std::int64_t buffer_heads)
      : problem(p),
        heads(buffer_heads),
        sequences(static_cast<std::int64_t>(p.sequences.size())),
        padded(padded_channels(p, recipe)),
        smoothed_channels(recipe.smooth_q ? p.head_dim : 0),
        blocks(all_blocks(p.packed(), sequences, p.kv_len, kKeysPerBlock)) {}

  [[nodiscard]] std::size_t bytes() const {
    const std::int64_t keys = blocks * kKeysPerBlock;
    const std::int64_t floats =
        keys * (padded + 1 + smoothed_channels + problem.head_dim) + 3 * sequences * problem.head_dim;
    return static_cast<std::size_t>(heads * floats) * sizeof(float);
  }

  template <class F>
  [[nodiscard]] KvHead<F> head(F* base, std::int64_t sequence, std::int64_t h) const {
    const std::int64_t channels = problem.head_dim;
    const std::int64_t begin = problem.sequences[static_cast<std::size_t>(sequence)].k_begin;
    const std::int64_t key =
        (h * blocks + first_block(problem.packed(), sequence, begin, problem.kv_len, kKeysPerBlock)) *
        kKeysPerBlock;
    const std::int64_t entry = (h * sequences + sequence) * channels;
    const std::int64_t all_keys = heads * blocks * kKeysPerBlock;
    const std::int64_t all_entries = heads * sequences * channels;
    KvHead<F> at;
    at.codes = base + key * padded;
    base += all_keys * padded;
    at.delta = base + key;
    base += all_keys;
    at.smoothed = base + key * smoothed_channels;
    base += all_keys * smoothed_channels;
    at.values = base + key * channels;
    base += all_keys * channels;
    at.value_delta = base + entry;
    at.key_mean = base + all_entries + entry;
    at.value_mean = base + 2 * all_entries + entry;
    return at;
  }

  const Problem& problem;
  std::int64_t heads;
  std::int64_t sequences;
  std::int64_t padded;
  std::int64_t smoothed_channels;
  std::int64_t blocks;
};

template <class F>
struct QHead {
  F* codes = nullptr;
  F* delta = nullptr;
  F* lse_shift = nullptr;
  F* mean = nullptr;
};

struct QLayout {
  QLayout(const Problem& p, const Recipe& recipe)
      : problem(p),
        sequences(static_cast<std::int64_t>(p.sequences.size())),
        padded(padded_channels(p, recipe)),
        mean_channels(recipe.smooth_q ? p.head_dim : 0),
        rows(p.packed() ? p.q_len : sequences * p.q_len),
        blocks(all_blocks(p.packed(), sequences, p.q_len, kRowsPerQueryMean)) {}

  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(problem.q_heads * (rows * (padded + 2) + blocks * mean_channels)) *
           sizeof(float);
  }

  template <class F>
  [[nodiscard]] QHead<F> head(F* base, std::int64_t sequence, std::int64_t h) const {
    const std::int64_t begin = problem.sequences[static_cast<std::size_t>(sequence)].q_begin;
    const std::int64_t row = h * rows + (problem.packed() ? begin : sequence * problem.q_len);
    const std::int64_t block =
        h * blocks + first_block(problem.packed(), sequence, begin, problem.q_len, kRowsPerQueryMean);
    const std::int64_t all_rows = problem.q_heads * rows;
    QHead<F> at;
    at.codes = base + row * padded;
    base += all_rows * padded;
    at.delta = base + row;
    at.lse_shift = base + all_rows + row;
    at.mean = base + 2 * all_rows + block * mean_channels;
    return at;
  }

  const Problem& problem;
  std::int64_t sequences;
  std::int64_t padded;
  std::int64_t mean_channels;
  std::int64_t rows;
  std::int64_t blocks;
};

}  // namespace octavo::reference
