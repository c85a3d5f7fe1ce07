// Bit-exact conversions through numerics/; these are for edges and errors, not for inner loops.
#include "core/rows.hpp"

#include <cmath>
#include <cstring>

#include "core/text.hpp"
#include "numerics/bfloat16.hpp"
#include "numerics/float16.hpp"

namespace octavo {

float read_element(const void* data, DType dtype, std::int64_t offset) {
  const auto* bytes = static_cast<const char*>(data) + offset * static_cast<std::int64_t>(size_of(dtype));
  if (dtype == DType::f32) {
    float value = 0.0F;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return dtype == DType::f16 ? numerics::f16_to_f32(bits) : numerics::bf16_to_f32(bits);
}

void write_element(void* data, DType dtype, std::int64_t offset, float value) {
  auto* bytes = static_cast<char*>(data) + offset * static_cast<std::int64_t>(size_of(dtype));
  if (dtype == DType::f32) {
    std::memcpy(bytes, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = dtype == DType::f16 ? numerics::f32_to_f16(value) : numerics::f32_to_bf16(value);
  std::memcpy(bytes, &bits, sizeof bits);
}

void write_row(void* data, DType dtype, std::int64_t offset, std::int64_t stride, const float* values,
               std::int64_t count) {
  if (dtype == DType::f32 && stride == 1) {
    std::memcpy(static_cast<char*>(data) + offset * 4, values,
                static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) write_element(data, dtype, offset + i * stride, values[i]);
}

Status refuse_non_finite(const char* name, const TensorView& tensor, const Problem& problem, bool queries) {
  const HeadsView view = heads_view(tensor, problem.options.layout);
  for (std::size_t i = 0; i < problem.sequences.size(); ++i) {
    const Sequence& s = problem.sequences[i];
    for (std::int64_t head = 0; head < (queries ? problem.q_heads : problem.kv_heads); ++head) {
      for (std::int64_t token = 0; token < (queries ? s.q_len : s.k_len); ++token) {
        const std::int64_t at = view.offset(s.batch, head, (queries ? s.q_begin : s.k_begin) + token);
        for (std::int64_t channel = 0; channel < problem.head_dim; ++channel) {
          const float value = read_element(view.data, view.dtype, at + channel * view.channel_stride);
          if (std::isfinite(value)) continue;
          return invalid_argument(concat(name, " holds ", value, " at batch entry ", i, ", head ", head,
                                         ", token ", token, ", channel ", channel,
                                         "; valid data must be finite"));
        }
      }
    }
  }
  return {StatusCode::internal, concat(name, " was taken for non-finite, but every value is finite")};
}

}  // namespace octavo
