// How two outputs of an attention problem differ, and how far the tolerances of docs/numerics.md let them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/attend_case.hpp"

namespace octavo::test {

/// Over listed rows: relative L2 and L1 of `got` against `want`, largest and rms difference of LSE.
struct Difference {
  double l2 = 0;
  double l1 = 0;
  double lse_max = 0;
  double lse_rms = 0;
  std::int64_t rows = 0;
  std::int64_t not_finite = 0;  ///< elements of `got`, and LSEs that are NaN
  std::string worst;            ///< where, and both values
};
Difference difference(const AttendCase& c, const reference::RowLists& rows, const AttendResult& got,
                      const AttendResult& want);

/// What docs/numerics.md allows. A weight whose rounding flips moves one row by up to `flip`; problems of few
/// rows are allowed one such row.
struct Tolerance {
  double l2;
  double flip;
  double lse;        ///< beside 2^-10 of the largest logit where the scores are not exact
  double lse_flips;  ///< of a row's LSE when its largest weight flips
  bool exact_scores;
};

Tolerance tolerance_of(const Recipe& r, const AttendShape& s);

/// Rows whose largest weight may flip: one, and with direct weights of integer scores those whose code lies
/// as close to the border of two as the kernel's constant is rounded. That is 1.5 * 2^23 times the codes (8
/// an octave) of one unit, to 24 bits: an error of at most 0.75 of a unit's codes, half of it on average, and
/// there is one border a code.
double rows_that_flip(const Recipe& r, const AttendCase& c, const Difference& d);

/// Equal bits, or a message with the first difference.
testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace octavo::test
