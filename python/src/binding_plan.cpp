// Options, plans and quantized tensors. The GIL is released wherever work is done.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "binding.hpp"
#include "core/kernel.hpp"

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
                     const std::optional<Tensor>& q_absmax, std::optional<bool> check_finite, int threads,
                     int key_splits) {
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
  o.attention.key_splits = key_splits;
  return o;
}

/// A plan and what it looks at, with what later calls like the first need again and again.
struct PlanHandle {
  Plan plan;
  std::vector<Tensor> owners;
  TensorView q;  ///< shapes, dtypes and device of the tensors it was made for, without their memory
  TensorView k;
  TensorView v;
  std::size_t run_bytes = 0;
  const Kernel* direct = nullptr;  ///< the kernel, if it can read q, k and v as they are
};

TensorView without_memory(TensorView view) {
  view.data = nullptr;
  return view;
}

PlanHandle make_plan(const Tensor& q, const Tensor& k, const Tensor& v, const Recipe& recipe,
                     const Options& options, const std::string& kernel, std::uintptr_t stream) {
  Result<Plan> made = [&]() -> Result<Plan> {
    nb::gil_scoped_release released;
    Result<Problem> problem = make_problem(q.view, k.view, v.view, options.attention, memory_at(stream));
    if (!problem.ok()) return problem.status();
    return plan(*problem, recipe, {kernel});
  }();
  PlanHandle p{value_or_raise(std::move(made)), options.owners, without_memory(q.view),
               without_memory(k.view), without_memory(v.view)};
  p.run_bytes = p.plan.run_bytes();
  const std::string name = p.plan.kernel_name();
  for (const Kernel* row : kernel_table()) {
    if (row->name == name && row->attend_direct != nullptr) p.direct = row;
  }
  return p;
}

/// Does `run` read these as they are, without quantized copies?
bool reads_directly(const PlanHandle& p, const TensorView& q, const TensorView& k, const TensorView& v) {
  return p.direct != nullptr && p.direct->direct_accepts(p.plan.problem(), p.plan.recipe(), q, k, v);
}

/// What follows a quantized buffer in one block of memory starts as aligned as a GPU's buffers do.
std::size_t aligned(std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t bytes_of_run_q(const PlanHandle& p) {
  return aligned(p.plan.q_bytes()) + p.plan.workspace_bytes();
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

/// Scratch memory for one call, held by its owner until the work on it is enqueued.
struct Scratch {
  Memory memory{0, 0};
  nb::object owner;

  /// `allocate`: bytes -> (address, owner), address 0 for "allocate inside". Not asked for nothing.
  Scratch(const nb::callable& allocate, std::size_t bytes) {
    if (bytes == 0) return;
    auto [address, object] = nb::cast<std::pair<std::uintptr_t, nb::object>>(allocate(bytes));
    owner = std::move(object);
    if (address != 0) memory = {address, bytes};
  }
};

template <class Quantized>
Quantized wrap(const Memory& memory) {
  return memory.first == 0 ? Quantized() : Quantized(memory_at(memory.first), memory.second);
}

/// A step that does not touch Python.
template <class Step>
void run_released(Step step) {
  Status s;
  {
    nb::gil_scoped_release released;
    s = step();
  }
  raise_unless_ok(s);
}

void quantize_kv(const PlanHandle& p, const Tensor& k, const Tensor& v, KvHandle& kv, std::uintptr_t stream) {
  run_released([&] { return p.plan.quantize_kv(k.view, v.view, kv.kv, memory_at(stream)); });
}

QuantizedQ quantize_q(const PlanHandle& p, const Tensor& q, const KvHandle& kv, const Memory& memory,
                      std::uintptr_t stream) {
  auto qq = wrap<QuantizedQ>(memory);
  run_released([&] { return p.plan.quantize_q(q.view, kv.kv, qq, memory_at(stream)); });
  return qq;
}

void attend(const PlanHandle& p, const QuantizedQ& qq, const KvHandle& kv, const Tensor& out,
            const std::optional<Tensor>& lse, const Memory& workspace, std::uintptr_t stream) {
  run_released([&] {
    return p.plan.attend(qq, kv.kv, out.view, view_of(lse), memory_at(workspace.first), workspace.second,
                         memory_at(stream));
  });
}

/// quantize_q and attend; the scratch memory holds the quantized q and then the workspace.
void run_q(const PlanHandle& p, const Tensor& q, const KvHandle& kv, const Tensor& out,
           const std::optional<Tensor>& lse, const nb::callable& allocate, std::uintptr_t stream) {
  const Scratch scratch(allocate, bytes_of_run_q(p));
  const auto [address, bytes] = scratch.memory;
  const std::size_t q_bytes = address == 0 ? 0 : aligned(p.plan.q_bytes());
  auto qq = wrap<QuantizedQ>({address, q_bytes});
  void* workspace = address == 0 ? nullptr : memory_at(address + q_bytes);
  run_released([&, size = bytes - q_bytes] {
    if (Status s = p.plan.quantize_q(q.view, kv.kv, qq, memory_at(stream)); !s.ok()) return s;
    return p.plan.attend(qq, kv.kv, out.view, view_of(lse), workspace, size, memory_at(stream));
  });
}

/// All of a call. A kernel that reads q, k and v as they are gets the little memory that this takes.
void run_views(const PlanHandle& p, const TensorView& q, const TensorView& k, const TensorView& v,
               const MutableTensorView& out, const MutableTensorView& lse, const nb::callable& allocate,
               std::uintptr_t stream) {
  const std::size_t bytes = reads_directly(p, q, k, v)
                                ? p.direct->direct_workspace_bytes(p.plan.problem(), p.plan.recipe())
                                : p.run_bytes;
  const Scratch scratch(allocate, bytes);
  run_released([&] {
    return p.plan.run(q, k, v, out, lse, memory_at(scratch.memory.first), scratch.memory.second,
                      memory_at(stream));
  });
}

void run(const PlanHandle& p, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
         const std::optional<Tensor>& lse, const nb::callable& allocate, std::uintptr_t stream) {
  run_views(p, q.view, k.view, v.view, out.view, view_of(lse), allocate, stream);
}

template <class View>
View at(View like, std::uintptr_t address, const nb::tuple& strides) {
  like.data = memory_at(address);
  if (nb::len(strides) != static_cast<std::size_t>(like.rank))
    throw nb::value_error("a tensor has as many strides as the plan's has dimensions");
  for (int d = 0; d < like.rank; ++d)
    like.strides[static_cast<std::size_t>(d)] = nb::cast<std::int64_t>(strides[static_cast<std::size_t>(d)]);
  return like;
}

MutableTensorView contiguous_lse(const Problem& p, std::uintptr_t address) {
  if (address == 0) return {};
  if (p.packed()) return {memory_at(address), DType::f32, {p.q_heads, p.q_len}, p.device};
  return {memory_at(address), DType::f32, {p.batch, p.q_heads, p.q_len}, p.device};
}

/// `run` on tensors whose shapes, dtypes and device are those that the plan was made for: a call on a GPU
/// takes microseconds, and a Tensor object for each of its tensors would be several of them. `wide`: out is
/// float32. lse 0: not wanted, or without elements.
void run_at(const PlanHandle& p, std::uintptr_t q, const nb::tuple& q_strides, std::uintptr_t k,
            const nb::tuple& k_strides, std::uintptr_t v, const nb::tuple& v_strides, std::uintptr_t out,
            const nb::tuple& out_strides, bool wide, std::uintptr_t lse, const nb::callable& allocate,
            std::uintptr_t stream) {
  MutableTensorView o;
  o.rank = p.q.rank;
  o.shape = p.q.shape;
  o.device = p.q.device;
  o.dtype = wide ? DType::f32 : p.q.dtype;
  run_views(p, at(p.q, q, q_strides), at(p.k, k, k_strides), at(p.v, v, v_strides), at(o, out, out_strides),
            contiguous_lse(p.plan.problem(), lse), allocate, stream);
}

}  // namespace

void bind_plan(nb::module_& m) {
  nb::class_<Options>(m, "Options");
  m.def("make_options", &make_options, nb::arg("layout"), nb::arg("causal"), nb::arg("window"),
        nb::arg("scale").none(), nb::arg("kv_lengths").none(), nb::arg("cu_seqlens_q").none(),
        nb::arg("cu_seqlens_k").none(), nb::arg("mask").none(), nb::arg("bias").none(),
        nb::arg("q_absmax").none(), nb::arg("check_finite").none(), nb::arg("threads"),
        nb::arg("key_splits") = 0);

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
      .def_prop_ro("kv_bytes", [](const PlanHandle& p) { return p.plan.kv_bytes(); })
      .def_prop_ro("q_bytes", [](const PlanHandle& p) { return p.plan.q_bytes(); })
      .def_prop_ro("workspace_bytes", [](const PlanHandle& p) { return p.plan.workspace_bytes(); })
      .def(
          "reads_directly",
          [](const PlanHandle& p, const Tensor& q, const Tensor& k, const Tensor& v) {
            return reads_directly(p, q.view, k.view, v.view);
          },
          nb::arg("q"), nb::arg("k"), nb::arg("v"))
      .def("quantize_kv", &quantize_kv, nb::arg("k"), nb::arg("v"), nb::arg("kv"), nb::arg("stream"))
      .def("quantize_q", &quantize_q, nb::arg("q"), nb::arg("kv"), nb::arg("memory"), nb::arg("stream"))
      .def("attend", &attend, nb::arg("qq"), nb::arg("kv"), nb::arg("out"), nb::arg("lse").none(),
           nb::arg("workspace"), nb::arg("stream"))
      .def("run_q", &run_q, nb::arg("q"), nb::arg("kv"), nb::arg("out"), nb::arg("lse").none(),
           nb::arg("allocate"), nb::arg("stream"))
      .def("run", &run, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out"), nb::arg("lse").none(),
           nb::arg("allocate"), nb::arg("stream"))
      .def("run_at", &run_at);
  m.def("make_plan", &make_plan, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("recipe"),
        nb::arg("options"), nb::arg("kernel"), nb::arg("stream"));
}

}  // namespace octavo::python
