// Building the one-sentence messages: concat("head_dim ", 300, " is not supported (1 to 256)").
#pragma once

#include <charconv>
#include <concepts>
#include <sstream>
#include <string>

#include "octavo/tensor.hpp"

namespace octavo {

/// As few digits as tell an f32 from its neighbours: "0.1", "65504.004".
inline std::string number_text(float x) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, x).ptr};
}

/// f32 as number_text() writes it, everything else as streams do.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  const auto write = [&out](const auto& part) {
    if constexpr (std::same_as<std::remove_cvref_t<decltype(part)>, float>) {
      out << number_text(part);
    } else {
      out << part;
    }
  };
  (write(parts), ...);
  return out.str();
}

/// "[2, 8, 1024, 64]"
template <class Pointer>
std::string shape_text(const BasicTensorView<Pointer>& t) {
  std::ostringstream out;
  out << '[';
  for (int d = 0; d < t.rank; ++d) out << (d > 0 ? ", " : "") << t.shape[static_cast<std::size_t>(d)];
  out << ']';
  return out.str();
}

}  // namespace octavo
