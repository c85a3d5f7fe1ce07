// The module, measures, and how a Status becomes an exception. The GIL is released wherever work is done.
#include "binding.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "cpu/parallel.hpp"
#if OCTAVO_HAS_CUDA
#include "cuda/runtime.hpp"
#endif

namespace nb = nanobind;

namespace octavo::python {
namespace {

/// For the benchmark: the SM clock right after the work on a stream of the current device.
double sm_clock_hz([[maybe_unused]] std::uintptr_t stream) {
#if OCTAVO_HAS_CUDA
  Result<double> clock = [&] {
    nb::gil_scoped_release released;
    return cuda::measure_sm_clock(static_cast<cudaStream_t>(memory_at(stream)));
  }();
  return value_or_raise(std::move(clock));
#else
  raise_unless_ok(unsupported("this build of Octavo has no CUDA"));
  return 0.0;
#endif
}

using Measures = std::tuple<double, double, double, double, double>;
Measures as_tuple(const ErrorMeasures& m) {
  return {m.relative_l1, m.relative_l2, m.cossim, m.rmse, m.max_abs};
}

std::tuple<Measures, std::vector<Measures>, std::int64_t> compare_call(const Tensor& out,
                                                                       const Tensor& reference, int layout) {
  Result<Comparison> result = [&] {
    nb::gil_scoped_release released;
    return compare(out.view, reference.view, static_cast<Layout>(layout));
  }();
  const Comparison c = value_or_raise(std::move(result));
  std::vector<Measures> heads;
  for (const ErrorMeasures& m : c.heads) heads.push_back(as_tuple(m));
  return {as_tuple(c.all), heads, c.worst_head};
}

}  // namespace

void raise_unless_ok(const Status& status) {
  PyObject* type = nullptr;
  switch (status.code()) {
    case StatusCode::ok:
      return;
    case StatusCode::invalid_argument:
      type = PyExc_ValueError;
      break;
    case StatusCode::unsupported:
      type = PyExc_NotImplementedError;
      break;
    case StatusCode::io_error:
      type = PyExc_OSError;
      break;
    case StatusCode::out_of_memory:
      type = PyExc_MemoryError;
      break;
    case StatusCode::internal:
      type = PyExc_RuntimeError;
      break;
  }
  PyErr_SetString(type, status.message().c_str());
  throw nb::python_error();
}

}  // namespace octavo::python

NB_MODULE(_octavo, m) {
  using namespace octavo;          // NOLINT(google-build-using-namespace): one module, one namespace
  using namespace octavo::python;  // NOLINT(google-build-using-namespace)
  m.doc() = "Octavo's extension module; use the package `octavo`.";
  bind_tensor(m);
  bind_recipe(m);
  bind_plan(m);

  m.def("compare", &compare_call, nb::arg("out"), nb::arg("reference"), nb::arg("layout"));
  m.def("kernels", [] {
    std::vector<std::tuple<std::string, std::string, std::string, std::string, std::string, bool>> list;
    for (const KernelInfo& k : kernels())
      list.emplace_back(k.name, k.backend, k.tier, k.file, k.summary, k.available);
    return list;
  });
  m.def("sm_clock_hz", &sm_clock_hz, nb::arg("stream"));
  m.def("default_threads", &cpu::default_threads);
  m.def("version", [] { return std::string(version()); });
}
