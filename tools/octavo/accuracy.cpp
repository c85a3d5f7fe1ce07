// Exact results row by row, and what an output differs from them.
#include "accuracy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/heads_view.hpp"
#include "failure.hpp"
#include "progress.hpp"
#include "reference/emulate.hpp"

namespace octavo::tool {
namespace {

// Each call converts Q, K and V again; at 64 rows that is still a small part of the work, and the bar moves
// in 40 steps.
constexpr std::int64_t kLeastRowsPerStep = 64;
constexpr std::int64_t kSteps = 40;

/// splitmix64: a fixed pseudo-random sequence. Rows at equal distances would meet the 8-row patterns of
/// quantization groups.
std::uint64_t scrambled(std::uint64_t i) {
  std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

std::vector<std::int64_t> spread(std::int64_t count, std::int64_t of) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = i * of / count;
    const std::int64_t end = (i + 1) * of / count;
    rows.push_back(begin + static_cast<std::int64_t>(scrambled(static_cast<std::uint64_t>(i)) %
                                                     static_cast<std::uint64_t>(end - begin)));
  }
  return rows;
}

float lse_at(const TensorView& lse, std::int64_t offset) {
  float value = 0.0F;
  std::memcpy(&value, static_cast<const char*>(lse.data) + offset * 4, sizeof value);
  return value;
}

/// Offset in a row-major LSE of (sequence, head, row).
std::int64_t lse_offset_of(const TensorView& lse, const Problem& p, const Sequence& s, std::int64_t head,
                           std::int64_t row) {
  return p.packed() ? head * lse.strides[0] + (s.q_begin + row) * lse.strides[1]
                    : s.batch * lse.strides[0] + head * lse.strides[1] + row * lse.strides[2];
}

}  // namespace

std::string RowChoice::text() const {
  return sampled() ? fmt::format("{} of {} query rows a head, sampled", rows, of)
                   : fmt::format("all {} query rows a head", of);
}

RowChoice all_rows(const Problem& problem) { return {{}, problem.q_len, problem.q_len}; }

RowChoice sampled_rows(const Problem& problem) {
  if (problem.q_len <= kSampledRows) return all_rows(problem);
  RowChoice choice{{}, 0, problem.q_len};
  for (const Sequence& s : problem.sequences) {
    // Packed sequences share the rows by their length, each with one at least.
    const std::int64_t share =
        problem.packed() ? (kSampledRows * s.q_len + problem.q_len - 1) / problem.q_len : kSampledRows;
    choice.lists.push_back(spread(std::min(share, s.q_len), s.q_len));
    if (problem.packed() || choice.rows == 0)
      choice.rows += static_cast<std::int64_t>(choice.lists.back().size());
  }
  return choice;
}

RowChoice rows_that_are_affordable(const Problem& problem) {
  double scores = 0.0;
  for (const Sequence& s : problem.sequences) {
    const double of_sequence = static_cast<double>(s.q_len) * static_cast<double>(s.k_len);
    scores = problem.packed() ? scores + of_sequence : std::max(scores, of_sequence);
  }
  return scores > kMostExactScores ? sampled_rows(problem) : all_rows(problem);
}

LseError compare_lse(const TensorView& lse, const TensorView& reference) {
  LseError error;
  double sum = 0.0;
  for (std::int64_t i = 0; i < lse.elements(); ++i) {
    const double a = static_cast<double>(lse_at(lse, i));
    const double b = static_cast<double>(lse_at(reference, i));
    ++error.rows;
    if (a == b) continue;  // also -inf on both sides
    const double d = std::abs(a - b);
    if (!std::isfinite(d)) {
      ++error.one_sided;
      continue;
    }
    error.max_abs = std::max(error.max_abs, d);
    sum += d;
  }
  const std::int64_t finite = error.rows - error.one_sided;
  error.mean_abs = finite > 0 ? sum / static_cast<double>(finite) : 0.0;
  return error;
}

Exact::Exact(const Problem& problem, const TensorView& q, const TensorView& k, const TensorView& v,
             RowChoice rows)
    : problem_(problem),
      rows_(std::move(rows)),
      out_(output_for(problem, DType::f32)),
      lse_(lse_for(problem)) {
  std::int64_t longest = 0;
  double all = 0.0;
  for (std::size_t s = 0; s < problem.sequences.size(); ++s) {
    const std::int64_t rows_here =
        rows_.sampled() ? static_cast<std::int64_t>(rows_.lists[s].size()) : problem.sequences[s].q_len;
    longest = std::max(longest, rows_here);
    all += static_cast<double>(rows_here);
  }
  Progress progress("exact result to compare with", all);
  const std::int64_t step = std::max(kLeastRowsPerStep, (longest + kSteps - 1) / kSteps);
  for (std::int64_t begin = 0; begin < longest; begin += step) {
    reference::RowLists part(problem.sequences.size());
    double count = 0.0;
    for (std::size_t s = 0; s < part.size(); ++s) {
      const std::int64_t rows_here =
          rows_.sampled() ? static_cast<std::int64_t>(rows_.lists[s].size()) : problem.sequences[s].q_len;
      for (std::int64_t i = begin; i < std::min(begin + step, rows_here); ++i) {
        part[s].push_back(rows_.sampled() ? rows_.lists[s][static_cast<std::size_t>(i)] : i);
      }
      count += static_cast<double>(part[s].size());
    }
    require(reference::exact_rows(problem, q, k, v, part, out_.view(), lse_.view()));
    progress.advance(count);
  }
}

OwnedTensor Exact::gather(const TensorView& out) const {
  const Problem& p = problem_;
  std::int64_t rows = 0;
  for (const auto& list : rows_.lists)
    rows = p.packed() ? rows + static_cast<std::int64_t>(list.size()) : rows_.rows;
  const std::int64_t dense[] = {p.batch, p.q_heads, rows, p.head_dim};
  const std::int64_t packed[] = {rows, p.q_heads, p.head_dim};
  OwnedTensor compact = p.packed() ? OwnedTensor(DType::f32, packed) : OwnedTensor(DType::f32, dense);
  const HeadsView from = heads_view(out, p.options.layout);
  const MutableHeadsView to = heads_view(compact.view(), p.packed() ? Layout::thd : Layout::hnd);
  std::vector<float> line(static_cast<std::size_t>(p.head_dim));
  std::int64_t packed_row = 0;
  for (std::size_t s = 0; s < p.sequences.size(); ++s) {
    const Sequence& sequence = p.sequences[s];
    for (std::size_t i = 0; i < rows_.lists[s].size(); ++i) {
      const std::int64_t target = p.packed() ? packed_row++ : static_cast<std::int64_t>(i);
      for (std::int64_t h = 0; h < p.q_heads; ++h) {
        reference::load_row(from, sequence.batch, h, sequence.q_begin + rows_.lists[s][i], p.head_dim,
                            line.data());
        reference::store_row(to, sequence.batch, h, target, p.head_dim, line.data());
      }
    }
  }
  return compact;
}

OwnedTensor Exact::gather_lse(const TensorView& lse) const {
  std::vector<float> values;
  for (std::size_t s = 0; s < problem_.sequences.size(); ++s) {
    for (const std::int64_t row : rows_.lists[s]) {
      for (std::int64_t h = 0; h < problem_.q_heads; ++h) {
        values.push_back(lse_at(lse, lse_offset_of(lse, problem_, problem_.sequences[s], h, row)));
      }
    }
  }
  const std::int64_t shape[] = {static_cast<std::int64_t>(values.size())};
  OwnedTensor compact(DType::f32, shape);
  std::copy(values.begin(), values.end(), static_cast<float*>(compact.view().data));
  return compact;
}

Accuracy Exact::compare(const TensorView& out, const TensorView& lse) const {
  Accuracy accuracy;
  if (!rows_.sampled()) {
    accuracy.output = require(octavo::compare(out, out_.view(), problem_.options.layout));
    if (!lse.empty()) accuracy.lse = compare_lse(lse, lse_.view());
    return accuracy;
  }
  const OwnedTensor a = gather(out);
  const OwnedTensor b = gather(out_.view());
  accuracy.output =
      require(octavo::compare(a.view(), b.view(), problem_.packed() ? Layout::thd : Layout::hnd));
  if (!lse.empty()) accuracy.lse = compare_lse(gather_lse(lse).view(), gather_lse(lse_.view()).view());
  return accuracy;
}

std::string head_name(const Problem& problem, std::int64_t index) {
  if (problem.packed() || problem.batch <= 1) return fmt::format("head {}", index);
  return fmt::format("batch {} head {}", index / problem.q_heads, index % problem.q_heads);
}

Json to_json(const LseError& error) {
  return {{"max_abs", error.max_abs},
          {"mean_abs", error.mean_abs},
          {"rows", error.rows},
          {"one_sided", error.one_sided}};
}

Json to_json(const Accuracy& accuracy, const RowChoice& rows, const Problem& problem) {
  Json json = {{"reference", "softmax attention in f64 of the unquantized inputs"},
               {"sampled", rows.sampled()},
               {"rows_per_head", rows.rows},
               {"rows_per_head_in_all", rows.of}};
  json.update(to_json(accuracy.output.all));
  json["worst_head"] = accuracy.output.worst_head;
  json["lse"] = to_json(accuracy.lse);
  Json heads = Json::array();
  for (std::size_t i = 0; i < accuracy.output.heads.size(); ++i) {
    Json head = {{"name", head_name(problem, static_cast<std::int64_t>(i))}};
    head.update(to_json(accuracy.output.heads[i]));
    heads.push_back(head);
  }
  json["heads"] = heads;
  return json;
}

}  // namespace octavo::tool
