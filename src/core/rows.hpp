// Single elements and rows of the caller's tensors as f32, whatever their dtype and strides.
#pragma once

#include <cstdint>

#include "core/heads_view.hpp"
#include "octavo/attention.hpp"

namespace octavo {

/// One element as f32; dtype f32, f16 or bf16, any alignment.
float read_element(const void* data, DType dtype, std::int64_t offset);
/// The opposite, rounded to nearest even.
void write_element(void* data, DType dtype, std::int64_t offset, float value);

/// `count` values to consecutive channels; the dtype is looked at once a row.
void write_row(void* data, DType dtype, std::int64_t offset, std::int64_t stride, const float* values,
               std::int64_t count);

/// invalid_argument naming the first valid NaN or Inf of q (queries) or of k or v; internal when there is
/// none.
Status refuse_non_finite(const char* name, const TensorView& tensor, const Problem& problem, bool queries);

}  // namespace octavo
