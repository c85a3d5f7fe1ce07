#include "cuda/layout.hpp"

#include <algorithm>

namespace octavo::cuda {
namespace {

constexpr std::size_t kSectionAlign = 1024;  // what swizzled tensor maps ask of a base address, and then some
constexpr std::int64_t kStatisticsKeys = 512;  // keys of one partial sum of the K and V statistics
constexpr std::int64_t kStatistics = 6;        // sums and extrema kept per channel and partial sum

std::int64_t element_bytes(Format format) { return format == Format::f16 || format == Format::bf16 ? 2 : 1; }

std::int64_t key_rows(const Problem& p, std::int64_t align) {
  std::int64_t rows = 0;
  for (const Sequence& s : p.sequences) rows += round_up(s.k_len, align);
  return std::max(rows, align);  // a tensor map of no rows is not possible
}

std::int64_t query_rows(const Problem& p) {
  std::int64_t rows = 0;
  for (const Sequence& s : p.sequences) rows += round_up(s.q_len * p.group(), kRowAlign);
  return std::max(rows, kRowAlign);
}

std::int64_t query_blocks(const Problem& p) {
  std::int64_t n = 0;
  for (const Sequence& s : p.sequences) n += pieces(s.q_len, kQueryBlock);
  return n;
}

/// Lays sections one behind the other.
class Sections {
 public:
  std::size_t add(std::int64_t bytes) {
    const std::size_t at = end_;
    end_ += static_cast<std::size_t>(round_up(bytes, static_cast<std::int64_t>(kSectionAlign)));
    return at;
  }
  [[nodiscard]] std::size_t end() const { return end_; }

 private:
  std::size_t end_ = 0;
};

}  // namespace

std::int64_t longest(const Problem& p, std::int64_t Sequence::*length) {
  std::int64_t n = 0;
  for (const Sequence& s : p.sequences) n = std::max(n, s.*length);
  return n;
}

std::int64_t key_row_align(const Recipe& r) { return element_bytes(r.v_format) == 2 ? 128 : kRowAlign; }

KvLayout::KvLayout(const Problem& p, const Recipe& r, std::int64_t buffer_heads)
    : heads(buffer_heads),
      sequences(static_cast<std::int64_t>(p.sequences.size())),
      row_align(key_row_align(r)),
      key_rows(cuda::key_rows(p, row_align)),
      padded_dim(padded_channels(p.head_dim)),
      k_element(element_bytes(r.qk_format)),
      v_element(element_bytes(r.v_format)) {
  constexpr auto f = static_cast<std::int64_t>(sizeof(float));
  Sections at;
  table = at.add(sequences * static_cast<std::int64_t>(sizeof(SequenceRow)));
  nonfinite = at.add(f);
  k = at.add(heads * key_rows * padded_dim * k_element);
  v = at.add(heads * key_rows * (v_element == 1 ? padded_dim + kOnesRows : padded_dim * v_element));
  k_scale = at.add(heads * key_rows / kRowAlign * 4 * f);
  k_mean = at.add(heads * sequences * padded_dim * f);
  v_scale = at.add(heads * sequences * padded_dim * f);
  v_mean = at.add(heads * sequences * padded_dim * f);
  k_exact = at.add(r.smooth_q ? heads * key_rows * padded_dim * f : 0);
  // Per head and partial sum; a sequence has at least one, even of a single key.
  scratch = at.add(heads * (key_rows / kStatisticsKeys + sequences + 1) * kStatistics * padded_dim * f);
  bytes = at.end();
}

QLayout::QLayout(const Problem& p, const Recipe& r)
    : kv_heads(p.kv_heads),
      group(p.group()),
      sequences(static_cast<std::int64_t>(p.sequences.size())),
      q_rows(query_rows(p)),
      q_blocks(query_blocks(p)),
      padded_dim(padded_channels(p.head_dim)),
      q_element(element_bytes(r.qk_format)) {
  constexpr auto f = static_cast<std::int64_t>(sizeof(float));
  Sections at;
  table = at.add(sequences * static_cast<std::int64_t>(sizeof(SequenceRow)));
  nonfinite = at.add(f);
  q = at.add(kv_heads * q_rows * padded_dim * q_element);
  q_scale = at.add(kv_heads * q_rows * f);
  lse_shift = at.add(kv_heads * q_rows * f);
  q_mean = at.add(r.smooth_q ? kv_heads * group * q_blocks * padded_dim * f : 0);
  scratch = at.add(kv_heads * group * sequences * f);  // per_head absmax
  bytes = at.end();
}

std::int64_t term_elements(const Problem& p) {
  std::int64_t n = 0;
  for (const Sequence& s : p.sequences) n += pieces(s.q_len, kQueryBlock) * s.k_len;
  return n;
}

bool uniform(const Problem& p) { return !p.packed() && p.options.kv_lengths.empty(); }

SequenceList sequence_list(const Problem& p, const Recipe& r, const SequenceRow* table) {
  SequenceList list;
  list.count = static_cast<std::int64_t>(p.sequences.size());
  if (!uniform(p)) {
    list.table = table;
    return list;
  }
  list.first.q_len = p.q_len;
  list.first.k_len = p.kv_len;
  list.q_row_step = round_up(p.q_len * p.group(), kRowAlign);
  list.k_row_step = round_up(p.kv_len, key_row_align(r));
  list.q_block_step = pieces(p.q_len, kQueryBlock);
  list.term_step = list.q_block_step * p.kv_len;
  return list;
}

std::vector<SequenceRow> sequence_rows(const Problem& p, const Recipe& r) {
  const std::int64_t key_align = key_row_align(r);
  std::vector<SequenceRow> rows;
  rows.reserve(p.sequences.size());
  SequenceRow next;
  for (const Sequence& s : p.sequences) {
    next.batch = s.batch;
    next.q_begin = s.q_begin;
    next.q_len = s.q_len;
    next.k_begin = s.k_begin;
    next.k_len = s.k_len;
    rows.push_back(next);
    next.q_row += round_up(s.q_len * p.group(), kRowAlign);
    next.k_row += round_up(s.k_len, key_align);
    next.q_block += pieces(s.q_len, kQueryBlock);
    next.term += pieces(s.q_len, kQueryBlock) * s.k_len;
  }
  return rows;
}

}  // namespace octavo::cuda
