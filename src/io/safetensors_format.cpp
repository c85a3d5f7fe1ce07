// Names and sizes of the safetensors format.
#include "io/safetensors_format.hpp"

#include <limits>

namespace octavo::io {

std::size_t layout_rank(DType dtype) {
  std::size_t i = 0;
  while (i < kDTypeNames.size() && kDTypeNames[i].dtype != dtype) ++i;
  return i;
}

std::string_view file_name_of(DType dtype) {
  const std::size_t i = layout_rank(dtype);
  return i < kDTypeNames.size() ? kDTypeNames[i].name : std::string_view{};
}

std::optional<DType> dtype_from_file_name(std::string_view name) {
  for (const DTypeName& entry : kDTypeNames) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

std::string supported_dtypes() {
  std::string out;
  for (const DTypeName& entry : kDTypeNames) {
    if (!out.empty()) out += ", ";
    out += entry.name;
  }
  return out;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string out = "[";
  for (const std::int64_t n : shape) {
    if (out.size() > 1) out += ", ";
    out += std::to_string(n);
  }
  return out + "]";
}

std::optional<std::uint64_t> byte_count(std::span<const std::int64_t> shape, DType dtype) {
  std::uint64_t strides = size_of(dtype);
  bool no_elements = false;
  for (const std::int64_t n : shape) {
    if (n < 0) return std::nullopt;
    if (n == 0) {
      no_elements = true;
      continue;
    }
    if (__builtin_mul_overflow(strides, static_cast<std::uint64_t>(n), &strides)) return std::nullopt;
    if (strides > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  }
  return no_elements ? 0 : strides;
}

}  // namespace octavo::io
