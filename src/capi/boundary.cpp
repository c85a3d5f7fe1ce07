// Conversions of the C interface, and the place where a thread's last error lives.
#include "capi/boundary.hpp"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <type_traits>

namespace octavo::capi {
namespace {

// The C numbers are the C++ ones, so that conversions are casts.
static_assert(OCTAVO_INTERNAL == static_cast<int>(StatusCode::internal));
static_assert(OCTAVO_OUT_OF_MEMORY == static_cast<int>(StatusCode::out_of_memory));
static_assert(OCTAVO_BOOL == static_cast<int>(DType::boolean) &&
              OCTAVO_E4M3 == static_cast<int>(DType::e4m3));
static_assert(OCTAVO_I64 == static_cast<int>(DType::i64) && OCTAVO_BF16 == static_cast<int>(DType::bf16));
static_assert(OCTAVO_CUDA == static_cast<int>(Device::Kind::cuda));
static_assert(OCTAVO_NHD == static_cast<int>(Layout::nhd) && OCTAVO_THD == static_cast<int>(Layout::thd));
static_assert(OCTAVO_CAUSAL_BOTTOM_RIGHT == static_cast<int>(Causal::bottom_right));
// The ABI of 0.1: a change here is a change of every caller's binary.
static_assert(sizeof(octavo_tensor) == 88 && sizeof(octavo_options) == 112 && sizeof(octavo_kernel) == 48);
static_assert(std::is_trivially_copyable_v<octavo_options>);

// A plain array, so that reporting an error allocates nothing and needs no destructor at thread exit. Longest
// message: the refusals of every kernel in the table, a few hundred characters each.
constexpr std::size_t kErrorSize = 4096;
thread_local char last_error[kErrorSize] = "";

}  // namespace

octavo_status fail(StatusCode code, std::string_view message) noexcept {
  const std::size_t n = std::min(message.size(), kErrorSize - 1);
  std::memcpy(last_error, message.data(), n);
  last_error[n] = '\0';
  return static_cast<octavo_status>(code);
}

Status to_view(const char* name, const octavo_tensor* tensor, MutableTensorView& view) {
  if (tensor == nullptr) return null_argument(name);
  const octavo_tensor& t = *tensor;
  if (t.dtype < OCTAVO_F32 || t.dtype > OCTAVO_BOOL)
    return invalid_argument(
        concat(name, ".dtype is ", t.dtype, "; it must be one of OCTAVO_F32 (0) to OCTAVO_BOOL (8)"));
  if (t.rank < 1 || t.rank > 4)
    return invalid_argument(concat(name, ".rank is ", t.rank, "; tensors have 1 to 4 dimensions"));
  if (t.device_kind != OCTAVO_CPU && t.device_kind != OCTAVO_CUDA) {
    return invalid_argument(
        concat(name, ".device_kind is ", t.device_kind, "; it must be OCTAVO_CPU (0) or OCTAVO_CUDA (1)"));
  }
  view.data = t.data;
  view.dtype = static_cast<DType>(t.dtype);
  view.rank = t.rank;
  for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d) {
    view.shape[d] = t.shape[d];
    view.strides[d] = t.strides[d];
  }
  view.device = {static_cast<Device::Kind>(t.device_kind), t.device_index};
  return {};
}

Status to_options(const octavo_options* options, AttentionOptions& to, PlanOptions& plan_options) {
  if (options == nullptr) return {};
  // Sizes other than this version's are a caller built for another version. A larger struct may be read as
  // ours as long as what we do not know is left at 0, which every later field takes for "not given".
  octavo_options o;
  const std::size_t size = options->struct_size;
  if (size < sizeof o) {
    return invalid_argument(concat("options.struct_size is ", size, "; this library needs at least ",
                                   sizeof o, ": call octavo_options_init(&options, sizeof options)"));
  }
  const auto* bytes = reinterpret_cast<const char*>(options);
  if (std::any_of(bytes + sizeof o, bytes + size, [](char c) { return c != 0; })) {
    return unsupported(concat("options has fields set that Octavo ", version(),
                              " does not know (struct_size ", size, ", known are ", sizeof o, ")"));
  }
  std::memcpy(&o, bytes, sizeof o);
  if (o.reserved != 0) return invalid_argument(concat("options.reserved is ", o.reserved, "; it must be 0"));

  if (o.layout < OCTAVO_HND || o.layout > OCTAVO_THD)
    return invalid_argument(concat("options.layout is ", o.layout,
                                   "; it must be OCTAVO_HND (0), OCTAVO_NHD (1) or OCTAVO_THD (2)"));
  if (o.causal < OCTAVO_CAUSAL_NONE || o.causal > OCTAVO_CAUSAL_BOTTOM_RIGHT) {
    return invalid_argument(concat("options.causal is ", o.causal,
                                   "; it must be OCTAVO_CAUSAL_NONE (0), OCTAVO_CAUSAL_TOP_LEFT (1) or "
                                   "OCTAVO_CAUSAL_BOTTOM_RIGHT (2)"));
  }
  to.layout = static_cast<Layout>(o.layout);
  to.causal = static_cast<Causal>(o.causal);
  to.window = {o.window_left, o.window_right};
  if (o.has_scale != 0) to.scale = o.scale;
  if (o.check_finite >= 0) to.check_finite = o.check_finite != 0;
  to.threads = o.threads;
  to.key_splits = o.key_splits;
  if (o.kernel != nullptr) plan_options.kernel = o.kernel;

  const std::tuple<const char*, const octavo_tensor*, TensorView*> views[] = {
      {"kv_lengths", o.kv_lengths, &to.kv_lengths},
      {"cu_seqlens_q", o.cu_seqlens_q, &to.cu_seqlens_q},
      {"cu_seqlens_k", o.cu_seqlens_k, &to.cu_seqlens_k},
      {"mask", o.mask, &to.mask},
      {"bias", o.bias, &to.bias},
      {"q_absmax", o.q_absmax, &to.q_absmax}};
  for (const auto& [name, tensor, view] : views) {
    MutableTensorView converted;
    if (Status s = to_optional_view(name, tensor, converted); !s.ok()) return s;
    *view = converted;
  }
  return {};
}

Status copy_text(std::string_view from, char* text, std::size_t size, std::size_t* length) {
  if (length != nullptr) *length = from.size();
  if (text == nullptr) return size == 0 ? Status{} : null_argument("text");
  if (size <= from.size()) {
    return {StatusCode::out_of_memory,
            concat("text has ", size, " bytes; the value needs ", from.size() + 1)};
  }
  std::memcpy(text, from.data(), from.size());
  text[from.size()] = '\0';
  return {};
}

Status field_text(const Recipe& recipe, const char* field, char* text, std::size_t size,
                  std::size_t* length) {
  if (field == nullptr) return null_argument("field");
  const std::string_view wanted = field;
  if (wanted == "name") return copy_text(recipe.name, text, size, length);
  std::string known = "name";
  for (const RecipeField& f : fields(recipe)) {
    if (f.name == wanted) return copy_text(f.value, text, size, length);
    known += ", " + f.name;
  }
  return invalid_argument(concat("recipe field '", wanted, "' is not known; there are: ", known));
}

}  // namespace octavo::capi

extern "C" const char* octavo_last_error(void) { return octavo::capi::last_error; }
