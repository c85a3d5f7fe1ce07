// plan: one walk over the kernel table. attention: the three steps in one call.
#include <algorithm>
#include <new>

#include "core/device.hpp"
#include "core/kernel.hpp"
#include "core/text.hpp"
#include "cpu/parallel.hpp"
#include "cpu/tier.hpp"
#if defined(OCTAVO_HAS_CUDA)
#include "cuda/auto_recipe.hpp"
#endif
#include "octavo/attention.hpp"

namespace octavo {
namespace {

/// The fields that shape a quantized buffer; two recipes that differ elsewhere may share one.
std::string fingerprint(const Kernel& kernel, const Recipe& r, bool keys) {
  static constexpr const char* kKeyFields[] = {"qk_format", "k_group",  "k_range", "smooth_k",
                                               "smooth_q",  "smooth_v", "rotate",  "rotate_seed",
                                               "v_format",  "v_scale",  "v_range"};
  static constexpr const char* kQueryFields[] = {"qk_format", "q_group", "q_range",    "smooth_k",
                                                 "smooth_q",  "rotate",  "rotate_seed"};
  const std::span<const char* const> names =
      keys ? std::span<const char* const>(kKeyFields) : std::span<const char* const>(kQueryFields);
  std::string text;
  for (const RecipeField& f : fields(r)) {
    if (std::find_if(names.begin(), names.end(), [&](const char* n) { return f.name == n; }) != names.end())
      text += f.name + "=" + f.value + ";";
    if (keys && kernel.tiled_keys && f.name == "key_tile") text += f.name + "=" + f.value + ";";
  }
  return text;
}

QuantizedKey make_key(const Kernel& kernel, const Problem& p, const Recipe& r, bool keys) {
  std::uint64_t lengths =
      0xcbf29ce484222325U;  // FNV-1a: a buffer made for other lengths or offsets does not fit
  for (const Sequence& s : p.sequences) {
    for (const std::int64_t n : {keys ? s.k_begin : s.q_begin, keys ? s.k_len : s.q_len})
      lengths = (lengths ^ static_cast<std::uint64_t>(n)) * 0x100000001b3U;
  }
  return {std::string(kernel.name),
          fingerprint(kernel, r, keys) + concat("lengths=", lengths),
          p.batch,
          keys ? p.kv_heads : p.q_heads,
          keys ? p.kv_len : p.q_len,
          p.head_dim};
}

int threads_of(const Problem& p) {
  if (p.device.kind != Device::Kind::cpu) return 1;
  return p.options.threads > 0 ? p.options.threads : cpu::default_threads();
}

/// The preset `auto` stands for on this device.
Result<Recipe> resolve_auto(const Problem& p, std::string& reason) {
  if (p.device.kind == Device::Kind::cpu) {
    reason = "auto: cpu8 is the fastest on CPUs (relative L1 about 0.017 on N(0,1), 0.01-0.05 on real data)";
    return recipe("cpu8");
  }
#if defined(OCTAVO_HAS_CUDA)
  return auto_recipe_cuda(p, reason);
#else
  return unsupported("recipe 'auto' has no choice for this device; name a recipe");
#endif
}

Status check_place(const char* name, const TensorView& t, const Problem& p) {
  if (t.device == p.device) return {};
  return invalid_argument(
      concat(name, " is on ", to_text(t.device), "; the plan was made for ", to_text(p.device)));
}

Status check_tensor(const char* name, const TensorView& t, const Problem& p, std::int64_t heads,
                    std::int64_t tokens) {
  const std::int64_t dense_hnd[] = {p.batch, heads, tokens, p.head_dim};
  const std::int64_t dense_nhd[] = {p.batch, tokens, heads, p.head_dim};
  const std::int64_t packed[] = {tokens, heads, p.head_dim};
  const std::span<const std::int64_t> want = p.packed() ? std::span<const std::int64_t>(packed)
                                             : p.options.layout == Layout::nhd
                                                 ? std::span<const std::int64_t>(dense_nhd)
                                                 : std::span<const std::int64_t>(dense_hnd);
  bool fits = t.rank == static_cast<int>(want.size());
  bool none = false;
  for (std::size_t d = 0; fits && d < want.size(); ++d) {
    fits = t.shape[d] == want[d];
    none = none || want[d] == 0;
  }
  if (!fits) {
    TensorView shape;
    shape.rank = static_cast<int>(want.size());
    std::copy(want.begin(), want.end(), shape.shape.begin());
    return invalid_argument(
        concat(name, " has shape ", shape_text(t), "; the plan was made for ", shape_text(shape)));
  }
  if (t.data == nullptr && !none) return invalid_argument(concat(name, " is a null pointer"));
  return check_place(name, t, p);
}

Status check_input(const char* name, const TensorView& t, const Problem& p, std::int64_t heads,
                   std::int64_t tokens) {
  if (Status s = check_tensor(name, t, p, heads, tokens); !s.ok()) return s;
  if (t.dtype != p.dtype)
    return invalid_argument(
        concat(name, " has dtype ", to_string(t.dtype), "; the plan was made for ", to_string(p.dtype)));
  return {};
}

Status check_output(const MutableTensorView& out, const MutableTensorView& lse, const Problem& p) {
  if (Status s = check_tensor("out", out, p, p.q_heads, p.q_len); !s.ok()) return s;
  if (out.dtype != p.dtype && out.dtype != DType::f32) {
    return invalid_argument(
        concat("out has dtype ", to_string(out.dtype), "; it must be ", to_string(p.dtype), " as q, or f32"));
  }
  for (int d = 0; d < out.rank; ++d) {
    const auto i = static_cast<std::size_t>(d);
    if (out.strides[i] == 0 && out.shape[i] > 1 && out.elements() > 0)
      return invalid_argument(concat("out has stride 0 in dimension ", d, "; its elements must not overlap"));
  }
  if (lse.empty()) return {};
  const bool fits = p.packed() ? lse.rank == 2 && lse.shape[0] == p.q_heads && lse.shape[1] == p.q_len
                               : lse.rank == 3 && lse.shape[0] == p.batch && lse.shape[1] == p.q_heads &&
                                     lse.shape[2] == p.q_len;
  if (!fits || lse.dtype != DType::f32) {
    return invalid_argument(
        concat("lse has shape ", shape_text(lse), " and dtype ", to_string(lse.dtype), "; it must be f32 ",
               p.packed() ? concat("[Hq, tokens] = [", p.q_heads, ", ", p.q_len, "]")
                          : concat("[B, Hq, Lq] = [", p.batch, ", ", p.q_heads, ", ", p.q_len, "]")));
  }
  if (lse.data == nullptr && lse.elements() > 0) return invalid_argument("lse is a null pointer");
  return check_place("lse", lse, p);
}

/// Runs a step on the problem's device. Nothing below may throw past the API.
template <class Step>
Status contained(const Device& device, Step step) {
  try {
    const DeviceScope scope(device);
    return scope.status().ok() ? step() : scope.status();
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "out of memory: a temporary buffer could not be allocated"};
  } catch (const std::exception& e) {
    return {StatusCode::internal, concat("internal error: ", e.what())};
  }
}

}  // namespace

std::string Plan::kernel_name() const { return std::string(kernel_->name); }
std::size_t Plan::kv_bytes() const { return kv_bytes_; }
std::size_t Plan::q_bytes() const { return q_bytes_; }
std::size_t Plan::workspace_bytes() const {
  return kernel_->workspace_bytes(*problem_, recipe_, threads_of(*problem_));
}

namespace {

/// The memory of run(): quantized K and V, quantized Q, workspace.
struct RunSections {
  std::size_t q = 0;
  std::size_t workspace = 0;
  std::size_t bytes = 0;

  explicit RunSections(const Plan& plan) {
    const std::size_t alignment = buffer_alignment(plan.problem().device);
    const auto round_up = [&](std::size_t n) { return (n + alignment - 1) / alignment * alignment; };
    q = round_up(plan.kv_bytes());
    workspace = q + round_up(plan.q_bytes());
    bytes = workspace + plan.workspace_bytes();
  }
};

/// Where a buffer's memory is kept.
struct Memory {
  std::shared_ptr<void>& owned;  ///< null: the caller's
  void*& data;
  std::size_t& bytes;
  Device& device;  ///< of what is owned
};

/// Gives a buffer its memory, or checks the caller's.
Status prepare(const char* name, std::size_t needed, const Device& device, void* stream, Memory memory) {
  const bool ours = memory.owned != nullptr;
  if (memory.data == nullptr || (ours && (memory.bytes < needed || memory.device != device))) {
    Result<std::shared_ptr<void>> made = allocate(needed, device, stream);
    if (!made.ok()) return Status(made.status().code(), concat(name, ": ", made.status().message()));
    memory.owned = std::move(*made);
    memory.data = memory.owned.get();
    memory.bytes = needed;
    memory.device = device;
    return {};
  }
  if (memory.bytes < needed)
    return {StatusCode::out_of_memory,
            concat(name, " has ", memory.bytes, " bytes; this plan needs ", needed)};
  return ours ? Status{} : check_buffer(name, memory.data, device);
}

std::string describe(const QuantizedKey& k) {
  return concat(k.kernel.empty() ? "nothing" : k.kernel, " (", k.sequences, " sequences, ", k.heads,
                " heads, ", k.tokens, " tokens, head_dim ", k.head_dim, ", ", k.recipe, ")");
}

}  // namespace

Status Plan::quantize_kv(const TensorView& k, const TensorView& v, QuantizedKv& kv, void* stream) const {
  const Problem& p = *problem_;
  if (Status s = check_input("k", k, p, p.kv_heads, p.kv_len); !s.ok()) return s;
  if (Status s = check_input("v", v, p, p.kv_heads, p.kv_len); !s.ok()) return s;
  if (Status s = prepare("the buffer of quantized K and V", kv_bytes(), p.device, stream,
                         {kv.owned_, kv.data_, kv.bytes_, kv.device_});
      !s.ok())
    return s;
  kv.key_ = nullptr;  // a buffer that failed half-way fits no plan
  Status s = contained(p.device, [&] {
    return kernel_->quantize_kv({p, recipe_, stream, threads_of(p)}, k, v, static_cast<std::byte*>(kv.data_));
  });
  if (s.ok()) kv.key_ = kv_key_;
  return s;
}

Status Plan::quantize_q(const TensorView& q, const QuantizedKv& kv, QuantizedQ& qq, void* stream) const {
  const Problem& p = *problem_;
  if (Status s = check_input("q", q, p, p.q_heads, p.q_len); !s.ok()) return s;
  if (Status s = check_kv(kv); !s.ok()) return s;
  if (Status s = prepare("the buffer of quantized Q", q_bytes(), p.device, stream,
                         {qq.owned_, qq.data_, qq.bytes_, qq.device_});
      !s.ok())
    return s;
  qq.key_ = nullptr;
  const KvBuffer buffer{static_cast<const std::byte*>(kv.data()), kv.key().heads, kv.first_head()};
  Status s = contained(p.device, [&] {
    return kernel_->quantize_q({p, recipe_, stream, threads_of(p)}, q, buffer,
                               static_cast<std::byte*>(qq.data_));
  });
  if (s.ok()) qq.key_ = q_key_;
  return s;
}

Status Plan::check_kv(const QuantizedKv& kv) const {
  if (kv.key_ == kv_key_ && kv.head_count() == kv_key_->heads) return {};
  QuantizedKey have = kv.key();
  have.heads = kv.head_count();
  if (have == *kv_key_) return {};
  return invalid_argument(
      concat("kv was quantized for ", describe(have), "; this plan needs ", describe(*kv_key_)));
}

Status Plan::attend(const QuantizedQ& qq, const QuantizedKv& kv, const MutableTensorView& out,
                    const MutableTensorView& lse, void* workspace, std::size_t workspace_size,
                    void* stream) const {
  const Problem& p = *problem_;
  if (Status s = check_output(out, lse, p); !s.ok()) return s;
  if (Status s = check_kv(kv); !s.ok()) return s;
  if (qq.key_ != q_key_ && !(qq.key() == *q_key_)) {
    return invalid_argument(
        concat("qq was quantized for ", describe(qq.key()), "; this plan needs ", describe(*q_key_)));
  }
  std::shared_ptr<void> owned;
  Device place;
  const std::size_t needed = workspace_bytes();
  // A kernel that needs none gets none: an allocation on a GPU is a node of a captured graph.
  if (needed > 0 || p.device.kind == Device::Kind::cpu) {
    if (Status s =
            prepare("the workspace", needed, p.device, stream, {owned, workspace, workspace_size, place});
        !s.ok())
      return s;
  }
  const KvBuffer buffer{static_cast<const std::byte*>(kv.data()), kv.key().heads, kv.first_head()};
  return contained(p.device, [&] {
    return kernel_->attend({p, recipe_, stream, threads_of(p)}, static_cast<const std::byte*>(qq.data()),
                           buffer, out, lse, static_cast<std::byte*>(workspace));
  });
}

namespace {

/// What to say when no kernel of the table is for this device at all.
Status no_kernel_for(const Device& device) {
  std::string tiers;
  for (const Kernel* kernel : kernel_table()) {
    const std::string tier(kernel->tier);
    if (kernel->backend == "cuda" && tiers.find(tier) == std::string::npos)
      tiers += (tiers.empty() ? "" : ", ") + tier;
  }
  return unsupported(concat("device ", describe(device), " has no kernel; ", tiers.empty() ? "no GPU" : tiers,
                            tiers.find(',') == std::string::npos ? " has" : " have"));
}

}  // namespace

Result<Plan> plan(const Problem& problem, const Recipe& recipe, const PlanOptions& options) {
  if (Status s = check_device(problem.device); !s.ok()) return s;
  Plan plan;
  Recipe wanted = recipe;
  if (recipe.name == "auto") {
    Recipe untouched;
    untouched.name = "auto";
    if (recipe != untouched)
      return invalid_argument("recipe 'auto' takes no fields; name a preset and set them there");
    Result<Recipe> resolved = resolve_auto(problem, plan.reason_);
    if (!resolved.ok()) return resolved.status();
    wanted = *resolved;
  }
  if (Status s = check(wanted, problem.head_dim); !s.ok()) return s;
  if (!problem.options.q_absmax.empty() && wanted.q_group == Granularity::none) {
    return invalid_argument(
        concat("q_absmax was given, but recipe ", wanted.name, " does not scale its queries"));
  }

  if (Status s = problem.device.kind == Device::Kind::cpu ? cpu::forced_tier_status() : Status{}; !s.ok())
    return s;

  const Kernel* best = nullptr;
  bool known = false;
  bool served = false;
  std::string refusals;
  for (const Kernel* kernel : kernel_table()) {
    if (!options.kernel.empty() && kernel->name != options.kernel) continue;
    known = true;
    if (!serves(problem.device, kernel->backend, kernel->tier)) {
      if (!options.kernel.empty())
        return unsupported(concat("kernel ", kernel->name, " runs on ",
                                  kernel->backend == "cuda" ? concat(kernel->tier, " GPUs") : "the CPU",
                                  "; q, k and v are on ", describe(problem.device)));
      continue;
    }
    served = true;
    if (!kernel->available()) {
      if (!options.kernel.empty())
        return unsupported(
            concat("kernel ", kernel->name, " cannot run on this machine (", kernel->tier, ")"));
      continue;
    }
    if (Status s = kernel->accepts(problem, wanted); !s.ok()) {
      refusals += concat(refusals.empty() ? "" : "; ", kernel->name, ": ", s.message());
      continue;
    }
    if (kernel->rank > 0 || !options.kernel.empty()) {
      if (best == nullptr || kernel->rank > best->rank) best = kernel;
    }
  }
  if (!known)
    return invalid_argument(
        concat("kernel '", options.kernel, "' is not known; `octavo info` lists the kernels"));
  if (!served) return no_kernel_for(problem.device);
  if (best == nullptr)
    return unsupported(concat("no kernel here runs recipe ", wanted.name, " on this problem: ", refusals));

  plan.problem_ = std::make_shared<const Problem>(problem);
  plan.recipe_ = best->effective(problem, wanted);
  plan.kernel_ = best;
  plan.kv_key_ = std::make_shared<const QuantizedKey>(make_key(*best, problem, plan.recipe_, true));
  plan.q_key_ = std::make_shared<const QuantizedKey>(make_key(*best, problem, plan.recipe_, false));
  plan.kv_bytes_ = best->kv_bytes(problem, plan.recipe_);
  plan.q_bytes_ = best->q_bytes(problem, plan.recipe_);
  const char* why = !options.kernel.empty() ? " was asked for by name"
                    : best->name == "reference.emulate"
                        ? " walks it step by step, since no fast kernel here runs it"
                        : " is the fastest here that runs it";
  plan.reason_ += concat(plan.reason_.empty() ? "" : "; ", best->name, why);
  return plan;
}

std::size_t Plan::run_bytes() const {
  const std::size_t steps = RunSections(*this).bytes;
  if (kernel_->attend_direct == nullptr) return steps;
  return std::max(steps, kernel_->direct_workspace_bytes(*problem_, recipe_));
}

Status Plan::run(const TensorView& q, const TensorView& k, const TensorView& v, const MutableTensorView& out,
                 const MutableTensorView& lse, void* memory, std::size_t bytes, void* stream) const {
  const Problem& p = *problem_;
  if (Status s = check_output(out, lse, p); !s.ok()) return s;
  if (Status s = check_input("q", q, p, p.q_heads, p.q_len); !s.ok()) return s;
  if (Status s = check_input("k", k, p, p.kv_heads, p.kv_len); !s.ok()) return s;
  if (Status s = check_input("v", v, p, p.kv_heads, p.kv_len); !s.ok()) return s;
  const bool direct = kernel_->attend_direct != nullptr && kernel_->direct_accepts(p, recipe_, q, k, v);
  const RunSections at(*this);
  std::shared_ptr<void> owned;
  Device place;
  const std::size_t needed = direct ? kernel_->direct_workspace_bytes(p, recipe_) : at.bytes;
  if (needed > 0 || p.device.kind == Device::Kind::cpu) {
    if (Status s = prepare("the memory of run", needed, p.device, stream, {owned, memory, bytes, place});
        !s.ok())
      return s;
  }
  return contained(p.device, [&] {
    const KernelCall call{p, recipe_, stream, threads_of(p)};
    auto* base = static_cast<std::byte*>(memory);
    if (direct) return kernel_->attend_direct(call, q, k, v, out, lse, base);
    const KvBuffer kv{base, p.kv_heads, 0};
    if (kernel_->quantize_all != nullptr) {
      if (Status s = kernel_->quantize_all(call, q, k, v, base, base + at.q); !s.ok()) return s;
    } else {
      if (Status s = kernel_->quantize_kv(call, k, v, base); !s.ok()) return s;
      if (Status s = kernel_->quantize_q(call, q, kv, base + at.q); !s.ok()) return s;
    }
    return kernel_->attend(call, base + at.q, kv, out, lse, base + at.workspace);
  });
}

Status attention(const TensorView& q, const TensorView& k, const TensorView& v, const MutableTensorView& out,
                 const MutableTensorView& lse, const Recipe& recipe, const AttentionOptions& options,
                 const PlanOptions& plan_options, void* stream) {
  return contained({}, [&]() -> Status {
    Result<Problem> problem = make_problem(q, k, v, options, stream);
    if (!problem.ok()) return problem.status();
    Result<Plan> made = plan(*problem, recipe, plan_options);
    if (!made.ok()) return made.status();
    return made->run(q, k, v, out, lse, stream);
  });
}

Result<QuantizedKv> QuantizedKv::heads(std::int64_t first, std::int64_t count) const {
  if (first < 0 || count < 1 || count > head_count() - first) {
    return invalid_argument(concat("heads from ", first, " on, ", count, " of them, are not within the ",
                                   head_count(), " heads of this buffer"));
  }
  QuantizedKv part = *this;
  part.first_head_ = first_head_ + first;
  part.head_count_ = count;
  return part;
}

}  // namespace octavo
