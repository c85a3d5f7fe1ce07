// A problem for the GPU quantizers: random tensors of any layout, strides and lengths on the device, the same
// values on the host, and the buffers that came out.
#pragma once

#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/rows.hpp"
#include "cuda/device.hpp"
#include "cuda/layout.hpp"
#include "cuda/quantize/quantize.hpp"
#include "octavo/octavo.hpp"

namespace octavo::test {

struct QuantizeShape {
  std::int64_t batch = 1, q_heads = 2, kv_heads = 1, q_len = 64, kv_len = 64, head_dim = 64;
  DType dtype = DType::f16;
  Layout layout = Layout::hnd;
  bool lengths = false;  ///< kv_lengths, some of them 0
  std::int64_t pad = 0;  ///< channels between rows, which shows in every stride
  std::int64_t channel_step = 1;
  bool given = false;  ///< q_absmax
  float scale = 0.125F;
  float mean = 0.5F;
  float size = 1.0F;
  unsigned seed = 1;
};

inline std::string to_text(const QuantizeShape& s) {
  return "B" + std::to_string(s.batch) + " H" + std::to_string(s.q_heads) + "/" + std::to_string(s.kv_heads) +
         " L" + std::to_string(s.q_len) + "x" + std::to_string(s.kv_len) + " D" + std::to_string(s.head_dim) +
         " " + to_string(s.dtype) + " " + to_string(s.layout) + (s.lengths ? " lengths" : "") + " pad " +
         std::to_string(s.pad) + " step " + std::to_string(s.channel_step) + (s.given ? " q_absmax" : "") +
         " scale " + std::to_string(s.scale) + " seed " + std::to_string(s.seed);
}

/// A tensor on host and device. `at(batch, head, token, channel)` reads the host's copy.
struct DeviceTensor {
  std::vector<std::byte> host;
  std::unique_ptr<DeviceBytes> device;
  TensorView view;

  DeviceTensor(const QuantizeShape& s, std::int64_t heads, std::int64_t tokens, std::mt19937& random,
               float mean) {
    const std::int64_t row = (s.head_dim + s.pad) * s.channel_step;
    const bool packed = s.layout == Layout::thd;
    view.dtype = s.dtype;
    view.device = {Device::Kind::cuda, 0};
    view.rank = packed ? 3 : 4;
    if (packed) {
      view.shape = {tokens, heads, s.head_dim, 0};
      view.strides = {heads * row, row, s.channel_step, 0};
    } else if (s.layout == Layout::hnd) {
      view.shape = {s.batch, heads, tokens, s.head_dim};
      view.strides = {heads * tokens * row, tokens * row, row, s.channel_step};
    } else {
      view.shape = {s.batch, tokens, heads, s.head_dim};
      view.strides = {heads * tokens * row, heads * row, row, s.channel_step};
    }
    const std::int64_t count = (packed ? 1 : s.batch) * heads * tokens * row;
    host.resize(static_cast<std::size_t>(count) * size_of(s.dtype));
    std::normal_distribution<float> normal(0.0F, s.size);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto channel = static_cast<float>(i % row % 7);
      write_element(host.data(), s.dtype, i, normal(random) + mean * (channel - 3.0F));
    }
  }
  void send() {
    device = std::make_unique<DeviceBytes>(host);
    view.data = device->data();
  }
  [[nodiscard]] HeadsView heads(Layout layout) const {
    TensorView on_host = view;
    on_host.data = host.data();
    return heads_view(on_host, layout);
  }
};

struct QuantizeCase {
  QuantizeShape shape;
  Recipe recipe;
  std::mt19937 random;
  DeviceTensor q, k, v;
  std::vector<std::int32_t> cu_q, cu_k, lengths;
  std::vector<float> absmax;
  std::unique_ptr<DeviceBytes> device_absmax;
  Problem problem;

  QuantizeCase(const QuantizeShape& s, const Recipe& r)
      : shape(s),
        recipe(r),
        random(s.seed),
        q(s, s.q_heads, tokens(s, s.q_len), random, 0.1F * s.mean),
        k(s, s.kv_heads, tokens(s, s.kv_len), random, s.mean),
        v(s, s.kv_heads, tokens(s, s.kv_len), random, s.mean) {}

  /// After any change of q, k, v on the host.
  void send() {
    AttentionOptions o;
    o.layout = shape.layout;
    o.scale = shape.scale;
    o.check_finite = false;
    if (shape.layout == Layout::thd) {
      cu_q = offsets(shape.q_len * shape.batch);
      cu_k = offsets(shape.kv_len * shape.batch);
      o.cu_seqlens_q = TensorView(cu_q.data(), DType::i32, {shape.batch + 1});
      o.cu_seqlens_k = TensorView(cu_k.data(), DType::i32, {shape.batch + 1});
    } else if (shape.lengths) {
      for (std::int64_t b = 0; b < shape.batch; ++b)
        lengths.push_back(
            b % 3 == 1 ? 0 : static_cast<std::int32_t>(random() % static_cast<unsigned>(shape.kv_len + 1)));
      o.kv_lengths = TensorView(lengths.data(), DType::i32, {shape.batch});
    }
    for (DeviceTensor* t : {&q, &k, &v}) t->send();
    problem = *make_problem(q.view, k.view, v.view, o);
    if (shape.given) {  // set behind the checks, which would read it on the host
      std::uniform_real_distribution<float> draw(0.5F, 2.5F);
      for (std::int64_t i = 0; i < shape.batch * shape.q_heads; ++i) absmax.push_back(draw(random));
      std::vector<std::byte> bytes(absmax.size() * sizeof(float));
      std::memcpy(bytes.data(), absmax.data(), bytes.size());
      device_absmax = std::make_unique<DeviceBytes>(bytes);
      problem.options.q_absmax = TensorView(device_absmax->data(), DType::f32, {shape.batch, shape.q_heads});
    }
  }

  [[nodiscard]] KernelCall call() const { return {problem, recipe}; }

 private:
  static std::int64_t tokens(const QuantizeShape& s, std::int64_t len) {
    return s.layout == Layout::thd ? len * s.batch : len;
  }
  std::vector<std::int32_t> offsets(std::int64_t total) {
    std::vector<std::int32_t> cuts{0, static_cast<std::int32_t>(total)};
    for (std::int64_t i = 1; i < shape.batch; ++i)
      cuts.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(total + 1)));
    std::sort(cuts.begin(), cuts.end());
    return cuts;
  }
};

/// The rows of each sequence as the layout's comment counts them.
inline std::vector<cuda::SequenceRow> sequence_rows(const Problem& p, const Recipe& r) {
  const std::int64_t align = r.v_format == Format::f16 || r.v_format == Format::bf16 ? 128 : 64;
  std::vector<cuda::SequenceRow> rows;
  cuda::SequenceRow next;
  for (const Sequence& s : p.sequences) {
    next.batch = s.batch;
    next.q_begin = s.q_begin;
    next.q_len = s.q_len;
    next.k_begin = s.k_begin;
    next.k_len = s.k_len;
    rows.push_back(next);
    next.q_row += (s.q_len * p.group() + 63) / 64 * 64;
    next.k_row += (s.k_len + align - 1) / align * align;
    next.q_block += (s.q_len + 127) / 128;
  }
  return rows;
}

}  // namespace octavo::test
