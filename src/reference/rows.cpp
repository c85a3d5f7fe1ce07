// Reading and writing rows of the caller's tensors; see rows.hpp.
#include "reference/rows.hpp"

#include <algorithm>

#include "core/text.hpp"
#include "numerics/bfloat16.hpp"
#include "numerics/float16.hpp"

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

float read_element(const void* data, DType dtype, std::int64_t offset) {
  switch (dtype) {
    case DType::f16:
      return numerics::f16_to_f32(static_cast<const std::uint16_t*>(data)[offset]);
    case DType::bf16:
      return numerics::bf16_to_f32(static_cast<const std::uint16_t*>(data)[offset]);
    default:
      return static_cast<const float*>(data)[offset];
  }
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
  for (std::int64_t c = 0; c < channels; ++c) {
    const std::int64_t at = start + c * tensor.channel_stride;
    switch (tensor.dtype) {
      case DType::f16:
        static_cast<std::uint16_t*>(tensor.data)[at] = numerics::f32_to_f16(row[c]);
        break;
      case DType::bf16:
        static_cast<std::uint16_t*>(tensor.data)[at] = numerics::f32_to_bf16(row[c]);
        break;
      default:
        static_cast<float*>(tensor.data)[at] = row[c];
    }
  }
}

void note_non_finite(NonFinite& seen, const float* row, std::int64_t channels, std::int64_t batch,
                     std::int64_t head, std::int64_t token) {
  if (seen.found) return;
  for (std::int64_t c = 0; c < channels; ++c) {
    if (std::isfinite(row[c])) continue;
    seen = {true, batch, head, token, c, row[c]};
    return;
  }
}

Status refuse_non_finite(std::string_view name, std::span<const NonFinite> found) {
  for (const NonFinite& bad : found) {
    if (!bad.found) continue;
    return invalid_argument(
        concat(name, " holds ", bad.value, " at batch ", bad.batch, ", head ", bad.head, ", token ",
               bad.token, ", channel ", bad.channel,
               "; only finite values are supported (check_finite = false skips this check)"));
  }
  return {};
}

}  // namespace octavo::reference
