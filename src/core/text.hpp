// Building the one-sentence messages: concat("head_dim ", 300, " is not supported (1 to 256)").
#pragma once

#include <sstream>
#include <string>

#include "octavo/tensor.hpp"

namespace octavo {

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
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
