// Writing safetensors files: check, lay out, then stream the elements in row-major order.
#include <algorithm>
#include <array>
#include <climits>
#include <exception>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "io/safetensors.hpp"
#include "io/safetensors_format.hpp"
#include "io/safetensors_header.hpp"
#include "io/text.hpp"

namespace octavo::io {
namespace {

std::span<const std::int64_t> shape_of(const TensorView& view) {
  return {view.shape.data(), static_cast<std::size_t>(view.rank)};
}

Status check_name(const std::string& name) {
  if (const auto at = first_invalid_utf8(name)) {
    return invalid_argument(tensor_label(name) + ": the name is not UTF-8 (at byte " +
                            std::to_string(*at + 1) + ")");
  }
  if (name.find('\0') != std::string::npos) {
    return invalid_argument(tensor_label(name) + ": the name holds a NUL");
  }
  if (name == kMetadataKey)
    return invalid_argument(tensor_label(name) + ": the name is reserved for metadata");
  return {};
}

/// Bytes of a tensor that can be written.
Result<std::uint64_t> checked_bytes(const NamedTensor& tensor) {
  const TensorView& view = tensor.view;
  const auto wrong = [&](const std::string& what) {
    return invalid_argument(tensor_label(tensor.name) + ": " + what);
  };
  if (view.rank < 1 || view.rank > static_cast<int>(view.shape.size())) {
    return wrong("rank " + std::to_string(view.rank) + " cannot be written (1 to 4)");
  }
  if (layout_rank(view.dtype) == kDTypeNames.size()) {
    return wrong("dtype number " + std::to_string(static_cast<int>(view.dtype)) + " does not exist");
  }
  if (view.device.kind != Device::Kind::cpu)
    return wrong("it is in device memory; copy it to the host first");
  const std::optional<std::uint64_t> bytes = byte_count(shape_of(view), view.dtype);
  if (!bytes) {
    return wrong("shape " + shape_text(shape_of(view)) + " is negative or its size overflows 63 bits");
  }
  if (*bytes > 0 && view.data == nullptr) return wrong("data is null");
  return *bytes;
}

struct Entry {
  const NamedTensor* tensor = nullptr;
  std::uint64_t bytes = 0;
};

/// The tensors in the order of the file, if all of them can be written.
Result<std::vector<Entry>> layout(std::span<const NamedTensor> tensors) {
  std::vector<Entry> entries;
  std::set<std::string_view> names;
  std::uint64_t total = 0;
  for (const NamedTensor& tensor : tensors) {
    if (Status s = check_name(tensor.name); !s.ok()) return s;
    const Result<std::uint64_t> bytes = checked_bytes(tensor);
    if (!bytes.ok()) return bytes.status();
    if (!names.insert(tensor.name).second) {
      return invalid_argument(tensor_label(tensor.name) + " is given twice");
    }
    total += *bytes;  // both terms are below 2^63
    if (total > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return invalid_argument(tensor_label(tensor.name) + ": the tensors together overflow 63 bits");
    }
    entries.push_back({&tensor, *bytes});
  }
  std::ranges::sort(entries, {}, [](const Entry& e) {
    return std::tuple<std::size_t, std::string_view>(layout_rank(e.tensor->view.dtype), e.tensor->name);
  });
  return entries;
}

Status check_metadata(const std::map<std::string, std::string>& metadata) {
  for (const auto& [key, value] : metadata) {
    if (first_invalid_utf8(key) || first_invalid_utf8(value)) {
      return invalid_argument("metadata " + in_quotes(key) + ": key or value is not UTF-8");
    }
  }
  return {};
}

std::string json_string(std::string_view text) { return nlohmann::json(text).dump(); }

/// The header, padded with spaces so that data begins on 8 bytes.
std::string header_text(const std::vector<Entry>& entries,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  const auto separate = [&] {
    if (text.back() != '{') text += ',';
  };
  if (!metadata.empty()) {
    text += json_string(kMetadataKey) + ":{";
    for (const auto& [key, value] : metadata) {
      separate();
      text += json_string(key) + ":" + json_string(value);
    }
    text += '}';
  }
  std::uint64_t begin = 0;
  for (const Entry& entry : entries) {
    const TensorView& view = entry.tensor->view;
    const std::uint64_t end = begin + entry.bytes;
    separate();
    text += json_string(entry.tensor->name) + R"(:{"dtype":")" + std::string(file_name_of(view.dtype)) +
            R"(","shape":)" + nlohmann::json(shape_of(view)).dump() + R"(,"data_offsets":[)" +
            std::to_string(begin) + "," + std::to_string(end) + "]}";
    begin = end;
  }
  text += '}';
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  return text;
}

/// Writes the elements of `view` in row-major order. The trailing dimensions that lie next to each other go
/// out in one piece.
Status append_elements(Sink& sink, const TensorView& view) {
  const std::int64_t element = static_cast<std::int64_t>(size_of(view.dtype));
  const auto shape = shape_of(view);
  if (std::ranges::find(shape, 0) != shape.end()) return {};
  std::size_t outer = shape.size();
  std::int64_t run = 1;
  while (outer > 0 && (shape[outer - 1] == 1 || view.strides[outer - 1] == run)) run *= shape[--outer];

  const auto* base = static_cast<const std::byte*>(view.data);
  std::array<std::int64_t, 4> index{};
  for (;;) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < outer; ++d) offset += index[d] * view.strides[d];
    if (Status s = sink.append(base + offset * element, static_cast<std::size_t>(run * element)); !s.ok())
      return s;
    std::size_t d = outer;
    while (d > 0 && ++index[d - 1] == shape[d - 1]) index[--d] = 0;
    if (d == 0) return {};
  }
}

Status write_checked(const std::string& path, std::span<const NamedTensor> tensors,
                     const std::map<std::string, std::string>& metadata) {
  const auto in_file = [&](const Status& s) {
    return Status{s.code(), printable(path, PATH_MAX) + ": " + s.message()};
  };
  const Result<std::vector<Entry>> entries = layout(tensors);
  if (!entries.ok()) return in_file(entries.status());
  if (const Status s = check_metadata(metadata); !s.ok()) return in_file(s);
  const std::string header = header_text(*entries, metadata);
  if (header.size() > kMaxHeaderBytes) {
    return in_file(invalid_argument("the header of " + std::to_string(header.size()) +
                                    " bytes is above the format's limit of " +
                                    std::to_string(kMaxHeaderBytes)));
  }
  return write_atomically(path, [&](Sink& sink) -> Status {
    const std::uint64_t length = header.size();
    if (Status s = sink.append(&length, kLengthBytes); !s.ok()) return s;
    if (Status s = sink.append(header.data(), header.size()); !s.ok()) return s;
    for (const Entry& entry : *entries) {
      if (Status s = append_elements(sink, entry.tensor->view); !s.ok()) return s;
    }
    return {};
  });
}

}  // namespace

Status write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                         const std::map<std::string, std::string>& metadata) {
  try {
    return write_checked(path, tensors, metadata);
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "out of memory"};  // short enough to need no allocation
  } catch (const std::exception& error) {
    return {StatusCode::internal, error.what()};
  }
}

}  // namespace octavo::io
