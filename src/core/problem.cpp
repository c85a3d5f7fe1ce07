// Every check of a call's arguments, before anything runs. Each refusal names the argument, its value and
// what is supported.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

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

/// Lengths and offsets: i32 or i64 vectors, read on the host.
struct IntegerVector {
  const TensorView* t;
  [[nodiscard]] std::int64_t size() const { return t->shape[0]; }
  [[nodiscard]] std::int64_t operator[](std::int64_t i) const {
    const auto* bytes =
        static_cast<const char*>(t->data) + i * t->strides[0] * static_cast<std::int64_t>(size_of(t->dtype));
    if (t->dtype == DType::i64) {
      std::int64_t v = 0;
      std::memcpy(&v, bytes, sizeof v);
      return v;
    }
    std::int32_t v = 0;
    std::memcpy(&v, bytes, sizeof v);
    return v;
  }
};

Status check_integers(const char* name, const TensorView& t, std::int64_t expected,
                      const char* expected_text) {
  if (Status s = check_view(name, t); !s.ok()) return s;
  if (t.rank != 1 || (expected >= 0 && t.shape[0] != expected)) {
    return invalid_argument(concat(name, " has shape ", shape_text(t), "; it must be ", expected_text));
  }
  if (t.dtype != DType::i32 && t.dtype != DType::i64)
    return invalid_argument(concat(name, " has dtype ", to_string(t.dtype), "; it must be i32 or i64"));
  return {};
}

Status check_offsets(const char* name, const TensorView& t, std::int64_t tokens) {
  if (t.empty()) return invalid_argument(concat(name, " is missing; layout thd needs it"));
  if (Status s = check_integers(name, t, -1, "[sequences + 1]"); !s.ok()) return s;
  const IntegerVector v{&t};
  if (v.size() < 1) return invalid_argument(concat(name, " is empty; it must hold sequences + 1 offsets"));
  if (v[0] != 0) return invalid_argument(concat(name, "[0] = ", v[0], "; it must be 0"));
  for (std::int64_t i = 1; i < v.size(); ++i) {
    if (v[i] < v[i - 1])
      return invalid_argument(concat(name, "[", i, "] = ", v[i], " is below ", name, "[", i - 1,
                                     "] = ", v[i - 1], "; offsets must not decrease"));
  }
  if (v[v.size() - 1] != tokens) {
    return invalid_argument(
        concat(name, " ends at ", v[v.size() - 1], "; it must end at the ", tokens, " tokens of the tensor"));
  }
  return {};
}

Status check_broadcast(const char* name, const TensorView& t, const Problem& p, bool boolean) {
  if (t.empty()) return {};
  if (p.packed()) return unsupported(concat(name, " is not supported with layout thd; pass dense tensors"));
  if (Status s = check_view(name, t); !s.ok()) return s;
  if (t.device != p.device) return invalid_argument(concat(name, " is on another device than q"));
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
    if (t->device != q.device) return invalid_argument(concat(name, " is on another device than q"));
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

void list_sequences(Problem& p) {
  const AttentionOptions& o = p.options;
  p.sequences.resize(static_cast<std::size_t>(p.batch));
  for (std::int64_t b = 0; b < p.batch; ++b) {
    Sequence& s = p.sequences[static_cast<std::size_t>(b)];
    if (p.packed()) {
      const IntegerVector cq{&o.cu_seqlens_q};
      const IntegerVector ck{&o.cu_seqlens_k};
      s = {0, cq[b], cq[b + 1] - cq[b], ck[b], ck[b + 1] - ck[b], b};
    } else {
      s = {b, 0, p.q_len, 0, o.kv_lengths.empty() ? p.kv_len : IntegerVector{&o.kv_lengths}[b], b};
    }
  }
}

}  // namespace

Result<Problem> make_problem(const TensorView& q, const TensorView& k, const TensorView& v,
                             const AttentionOptions& options) {
  const Layout layout = options.layout;
  if (Status s = check_tensors(q, k, v, layout); !s.ok()) return s;
  const auto at = [](const TensorView& t, int d) { return t.shape[static_cast<std::size_t>(d)]; };
  const int head_axis = layout == Layout::nhd ? 2 : 1;
  const int token_axis = layout == Layout::hnd ? 2 : layout == Layout::nhd ? 1 : 0;

  Problem p;
  p.options = options;
  p.dtype = q.dtype;
  p.device = q.device;
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
  if (options.window.left < -1 || options.window.right < -1) {
    return invalid_argument(concat("window is (", options.window.left, ", ", options.window.right,
                                   "); each side is -1 (no limit) or >= 0"));
  }
  if (p.packed()) {
    if (Status s = check_offsets("cu_seqlens_q", options.cu_seqlens_q, p.q_len); !s.ok()) return s;
    if (Status s = check_offsets("cu_seqlens_k", options.cu_seqlens_k, p.kv_len); !s.ok()) return s;
    p.batch = options.cu_seqlens_q.shape[0] - 1;
    if (options.cu_seqlens_k.shape[0] - 1 != p.batch) {
      return invalid_argument(concat("cu_seqlens_q has ", p.batch + 1, " offsets and cu_seqlens_k has ",
                                     options.cu_seqlens_k.shape[0], "; they must agree"));
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
    if (const TensorView& t = options.kv_lengths; !t.empty()) {
      if (Status s = check_integers("kv_lengths", t, p.batch, "[B]"); !s.ok()) return s;
      for (std::int64_t b = 0; b < p.batch; ++b) {
        const std::int64_t n = IntegerVector{&t}[b];
        if (n < 0 || n > p.kv_len)
          return invalid_argument(
              concat("kv_lengths[", b, "] = ", n, "; it must be between 0 and the ", p.kv_len, " keys of k"));
      }
    }
  }
  if (Status s = check_broadcast("mask", options.mask, p, true); !s.ok()) return s;
  if (Status s = check_broadcast("bias", options.bias, p, false); !s.ok()) return s;
  if (Status s = check_q_absmax(options.q_absmax, p); !s.ok()) return s;
  list_sequences(p);
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
