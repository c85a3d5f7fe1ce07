// UTF-8 checks and printable forms: what a message may show of untrusted text.
#include "io/text.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace octavo::io {
namespace {

std::string encoded(std::uint32_t c) {
  const auto byte = [](std::uint32_t value) { return static_cast<char>(static_cast<unsigned char>(value)); };
  if (c < 0x80U) return {byte(c)};
  if (c < 0x800U) return {byte(0xC0U | (c >> 6U)), byte(0x80U | (c & 63U))};
  if (c < 0x10000U)
    return {byte(0xE0U | (c >> 12U)), byte(0x80U | ((c >> 6U) & 63U)), byte(0x80U | (c & 63U))};
  return {byte(0xF0U | (c >> 18U)), byte(0x80U | ((c >> 12U) & 63U)), byte(0x80U | ((c >> 6U) & 63U)),
          byte(0x80U | (c & 63U))};
}

TEST(Utf8, EveryCodePointAndNoSurrogate) {
  for (std::uint32_t c = 0; c < 0x120000U; ++c) {
    const bool valid = c <= 0x10FFFFU && (c < 0xD800U || c > 0xDFFFU);
    ASSERT_EQ(first_invalid_utf8("ab" + encoded(c) + "c").has_value(), !valid) << std::hex << c;
  }
}

TEST(Utf8, BrokenSequencesAreFoundWhereTheyBegin) {
  for (const std::string bad :
       {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC3", "\xC3z", "\xE0\x9F\xBF", "\xE4\xB8", "\xE4\xB8z",
        "\xF0\x8F\xBF\xBF", "\xF0\x90\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_EQ(first_invalid_utf8("é" + bad), 2U) << printable(bad);
  }
  EXPECT_FALSE(first_invalid_utf8("").has_value());
}

TEST(Printable, IsOneBoundedLineOfUtf8) {
  EXPECT_EQ(printable("q é 中 🙂"), "q é 中 🙂");
  EXPECT_EQ(printable(std::string("a\0\n\r\t\x1b[0m\x7f", 10)), "a\\x00\\x0a\\x0d\\x09\\x1b[0m\\x7f");
  EXPECT_EQ(printable("\xff\xc3z"), "\\xff\\xc3z");
  EXPECT_EQ(printable("\xc2\x9bm"), "\\x9bm") << "C1 controls act on terminals too";
  EXPECT_EQ(printable(std::string(80, 'a')), std::string(80, 'a'));
  EXPECT_EQ(printable(std::string(81, 'a')), std::string(80, 'a') + "...");
  EXPECT_EQ(printable("aé", 2), "a...") << "never cut inside a character";
  EXPECT_EQ(in_quotes("q"), "'q'");
}

}  // namespace
}  // namespace octavo::io
