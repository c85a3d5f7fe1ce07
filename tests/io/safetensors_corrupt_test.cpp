// Every way in which a safetensors file can be wrong gives one line that names the file and the fault.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "io/safetensors.hpp"
#include "io/test_files.hpp"

namespace octavo::io {
namespace {

using testing::as_bytes;
using testing::file_of;
using testing::length_field;
using testing::TemporaryDirectory;

struct Corruption {
  std::string name;
  std::string bytes;
  std::string expected;  ///< part of the message
  StatusCode code = StatusCode::io_error;
};

void PrintTo(const Corruption& c, std::ostream* out) { *out << c.name; }

/// A file with one entry, given as JSON, and `data` bytes of data.
std::string one(const std::string& entry, std::size_t data = 4) {
  return file_of("{\"q\":" + entry + "}", std::string(data, 'd'));
}

/// An entry of a tensor that is right unless its parts are wrong.
std::string entry(const std::string& dtype = "\"F32\"", const std::string& shape = "[1]",
                  const std::string& offsets = "[0,4]") {
  return "{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

std::string two(const std::string& first_offsets, const std::string& second_offsets, std::size_t data) {
  return file_of("{\"a\":" + entry("\"F32\"", "[1]", first_offsets) +
                     ",\"b\":" + entry("\"F32\"", "[1]", second_offsets) + "}",
                 std::string(data, 'd'));
}

std::vector<Corruption> file_corruptions() {
  return {
      {"empty", "", "the file is empty"},
      {"seven_bytes", "1234567", "the file has 7 bytes, fewer than the 8"},
      {"header_longer_than_file", length_field(100) + "{}",
       "header of 100 bytes does not fit in the file of 10 bytes"},
      {"header_above_limit", length_field(100'000'001) + "{}",
       "header length 100000001 is above the limit of 100000000"},
      {"header_length_all_ones", std::string(8, '\xff') + "{}",
       "header length 18446744073709551615 is above the limit"},
      {"header_of_zero_bytes", length_field(0), "does not begin with '{'"},
      {"text_file", "once upon a time", "is this a safetensors file?"},
      {"leading_space", file_of(" {}"), "does not begin with '{'"},
      {"byte_order_mark", file_of("\xEF\xBB\xBF{}"), "does not begin with '{'"},
      {"array", file_of("[1]"), "does not begin with '{'"},
      {"cut_json", file_of("{\"q\":{"), "the header is not valid JSON (at byte 7 of it)"},
      {"comment", file_of("{}/* */"), "the header is not valid JSON"},
      {"trailing_comma", file_of("{\"q\":" + entry() + ",}", "dddd"), "the header is not valid JSON"},
      {"two_documents", file_of("{}{}"), "the header is not valid JSON"},
      {"nul_padding", file_of(std::string("{}\0\0", 4)), "the header holds a NUL (at byte 3 of it)"},
      {"not_utf8", file_of("{\"\xff\":" + entry() + "}", "dddd"),
       "the header is not UTF-8 (at byte 3 of it)"},
      {"overlong_utf8", file_of("{\"\xC0\xAF\":1}"), "the header is not UTF-8 (at byte 3 of it)"},
      {"utf8_surrogate", file_of("{\"\xED\xA0\x80\":1}"), "the header is not UTF-8 (at byte 3 of it)"},
      {"escaped_lone_surrogate", file_of("{\"\\ud800\":1}"), "the header is not valid JSON"},
      {"bytes_without_tensors", file_of("{}", "x"), "there are 1 bytes after the last tensor"},
      {"trailing_bytes", one(entry(), 6), "there are 2 bytes after the last tensor"},
      {"deep_nesting", one(std::string(100'000, '[') + std::string(100'000, ']')),
       "tensor 'q' is an array, not an object"},
      {"deep_objects", file_of("{\"q\":{\"shape\":{\"x\":1}}}"),
       "tensor 'q': shape is an object, not an array"},
  };
}

std::vector<Corruption> entry_corruptions() {
  const std::string range = "; integers from 0 to 2^63-1 are allowed";
  return {
      {"entry_null", one("null"), "tensor 'q' is null, not an object"},
      {"entry_string", one("\"x\""), "tensor 'q' is a string, not an object"},
      {"entry_number", one("-1.5"), "tensor 'q' is a number, not an object"},
      {"entry_boolean", one("true"), "tensor 'q' is a boolean, not an object"},
      {"no_fields", one("{}"), "tensor 'q': dtype is missing"},
      {"no_dtype", one(R"({"shape":[1],"data_offsets":[0,4]})"), "tensor 'q': dtype is missing"},
      {"no_shape", one(R"({"dtype":"F32","data_offsets":[0,4]})"), "tensor 'q': shape is missing"},
      {"no_offsets", one(R"({"dtype":"F32","shape":[1]})"), "tensor 'q': data_offsets is missing"},
      {"extra_field", one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"scale":1})"),
       "tensor 'q': unknown field 'scale'"},
      {"field_twice", one(R"({"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})"),
       "tensor 'q': dtype is given twice"},
      {"dtype_number", one(entry("32")), "tensor 'q': dtype is a number, not a string"},
      {"dtype_array", one(entry("[]")), "tensor 'q': dtype is an array, not a string"},
      {"shape_number", one(entry("\"F32\"", "1")), "tensor 'q': shape is a number, not an array of integers"},
      {"shape_null", one(entry("\"F32\"", "null")), "tensor 'q': shape is null, not an array of integers"},
      {"shape_of_strings", one(entry("\"F32\"", "[\"1\"]")), "tensor 'q': shape holds a string" + range},
      {"shape_of_arrays", one(entry("\"F32\"", "[[1]]")), "tensor 'q': shape holds an array" + range},
      {"shape_negative", one(entry("\"F32\"", "[-1]")), "tensor 'q': shape holds -1" + range},
      {"shape_minus_zero", one(entry("\"F32\"", "[-0]")), "tensor 'q': shape holds -0" + range},
      {"shape_fraction", one(entry("\"F32\"", "[1.5]")), "tensor 'q': shape holds 1.5" + range},
      {"shape_exponent", one(entry("\"F32\"", "[1e0]")), "tensor 'q': shape holds 1e0" + range},
      {"shape_2_to_63", one(entry("\"F32\"", "[9223372036854775808]")),
       "tensor 'q': shape holds 9223372036854775808" + range},
      {"shape_2_to_70", one(entry("\"F32\"", "[1180591620717411303424]")),
       "tensor 'q': shape holds 1180591620717411303424" + range},
      {"shape_infinite", one(entry("\"F32\"", "[1e999]")), "holds a number that is out of range"},
      {"shape_product_overflows", one(entry("\"I8\"", "[4294967296,4294967296]")),
       "tensor 'q': the size of shape [4294967296, 4294967296] overflows"},
      {"shape_bytes_overflow", one(entry("\"I64\"", "[1152921504606846976]")),
       "tensor 'q': the size of shape [1152921504606846976] overflows"},
      {"shape_strides_overflow", one(entry("\"I8\"", "[0,4294967296,4294967296]", "[0,0]"), 0),
       "tensor 'q': the size of shape [0, 4294967296, 4294967296] overflows"},
      {"rank_65",
       one(entry(
           "\"I8\"", "[1" +
                         [] {
                           std::string s;
                           for (int i = 0; i < 64; ++i) s += ",1";
                           return s;
                         }() +
                         "]")),
       "tensor 'q': shape has more than 64 dimensions"},
      {"offsets_object", one(entry("\"F32\"", "[1]", "{}")),
       "tensor 'q': data_offsets is an object, not an array of integers"},
      {"offsets_none", one(entry("\"F32\"", "[1]", "[]")),
       "tensor 'q': data_offsets does not hold exactly two numbers"},
      {"offsets_one", one(entry("\"F32\"", "[1]", "[4]")),
       "tensor 'q': data_offsets does not hold exactly two numbers"},
      {"offsets_three", one(entry("\"F32\"", "[1]", "[0,4,4]")),
       "tensor 'q': data_offsets does not hold exactly two numbers"},
      {"offsets_fraction", one(entry("\"F32\"", "[1]", "[0,4.0]")),
       "tensor 'q': data_offsets holds 4.0" + range},
      {"offsets_negative", one(entry("\"F32\"", "[1]", "[-4,0]")),
       "tensor 'q': data_offsets holds -4" + range},
      {"offsets_string", one(entry("\"F32\"", "[1]", "[\"0\",4]")),
       "tensor 'q': data_offsets holds a string" + range},
      {"offsets_reversed", one(entry("\"F32\"", "[1]", "[4,0]")),
       "tensor 'q': data_offsets [4, 0] are reversed"},
      {"offsets_beyond", one(entry("\"F32\"", "[2]", "[0,8]")),
       "tensor 'q': data_offsets [0, 8] go beyond the 4 bytes of data"},
      {"offsets_one_beyond", one(entry("\"U8\"", "[5]", "[0,5]")),
       "tensor 'q': data_offsets [0, 5] go beyond the 4 bytes of data"},
      {"offsets_huge", one(entry("\"F32\"", "[1]", "[18446744073709551612,18446744073709551615]")),
       "go beyond the 4 bytes of data"},
      {"offsets_short", one(entry("\"F32\"", "[2]")),
       "tensor 'q': data_offsets [0, 4] hold 4 bytes, but shape [2] of F32 needs 8"},
      {"offsets_long", one(entry("\"F32\"", "[0]")),
       "tensor 'q': data_offsets [0, 4] hold 4 bytes, but shape [0] of F32 needs 0"},
      {"overlap_equal", two("[0,4]", "[0,4]", 4), "tensor 'b' overlaps tensor 'a'"},
      {"overlap_partial", two("[2,6]", "[0,4]", 6),
       "tensor 'a' overlaps tensor 'b': its data begins at 2, before 4"},
      {"empty_inside_another",
       file_of("{\"a\":" + entry() + ",\"z\":" + entry("\"F32\"", "[0]", "[2,2]") + "}", "dddd"),
       "tensor 'z' overlaps tensor 'a'"},
      {"gap_at_start", one(entry("\"F32\"", "[1]", "[4,8]"), 8), "tensor 'q': there is a gap of 4 bytes"},
      {"gap_between", two("[0,4]", "[5,9]", 9), "tensor 'b': there is a gap of 1 bytes"},
      {"name_twice", file_of("{\"q\":" + entry() + ",\"q\":" + entry() + "}", "dddd"),
       "tensor 'q' is given twice"},
      {"name_twice_escaped",
       file_of("{\"q\":" + entry() + ",\"\\u0071\":" + entry("\"F32\"", "[1]", "[4,8]") + "}", "dddddddd"),
       "tensor 'q' is given twice"},
      {"name_with_nul", file_of("{\"q\\u0000r\":" + entry() + "}", "dddd"),
       "tensor 'q\\x00r': the name holds a NUL"},
      {"name_with_newline", file_of("{\"q\\n\\u001b[2J\":{}}"), "tensor 'q\\x0a\\x1b[2J': dtype is missing"},
      {"name_of_a_megabyte", file_of("{\"" + std::string(1 << 20, 'n') + "\":{}}"),
       std::string(80, 'n') + "...': dtype is missing"},
      {"metadata_string", file_of(R"({"__metadata__":"x"})"),
       "__metadata__ is a string, not a map of strings"},
      {"metadata_array", file_of(R"({"__metadata__":["x"]})"),
       "__metadata__ is an array, not a map of strings"},
      {"metadata_null", file_of(R"({"__metadata__":null})"), "__metadata__ is null, not a map of strings"},
      {"metadata_number", file_of(R"({"__metadata__":{"k":1}})"),
       "__metadata__: 'k' is a number, not a string"},
      {"metadata_nested", file_of(R"({"__metadata__":{"k":{"a":"b"}}})"),
       "__metadata__: 'k' is an object, not a string"},
      {"metadata_key_twice", file_of(R"({"__metadata__":{"k":"1","k":"1"}})"),
       "__metadata__: key 'k' is given twice"},
      {"metadata_twice", file_of(R"({"__metadata__":{},"__metadata__":{}})"), "__metadata__ is given twice"},
  };
}

std::vector<Corruption> dtype_corruptions() {
  std::vector<Corruption> out;
  for (const std::string dtype :
       {"F64", "I16", "U16", "U32", "U64", "F8_E5M2", "C64", "f32", "F32 ", "", "float32"}) {
    out.push_back({"dtype_" + std::to_string(out.size()), one(entry("\"" + dtype + "\"")),
                   "tensor 'q': dtype '" + dtype +
                       "' is not supported (I64, F32, I32, BF16, F16, F8_E4M3, I8, U8, BOOL)",
                   StatusCode::unsupported});
  }
  return out;
}

class Corrupt : public ::testing::TestWithParam<Corruption> {};

void expect_refusal(const Result<SafetensorsFile>& file, const Corruption& c, const std::string& path) {
  ASSERT_FALSE(file.ok());
  const Status s = file.status();
  EXPECT_EQ(s.code(), c.code) << s.message();
  EXPECT_EQ(s.message().find(path + ": "), 0U) << s.message();
  EXPECT_NE(s.message().find(c.expected), std::string::npos) << s.message();
  EXPECT_EQ(s.message().find('\n'), std::string::npos) << s.message();
  EXPECT_LT(s.message().size(), path.size() + 400) << "a message is a line, not a page";
}

TEST_P(Corrupt, BytesGiveOneClearError) {
  expect_refusal(SafetensorsFile::parse(as_bytes(GetParam().bytes), "memory"), GetParam(), "memory");
}

TEST_P(Corrupt, FileGivesTheSameError) {
  const TemporaryDirectory directory;
  const std::string path = directory / "bad.safetensors";
  testing::write_bytes(path, GetParam().bytes);
  expect_refusal(SafetensorsFile::open(path), GetParam(), path);
}

const auto kName = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(File, Corrupt, ::testing::ValuesIn(file_corruptions()), kName);
INSTANTIATE_TEST_SUITE_P(Entry, Corrupt, ::testing::ValuesIn(entry_corruptions()), kName);
INSTANTIATE_TEST_SUITE_P(DType, Corrupt, ::testing::ValuesIn(dtype_corruptions()), kName);

TEST(CorruptTable, TheUncorruptedFormsAreAccepted) {  // else the tables above would prove nothing
  EXPECT_TRUE(SafetensorsFile::parse(as_bytes(one(entry())), "memory").ok());
  EXPECT_TRUE(SafetensorsFile::parse(as_bytes(two("[4,8]", "[0,4]", 8)), "memory").ok());
  EXPECT_TRUE(SafetensorsFile::parse(as_bytes(file_of(R"({"__metadata__":{"k":"1"}})")), "memory").ok());
  EXPECT_TRUE(SafetensorsFile::parse(as_bytes(file_of("{}  \n")), "memory").ok());
}

TEST(CorruptTable, EveryPrefixOfAFileIsRefused) {
  const std::string bytes = two("[0,4]", "[4,8]", 8);
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(SafetensorsFile::parse(as_bytes(bytes).first(n), "memory").ok()) << n << " bytes";
  }
}

TEST(OpenRefuses, WhatIsNotARegularFile) {
  const TemporaryDirectory directory;
  const std::string fifo = directory / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {directory.path(), fifo, std::string("/dev/null")}) {
    const auto file = SafetensorsFile::open(path);  // must not wait for a writer of the FIFO
    ASSERT_FALSE(file.ok()) << path;
    EXPECT_EQ(file.status().code(), StatusCode::io_error);
    EXPECT_EQ(file.status().message(), path + ": is not a regular file");
  }
}

TEST(OpenRefuses, PathsThatLeadNowhere) {
  const TemporaryDirectory directory;
  const auto missing = SafetensorsFile::open(directory / "none");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::io_error);
  EXPECT_EQ(missing.status().message(),
            (directory / "none") + ": cannot open: No such file or directory (errno 2)");
  testing::write_bytes(directory / "a", file_of("{}"));
  EXPECT_FALSE(SafetensorsFile::open((directory / "a") + std::string("\0b", 2)).ok())
      << "NUL must not cut the path";
  EXPECT_FALSE(SafetensorsFile::open("").ok());
}

}  // namespace
}  // namespace octavo::io
