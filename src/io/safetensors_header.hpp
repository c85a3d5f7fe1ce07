// The JSON header of a safetensors file, taken apart and checked for form, but not yet against the data. Only
// src/io includes this.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/status.hpp"

namespace octavo::io {

struct HeaderTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::array<std::uint64_t, 2> offsets{};
};

struct Header {
  std::vector<HeaderTensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// "tensor 'q'"
std::string tensor_label(std::string_view name);

/// Errors (io_error) do not name the file. Refused are: what is not UTF-8 or not JSON, NUL bytes, anything
/// but an object of tensors and at most one map of strings called __metadata__, fields that are missing,
/// unknown, given twice or of the wrong type.
Result<Header> parse_header(std::string_view text);

}  // namespace octavo::io
