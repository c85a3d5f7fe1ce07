// Tensors without copies: from an address (numpy) or through DLPack (torch, jax, ...).
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "binding.hpp"
#include "core/text.hpp"

namespace nb = nanobind;

namespace octavo::python {
namespace {

struct Name {
  const char* name;
  DType dtype;
};
constexpr Name kNames[] = {{"float32", DType::f32},  {"float16", DType::f16}, {"bfloat16", DType::bf16},
                           {"bool", DType::boolean}, {"int32", DType::i32},   {"int64", DType::i64}};

/// False: Octavo has no such dtype, and the caller says which ones fit its argument.
bool find_dtype(const std::string& name, DType& dtype) {
  for (const Name& known : kNames) {
    if (name != known.name) continue;
    dtype = known.dtype;
    return true;
  }
  return false;
}

std::string dlpack_name(const nb::dlpack::dtype& d) {
  using Code = nb::dlpack::dtype_code;
  const auto code = static_cast<Code>(d.code);
  const char* kind = code == Code::Float    ? "float"
                     : code == Code::Bfloat ? "bfloat"
                     : code == Code::Int    ? "int"
                     : code == Code::UInt   ? "uint"
                                            : nullptr;
  if (d.lanes == 1 && code == Code::Bool && d.bits == 8) return "bool";
  if (d.lanes == 1 && kind != nullptr) return concat(kind, int{d.bits});
  return concat("of DLPack code ", int{d.code}, " and ", int{d.bits}, " bits");
}

nb::dlpack::dtype dlpack_dtype(DType dtype) {
  using Code = nb::dlpack::dtype_code;
  const Code code = dtype == DType::bf16 ? Code::Bfloat : Code::Float;
  return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * size_of(dtype)), 1};
}

void set_shape(MutableTensorView& view, const std::vector<std::int64_t>& shape,
               const std::vector<std::int64_t>& strides) {
  view.rank = static_cast<int>(shape.size());
  for (std::size_t d = 0; d < shape.size(); ++d) {
    view.shape[d] = shape[d];
    view.strides[d] = strides[d];
  }
}

Tensor from_address(std::uintptr_t address, const std::string& dtype, const std::vector<std::int64_t>& shape,
                    const std::vector<std::int64_t>& strides, nb::object owner, int cuda_index) {
  if (shape.size() > 4 || strides.size() != shape.size())
    throw nb::value_error("a tensor has at most 4 dimensions and as many strides");
  Tensor t;
  t.view.data = memory_at(address);
  if (cuda_index >= 0) t.view.device = {Device::Kind::cuda, cuda_index};
  t.dtype = dtype;
  find_dtype(dtype, t.view.dtype);
  set_shape(t.view, shape, strides);
  t.owner = std::move(owner);
  return t;
}

template <class Array>
Tensor from_array(const Array& array) {
  if (array.ndim() > 4)
    throw nb::value_error(concat("it has ", array.ndim(), " dimensions; at most 4 are supported").c_str());
  Tensor t;
  t.view.data = const_cast<void*>(static_cast<const void*>(array.data()));  // NOLINT: inputs are only read
  if (array.device_type() == nb::device::cuda::value) t.view.device = {Device::Kind::cuda, array.device_id()};
  t.dtype = dlpack_name(array.dtype());
  find_dtype(t.dtype, t.view.dtype);
  const auto n = array.ndim();
  set_shape(t.view, {array.shape_ptr(), array.shape_ptr() + n}, {array.stride_ptr(), array.stride_ptr() + n});
  t.array = nb::ndarray<nb::ro>(array);
  return t;
}

/// A contiguous tensor of its own that other libraries can take over through DLPack.
nb::object allocate(const std::string& dtype, const std::vector<std::size_t>& shape) {
  DType type{};
  if (!find_dtype(dtype, type)) throw nb::value_error(concat("dtype ", dtype, " is not known").c_str());
  std::size_t bytes = size_of(type);
  for (const std::size_t n : shape) bytes *= n;
  constexpr std::size_t kAlignment = 64;  // what consumers ask for before they take memory without a copy
  void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment) / kAlignment * kAlignment);
  if (memory == nullptr) throw std::bad_alloc();
  nb::capsule owner(memory, [](void* p) noexcept { std::free(p); });
  return nb::cast(nb::ndarray<nb::array_api>(memory, shape.size(), shape.data(), owner, nullptr,
                                             dlpack_dtype(type), nb::device::cpu::value));
}

}  // namespace

void bind_tensor(nb::module_& m) {
  nb::class_<Tensor>(m, "Tensor")
      .def_static("from_address", &from_address, nb::arg("address"), nb::arg("dtype"), nb::arg("shape"),
                  nb::arg("strides"), nb::arg("owner").none(), nb::arg("cuda_index") = -1)
      .def_prop_ro(
          "cuda_index",
          [](const Tensor& t) { return t.view.device.kind == Device::Kind::cuda ? t.view.device.index : -1; })
      .def_prop_ro("dtype", [](const Tensor& t) { return t.dtype; })
      .def_prop_ro("address", [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.view.data); })
      .def_prop_ro("shape", [](const Tensor& t) {
        std::vector<std::int64_t> shape(t.view.shape.begin(), t.view.shape.begin() + t.view.rank);
        return nb::tuple(nb::cast(shape));
      });
  // noconvert: memory as it is or a TypeError, never a copy.
  m.def("from_dlpack", &from_array<nb::ndarray<nb::ro>>, nb::arg("array").noconvert());
  m.def("from_dlpack_writable", &from_array<nb::ndarray<>>, nb::arg("array").noconvert());
  m.def("allocate", &allocate, nb::arg("dtype"), nb::arg("shape"));
}

}  // namespace octavo::python
