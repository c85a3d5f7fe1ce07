// The module: options, plans, quantized tensors, measures. The GIL is released wherever work is done.
#include "binding.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "cpu/parallel.hpp"

namespace nb = nanobind;

namespace octavo::python {
namespace {

/// Everything of a call besides tensors and recipe, with the objects whose memory it looks at.
struct Options {
  AttentionOptions attention;
  std::vector<Tensor> owners;

  void set(TensorView& view, const std::optional<Tensor>& tensor) {
    if (!tensor.has_value()) return;
    view = tensor->view;
    owners.push_back(*tensor);
  }
};

Options make_options(int layout, int causal, std::pair<std::int64_t, std::int64_t> window,
                     std::optional<double> scale, const std::optional<Tensor>& kv_lengths,
                     const std::optional<Tensor>& cu_seqlens_q, const std::optional<Tensor>& cu_seqlens_k,
                     const std::optional<Tensor>& mask, const std::optional<Tensor>& bias,
                     const std::optional<Tensor>& q_absmax, bool check_finite, int threads) {
  Options o;
  o.attention.layout = static_cast<Layout>(layout);
  o.attention.causal = static_cast<Causal>(causal);
  o.attention.window = {window.first, window.second};
  if (scale.has_value()) o.attention.scale = static_cast<float>(*scale);
  o.set(o.attention.kv_lengths, kv_lengths);
  o.set(o.attention.cu_seqlens_q, cu_seqlens_q);
  o.set(o.attention.cu_seqlens_k, cu_seqlens_k);
  o.set(o.attention.mask, mask);
  o.set(o.attention.bias, bias);
  o.set(o.attention.q_absmax, q_absmax);
  o.attention.check_finite = check_finite;
  o.attention.threads = threads;
  return o;
}

/// A plan and what it looks at.
struct PlanHandle {
  Plan plan;
  std::vector<Tensor> owners;
};

PlanHandle make_plan(const Tensor& q, const Tensor& k, const Tensor& v, const Recipe& recipe,
                     const Options& options, const std::string& kernel) {
  Result<Plan> made = [&]() -> Result<Plan> {
    nb::gil_scoped_release released;
    Result<Problem> problem = make_problem(q.view, k.view, v.view, options.attention);
    if (!problem.ok()) return problem.status();
    return plan(*problem, recipe, {kernel});
  }();
  return {value_or_raise(std::move(made)), options.owners};
}

MutableTensorView view_of(const std::optional<Tensor>& t) {
  return t.has_value() ? t->view : MutableTensorView{};
}

void quantize_kv(const PlanHandle& p, const Tensor& k, const Tensor& v, QuantizedKv& kv) {
  Status s;
  {
    nb::gil_scoped_release released;
    s = p.plan.quantize_kv(k.view, v.view, kv);
  }
  raise_unless_ok(s);
}

void attend(const PlanHandle& p, const Tensor& q, const QuantizedKv& kv, const Tensor& out,
            const std::optional<Tensor>& lse) {
  Status s;
  {
    nb::gil_scoped_release released;
    QuantizedQ qq;
    s = p.plan.quantize_q(q.view, kv, qq);
    if (s.ok()) s = p.plan.attend(qq, kv, out.view, view_of(lse));
  }
  raise_unless_ok(s);
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

  nb::class_<Options>(m, "Options");
  m.def("make_options", &make_options, nb::arg("layout"), nb::arg("causal"), nb::arg("window"),
        nb::arg("scale").none(), nb::arg("kv_lengths").none(), nb::arg("cu_seqlens_q").none(),
        nb::arg("cu_seqlens_k").none(), nb::arg("mask").none(), nb::arg("bias").none(),
        nb::arg("q_absmax").none(), nb::arg("check_finite"), nb::arg("threads"));

  nb::class_<QuantizedKv>(m, "QuantizedKv")
      .def(nb::init<>())
      .def_prop_ro("nbytes", [](const QuantizedKv& kv) { return kv.bytes(); })
      .def_prop_ro("address",
                   [](const QuantizedKv& kv) { return reinterpret_cast<std::uintptr_t>(kv.data()); })
      .def("heads", [](const QuantizedKv& kv, std::int64_t first, std::int64_t count) {
        return value_or_raise(kv.heads(first, count));
      });

  nb::class_<PlanHandle>(m, "Plan")
      .def_prop_ro("kernel", [](const PlanHandle& p) { return p.plan.kernel_name(); })
      .def_prop_ro("reason", [](const PlanHandle& p) { return p.plan.reason(); })
      .def_prop_ro("recipe", [](const PlanHandle& p) { return p.plan.recipe(); })
      .def("quantize_kv", &quantize_kv, nb::arg("k"), nb::arg("v"), nb::arg("kv"))
      .def("attend", &attend, nb::arg("q"), nb::arg("kv"), nb::arg("out"), nb::arg("lse").none());
  m.def("make_plan", &make_plan, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("recipe"),
        nb::arg("options"), nb::arg("kernel"));
  m.def("compare", &compare_call, nb::arg("out"), nb::arg("reference"), nb::arg("layout"));
  m.def("kernels", [] {
    std::vector<std::tuple<std::string, std::string, std::string, std::string, std::string, bool>> list;
    for (const KernelInfo& k : kernels())
      list.emplace_back(k.name, k.backend, k.tier, k.file, k.summary, k.available);
    return list;
  });
  m.def("default_threads", &cpu::default_threads);
  m.def("version", [] { return std::string(version()); });
}
