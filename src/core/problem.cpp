// Every check of a call's arguments, before anything runs. Each refusal names the argument, its value and
// what is supported.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/device.hpp"
#include "core/heads_view.hpp"
#include "core/text.hpp"
#include "octavo/attention.hpp"

namespace octavo {
namespace {

template <class Pointer>
Status check_view(const char* name, const BasicTensorView<Pointer>& t) {
  std::int64_t n = 1;
  std::int64_t reach = 0;
  bool none = false;
  for (int d = 0; d < t.rank; ++d) {
    const std::int64_t size = t.shape[static_cast<std::size_t>(d)];
    const std::int64_t stride = t.strides[static_cast<std::size_t>(d)];
    if (size < 0)
      return invalid_argument(concat(name, " has shape ", shape_text(t), "; dimensions must be >= 0"));
    none = none || size == 0;
    std::int64_t span = 0;
    if (size > 0 && (__builtin_mul_overflow(n, size, &n) || __builtin_mul_overflow(size - 1, stride, &span) ||
                     __builtin_add_overflow(reach, span < 0 ? -span : span, &reach) ||
                     reach > std::numeric_limits<std::int64_t>::max() / 8)) {
      return invalid_argument(
          concat(name, " has shape ", shape_text(t), " whose size in bytes exceeds 2^63"));
    }
  }
  if (t.data == nullptr && !none)
    return invalid_argument(concat(name, " is a null pointer with shape ", shape_text(t)));
  return {};
}

Status same_device(const char* name, const TensorView& t, const Device& device) {
  if (t.device == device) return {};
  return invalid_argument(concat(name, " is on ", to_text(t.device), " and q on ", to_text(device),
                                 "; they must be on one device"));
}

constexpr int kMaxKeySplits = 1024;  // items of a launch stay within 31 bits, merges within microseconds

using Integers = std::vector<std::int64_t>;

/// Lengths and offsets, i32 or i64 with any stride, on the host or beside q. What is on a GPU is copied,
/// which waits for `stream`.
Result<Integers> read_integers(const char* name, const TensorView& t, std::int64_t expected,
                               const char* expected_text, const Device& device, void* stream) {
  if (Status s = check_view(name, t); !s.ok()) return s;
  if (t.rank != 1 || (expected >= 0 && t.shape[0] != expected)) {
    return invalid_argument(concat(name, " has shape ", shape_text(t), "; it must be ", expected_text));
  }
  if (t.dtype != DType::i32 && t.dtype != DType::i64)
    return invalid_argument(concat(name, " has dtype ", to_string(t.dtype), "; it must be i32 or i64"));

  Integers values(static_cast<std::size_t>(t.shape[0]));
  const std::int64_t step = t.strides[0] * static_cast<std::int64_t>(size_of(t.dtype));
  const std::int64_t span = values.empty() ? 0 : (t.shape[0] - 1) * step;
  const auto* first = static_cast<const char*>(t.data);
  std::vector<char> copy;
  if (t.device.kind == Device::Kind::cuda && !values.empty()) {
    if (Status s = same_device(name, t, device); !s.ok()) return s;
    copy.resize(static_cast<std::size_t>(std::abs(span)) + size_of(t.dtype));
    const std::int64_t lowest = std::min<std::int64_t>(span, 0);
    if (Status s = copy_to_host(copy.data(), first + lowest, copy.size(), t.device, stream, name); !s.ok())
      return s;
    first = copy.data() - lowest;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const char* at = first + static_cast<std::int64_t>(i) * step;
    if (t.dtype == DType::i64) {
      std::memcpy(&values[i], at, sizeof values[i]);
    } else {
      std::int32_t value = 0;
      std::memcpy(&value, at, sizeof value);
      values[i] = value;
    }
  }
  return values;
}

Result<Integers> read_offsets(const char* name, const TensorView& t, std::int64_t tokens,
                              const Device& device, void* stream) {
  if (t.empty()) return invalid_argument(concat(name, " is missing; layout thd needs it"));
  Result<Integers> read = read_integers(name, t, -1, "[sequences + 1]", device, stream);
  if (!read.ok()) return read;
  const Integers& v = *read;
  if (v.empty()) return invalid_argument(concat(name, " is empty; it must hold sequences + 1 offsets"));
  if (v[0] != 0) return invalid_argument(concat(name, "[0] = ", v[0], "; it must be 0"));
  for (std::size_t i = 1; i < v.size(); ++i) {
    if (v[i] < v[i - 1])
      return invalid_argument(concat(name, "[", i, "] = ", v[i], " is below ", name, "[", i - 1,
                                     "] = ", v[i - 1], "; offsets must not decrease"));
  }
  if (v.back() != tokens) {
    return invalid_argument(
        concat(name, " ends at ", v.back(), "; it must end at the ", tokens, " tokens of the tensor"));
  }
  return read;
}

Status check_broadcast(const char* name, const TensorView& t, const Problem& p, bool boolean) {
  if (t.empty()) return {};
  if (p.packed()) return unsupported(concat(name, " is not supported with layout thd; pass dense tensors"));
  if (Status s = check_view(name, t); !s.ok()) return s;
  if (Status s = same_device(name, t, p.device); !s.ok()) return s;
  if (boolean && t.dtype != DType::boolean) {
    return invalid_argument(concat(name, " has dtype ", to_string(t.dtype),
                                   "; it must be bool (true = visible); additive masks go to bias"));
  }
  if (!boolean && t.dtype != DType::f32 && t.dtype != DType::f16 && t.dtype != DType::bf16) {
    return invalid_argument(concat(name, " has dtype ", to_string(t.dtype), "; it must be f32, f16 or bf16"));
  }
  const std::int64_t full[4] = {p.batch, p.q_heads, p.q_len, p.kv_len};
  for (int d = 0; d < t.rank; ++d) {
    const std::int64_t have = t.shape[static_cast<std::size_t>(t.rank - 1 - d)];
    if (have != 1 && have != full[3 - d]) {
      return invalid_argument(concat(name, " has shape ", shape_text(t),
                                     "; it must broadcast to [B, Hq, Lq, Lk] = [", full[0], ", ", full[1],
                                     ", ", full[2], ", ", full[3], "]"));
    }
  }
  return {};
}

Status check_q_absmax(const TensorView& t, const Problem& p) {
  if (t.empty()) return {};
  if (Status s = check_view("q_absmax", t); !s.ok()) return s;
  const bool fits =
      t.dtype == DType::f32 && ((t.rank == 1 && t.shape[0] == p.q_heads) ||
                                (t.rank == 2 && t.shape[0] == p.batch && t.shape[1] == p.q_heads));
  if (!fits) {
    return invalid_argument(concat("q_absmax has shape ", shape_text(t), " and dtype ", to_string(t.dtype),
                                   "; it must be f32 [Hq] = [", p.q_heads, "] or [B, Hq] = [", p.batch, ", ",
                                   p.q_heads, "]"));
  }
  if (Status s = same_device("q_absmax", t, p.device); !s.ok()) return s;
  if (t.device.kind != Device::Kind::cpu) return {};  // a look at the values would wait for the device
  for (std::int64_t b = 0; b < (t.rank == 2 ? p.batch : 1); ++b) {
    for (std::int64_t h = 0; h < p.q_heads; ++h) {
      const float value = given_q_absmax(p, Sequence{.index = b}, h);
      if (!(std::isfinite(value) && value > 0.0F))
        return invalid_argument(
            concat("q_absmax of head ", h, " is ", value, "; it must be finite and above 0"));
    }
  }
  return {};
}

Status check_tensors(const TensorView& q, const TensorView& k, const TensorView& v, Layout layout) {
  const int rank = layout == Layout::thd ? 3 : 4;
  const char* form = layout == Layout::hnd   ? "[B, H, L, D]"
                     : layout == Layout::nhd ? "[B, L, H, D]"
                                             : "[tokens, H, D]";
  const std::pair<const char*, const TensorView*> all[] = {{"q", &q}, {"k", &k}, {"v", &v}};
  for (const auto& [name, t] : all) {
    if (t->rank != rank)
      return invalid_argument(
          concat(name, " has shape ", shape_text(*t), "; layout ", to_string(layout), " needs ", form));
    if (Status s = check_view(name, *t); !s.ok()) return s;
    if (Status s = same_device(name, *t, q.device); !s.ok()) return s;
  }
  for (const auto& [name, t] : all) {
    if (t->dtype != DType::f32 && t->dtype != DType::f16 && t->dtype != DType::bf16) {
      return unsupported(
          concat(name, " has dtype ", to_string(t->dtype), "; f32, f16 and bf16 are supported"));
    }
    if (t->dtype != q.dtype) {
      return invalid_argument(concat(name, " has dtype ", to_string(t->dtype), " and q has ",
                                     to_string(q.dtype), "; q, k and v must have one dtype"));
    }
  }
  return {};
}

/// Offsets are those of the packed layout, lengths those of a dense one; empty where not given.
void list_sequences(Problem& p, const Integers& q_offsets, const Integers& k_offsets,
                    const Integers& lengths) {
  p.sequences.resize(static_cast<std::size_t>(p.batch));
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const auto i = static_cast<std::size_t>(b);
    if (p.packed()) {
      p.sequences[i] = {
          0, q_offsets[i], q_offsets[i + 1] - q_offsets[i], k_offsets[i], k_offsets[i + 1] - k_offsets[i], b};
    } else {
      p.sequences[i] = {b, 0, p.q_len, 0, lengths.empty() ? p.kv_len : lengths[i], b};
    }
  }
}

}  // namespace

Result<Problem> make_problem(const TensorView& q, const TensorView& k, const TensorView& v,
                             const AttentionOptions& options, void* stream) {
  const Layout layout = options.layout;
  if (Status s = check_tensors(q, k, v, layout); !s.ok()) return s;
  const auto at = [](const TensorView& t, int d) { return t.shape[static_cast<std::size_t>(d)]; };
  const int head_axis = layout == Layout::nhd ? 2 : 1;
  const int token_axis = layout == Layout::hnd ? 2 : layout == Layout::nhd ? 1 : 0;

  Problem p;
  p.options = options;
  p.dtype = q.dtype;
  p.device = q.device;
  p.check_finite = options.check_finite.value_or(p.device.kind == Device::Kind::cpu);
  p.q_heads = at(q, head_axis);
  p.kv_heads = at(k, head_axis);
  p.q_len = at(q, token_axis);
  p.kv_len = at(k, token_axis);
  p.head_dim = at(q, q.rank - 1);
  if (at(k, k.rank - 1) != p.head_dim) {
    return invalid_argument(
        concat("k has head_dim ", at(k, k.rank - 1), " and q has ", p.head_dim, "; they must be equal"));
  }
  if (p.head_dim < 1) return invalid_argument("q has head_dim 0; 1 to 256 are supported");
  if (p.head_dim > kMaxHeadDim)
    return unsupported(concat("q has head_dim ", p.head_dim, "; 1 to 256 are supported"));
  if (at(v, v.rank - 1) != p.head_dim) {
    return unsupported(concat("v has head_dim ", at(v, v.rank - 1), " and q has ", p.head_dim,
                              "; a value head_dim of its own is not supported"));
  }
  for (int d = 0; d < k.rank - 1; ++d) {
    if (at(k, d) != at(v, d))
      return invalid_argument(
          concat("k has shape ", shape_text(k), " and v has ", shape_text(v), "; they must agree"));
  }
  if (p.kv_heads < 1 || p.q_heads % p.kv_heads != 0) {
    return invalid_argument(concat("q has ", p.q_heads, " heads and k has ", p.kv_heads,
                                   "; query heads must be a multiple of key heads"));
  }
  p.scale = options.scale.value_or(1.0F / std::sqrt(static_cast<float>(p.head_dim)));
  if (!std::isfinite(p.scale)) return invalid_argument(concat("scale is ", p.scale, "; it must be finite"));
  if (options.threads < 0)
    return invalid_argument(concat("threads is ", options.threads, "; it must be 0 (all) or more"));
  if (options.key_splits < 0 || options.key_splits > kMaxKeySplits)
    return invalid_argument(concat("key_splits is ", options.key_splits,
                                   "; it must be 0 (the kernel decides) or 1 to ", kMaxKeySplits));
  if (options.key_splits > 1 && p.device.kind == Device::Kind::cpu)
    return unsupported(concat("key_splits is ", options.key_splits,
                              "; CPU kernels do not split keys, 0 and 1 are supported"));
  if (options.window.left < -1 || options.window.right < -1) {
    return invalid_argument(concat("window is (", options.window.left, ", ", options.window.right,
                                   "); each side is -1 (no limit) or >= 0"));
  }
  Integers q_offsets;
  Integers k_offsets;
  Integers lengths;
  if (p.packed()) {
    Result<Integers> of_q = read_offsets("cu_seqlens_q", options.cu_seqlens_q, p.q_len, p.device, stream);
    if (!of_q.ok()) return of_q.status();
    Result<Integers> of_k = read_offsets("cu_seqlens_k", options.cu_seqlens_k, p.kv_len, p.device, stream);
    if (!of_k.ok()) return of_k.status();
    q_offsets = std::move(*of_q);
    k_offsets = std::move(*of_k);
    p.batch = static_cast<std::int64_t>(q_offsets.size()) - 1;
    if (k_offsets.size() != q_offsets.size()) {
      return invalid_argument(concat("cu_seqlens_q has ", q_offsets.size(), " offsets and cu_seqlens_k has ",
                                     k_offsets.size(), "; they must agree"));
    }
    if (!options.kv_lengths.empty())
      return invalid_argument("kv_lengths goes with layout hnd or nhd; layout thd takes cu_seqlens_k");
  } else {
    if (!options.cu_seqlens_q.empty() || !options.cu_seqlens_k.empty()) {
      return invalid_argument(
          concat("cu_seqlens_q and cu_seqlens_k go with layout thd; the layout is ", to_string(layout)));
    }
    p.batch = at(q, 0);
    if (at(k, 0) != p.batch)
      return invalid_argument(
          concat("q has batch ", p.batch, " and k has ", at(k, 0), "; they must be equal"));
    if (!options.kv_lengths.empty()) {
      Result<Integers> read =
          read_integers("kv_lengths", options.kv_lengths, p.batch, "[B]", p.device, stream);
      if (!read.ok()) return read.status();
      lengths = std::move(*read);
      for (std::size_t b = 0; b < lengths.size(); ++b) {
        if (lengths[b] < 0 || lengths[b] > p.kv_len)
          return invalid_argument(concat("kv_lengths[", b, "] = ", lengths[b],
                                         "; it must be between 0 and the ", p.kv_len, " keys of k"));
      }
    }
  }
  if (Status s = check_broadcast("mask", options.mask, p, true); !s.ok()) return s;
  if (Status s = check_broadcast("bias", options.bias, p, false); !s.ok()) return s;
  if (Status s = check_q_absmax(options.q_absmax, p); !s.ok()) return s;
  list_sequences(p, q_offsets, k_offsets, lengths);
  return p;
}

KeyRange visible_keys(const Problem& problem, const Sequence& sequence, std::int64_t row) {
  const AttentionOptions& o = problem.options;
  const std::int64_t n = sequence.k_len;
  const std::int64_t diagonal = row + (o.causal == Causal::top_left ? 0 : n - sequence.q_len);
  KeyRange range{0, n};
  if (o.causal != Causal::none) range.end = std::min(range.end, diagonal + 1);
  // Comparing before adding keeps huge windows from overflowing.
  if (o.window.left >= 0 && o.window.left < diagonal) range.begin = diagonal - o.window.left;
  if (o.window.right >= 0 && o.window.right < n - diagonal)
    range.end = std::min(range.end, diagonal + o.window.right + 1);
  range.begin = std::min(range.begin, n);
  range.end = std::max(range.end, range.begin);
  return range;
}

BroadcastView broadcast_view(const TensorView& t) {
  BroadcastView view{t.data, t.dtype, {0, 0, 0, 0}};
  for (int d = 0; d < t.rank; ++d) {
    const auto i = static_cast<std::size_t>(t.rank - 1 - d);
    view.strides[3 - d] = t.shape[i] == 1 ? 0 : t.strides[i];
  }
  return view;
}

float given_q_absmax(const Problem& problem, const Sequence& sequence, std::int64_t head) {
  const TensorView& t = problem.options.q_absmax;
  if (t.empty()) return -1.0F;
  const std::int64_t at =
      t.rank == 2 ? sequence.index * t.strides[0] + head * t.strides[1] : head * t.strides[0];
  float value = 0.0F;
  std::memcpy(&value, static_cast<const char*>(t.data) + at * 4, sizeof value);
  return value;
}

}  // namespace octavo
