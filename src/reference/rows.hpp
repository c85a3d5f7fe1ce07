// What both references need of the caller's tensors: rows as f32, whatever their dtype and strides, the keys
// that a row sees, and the first value that is not finite.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "core/heads_view.hpp"
#include "core/rows.hpp"
#include "octavo/attention.hpp"

namespace octavo::reference {

/// Rows to compute, one list for each sequence; empty means all rows of all sequences.
using RowLists = std::vector<std::vector<std::int64_t>>;

/// Up to kRowsPerBlock rows of one query head: what one thread works on at a time.
struct RowBlock {
  std::int64_t sequence = 0;
  std::int64_t head = 0;
  std::int64_t first =
      0;  ///< index into the sequence's list of rows, or the row itself when all are computed
  std::int64_t count = 0;
};
std::vector<RowBlock> row_blocks(const Problem& problem, const RowLists& rows, std::int64_t rows_per_block);
/// ok, or an invalid_argument that names the list or the row that does not exist.
Status check_rows(const Problem& problem, const RowLists& rows);

/// `channels` values of one token as f32.
void load_row(const HeadsView& tensor, std::int64_t batch, std::int64_t head, std::int64_t token,
              std::int64_t channels, float* row);
/// The opposite, rounded to the tensor's dtype.
void store_row(const MutableHeadsView& tensor, std::int64_t batch, std::int64_t head, std::int64_t token,
               std::int64_t channels, const float* row);

/// Mask and bias of a problem, looked up once.
struct MaskAndBias {
  explicit MaskAndBias(const Problem& problem)
      : mask(broadcast_view(problem.options.mask)), bias(broadcast_view(problem.options.bias)) {}
  BroadcastView mask;
  BroadcastView bias;
};

/// Sets hidden keys of [begin, end) to -infinity and adds bias * unit to the others; scores[0] belongs to key
/// `begin`. Hidden: outside `range`, mask false, or bias -infinity.
template <class T>
void hide_and_bias(const MaskAndBias& given, const Sequence& sequence, const KeyRange& range,
                   std::int64_t head, std::int64_t row, std::int64_t begin, std::int64_t end, T unit,
                   T* scores) {
  constexpr T kHidden = -std::numeric_limits<T>::infinity();
  for (std::int64_t key = begin; key < end; ++key) {
    T& score = scores[key - begin];
    if (key < range.begin || key >= range.end) {
      score = kHidden;
      continue;
    }
    if (given.mask.data != nullptr) {
      const std::int64_t at =
          given.mask.offset(sequence.batch, head, sequence.q_begin + row, sequence.k_begin + key);
      if (static_cast<const std::uint8_t*>(given.mask.data)[at] == 0) score = kHidden;
    }
    if (given.bias.data != nullptr) {
      const std::int64_t at =
          given.bias.offset(sequence.batch, head, sequence.q_begin + row, sequence.k_begin + key);
      const T bias = static_cast<T>(read_element(given.bias.data, given.bias.dtype, at));
      score = bias == kHidden || score == kHidden ? kHidden : score + bias * unit;
    }
  }
}

/// sums[c] += sum over i of a[i] * b[i * stride + c], c < columns, every product and sum in `Sum`, i in
/// order. Both products of attention are this one loop; 16 columns at a time stay in vector registers.
template <class Sum, class Factor>
void add_products(const Factor* a, std::int64_t count, const float* b, std::int64_t stride,
                  std::int64_t columns, Sum* sums) {
  constexpr std::int64_t kColumns = 16;
  const std::int64_t whole = columns / kColumns * kColumns;
  for (std::int64_t column = 0; column < whole; column += kColumns) {
    Sum part[kColumns];
    for (std::int64_t c = 0; c < kColumns; ++c) part[c] = sums[column + c];
    for (std::int64_t i = 0; i < count; ++i) {
      const Sum factor = static_cast<Sum>(a[i]);
      const float* line = b + i * stride + column;
      for (std::int64_t c = 0; c < kColumns; ++c) part[c] += factor * static_cast<Sum>(line[c]);
    }
    for (std::int64_t c = 0; c < kColumns; ++c) sums[column + c] = part[c];
  }
  for (std::int64_t column = whole; column < columns; ++column) {
    Sum part = sums[column];
    for (std::int64_t i = 0; i < count; ++i)
      part += static_cast<Sum>(a[i]) * static_cast<Sum>(b[i * stride + column]);
    sums[column] = part;
  }
}

}  // namespace octavo::reference
