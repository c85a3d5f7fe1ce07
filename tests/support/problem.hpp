// Random attention problems for tests: owned tensors in any dtype and layout, poisoned outputs with guard
// bands.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/rows.hpp"
#include "octavo/octavo.hpp"

namespace octavo::test {

inline constexpr std::size_t kGuard = 256;  // bytes before and behind every output

/// A tensor that owns its memory; elements are set and read as f32.
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, std::vector<std::int64_t> shape) : shape_(std::move(shape)) {
    view_.dtype = dtype;
    view_.rank = static_cast<int>(shape_.size());
    std::int64_t step = 1;
    for (std::size_t d = shape_.size(); d-- > 0;) {
      view_.shape[d] = shape_[d];
      view_.strides[d] = step;
      step *= std::max<std::int64_t>(shape_[d], 1);
    }
    bytes_.assign(static_cast<std::size_t>(elements()) * size_of(dtype) + 2 * kGuard, std::byte{0xA5});
  }

  [[nodiscard]] std::int64_t elements() const {
    return std::accumulate(shape_.begin(), shape_.end(), std::int64_t{1}, std::multiplies<>());
  }
  [[nodiscard]] MutableTensorView view() {
    MutableTensorView v = view_;
    v.data = bytes_.data() + kGuard;
    return v;
  }
  [[nodiscard]] TensorView view() const {
    TensorView v = view_;
    v.data = bytes_.data() + kGuard;
    return v;
  }
  [[nodiscard]] float operator[](std::int64_t i) const {
    return read_element(bytes_.data() + kGuard, view_.dtype, i);
  }
  void set(std::int64_t i, float x) { write_element(bytes_.data() + kGuard, view_.dtype, i, x); }
  void fill(float x) {
    for (std::int64_t i = 0; i < elements(); ++i) set(i, x);
  }
  void fill_normal(std::mt19937_64& rng, float size = 1.0F) {
    std::normal_distribution<float> normal(0.0F, size);
    for (std::int64_t i = 0; i < elements(); ++i) set(i, normal(rng));
  }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }
  [[nodiscard]] std::vector<std::byte>& bytes() { return bytes_; }
  /// Nobody wrote before or behind the elements.
  [[nodiscard]] bool guards_intact() const {
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (bytes_[i] != std::byte{0xA5} || bytes_[bytes_.size() - 1 - i] != std::byte{0xA5}) return false;
    }
    return true;
  }

 private:
  std::vector<std::int64_t> shape_;
  MutableTensorView view_;
  std::vector<std::byte> bytes_;
};

/// What a random problem is made from; everything else follows from the seed.
struct Shape {
  std::int64_t batch = 1, q_heads = 2, kv_heads = 1, q_len = 64, kv_len = 64, head_dim = 64;
  DType dtype = DType::f16;
  Layout layout = Layout::hnd;
  Causal causal = Causal::none;
  Window window{};
  bool lengths = false, mask = false, bias = false;
  std::uint64_t seed = 1;
};

inline std::string to_text(const Shape& s) {
  return "B" + std::to_string(s.batch) + " H" + std::to_string(s.q_heads) + "/" + std::to_string(s.kv_heads) +
         " L" + std::to_string(s.q_len) + "x" + std::to_string(s.kv_len) + " D" + std::to_string(s.head_dim) +
         " " + to_string(s.dtype) + " " + to_string(s.layout) + " causal " +
         std::to_string(static_cast<int>(s.causal)) + " window (" + std::to_string(s.window.left) + "," +
         std::to_string(s.window.right) + ")" + (s.lengths ? " lengths" : "") + (s.mask ? " mask" : "") +
         (s.bias ? " bias" : "") + " seed " + std::to_string(s.seed);
}

/// Inputs of one problem. Padding keys hold NaN, hidden ones ordinary values.
struct Inputs {
  Shape shape;
  Tensor q, k, v, lengths, mask, bias, cu_q, cu_k;

  explicit Inputs(const Shape& s) : shape(s) {
    std::mt19937_64 rng(s.seed);
    const auto dims = [&](std::int64_t heads, std::int64_t tokens) -> std::vector<std::int64_t> {
      if (s.layout == Layout::thd) return {s.batch * tokens, heads, s.head_dim};
      return s.layout == Layout::hnd ? std::vector<std::int64_t>{s.batch, heads, tokens, s.head_dim}
                                     : std::vector<std::int64_t>{s.batch, tokens, heads, s.head_dim};
    };
    q = Tensor(s.dtype, dims(s.q_heads, s.q_len));
    k = Tensor(s.dtype, dims(s.kv_heads, s.kv_len));
    v = Tensor(s.dtype, dims(s.kv_heads, s.kv_len));
    q.fill_normal(rng);
    k.fill_normal(rng);
    v.fill_normal(rng);
    if (s.layout == Layout::thd) {
      cu_q = offsets(rng, s.batch, s.batch * s.q_len);
      cu_k = offsets(rng, s.batch, s.batch * s.kv_len);
    } else if (s.lengths) {
      make_lengths(rng);
    }
    if (s.mask) {
      mask = Tensor(DType::boolean, {s.batch, 1, s.q_len, s.kv_len});
      auto* bytes = static_cast<std::uint8_t*>(mask.view().data);
      for (std::int64_t i = 0; i < mask.elements(); ++i) bytes[i] = rng() % 4 != 0 ? 1 : 0;
    }
    if (s.bias) {
      bias = Tensor(DType::f32, {s.q_heads, s.q_len, s.kv_len});
      bias.fill_normal(rng);
    }
  }

  [[nodiscard]] AttentionOptions options(int threads = 1) const {
    AttentionOptions o;
    o.layout = shape.layout;
    o.causal = shape.causal;
    o.window = shape.window;
    o.threads = threads;
    if (lengths.elements() > 1 || shape.lengths)
      o.kv_lengths = shape.lengths && shape.layout != Layout::thd ? lengths.view() : TensorView{};
    if (shape.mask) o.mask = mask.view();
    if (shape.bias) o.bias = bias.view();
    if (shape.layout == Layout::thd) {
      o.cu_seqlens_q = cu_q.view();
      o.cu_seqlens_k = cu_k.view();
    }
    return o;
  }

 private:
  static Tensor offsets(std::mt19937_64& rng, std::int64_t sequences, std::int64_t tokens) {
    std::vector<std::int32_t> cuts{0, static_cast<std::int32_t>(tokens)};
    for (std::int64_t i = 1; i < sequences; ++i)
      cuts.push_back(static_cast<std::int32_t>(rng() % static_cast<std::uint64_t>(tokens + 1)));
    std::sort(cuts.begin(), cuts.end());
    Tensor t(DType::i32, {sequences + 1});
    std::memcpy(t.view().data, cuts.data(), cuts.size() * sizeof(std::int32_t));
    return t;
  }

  void make_lengths(std::mt19937_64& rng) {
    lengths = Tensor(DType::i32, {shape.batch});
    auto* n = static_cast<std::int32_t*>(lengths.view().data);
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      n[b] = static_cast<std::int32_t>(rng() % static_cast<std::uint64_t>(shape.kv_len + 1));
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
        for (std::int64_t t = n[b]; t < shape.kv_len; ++t) {
          for (std::int64_t d = 0; d < shape.head_dim; ++d) {
            const std::int64_t token = shape.layout == Layout::hnd
                                           ? (b * shape.kv_heads + h) * shape.kv_len + t
                                           : (b * shape.kv_len + t) * shape.kv_heads + h;
            k.set(token * shape.head_dim + d, std::numeric_limits<float>::quiet_NaN());
            v.set(token * shape.head_dim + d, std::numeric_limits<float>::infinity());
          }
        }
      }
    }
  }
};

/// Outputs, poisoned.
struct Outputs {
  Tensor o, lse;
  explicit Outputs(const Inputs& in, DType dtype = DType::f32) {
    const TensorView q = in.q.view();
    std::vector<std::int64_t> dims(q.shape.begin(), q.shape.begin() + q.rank);
    o = Tensor(dtype, dims);
    lse = in.shape.layout == Layout::thd
              ? Tensor(DType::f32, {in.shape.q_heads, in.shape.batch * in.shape.q_len})
              : Tensor(DType::f32, {in.shape.batch, in.shape.q_heads, in.shape.q_len});
    o.fill(std::numeric_limits<float>::quiet_NaN());
    lse.fill(std::numeric_limits<float>::quiet_NaN());
  }
};

inline Status run(const Inputs& in, Outputs& out, const Recipe& recipe, const std::string& kernel = "",
                  int threads = 1) {
  const auto& c = in;
  return attention(c.q.view(), c.k.view(), c.v.view(), out.o.view(), out.lse.view(), recipe,
                   in.options(threads), {kernel});
}

/// |a - b| / |b| over all elements; NaN anywhere gives NaN.
inline double relative_l2(const Tensor& a, const Tensor& b) {
  double num = 0;
  double den = 0;
  for (std::int64_t i = 0; i < b.elements(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    num += d * d;
    den += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return den > 0 || std::isnan(num) ? std::sqrt(num / den) : std::sqrt(num);
}

/// Largest |a - b|; equal infinities differ by 0.
inline double largest_difference(const Tensor& a, const Tensor& b) {
  double most = 0;
  for (std::int64_t i = 0; i < b.elements(); ++i) {
    if (a[i] == b[i]) continue;
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    most = d > most || std::isnan(d) ? d : most;
  }
  return most;
}

}  // namespace octavo::test
