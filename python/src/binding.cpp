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
#if OCTAVO_HAS_CUDA
#include "cuda/runtime.hpp"
#endif

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
                     const std::optional<Tensor>& q_absmax, std::optional<bool> check_finite, int threads) {
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
  if (check_finite.has_value()) o.attention.check_finite = *check_finite;
  o.attention.threads = threads;
  return o;
}

/// A plan and what it looks at.
struct PlanHandle {
  Plan plan;
  std::vector<Tensor> owners;
};

PlanHandle make_plan(const Tensor& q, const Tensor& k, const Tensor& v, const Recipe& recipe,
                     const Options& options, const std::string& kernel, std::uintptr_t stream) {
  Result<Plan> made = [&]() -> Result<Plan> {
    nb::gil_scoped_release released;
    Result<Problem> problem = make_problem(q.view, k.view, v.view, options.attention, memory_at(stream));
    if (!problem.ok()) return problem.status();
    return plan(*problem, recipe, {kernel});
  }();
  return {value_or_raise(std::move(made)), options.owners};
}

/// Tensor-map hardware reads quantized buffers at 1024-byte boundaries; what follows one starts there too.
std::size_t aligned(std::size_t bytes) {
  constexpr std::size_t kAlignment = 1024;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// What `run` needs.
std::size_t bytes_of_run(const PlanHandle& p) {
  return aligned(p.plan.kv_bytes()) + aligned(p.plan.q_bytes()) + aligned(p.plan.workspace_bytes());
}

MutableTensorView view_of(const std::optional<Tensor>& t) {
  return t.has_value() ? t->view : MutableTensorView{};
}

/// Quantized K and V with whoever owns their memory, if that is not the buffer itself.
struct KvHandle {
  QuantizedKv kv;
  nb::object owner = nb::none();
};

/// Memory of the caller: address and bytes, 0 and 0 for "allocate inside".
using Memory = std::pair<std::uintptr_t, std::size_t>;

template <class Quantized>
Quantized wrap(const Memory& memory) {
  return memory.first == 0 ? Quantized() : Quantized(memory_at(memory.first), memory.second);
}

void quantize_kv(const PlanHandle& p, const Tensor& k, const Tensor& v, KvHandle& kv, std::uintptr_t stream) {
  Status s;
  {
    nb::gil_scoped_release released;
    s = p.plan.quantize_kv(k.view, v.view, kv.kv, memory_at(stream));
  }
  raise_unless_ok(s);
}

QuantizedQ quantize_q(const PlanHandle& p, const Tensor& q, const KvHandle& kv, const Memory& memory,
                      std::uintptr_t stream) {
  auto qq = wrap<QuantizedQ>(memory);
  Status s;
  {
    nb::gil_scoped_release released;
    s = p.plan.quantize_q(q.view, kv.kv, qq, memory_at(stream));
  }
  raise_unless_ok(s);
  return qq;
}

void attend(const PlanHandle& p, const QuantizedQ& qq, const KvHandle& kv, const Tensor& out,
            const std::optional<Tensor>& lse, const Memory& workspace, std::uintptr_t stream) {
  Status s;
  {
    nb::gil_scoped_release released;
    s = p.plan.attend(qq, kv.kv, out.view, view_of(lse), memory_at(workspace.first), workspace.second,
                      memory_at(stream));
  }
  raise_unless_ok(s);
}

/// quantize_q and attend; `memory` holds the quantized q and then the workspace.
Status attend_rows(const PlanHandle& p, const Tensor& q, const QuantizedKv& kv, const Tensor& out,
                   const std::optional<Tensor>& lse, const Memory& memory, void* stream) {
  const std::size_t q_bytes = memory.first == 0 ? 0 : aligned(p.plan.q_bytes());
  if (memory.second < q_bytes) return {StatusCode::out_of_memory, "the memory for q is too small"};
  auto qq = wrap<QuantizedQ>({memory.first, q_bytes});
  if (Status s = p.plan.quantize_q(q.view, kv, qq, stream); !s.ok()) return s;
  void* workspace = memory.first == 0 ? nullptr : memory_at(memory.first + q_bytes);
  return p.plan.attend(qq, kv, out.view, view_of(lse), workspace, memory.second - q_bytes, stream);
}

void run_q(const PlanHandle& p, const Tensor& q, const KvHandle& kv, const Tensor& out,
           const std::optional<Tensor>& lse, const Memory& memory, std::uintptr_t stream) {
  Status s;
  {
    nb::gil_scoped_release released;
    s = attend_rows(p, q, kv.kv, out, lse, memory, memory_at(stream));
  }
  raise_unless_ok(s);
}

/// All three steps; `memory` holds the quantized k and v, then q, then the workspace.
void run(const PlanHandle& p, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
         const std::optional<Tensor>& lse, const Memory& memory, std::uintptr_t stream) {
  Status s;
  {
    nb::gil_scoped_release released;
    const std::size_t kv_bytes = memory.first == 0 ? 0 : aligned(p.plan.kv_bytes());
    auto kv = wrap<QuantizedKv>({memory.first, kv_bytes});
    if (memory.second < kv_bytes)
      s = {StatusCode::out_of_memory, "the memory for k and v is too small"};
    else
      s = p.plan.quantize_kv(k.view, v.view, kv, memory_at(stream));
    const Memory rest =
        memory.first == 0 ? Memory{} : Memory{memory.first + kv_bytes, memory.second - kv_bytes};
    if (s.ok()) s = attend_rows(p, q, kv, out, lse, rest, memory_at(stream));
  }
  raise_unless_ok(s);
}

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

  nb::class_<Options>(m, "Options");
  m.def("make_options", &make_options, nb::arg("layout"), nb::arg("causal"), nb::arg("window"),
        nb::arg("scale").none(), nb::arg("kv_lengths").none(), nb::arg("cu_seqlens_q").none(),
        nb::arg("cu_seqlens_k").none(), nb::arg("mask").none(), nb::arg("bias").none(),
        nb::arg("q_absmax").none(), nb::arg("check_finite").none(), nb::arg("threads"));

  nb::class_<KvHandle>(m, "QuantizedKv")
      .def(nb::init<>())
      .def("__init__",
           [](KvHandle* self, std::uintptr_t address, std::size_t bytes, nb::object owner) {
             new (self) KvHandle{wrap<QuantizedKv>({address, bytes}), std::move(owner)};
           })
      .def_prop_ro("nbytes", [](const KvHandle& h) { return h.kv.bytes(); })
      .def_prop_ro("address", [](const KvHandle& h) { return reinterpret_cast<std::uintptr_t>(h.kv.data()); })
      .def_prop_ro("owner", [](const KvHandle& h) { return h.owner; })
      .def("heads", [](const KvHandle& h, std::int64_t first, std::int64_t count) {
        return KvHandle{value_or_raise(h.kv.heads(first, count)), h.owner};
      });
  nb::class_<QuantizedQ>(m, "QuantizedQ");

  nb::class_<PlanHandle>(m, "Plan")
      .def_prop_ro("kernel", [](const PlanHandle& p) { return p.plan.kernel_name(); })
      .def_prop_ro("reason", [](const PlanHandle& p) { return p.plan.reason(); })
      .def_prop_ro("recipe", [](const PlanHandle& p) { return p.plan.recipe(); })
      .def_prop_ro("kv_bytes", [](const PlanHandle& p) { return aligned(p.plan.kv_bytes()); })
      .def_prop_ro("q_bytes", [](const PlanHandle& p) { return aligned(p.plan.q_bytes()); })
      .def_prop_ro("workspace_bytes", [](const PlanHandle& p) { return aligned(p.plan.workspace_bytes()); })
      .def_prop_ro("bytes", &bytes_of_run)
      .def("quantize_kv", &quantize_kv, nb::arg("k"), nb::arg("v"), nb::arg("kv"), nb::arg("stream"))
      .def("quantize_q", &quantize_q, nb::arg("q"), nb::arg("kv"), nb::arg("memory"), nb::arg("stream"))
      .def("attend", &attend, nb::arg("qq"), nb::arg("kv"), nb::arg("out"), nb::arg("lse").none(),
           nb::arg("workspace"), nb::arg("stream"))
      .def("run_q", &run_q, nb::arg("q"), nb::arg("kv"), nb::arg("out"), nb::arg("lse").none(),
           nb::arg("memory"), nb::arg("stream"))
      .def("run", &run, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("lse").none(),
           nb::arg("memory"), nb::arg("stream"));
  m.def("make_plan", &make_plan, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("recipe"),
        nb::arg("options"), nb::arg("kernel"), nb::arg("stream"));
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
