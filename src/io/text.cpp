// UTF-8 checks and printable forms of untrusted text.
#include "io/text.hpp"

#include <system_error>

namespace octavo::io {
namespace {

unsigned byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

/// Length of the well-formed sequence that starts at `i`, 0 if there is none (Unicode standard, table 3-7).
std::size_t sequence_length(std::string_view text, std::size_t i) {
  const unsigned lead = byte_at(text, i);
  if (lead < 0x80U) return 1;
  std::size_t length = 0;
  // The second byte's range is narrowed for the leads that could start an overlong form, a surrogate or a
  // value past U+10FFFF.
  unsigned low = 0x80U;
  unsigned high = 0xBFU;
  if (lead >= 0xC2U && lead <= 0xDFU) {
    length = 2;
  } else if (lead >= 0xE0U && lead <= 0xEFU) {
    length = 3;
    if (lead == 0xE0U) low = 0xA0U;
    if (lead == 0xEDU) high = 0x9FU;
  } else if (lead >= 0xF0U && lead <= 0xF4U) {
    length = 4;
    if (lead == 0xF0U) low = 0x90U;
    if (lead == 0xF4U) high = 0x8FU;
  } else {
    return 0;
  }
  if (text.size() - i < length) return 0;
  if (byte_at(text, i + 1) < low || byte_at(text, i + 1) > high) return 0;
  for (std::size_t k = 2; k < length; ++k) {
    if ((byte_at(text, i + k) & 0xC0U) != 0x80U) return 0;
  }
  return length;
}

/// C0, DEL and the C1 block: characters a terminal may act on.
bool is_control(std::string_view text, std::size_t i, std::size_t length) {
  const unsigned lead = byte_at(text, i);
  return (length == 1 && (lead < 0x20U || lead == 0x7FU)) ||
         (length == 2 && lead == 0xC2U && byte_at(text, i + 1) < 0xA0U);
}

}  // namespace

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const std::size_t length = sequence_length(text, i);
    if (length == 0) return i;
    i += length;
  }
  return std::nullopt;
}

std::string printable(std::string_view text, std::size_t limit) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  std::size_t i = 0;
  while (i < text.size()) {
    const std::size_t length = sequence_length(text, i);
    std::string piece;
    if (length == 0 || is_control(text, i, length)) {
      const unsigned value = byte_at(text, i + (length == 2 ? 1 : 0));  // C1 controls by their code point
      piece = {'\\', 'x', kHex[value >> 4U], kHex[value & 15U]};
    } else {
      piece = text.substr(i, length);
    }
    if (out.size() + piece.size() > limit) return out + "...";
    out += piece;
    i += length == 0 ? 1 : length;
  }
  return out;
}

std::string in_quotes(std::string_view text) {
  std::string out = "'";
  out += printable(text);
  return out += '\'';
}

std::string errno_text(int error) {
  return std::generic_category().message(error) + " (errno " + std::to_string(error) + ")";
}

}  // namespace octavo::io
