// What a valid safetensors file gives: every dtype, any rank, aligned data, order, metadata, lifetime, use
// from threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "io/safetensors.hpp"
#include "io/test_files.hpp"

namespace octavo::io {
namespace {

using testing::as_bytes;
using testing::file_of;
using testing::TemporaryDirectory;

Result<SafetensorsFile> parse(const std::string& bytes) {
  return SafetensorsFile::parse(as_bytes(bytes), "memory");
}

TEST(Reader, KnowsEveryDTypeAndItsBytes) {
  const std::vector<std::pair<std::string, DType>> dtypes = {
      {"I64", DType::i64},   {"F32", DType::f32}, {"I32", DType::i32},
      {"BF16", DType::bf16}, {"F16", DType::f16}, {"F8_E4M3", DType::e4m3},
      {"I8", DType::i8},     {"U8", DType::u8},   {"BOOL", DType::boolean}};
  for (const auto& [name, dtype] : dtypes) {
    const std::size_t bytes = 6 * size_of(dtype);
    std::string data;
    for (std::size_t i = 0; i < bytes; ++i) data += static_cast<char>(i + 1);
    const std::string text = file_of(
        R"({"t":{"dtype":")" + name + R"(","shape":[2,3],"data_offsets":[0,)" + std::to_string(bytes) + "]}}",
        data);
    const auto file = parse(text);
    ASSERT_TRUE(file.ok()) << file.status().message();
    const FileTensor* tensor = file->find("t");
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->dtype, dtype) << name;
    EXPECT_EQ(tensor->bytes, bytes);
    EXPECT_EQ(std::memcmp(tensor->data, data.data(), bytes), 0) << name;
    const auto view = tensor->view();
    ASSERT_TRUE(view.ok());
    EXPECT_EQ(view->rank, 2);
    EXPECT_EQ(view->shape[1], 3);
    EXPECT_EQ(view->strides[0], 3);
    EXPECT_EQ(view->strides[1], 1);
    EXPECT_EQ(view->dtype, dtype);
    EXPECT_EQ(view->data, tensor->data);
  }
}

TEST(Reader, ListsTensorsInTheOrderOfTheDataAndFindsThemByName) {
  const std::string text = file_of(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)"
                                   R"("é":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                                   R"("none":{"dtype":"F32","shape":[7,0],"data_offsets":[2,2]},)"
                                   R"("":{"shape":[1],"data_offsets":[3,4],"dtype":"U8"}})",
                                   "wxyz");
  const auto file = parse(text);
  ASSERT_TRUE(file.ok()) << file.status().message();
  std::vector<std::string> names;
  for (const FileTensor& tensor : file->tensors()) names.push_back(tensor.name);
  EXPECT_EQ(names, (std::vector<std::string>{"é", "none", "b", ""}));
  ASSERT_NE(file->find("b"), nullptr);
  EXPECT_EQ(*static_cast<const char*>(file->find("b")->data), 'y');
  EXPECT_EQ(*static_cast<const char*>(file->find("")->data), 'z');
  EXPECT_EQ(file->find("c"), nullptr);
}

TEST(Reader, TensorsWithoutElementsAreFine) {
  const std::string text = file_of(R"({"a":{"dtype":"I64","shape":[0],"data_offsets":[0,0]},)"
                                   R"("b":{"dtype":"F32","shape":[3,0,2],"data_offsets":[0,0]}})");
  const auto file = parse(text);
  ASSERT_TRUE(file.ok()) << file.status().message();
  for (const FileTensor& tensor : file->tensors()) {
    EXPECT_NE(tensor.data, nullptr);
    EXPECT_TRUE(tensor.aligned());
    ASSERT_TRUE(tensor.view().ok());
    EXPECT_EQ(tensor.view()->elements(), 0);
  }
}

TEST(Reader, ViewsHaveOneToFourDimensions) {
  const std::string text = file_of(R"({"scalar":{"dtype":"U8","shape":[],"data_offsets":[0,1]},)"
                                   R"("four":{"dtype":"U8","shape":[1,1,1,1],"data_offsets":[1,2]},)"
                                   R"("five":{"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[2,3]}})",
                                   "xyz");
  const auto file = parse(text);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_TRUE(file->find("four")->view().ok());
  EXPECT_EQ(*static_cast<const char*>(file->find("five")->data), 'z') << "the data is there all the same";
  const Status five = file->find("five")->view().status();
  EXPECT_EQ(five.code(), StatusCode::invalid_argument);
  EXPECT_EQ(five.message(), "tensor 'five': shape [1, 1, 1, 1, 1] has 5 dimensions; views have 1 to 4");
  EXPECT_EQ(file->find("scalar")->view().status().code(), StatusCode::invalid_argument)
      << "a view of rank 0 would read as 'not given'";
}

TEST(Reader, DataIsAlignedWhateverTheFileDoes) {
  // A one-byte tensor in front and headers of every length modulo 8 shift what follows to every address
  // modulo 8.
  const float expected_f32 = 1.5F;
  const std::int64_t expected_i64 = -77;
  std::string data = "x";
  data.append(reinterpret_cast<const char*>(&expected_f32), 4);
  data.append(reinterpret_cast<const char*>(&expected_i64), 8);
  for (std::size_t pad = 0; pad < 8; ++pad) {
    const std::string header = R"({"u":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                               R"("f":{"dtype":"F32","shape":[1],"data_offsets":[1,5]},)"
                               R"("i":{"dtype":"I64","shape":[1],"data_offsets":[5,13]}})" +
                               std::string(pad, ' ');
    const TemporaryDirectory directory;
    testing::write_bytes(directory / "t", file_of(header, data));
    const auto file = SafetensorsFile::open(directory / "t");
    ASSERT_TRUE(file.ok()) << file.status().message();
    for (const FileTensor& tensor : file->tensors())
      EXPECT_TRUE(tensor.aligned()) << tensor.name << " pad " << pad;
    EXPECT_EQ(*static_cast<const float*>(file->find("f")->data), expected_f32);
    EXPECT_EQ(*static_cast<const std::int64_t*>(file->find("i")->data), expected_i64);
  }
}

TEST(Reader, AlignedDataIsNotCopied) {
  alignas(8) std::array<char, 96> buffer{};
  std::string text =
      file_of(R"({"f":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}  )", "\x01\x02\x03\x04");
  ASSERT_EQ(text.size() % 4, 0U);
  ASSERT_LE(text.size(), buffer.size());
  std::memcpy(buffer.data(), text.data(), text.size());
  const auto file = SafetensorsFile::parse(as_bytes({buffer.data(), text.size()}), "memory");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->find("f")->data, buffer.data() + text.size() - 4);
}

TEST(FileTensor, AlignedTellsTheTruth) {
  alignas(8) const std::array<std::byte, 16> bytes{};
  FileTensor tensor;
  for (const DType dtype : {DType::i8, DType::f16, DType::f32, DType::i64}) {
    for (std::size_t shift = 0; shift < 8; ++shift) {
      tensor.dtype = dtype;
      tensor.data = bytes.data() + shift;
      EXPECT_EQ(tensor.aligned(), shift % size_of(dtype) == 0) << to_string(dtype) << " + " << shift;
    }
  }
}

TEST(Reader, MetadataIsAMapOfStrings) {
  const std::string text = file_of(R"({"__metadata__":{"layout":"hnd","dtype":"\u00e9\n","":""}})");
  const auto file = parse(text);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->metadata(),
            (std::map<std::string, std::string>{{"layout", "hnd"}, {"dtype", "é\n"}, {"", ""}}));
  EXPECT_TRUE(file->tensors().empty());
  EXPECT_EQ(file->find("__metadata__"), nullptr);
}

TEST(Reader, CopiesKeepTheDataAliveAfterTheFileIsGone) {
  const TemporaryDirectory directory;
  const std::string path = directory / "t";
  testing::write_bytes(path, file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "abcd"));
  SafetensorsFile kept;
  {
    const auto file = SafetensorsFile::open(path);
    ASSERT_TRUE(file.ok());
    kept = *file;
  }
  std::filesystem::remove(path);
  EXPECT_EQ(std::memcmp(kept.find("a")->data, "abcd", 4), 0);
}

TEST(Reader, ManyThreadsReadOneFile) {
  const TemporaryDirectory directory;
  std::string data(1 << 16, '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 + 1);
  testing::write_bytes(directory / "t",
                       file_of(R"({"a":{"dtype":"F32","shape":[16384],"data_offsets":[0,65536]}} )", data));
  const auto shared = SafetensorsFile::open(directory / "t");
  ASSERT_TRUE(shared.ok());
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const auto own = SafetensorsFile::open(directory / "t");
        const FileTensor* a = own.ok() ? own->find("a") : nullptr;
        const FileTensor* b = shared->find("a");
        if (a != nullptr && b != nullptr && std::memcmp(a->data, data.data(), data.size()) == 0 &&
            std::memcmp(b->data, data.data(), data.size()) == 0) {
          ++right;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 8 * 50);
}

}  // namespace
}  // namespace octavo::io
