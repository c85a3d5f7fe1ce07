// What is written can be read back bit for bit, whatever the strides, and is laid out as the format's
// reference does it.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "io/safetensors.hpp"
#include "io/test_files.hpp"

namespace octavo::io {
namespace {

using testing::TemporaryDirectory;

const std::vector<DType> kDTypes = {DType::f32, DType::f16, DType::bf16, DType::e4m3,   DType::i8,
                                    DType::u8,  DType::i32, DType::i64,  DType::boolean};

/// Bytes that differ from their neighbours, so that any misplaced element shows.
std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<std::byte>((i * 37 + seed * 11 + (i >> 8U)) & 0xFFU);
  return out;
}

/// The elements of a view in row-major order, gathered one by one.
std::string gathered(const TensorView& view) {
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  std::array<std::int64_t, 4> n = {1, 1, 1, 1};
  std::array<std::int64_t, 4> step{};
  for (int d = 0; d < view.rank; ++d) {
    n[static_cast<std::size_t>(d)] = view.shape[static_cast<std::size_t>(d)];
    step[static_cast<std::size_t>(d)] = view.strides[static_cast<std::size_t>(d)];
  }
  std::string out;
  for (std::int64_t i = 0; i < n[0]; ++i) {
    for (std::int64_t j = 0; j < n[1]; ++j) {
      for (std::int64_t k = 0; k < n[2]; ++k) {
        for (std::int64_t l = 0; l < n[3]; ++l) {
          const auto* base = static_cast<const char*>(view.data);
          out.append(base + (i * step[0] + j * step[1] + k * step[2] + l * step[3]) * size,
                     static_cast<std::size_t>(size));
        }
      }
    }
  }
  return out;
}

void expect_same(const FileTensor* tensor, const TensorView& view) {
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->dtype, view.dtype);
  EXPECT_EQ(tensor->shape, std::vector<std::int64_t>(view.shape.begin(), view.shape.begin() + view.rank));
  EXPECT_TRUE(std::string(static_cast<const char*>(tensor->data), tensor->bytes) == gathered(view))
      << tensor->name;
}

TEST(Writer, EveryDTypeSurvivesTheRoundTrip) {
  const TemporaryDirectory directory;
  std::vector<std::vector<std::byte>> data;
  std::vector<NamedTensor> tensors;
  for (const DType dtype : kDTypes) {
    data.push_back(pattern(2 * 3 * 5 * 7 * size_of(dtype), static_cast<unsigned>(dtype)));
    tensors.push_back({to_string(dtype), {data.back().data(), dtype, {2, 3, 5, 7}}});
  }
  const std::map<std::string, std::string> metadata = {
      {"layout", "hnd"}, {"note", "\"q\"\\\n\t é 中"}, {"", ""}};
  const Status s = write_safetensors(directory / "t", tensors, metadata);
  ASSERT_TRUE(s.ok()) << s.message();
  const auto file = SafetensorsFile::open(directory / "t");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensors().size(), tensors.size());
  for (const NamedTensor& tensor : tensors) expect_same(file->find(tensor.name), tensor.view);
  EXPECT_EQ(file->metadata(), metadata);
  EXPECT_EQ(directory.names(), std::vector<std::string>{"t"});
}

TensorView strided(const void* data, DType dtype, std::vector<std::int64_t> shape,
                   std::vector<std::int64_t> strides) {
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  std::copy(strides.begin(), strides.end(), view.strides.begin());
  return view;
}

TEST(Writer, StridedViewsAreWrittenRowMajor) {
  const TemporaryDirectory directory;
  for (const DType dtype : kDTypes) {
    const std::vector<std::byte> data = pattern(1024 * size_of(dtype), 3);
    const void* base = data.data();
    const void* last = data.data() + 1023 * size_of(dtype);
    const std::vector<NamedTensor> tensors = {
        {"transposed", strided(base, dtype, {4, 8}, {1, 4})},
        {"permuted", strided(base, dtype, {2, 3, 4, 5}, {1, 40, 10, 2})},
        {"nhd_as_hnd", strided(base, dtype, {2, 4, 8, 16}, {512, 16, 64, 1})},
        {"padded_rows", strided(base, dtype, {7, 9}, {13, 1})},
        {"every_second", strided(base, dtype, {100}, {2})},
        {"repeated_rows", strided(base, dtype, {3, 5}, {0, 1})},
        {"repeated_elements", strided(base, dtype, {3, 5}, {1, 0})},
        {"one_value", strided(base, dtype, {2, 2, 2, 2}, {0, 0, 0, 0})},
        {"reversed", strided(last, dtype, {1024}, {-1})},
        {"reversed_rows", strided(last, dtype, {3, 4}, {-256, -2})},
        {"strides_of_ones_do_not_matter", strided(base, dtype, {1, 6, 1, 2}, {-999, 2, 12345, 1})},
        {"overlapping_windows", strided(base, dtype, {50, 8}, {1, 1})},
        {"none", strided(nullptr, dtype, {4, 0, 2}, {100, 7, 1})},
        {"element", strided(base, dtype, {1}, {5})},
    };
    const Status s = write_safetensors(directory / "t", tensors);
    ASSERT_TRUE(s.ok()) << s.message();
    const auto file = SafetensorsFile::open(directory / "t");
    ASSERT_TRUE(file.ok()) << file.status().message();
    for (const NamedTensor& tensor : tensors) expect_same(file->find(tensor.name), tensor.view);
  }
}

TEST(Writer, DataBeyondTheBufferSurvives) {  // the sink's buffer holds a megabyte
  const TemporaryDirectory directory;
  const std::vector<std::byte> data = pattern(std::size_t{3} << 20U, 9);
  const std::int64_t half = 3 << 18;
  const std::vector<NamedTensor> tensors = {
      {"whole", {data.data(), DType::u8, {4 * half}}},
      {"odd", {data.data() + 1, DType::u8, {2 * half + 1}}},
      {"halves", strided(data.data(), DType::i32, {half / 2}, {2})},
  };
  ASSERT_TRUE(write_safetensors(directory / "t", tensors).ok());
  const auto file = SafetensorsFile::open(directory / "t");
  ASSERT_TRUE(file.ok()) << file.status().message();
  for (const NamedTensor& tensor : tensors) expect_same(file->find(tensor.name), tensor.view);
}

TEST(Writer, LayoutIsByAlignmentThenNameWithAPaddedHeader) {
  const TemporaryDirectory directory;
  const std::vector<std::byte> data = pattern(64, 1);
  std::vector<NamedTensor> tensors;
  for (const DType dtype : kDTypes) tensors.push_back({to_string(dtype), {data.data(), dtype, {3}}});
  tensors.push_back({"a", {data.data(), DType::f32, {1}}});
  ASSERT_TRUE(write_safetensors(directory / "t", tensors).ok());
  const auto file = SafetensorsFile::open(directory / "t");
  ASSERT_TRUE(file.ok()) << file.status().message();
  std::vector<std::string> names;
  for (const FileTensor& tensor : file->tensors()) names.push_back(tensor.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"i64", "a", "f32", "i32", "bf16", "f16", "e4m3", "i8", "u8", "bool"}));

  // The whole header of a small file, byte for byte.
  const NamedTensor one{"q", {data.data(), DType::f16, {2, 3}}};
  ASSERT_TRUE(write_safetensors(directory / "t", {&one, 1}, {{"k", "v"}}).ok());
  const std::string header =
      R"({"__metadata__":{"k":"v"},"q":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]}})";
  const std::string bytes = testing::read_bytes(directory / "t");
  EXPECT_EQ(bytes.substr(0, 8), testing::length_field((header.size() + 7) / 8 * 8));
  EXPECT_EQ(bytes.substr(8, header.size()), header);
  EXPECT_EQ(bytes.size(), 8 + (header.size() + 7) / 8 * 8 + 12);
  EXPECT_EQ(bytes.find_first_not_of(' ', 8 + header.size()), bytes.size() - 12);
}

TEST(Writer, AFileWithoutTensorsIsAFile) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(write_safetensors(directory / "t", {}).ok());
  const auto file = SafetensorsFile::open(directory / "t");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_TRUE(file->tensors().empty());
}

TEST(Writer, AFileMayBeReplacedByWhatIsReadFromIt) {
  const TemporaryDirectory directory;
  const std::vector<std::byte> data = pattern(1 << 16, 5);
  const NamedTensor q{"q", {data.data(), DType::u8, {1 << 16}}};
  ASSERT_TRUE(write_safetensors(directory / "t", {&q, 1}).ok());
  const auto before = SafetensorsFile::open(directory / "t");
  ASSERT_TRUE(before.ok());
  const TensorView view = *before->find("q")->view();
  const std::vector<NamedTensor> both = {{"again", view},
                                         {"flipped", strided(view.data, DType::u8, {256, 256}, {1, 256})}};
  ASSERT_TRUE(write_safetensors(directory / "t", both).ok());
  const auto after = SafetensorsFile::open(directory / "t");
  ASSERT_TRUE(after.ok()) << after.status().message();
  expect_same(after->find("again"), q.view);
  expect_same(after->find("flipped"), strided(data.data(), DType::u8, {256, 256}, {1, 256}));
  EXPECT_EQ(std::memcmp(view.data, data.data(), data.size()), 0)
      << "the open file still shows the old content";
}

struct BadCall {
  std::string name;
  std::vector<NamedTensor> tensors;
  std::map<std::string, std::string> metadata;
  std::string expected;
};

const std::array<std::byte, 64> kData{};

NamedTensor named(std::string name) { return {std::move(name), {kData.data(), DType::u8, {4}}}; }

NamedTensor viewed(const TensorView& view) { return {"q", view}; }

std::vector<BadCall> bad_calls() {
  TensorView device(kData.data(), DType::u8, {4});
  device.device = {Device::Kind::cuda, 0};
  TensorView rank5(kData.data(), DType::u8, {4});
  rank5.rank = 5;
  TensorView unknown(kData.data(), DType::u8, {4});
  unknown.dtype = static_cast<DType>(99);
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  return {
      {"name_not_utf8", {named("q\xff")}, {}, "tensor 'q\\xff': the name is not UTF-8 (at byte 2)"},
      {"name_with_nul", {named(std::string("a\0b", 3))}, {}, "tensor 'a\\x00b': the name holds a NUL"},
      {"name_reserved", {named("__metadata__")}, {}, "tensor '__metadata__': the name is reserved"},
      {"name_twice", {named("k"), named("q"), named("k")}, {}, "tensor 'k' is given twice"},
      {"metadata_value", {named("q")}, {{"key", "\xc3"}}, "metadata 'key': key or value is not UTF-8"},
      {"metadata_key", {named("q")}, {{"\x80", "v"}}, "metadata '\\x80': key or value is not UTF-8"},
      {"view_not_given", {viewed({})}, {}, "tensor 'q': rank 0 cannot be written (1 to 4)"},
      {"rank_5", {viewed(rank5)}, {}, "tensor 'q': rank 5 cannot be written (1 to 4)"},
      {"unknown_dtype", {viewed(unknown)}, {}, "tensor 'q': dtype number 99 does not exist"},
      {"null_data", {viewed({nullptr, DType::f32, {1}})}, {}, "tensor 'q': data is null"},
      {"negative_shape",
       {viewed({kData.data(), DType::f32, {2, -1}})},
       {},
       "tensor 'q': shape [2, -1] is negative"},
      {"overflowing_shape",
       {viewed(strided(kData.data(), DType::f32, {kHuge, 2}, {0, 0}))},
       {},
       "its size overflows 63 bits"},
      {"overflowing_sum",
       {{"a", strided(kData.data(), DType::u8, {kHuge}, {0})},
        {"b", strided(kData.data(), DType::u8, {kHuge}, {0})}},
       {},
       "tensor 'b': the tensors together overflow"},
      {"device_memory", {viewed(device)}, {}, "tensor 'q': it is in device memory"},
  };
}

TEST(Writer, WrongCallsAreRefusedAndTouchNothing) {
  for (const BadCall& call : bad_calls()) {
    const TemporaryDirectory directory;
    const std::string path = directory / "t";
    testing::write_bytes(path, "before");
    const Status s = write_safetensors(path, call.tensors, call.metadata);
    EXPECT_EQ(s.code(), StatusCode::invalid_argument) << call.name << ": " << s.message();
    EXPECT_TRUE(s.message().starts_with(path + ": ")) << s.message();
    EXPECT_NE(s.message().find(call.expected), std::string::npos) << call.name << ": " << s.message();
    EXPECT_EQ(testing::read_bytes(path), "before") << call.name;
    EXPECT_EQ(directory.names(), std::vector<std::string>{"t"}) << call.name;
  }
}

}  // namespace
}  // namespace octavo::io
