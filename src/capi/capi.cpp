// The functions of octavo.h, each a thin call of its C++ counterpart.
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "capi/boundary.hpp"

using octavo::invalid_argument;
using octavo::MutableTensorView;
using octavo::Result;
using octavo::Status;
using octavo::capi::contained;
using octavo::capi::null_argument;
using octavo::capi::to_optional_view;
using octavo::capi::to_options;
using octavo::capi::to_view;

struct octavo_recipe {
  octavo::Recipe value;
};
struct octavo_quantized_kv {
  octavo::QuantizedKv value;
};
struct octavo_quantized_q {
  octavo::QuantizedQ value;
};
struct octavo_plan {
  octavo::Plan value;
  std::string kernel;  // so that octavo_plan_kernel can hand out a pointer
};

namespace {

struct Views {
  MutableTensorView q, k, v;

  Status read(const octavo_tensor* q_in, const octavo_tensor* k_in, const octavo_tensor* v_in) {
    if (Status s = to_view("q", q_in, q); !s.ok()) return s;
    if (Status s = to_view("k", k_in, k); !s.ok()) return s;
    return to_view("v", v_in, v);
  }
};

/// q, k and v of a call, with its options.
struct Arguments : Views {
  octavo::AttentionOptions options;
  octavo::PlanOptions plan_options;

  Status read(const octavo_tensor* q_in, const octavo_tensor* k_in, const octavo_tensor* v_in,
              const octavo_recipe* recipe, const octavo_options* options_in) {
    if (Status s = Views::read(q_in, k_in, v_in); !s.ok()) return s;
    if (recipe == nullptr) return null_argument("recipe");
    return to_options(options_in, options, plan_options);
  }
};

/// Makes a handle and stores it where the caller wants it.
template <class Handle>
Status give(Handle** to, Handle made) {
  *to = new Handle(std::move(made));
  return {};
}

template <class Handle>
octavo_status wrap(const char* name, void* memory, std::size_t bytes, Handle** handle) {
  return contained([&]() -> Status {
    if (handle == nullptr) return null_argument(name);
    *handle = nullptr;
    if (memory == nullptr) return null_argument("memory");
    return give(handle, Handle{{memory, bytes}});
  });
}

template <class Handle>
octavo_status create(const char* name, Handle** handle) {
  return contained([&]() -> Status {
    if (handle == nullptr) return null_argument(name);
    *handle = nullptr;
    return give(handle, Handle{});
  });
}

/// Made once, so that the strings handed out stay valid.
const std::vector<octavo::KernelInfo>& kernel_list() {
  static const std::vector<octavo::KernelInfo> list = octavo::kernels();
  return list;
}

}  // namespace

extern "C" {

const char* octavo_version(void) { return octavo::version(); }

const char* octavo_status_name(octavo_status status) {
  return octavo::to_string(static_cast<octavo::StatusCode>(status));
}

octavo_status octavo_tensor_init(octavo_tensor* tensor, const void* data, int32_t dtype, int32_t rank,
                                 const int64_t* shape) {
  return contained([&]() -> Status {
    if (tensor == nullptr) return null_argument("tensor");
    if (shape == nullptr) return null_argument("shape");
    octavo_tensor t{};
    t.data = const_cast<void*>(data);  // NOLINT: one struct serves inputs and outputs, as octavo.h says
    t.dtype = dtype;
    t.rank = rank;
    MutableTensorView checked;
    if (Status s = to_view("tensor", &t, checked); !s.ok()) return s;
    int64_t step = 1;
    for (int d = rank; d-- > 0;) {
      t.shape[d] = shape[d];
      t.strides[d] = step;
      if (shape[d] < 0 || (shape[d] > 0 && __builtin_mul_overflow(step, shape[d], &step))) {
        return invalid_argument(octavo::concat("shape[", d, "] is ", shape[d],
                                               "; dimensions must be >= 0 and their product below 2^63"));
      }
    }
    *tensor = t;
    return {};
  });
}

size_t octavo_preset_count(void) { return octavo::presets().size(); }

octavo_status octavo_preset_info(size_t index, octavo_preset* preset) {
  return contained([&]() -> Status {
    if (preset == nullptr) return null_argument("preset");
    const auto& list = octavo::presets();
    if (index >= list.size())
      return invalid_argument(octavo::concat("index is ", index, "; there are ", list.size(), " presets"));
    *preset = {list[index].name.c_str(), list[index].summary.c_str(), list[index].source.c_str()};
    return {};
  });
}

octavo_status octavo_recipe_create(const char* preset, octavo_recipe** recipe) {
  return contained([&]() -> Status {
    if (recipe == nullptr) return null_argument("recipe");
    *recipe = nullptr;
    if (preset == nullptr) return null_argument("preset");
    Result<octavo::Recipe> made = octavo::recipe(preset);
    return made.ok() ? give(recipe, octavo_recipe{std::move(*made)}) : made.status();
  });
}

octavo_status octavo_recipe_set(octavo_recipe* recipe, const char* field, const char* value) {
  return contained([&]() -> Status {
    if (recipe == nullptr) return null_argument("recipe");
    if (field == nullptr) return null_argument("field");
    if (value == nullptr) return null_argument("value");
    if (recipe->value.name == "auto") {
      return invalid_argument(octavo::concat("recipe 'auto' has no field ", field,
                                             " to set, it is replaced when a plan is made; name a preset"));
    }
    return octavo::set_field(recipe->value, field, value);
  });
}

octavo_status octavo_recipe_get(const octavo_recipe* recipe, const char* field, char* text, size_t size,
                                size_t* length) {
  return contained([&]() -> Status {
    if (recipe == nullptr) return null_argument("recipe");
    return octavo::capi::field_text(recipe->value, field, text, size, length);
  });
}

octavo_status octavo_recipe_check(const octavo_recipe* recipe, int64_t head_dim) {
  return contained([&]() -> Status {
    if (recipe == nullptr) return null_argument("recipe");
    return octavo::check(recipe->value, head_dim);
  });
}

void octavo_recipe_free(octavo_recipe* recipe) { delete recipe; }

octavo_status octavo_options_init(octavo_options* options, size_t struct_size) {
  return contained([&]() -> Status {
    if (options == nullptr) return null_argument("options");
    if (struct_size < sizeof(octavo_options)) {
      return invalid_argument(octavo::concat("struct_size is ", struct_size, "; this library needs at least ",
                                             sizeof(octavo_options), " (sizeof(octavo_options))"));
    }
    std::memset(options, 0, struct_size);
    options->struct_size = struct_size;
    options->window_left = options->window_right = -1;
    options->check_finite = -1;
    return {};
  });
}

octavo_status octavo_attention(const octavo_tensor* q, const octavo_tensor* k, const octavo_tensor* v,
                               const octavo_tensor* out, const octavo_tensor* lse,
                               const octavo_recipe* recipe, const octavo_options* options, void* stream) {
  return contained([&]() -> Status {
    Arguments a;
    MutableTensorView out_view;
    MutableTensorView lse_view;
    if (Status s = a.read(q, k, v, recipe, options); !s.ok()) return s;
    if (Status s = to_view("out", out, out_view); !s.ok()) return s;
    if (Status s = to_optional_view("lse", lse, lse_view); !s.ok()) return s;
    return octavo::attention(a.q, a.k, a.v, out_view, lse_view, recipe->value, a.options, a.plan_options,
                             stream);
  });
}

octavo_status octavo_plan_create(const octavo_tensor* q, const octavo_tensor* k, const octavo_tensor* v,
                                 const octavo_recipe* recipe, const octavo_options* options,
                                 octavo_plan** plan) {
  return contained([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    *plan = nullptr;
    Arguments a;
    if (Status s = a.read(q, k, v, recipe, options); !s.ok()) return s;
    Result<octavo::Problem> problem = octavo::make_problem(a.q, a.k, a.v, a.options);
    if (!problem.ok()) return problem.status();
    Result<octavo::Plan> made = octavo::plan(*problem, recipe->value, a.plan_options);
    if (!made.ok()) return made.status();
    std::string kernel = made->kernel_name();
    return give(plan, octavo_plan{std::move(*made), std::move(kernel)});
  });
}

void octavo_plan_free(octavo_plan* plan) { delete plan; }

const char* octavo_plan_kernel(const octavo_plan* plan) {
  if (plan != nullptr) return plan->kernel.c_str();
  contained([] { return null_argument("plan"); });
  return "";
}

const char* octavo_plan_reason(const octavo_plan* plan) {
  if (plan != nullptr) return plan->value.reason().c_str();
  contained([] { return null_argument("plan"); });
  return "";
}

octavo_status octavo_plan_recipe_get(const octavo_plan* plan, const char* field, char* text, size_t size,
                                     size_t* length) {
  return contained([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    return octavo::capi::field_text(plan->value.recipe(), field, text, size, length);
  });
}

octavo_status octavo_plan_bytes(const octavo_plan* plan, size_t* kv_bytes, size_t* q_bytes,
                                size_t* workspace_bytes) {
  return contained([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    if (kv_bytes != nullptr) *kv_bytes = plan->value.kv_bytes();
    if (q_bytes != nullptr) *q_bytes = plan->value.q_bytes();
    if (workspace_bytes != nullptr) *workspace_bytes = plan->value.workspace_bytes();
    return {};
  });
}

octavo_status octavo_quantized_kv_create(octavo_quantized_kv** kv) { return create("kv", kv); }
octavo_status octavo_quantized_q_create(octavo_quantized_q** qq) { return create("qq", qq); }
octavo_status octavo_quantized_kv_wrap(void* memory, size_t bytes, octavo_quantized_kv** kv) {
  return wrap("kv", memory, bytes, kv);
}
octavo_status octavo_quantized_q_wrap(void* memory, size_t bytes, octavo_quantized_q** qq) {
  return wrap("qq", memory, bytes, qq);
}
void octavo_quantized_kv_free(octavo_quantized_kv* kv) { delete kv; }
void octavo_quantized_q_free(octavo_quantized_q* qq) { delete qq; }

octavo_status octavo_quantized_kv_heads(const octavo_quantized_kv* kv, int64_t first, int64_t count,
                                        octavo_quantized_kv** part) {
  return contained([&]() -> Status {
    if (part == nullptr) return null_argument("part");
    *part = nullptr;
    if (kv == nullptr) return null_argument("kv");
    Result<octavo::QuantizedKv> made = kv->value.heads(first, count);
    return made.ok() ? give(part, octavo_quantized_kv{std::move(*made)}) : made.status();
  });
}

octavo_status octavo_plan_quantize_kv(const octavo_plan* plan, const octavo_tensor* k, const octavo_tensor* v,
                                      octavo_quantized_kv* kv, void* stream) {
  return contained([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    MutableTensorView k_view;
    MutableTensorView v_view;
    if (Status s = to_view("k", k, k_view); !s.ok()) return s;
    if (Status s = to_view("v", v, v_view); !s.ok()) return s;
    if (kv == nullptr) return null_argument("kv");
    return plan->value.quantize_kv(k_view, v_view, kv->value, stream);
  });
}

octavo_status octavo_plan_quantize_q(const octavo_plan* plan, const octavo_tensor* q,
                                     const octavo_quantized_kv* kv, octavo_quantized_q* qq, void* stream) {
  return contained([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    MutableTensorView q_view;
    if (Status s = to_view("q", q, q_view); !s.ok()) return s;
    if (kv == nullptr) return null_argument("kv");
    if (qq == nullptr) return null_argument("qq");
    return plan->value.quantize_q(q_view, kv->value, qq->value, stream);
  });
}

octavo_status octavo_plan_attend(const octavo_plan* plan, const octavo_quantized_q* qq,
                                 const octavo_quantized_kv* kv, const octavo_tensor* out,
                                 const octavo_tensor* lse, void* workspace, size_t workspace_size,
                                 void* stream) {
  return contained([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    if (qq == nullptr) return null_argument("qq");
    if (kv == nullptr) return null_argument("kv");
    if (workspace == nullptr && workspace_size != 0) return null_argument("workspace");
    MutableTensorView out_view;
    MutableTensorView lse_view;
    if (Status s = to_view("out", out, out_view); !s.ok()) return s;
    if (Status s = to_optional_view("lse", lse, lse_view); !s.ok()) return s;
    return plan->value.attend(qq->value, kv->value, out_view, lse_view, workspace, workspace_size, stream);
  });
}

octavo_status octavo_plan_run_bytes(const octavo_plan* plan, size_t* bytes) {
  return contained([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    if (bytes == nullptr) return null_argument("bytes");
    *bytes = plan->value.run_bytes();
    return {};
  });
}

octavo_status octavo_plan_run(const octavo_plan* plan, const octavo_tensor* q, const octavo_tensor* k,
                              const octavo_tensor* v, const octavo_tensor* out, const octavo_tensor* lse,
                              void* memory, size_t bytes, void* stream) {
  return contained([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    if (memory == nullptr && bytes != 0) return null_argument("memory");
    Views views;
    if (Status s = views.read(q, k, v); !s.ok()) return s;
    MutableTensorView out_view;
    MutableTensorView lse_view;
    if (Status s = to_view("out", out, out_view); !s.ok()) return s;
    if (Status s = to_optional_view("lse", lse, lse_view); !s.ok()) return s;
    return plan->value.run(views.q, views.k, views.v, out_view, lse_view, memory, bytes, stream);
  });
}

size_t octavo_kernel_count(void) {
  size_t n = 0;
  contained([&]() -> Status {
    n = kernel_list().size();
    return {};
  });
  return n;
}

octavo_status octavo_kernel_info(size_t index, octavo_kernel* kernel) {
  return contained([&]() -> Status {
    if (kernel == nullptr) return null_argument("kernel");
    const auto& list = kernel_list();
    if (index >= list.size())
      return invalid_argument(octavo::concat("index is ", index, "; there are ", list.size(), " kernels"));
    const octavo::KernelInfo& k = list[index];
    *kernel = {k.name.c_str(), k.backend.c_str(), k.tier.c_str(),
               k.file.c_str(), k.summary.c_str(), k.available ? 1 : 0};
    return {};
  });
}

}  // extern "C"
