// What the files of the extension share: a borrowed tensor, and how a Status becomes a Python exception.
//
// The extension is private: it takes what python/octavo/*.py has prepared, and adds no behaviour of its own.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "octavo/octavo.hpp"

namespace octavo::python {

/// A view of somebody's memory and what keeps that alive: the object itself, or what it gave us through
/// DLPack.
struct Tensor {
  MutableTensorView view;
  std::string dtype;  ///< in Python's words; view.dtype is only meaningful for the dtypes Octavo knows
  nanobind::object owner;
  nanobind::ndarray<nanobind::ro> array;
};

/// Memory that Python lends for the length of a call, or with its owner for longer.
inline void* memory_at(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): Python gives a number
}

/// ValueError, NotImplementedError, OSError, MemoryError or RuntimeError; returns if the status is ok.
void raise_unless_ok(const Status& status);

template <class T>
T value_or_raise(Result<T> result) {
  raise_unless_ok(result.status());
  return std::move(*result);
}

void bind_tensor(nanobind::module_& m);
void bind_recipe(nanobind::module_& m);
void bind_plan(nanobind::module_& m);

}  // namespace octavo::python
