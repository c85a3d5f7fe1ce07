// The error of an output against softmax attention in f64 of the unquantized inputs, on all query rows or a
// sample of them.
#pragma once

#include <cstdint>
#include <string>

#include "octavo/attention.hpp"
#include "octavo/metrics.hpp"
#include "output.hpp"
#include "reference/rows.hpp"
#include "running.hpp"

namespace octavo::tool {

/// Above this many (query, key) pairs a head and batch entry the exact result would take minutes, and rows
/// are sampled.
inline constexpr double kMostExactScores = 64.0 * 1024.0 * 1024.0;
inline constexpr std::int64_t kSampledRows = 256;  ///< a head (and batch entry, unless packed)

struct RowChoice {
  reference::RowLists lists;  ///< empty: all rows
  std::int64_t rows = 0;      ///< chosen, a head and batch entry (packed: a head)
  std::int64_t of = 0;

  [[nodiscard]] bool sampled() const { return !lists.empty(); }
  [[nodiscard]] std::string text()
      const;  ///< "all 2048 query rows a head", "256 of 65536 query rows a head, sampled"
};
RowChoice all_rows(const Problem& problem);
/// About kSampledRows rows spread over each head: one at a random place of each of as many equal stretches,
/// the same in every run.
RowChoice sampled_rows(const Problem& problem);
RowChoice rows_that_are_affordable(const Problem& problem);

struct LseError {
  double max_abs = 0.0;
  double mean_abs = 0.0;
  std::int64_t rows = 0;       ///< compared
  std::int64_t one_sided = 0;  ///< rows that see no key (-inf) on one side only, or NaN
};
/// Two LSE tensors of one shape, all elements.
LseError compare_lse(const TensorView& lse, const TensorView& reference);

struct Accuracy {
  Comparison output;
  LseError lse;
};

/// The exact result of a problem's chosen rows, to compare any number of outputs with.
class Exact {
 public:
  Exact(const Problem& problem, const TensorView& q, const TensorView& k, const TensorView& v,
        RowChoice rows);
  /// `out` and `lse` are full tensors of which only the chosen rows are read; `lse` may be empty.
  [[nodiscard]] Accuracy compare(const TensorView& out, const TensorView& lse) const;
  [[nodiscard]] const RowChoice& rows() const { return rows_; }

 private:
  [[nodiscard]] OwnedTensor gather(const TensorView& out) const;
  [[nodiscard]] OwnedTensor gather_lse(const TensorView& lse) const;

  const Problem& problem_;
  RowChoice rows_;
  OwnedTensor out_;
  OwnedTensor lse_;
};

std::string head_name(const Problem& problem, std::int64_t index);  ///< "head 3", "batch 1 head 3"
Json to_json(const Accuracy& accuracy, const RowChoice& rows, const Problem& problem);
Json to_json(const LseError& error);

}  // namespace octavo::tool
