// safetensors files: 8-byte little-endian header length, JSON header, raw data.
//
// Reading maps the file and hands out views; every number of the header is checked before it is used, so a
// hostile file costs one clear error. Writing goes to a temporary name beside the target and is renamed when
// complete: no half-written file is ever seen. No function here throws; allocation failures come back as
// StatusCode::out_of_memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/atomic_file.hpp"  // IWYU pragma: export
#include "octavo/status.hpp"
#include "octavo/tensor.hpp"

namespace octavo::io {

/// One tensor of a file; any rank up to 64, since a file may hold more than attention tensors. Row-major.
struct FileTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  /// Valid as long as a SafetensorsFile (or a copy of it) lives. Booleans are bytes as the file has them, not
  /// always 0 or 1: read them as std::uint8_t.
  const void* data = nullptr;
  std::size_t bytes = 0;

  /// Whether `data` may be read through a pointer to the element type. True for every tensor of a
  /// SafetensorsFile.
  [[nodiscard]] bool aligned() const;

  /// As a view; invalid_argument when the rank is above 4, or 0 (a view of rank 0 means "not given").
  [[nodiscard]] Result<TensorView> view() const;
};

/// A checked file. Copies are cheap and share the data; const members may be called from several threads.
///
/// The format aligns nothing: an odd header length or a one-byte tensor in front shifts all that follows.
/// Tensors that are aligned to their element size are views into the file, the others are copied to aligned
/// memory when the file is read.
///
/// The file is mapped, not copied: whoever truncates it in place while it is in use makes reads fail with
/// SIGBUS. Files replaced by rename, as write_safetensors does, are safe, also when the file that is read is
/// the one being replaced.
class SafetensorsFile {
 public:
  /// Maps and checks a file. Errors name the file and what is wrong with it: unsupported for a dtype that
  /// octavo has no name for, else io_error.
  static Result<SafetensorsFile> open(const std::string& path);
  /// Checks bytes in memory (not copied: they must outlive the object). `label` stands for the file's name in
  /// errors.
  static Result<SafetensorsFile> parse(std::span<const std::byte> bytes, const std::string& label);

  [[nodiscard]] const std::vector<FileTensor>& tensors() const {
    return tensors_;
  }                                                                   ///< in the order of the data
  [[nodiscard]] const FileTensor* find(std::string_view name) const;  ///< nullptr when absent
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  struct Storage;
  static Result<SafetensorsFile> read(std::span<const std::byte> bytes, const std::string& label,
                                      const std::shared_ptr<Storage>& storage);

  std::shared_ptr<const Storage> storage_;
  std::vector<FileTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// What to write: data may be strided, it is written row-major.
struct NamedTensor {
  std::string name;
  TensorView view;
};

/// Writes tensors (host memory, rank 1 to 4, any strides) as one file, atomically: see write_atomically for
/// what may be a target and what happens on failure. Tensors are laid out as the reference implementation
/// does, by dtype (widest alignment first), then by name, and the header is padded to 8 bytes, so data is
/// aligned. invalid_argument: a name that is not UTF-8, holds NUL, is
/// "__metadata__" or is given twice; metadata that is not UTF-8; a view of rank 0, of device memory, without
/// data, or with a negative or overflowing shape. io_error: the file cannot be written.
Status write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                         const std::map<std::string, std::string>& metadata = {});

}  // namespace octavo::io
