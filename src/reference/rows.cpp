// Reading and writing rows of the caller's tensors; see rows.hpp.
#include "reference/rows.hpp"

#include <algorithm>

#include "core/text.hpp"

namespace octavo::reference {

std::vector<RowBlock> row_blocks(const Problem& problem, const RowLists& rows, std::int64_t rows_per_block) {
  std::vector<RowBlock> blocks;
  const auto sequences = static_cast<std::int64_t>(problem.sequences.size());
  for (std::int64_t s = 0; s < sequences; ++s) {
    const auto index = static_cast<std::size_t>(s);
    const std::int64_t count =
        rows.empty() ? problem.sequences[index].q_len : static_cast<std::int64_t>(rows[index].size());
    for (std::int64_t head = 0; head < problem.q_heads; ++head) {
      for (std::int64_t first = 0; first < count; first += rows_per_block) {
        blocks.push_back({s, head, first, std::min(rows_per_block, count - first)});
      }
    }
  }
  return blocks;
}

Status check_rows(const Problem& problem, const RowLists& rows) {
  if (rows.empty()) return {};
  if (rows.size() != problem.sequences.size()) {
    return invalid_argument(concat("rows holds ", rows.size(), " lists, but there are ",
                                   problem.sequences.size(),
                                   " sequences; give one list for each, or none for all rows"));
  }
  for (std::size_t s = 0; s < rows.size(); ++s) {
    for (const std::int64_t row : rows[s]) {
      if (row >= 0 && row < problem.sequences[s].q_len) continue;
      return invalid_argument(concat("rows names row ", row, " of sequence ", s, ", which has rows 0 to ",
                                     problem.sequences[s].q_len - 1));
    }
  }
  return {};
}

void load_row(const HeadsView& tensor, std::int64_t batch, std::int64_t head, std::int64_t token,
              std::int64_t channels, float* row) {
  const std::int64_t start = tensor.offset(batch, head, token);
  for (std::int64_t c = 0; c < channels; ++c)
    row[c] = read_element(tensor.data, tensor.dtype, start + c * tensor.channel_stride);
}

void store_row(const MutableHeadsView& tensor, std::int64_t batch, std::int64_t head, std::int64_t token,
               std::int64_t channels, const float* row) {
  const std::int64_t start = tensor.offset(batch, head, token);
  for (std::int64_t c = 0; c < channels; ++c)
    write_element(tensor.data, tensor.dtype, start + c * tensor.channel_stride, row[c]);
}

}  // namespace octavo::reference
