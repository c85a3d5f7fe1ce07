// Reading safetensors files: map, parse the header, check every tensor against the data.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <tuple>
#include <utility>

#include "io/safetensors.hpp"
#include "io/safetensors_format.hpp"
#include "io/safetensors_header.hpp"
#include "io/text.hpp"

namespace octavo::io {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and is read in place");

/// What the tensors of a file point into.
struct SafetensorsFile::Storage {
  Storage() = default;
  ~Storage() {
    if (mapping != MAP_FAILED) munmap(mapping, mapped_bytes);
  }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* mapping = MAP_FAILED;
  std::size_t mapped_bytes = 0;
  std::vector<std::unique_ptr<std::byte[]>> copies;  ///< tensors that the file holds at unaligned addresses
};

namespace {

// Where tensors without elements point, so that they too are aligned and not null.
alignas(8) constexpr std::array<std::byte, 8> kNothing{};

bool is_aligned(const void* data, DType dtype) {
  return reinterpret_cast<std::uintptr_t>(data) % size_of(dtype) == 0;
}

struct Layout {
  Header header;
  std::span<const std::byte> data;
};

/// Splits a file into header and data.
Result<Layout> split(std::span<const std::byte> bytes) {
  if (bytes.empty()) return io_error("the file is empty");
  const std::string size = std::to_string(bytes.size());
  if (bytes.size() < kLengthBytes) {
    return io_error("the file has " + size + " bytes, fewer than the 8 of the header length");
  }
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > kMaxHeaderBytes) {
    return io_error("header length " + std::to_string(length) + " is above the limit of " +
                    std::to_string(kMaxHeaderBytes) + " bytes; is this a safetensors file?");
  }
  if (length > bytes.size() - kLengthBytes) {
    return io_error("the header of " + std::to_string(length) + " bytes does not fit in the file of " + size +
                    " bytes");
  }
  const auto header_bytes = bytes.subspan(kLengthBytes, length);
  const std::string_view text(reinterpret_cast<const char*>(header_bytes.data()), header_bytes.size());
  Result<Header> header = parse_header(text);
  if (!header.ok()) return header.status();
  return Layout{std::move(*header), bytes.subspan(kLengthBytes + length)};
}

/// The tensor an entry describes, checked on its own.
Result<FileTensor> checked_tensor(const HeaderTensor& entry, std::span<const std::byte> data) {
  const auto wrong = [&](const std::string& what) {
    return io_error(tensor_label(entry.name) + ": " + what);
  };
  const std::optional<DType> dtype = dtype_from_file_name(entry.dtype);
  if (!dtype) {
    return unsupported(tensor_label(entry.name) + ": dtype " + in_quotes(entry.dtype) +
                       " is not supported (" + supported_dtypes() + ")");
  }
  const std::optional<std::uint64_t> bytes = byte_count(entry.shape, *dtype);
  if (!bytes) return wrong("the size of shape " + shape_text(entry.shape) + " overflows 63 bits");
  const auto [begin, end] = entry.offsets;
  const std::string offsets = "data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) + "]";
  if (begin > end) return wrong(offsets + " are reversed");
  if (end > data.size()) {
    return wrong(offsets + " go beyond the " + std::to_string(data.size()) + " bytes of data");
  }
  if (end - begin != *bytes) {
    return wrong(offsets + " hold " + std::to_string(end - begin) + " bytes, but shape " +
                 shape_text(entry.shape) + " of " + entry.dtype + " needs " + std::to_string(*bytes));
  }
  FileTensor tensor;
  tensor.name = entry.name;
  tensor.dtype = *dtype;
  tensor.shape = entry.shape;
  tensor.data = data.data() + begin;
  tensor.bytes = static_cast<std::size_t>(*bytes);
  return tensor;
}

/// The format forbids holes and overlaps: in the order of their offsets, tensors cover the data exactly.
/// Each has been checked on its own before.
Status check_coverage(const std::vector<HeaderTensor>& sorted, std::size_t data_bytes) {
  std::uint64_t covered = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const auto [begin, end] = sorted[i].offsets;
    if (begin < covered) {
      return io_error(tensor_label(sorted[i].name) + " overlaps " + tensor_label(sorted[i - 1].name) +
                      ": its data begins at " + std::to_string(begin) + ", before " +
                      std::to_string(covered));
    }
    if (begin > covered) {
      return io_error(tensor_label(sorted[i].name) + ": there is a gap of " +
                      std::to_string(begin - covered) + " bytes before its data");
    }
    covered = end;
  }
  if (covered != data_bytes) {
    return io_error("there are " + std::to_string(data_bytes - covered) + " bytes after the last tensor");
  }
  return {};
}

/// Turns what allocation may throw into a Status.
template <class Function>
Result<SafetensorsFile> without_exceptions(const Function& function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return Status{StatusCode::out_of_memory, "out of memory"};  // short enough to need no allocation
  } catch (const std::exception& error) {
    return Status{StatusCode::internal, error.what()};
  }
}

}  // namespace

bool FileTensor::aligned() const { return is_aligned(data, dtype); }

Result<TensorView> FileTensor::view() const {
  TensorView out;
  if (shape.empty() || shape.size() > out.shape.size()) {
    return invalid_argument(tensor_label(name) + ": shape " + shape_text(shape) + " has " +
                            std::to_string(shape.size()) + " dimensions; views have 1 to " +
                            std::to_string(out.shape.size()));
  }
  out.data = data;
  out.dtype = dtype;
  out.rank = static_cast<int>(shape.size());
  std::int64_t step = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    out.shape[d] = shape[d];
    out.strides[d] = step;
    step *= std::max<std::int64_t>(shape[d], 1);  // cannot overflow: byte_count has checked this product
  }
  return out;
}

const FileTensor* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::ranges::find(tensors_, name, &FileTensor::name);
  return at == tensors_.end() ? nullptr : &*at;
}

Result<SafetensorsFile> SafetensorsFile::read(std::span<const std::byte> bytes, const std::string& label,
                                              const std::shared_ptr<Storage>& storage) {
  const auto in_file = [&](const Status& s) {
    return Status{s.code(), printable(label, PATH_MAX) + ": " + s.message()};
  };
  Result<Layout> layout = split(bytes);
  if (!layout.ok()) return in_file(layout.status());
  std::vector<HeaderTensor>& entries = layout->header.tensors;
  // By name among tensors without elements, so that the order is always the same.
  std::ranges::sort(entries, {},
                    [](const HeaderTensor& t) { return std::tie(t.offsets[0], t.offsets[1], t.name); });
  SafetensorsFile file;
  file.tensors_.reserve(entries.size());
  for (const HeaderTensor& entry : entries) {
    Result<FileTensor> tensor = checked_tensor(entry, layout->data);
    if (!tensor.ok()) return in_file(tensor.status());
    file.tensors_.push_back(std::move(*tensor));
  }
  if (const Status s = check_coverage(entries, layout->data.size()); !s.ok()) return in_file(s);
  for (FileTensor& tensor : file.tensors_) {
    if (tensor.bytes == 0) {
      tensor.data = kNothing.data();
    } else if (!tensor.aligned()) {
      storage->copies.push_back(std::make_unique_for_overwrite<std::byte[]>(tensor.bytes));
      std::memcpy(storage->copies.back().get(), tensor.data, tensor.bytes);
      tensor.data = storage->copies.back().get();
    }
  }
  file.metadata_ = std::move(layout->header.metadata);
  file.storage_ = storage;
  return file;
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes, const std::string& label) {
  return without_exceptions([&] { return read(bytes, label, std::make_shared<Storage>()); });
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  return without_exceptions([&]() -> Result<SafetensorsFile> {
    const std::string name = printable(path, PATH_MAX);
    if (path.find('\0') != std::string::npos) return invalid_argument(name + ": the path holds a NUL");
    // O_NONBLOCK: opening a FIFO must fail below, not wait for a writer.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return io_error(name + ": cannot open: " + errno_text(errno));
    const std::shared_ptr<Storage> storage = std::make_shared<Storage>();
    struct stat info {};
    int error = fstat(fd, &info) == 0 ? 0 : errno;
    const bool regular = error == 0 && S_ISREG(info.st_mode);
    if (regular && info.st_size > 0) {
      const auto bytes = static_cast<std::size_t>(info.st_size);
      storage->mapping = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
      if (storage->mapping == MAP_FAILED) {
        error = errno;
      } else {
        storage->mapped_bytes = bytes;
      }
    }
    ::close(fd);  // the mapping keeps the file
    if (error != 0) return io_error(name + ": cannot read: " + errno_text(error));
    if (!regular) return io_error(name + ": is not a regular file");
    const auto* data = storage->mapped_bytes > 0 ? static_cast<const std::byte*>(storage->mapping) : nullptr;
    return read({data, storage->mapped_bytes}, path, storage);
  });
}

}  // namespace octavo::io
