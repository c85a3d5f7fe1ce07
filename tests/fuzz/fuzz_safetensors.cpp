// libFuzzer target for the safetensors reader: any bytes give either a Status or a file whose every byte can
// be read.
//
// Checked beyond "no crash": messages are one line of UTF-8, views cover their data exactly, elements can be
// read through a pointer of their type, and a file that is accepted survives being described again (names
// found, order of the data, metadata).
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "io/safetensors.hpp"
#include "io/text.hpp"

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz_safetensors: does not hold: %s\n", what);
  std::abort();
}

/// Sums elements through a typed pointer, so that the sanitizers see alignment and bounds.
template <class T>
std::uint64_t sum(const octavo::TensorView& view) {
  const auto* data = static_cast<const T*>(view.data);
  std::uint64_t total = 0;
  for (std::int64_t i = 0; i < view.elements(); ++i) total += static_cast<std::uint64_t>(data[i]);
  return total;
}

std::uint64_t touch(const octavo::TensorView& view) {
  switch (octavo::size_of(view.dtype)) {
    case 1:
      return sum<std::uint8_t>(view);
    case 2:
      return sum<std::uint16_t>(view);
    case 4:
      return sum<std::uint32_t>(view);
    default:
      return sum<std::uint64_t>(view);
  }
}

std::uint64_t touch(const octavo::io::FileTensor& tensor) {
  require(tensor.data != nullptr && tensor.aligned(), "data is aligned");
  const octavo::Result<octavo::TensorView> view = tensor.view();
  if (view.ok()) {
    const auto bytes = static_cast<std::uint64_t>(view->elements()) * octavo::size_of(view->dtype);
    require(bytes == tensor.bytes, "a view covers the data of its tensor");
    return touch(*view);
  }
  require(tensor.shape.empty() || tensor.shape.size() > 4, "ranks 1 to 4 have a view");
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < tensor.bytes; ++i) total += static_cast<const std::uint8_t*>(tensor.data)[i];
  return total;
}

}  // namespace

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

/// Half of the mutants get a header length that ends at the last brace: otherwise each insertion into the
/// header cuts its JSON off and the checks behind the parser are hardly ever reached.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned int seed) {
  constexpr std::size_t kLength = 8;
  size = LLVMFuzzerMutate(data, size, max_size);
  if (size < kLength || seed % 2 == 0) return size;
  std::uint64_t end = size;
  while (end > kLength && data[end - 1] != '}') --end;
  const std::uint64_t length = end - kLength;
  std::memcpy(data, &length, kLength);
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file =
      octavo::io::SafetensorsFile::parse({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
  if (!file.ok()) {
    const std::string message = file.status().message();
    require(message.starts_with("fuzz: "), "a message names the file");
    require(message.find('\n') == std::string::npos, "a message is one line");
    require(!octavo::io::first_invalid_utf8(message), "a message is UTF-8");
    require(file.status().code() == octavo::StatusCode::io_error ||
                file.status().code() == octavo::StatusCode::unsupported,
            "bad bytes are io_error or unsupported");
    return 0;
  }
  volatile std::uint64_t total = 0;  // volatile: the reads must happen
  std::size_t tensor_bytes = 0;
  for (const octavo::io::FileTensor& tensor : file->tensors()) {
    total = total + touch(tensor);
    tensor_bytes += tensor.bytes;
    require(file->find(tensor.name) == &tensor, "names are unique and found");
  }
  require(tensor_bytes + 8 <= size, "tensors are not larger than the file");
  return 0;
}
