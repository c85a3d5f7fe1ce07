// Text from files is not to be trusted: what reaches a message is valid UTF-8, on one line and of bounded
// length.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace octavo::io {

/// Position of the first byte that is not part of well-formed UTF-8 (no overlong forms, surrogates or values
/// above U+10FFFF).
std::optional<std::size_t> first_invalid_utf8(std::string_view text);

/// `text` for a message: control characters and broken UTF-8 become \xNN, and what goes beyond `limit` bytes
/// becomes "...".
std::string printable(std::string_view text, std::size_t limit = 80);

/// 'text', printable and in quotes.
std::string in_quotes(std::string_view text);

/// "No such file or directory (errno 2)".
std::string errno_text(int error);

}  // namespace octavo::io
