// Tensors are looked at, never owned: pointer, dtype, shape and 64-bit strides in elements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "octavo/export.hpp"

namespace octavo {

enum class DType : std::uint8_t { f32, f16, bf16, e4m3, i8, u8, i32, i64, boolean };

/// Bytes of one element.
OCTAVO_API std::size_t size_of(DType dtype);
/// "f32", "f16", ...
OCTAVO_API const char* to_string(DType dtype);

struct Device {
  enum class Kind : std::uint8_t { cpu, cuda } kind = Kind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

/// How the caller lays out q, k and v.
enum class Layout : std::uint8_t {
  hnd,  ///< [batch, heads, tokens, head_dim]
  nhd,  ///< [batch, tokens, heads, head_dim]
  thd,  ///< packed: [tokens, heads, head_dim], sequences given by cu_seqlens
};
OCTAVO_API const char* to_string(Layout layout);

/// A view of up to four dimensions. Strides count elements, may be any value (0 repeats a dimension), and
/// 64-bit arithmetic is used throughout, so slices of a packed qkv buffer and storage offsets (folded into
/// `data`) need no copy.
template <class Pointer>
struct BasicTensorView {
  Pointer data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<std::int64_t, 4> shape{};
  std::array<std::int64_t, 4> strides{};
  Device device{};

  BasicTensorView() = default;

  /// A contiguous (row-major) view.
  BasicTensorView(Pointer pointer, DType type, std::initializer_list<std::int64_t> dims, Device where = {})
      : data(pointer), dtype(type), rank(static_cast<int>(dims.size())), device(where) {
    std::size_t i = 0;
    for (const std::int64_t n : dims) shape[i++] = n;
    std::int64_t step = 1;
    for (std::size_t d = dims.size(); d-- > 0;) {
      strides[d] = step;
      step *= shape[d] > 0 ? shape[d] : 1;
    }
  }

  /// A mutable view can be read wherever a view is asked for, as T* converts to const T*.
  template <class Other>
  requires(!std::is_same_v<Other, Pointer> && std::is_convertible_v<Other, Pointer>)
      // NOLINTNEXTLINE(google-explicit-constructor)
      BasicTensorView(const BasicTensorView<Other>& other)
      : data(other.data),
        dtype(other.dtype),
        rank(other.rank),
        shape(other.shape),
        strides(other.strides),
        device(other.device) {}

  [[nodiscard]] bool empty() const {
    return rank == 0;
  }  ///< "not given", as opposed to a tensor without elements
  [[nodiscard]] std::int64_t elements() const {
    std::int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= shape[static_cast<std::size_t>(d)];
    return n;
  }
};

using TensorView = BasicTensorView<const void*>;
using MutableTensorView = BasicTensorView<void*>;

}  // namespace octavo
