#include "reference/problems.hpp"

#include <algorithm>

namespace octavo::testing {
namespace {

std::vector<float> normal(std::mt19937& random, std::int64_t count, float mean) {
  std::normal_distribution<float> draw(mean, 1.0F);
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& value : x) value = draw(random);
  return x;
}

template <class T>
T at(const std::vector<T>& x, std::int64_t i) {
  return x[static_cast<std::size_t>(i)];
}

/// Does query `row` of a sequence with q_len rows and n valid keys see key j? As docs/numerics.md words it.
bool sees(const Case& c, std::int64_t row, std::int64_t j, std::int64_t q_len, std::int64_t n) {
  const std::int64_t shift = c.causal == Causal::top_left ? 0 : n - q_len;
  if (j >= n) return false;
  if (c.causal != Causal::none && j > row + shift) return false;
  if (c.window.left >= 0 && j < row + shift - c.window.left) return false;
  if (c.window.right >= 0 && j > row + shift + c.window.right) return false;
  return true;
}

}  // namespace

void Case::fill() {
  std::mt19937 random(seed);
  q = normal(random, batch * q_heads * q_len * channels, 0.0F);
  k = normal(random, batch * kv_heads * k_len * channels, 0.7F);
  v = normal(random, batch * kv_heads * k_len * channels, 0.3F);
  const std::int64_t pairs = batch * q_heads * q_len * k_len;
  if (hidden_by_mask > 0.0) {
    std::bernoulli_distribution visible(1.0 - hidden_by_mask);
    mask.resize(static_cast<std::size_t>(pairs));
    for (std::uint8_t& m : mask) m = visible(random) ? 1 : 0;
  }
  if (with_bias) {
    bias = normal(random, pairs, 0.0F);
    for (std::size_t i = 0; i < bias.size(); i += 7) bias[i] = -std::numeric_limits<float>::infinity();
  }
}

AttentionOptions Case::options() const {
  AttentionOptions o;
  o.causal = causal;
  o.window = window;
  if (has_scale) o.scale = scale;
  o.threads = 2;
  if (!kv_lengths.empty()) o.kv_lengths = TensorView(kv_lengths.data(), DType::i32, {batch});
  if (packed()) {
    o.layout = Layout::thd;
    o.cu_seqlens_q = TensorView(cu_q.data(), DType::i32, {static_cast<std::int64_t>(cu_q.size())});
    o.cu_seqlens_k = TensorView(cu_k.data(), DType::i32, {static_cast<std::int64_t>(cu_k.size())});
  }
  if (!mask.empty()) o.mask = TensorView(mask.data(), DType::boolean, {batch, q_heads, q_len, k_len});
  if (!bias.empty()) o.bias = TensorView(bias.data(), DType::f32, {batch, q_heads, q_len, k_len});
  return o;
}

TensorView Case::q_view() const {
  return packed() ? TensorView(q.data(), DType::f32, {q_len, q_heads, channels})
                  : TensorView(q.data(), DType::f32, {batch, q_heads, q_len, channels});
}
TensorView Case::k_view() const {
  return packed() ? TensorView(k.data(), DType::f32, {k_len, kv_heads, channels})
                  : TensorView(k.data(), DType::f32, {batch, kv_heads, k_len, channels});
}
TensorView Case::v_view() const {
  TensorView view = k_view();
  view.data = v.data();
  return view;
}

std::vector<Case> visibility_cases() {
  std::vector<Case> cases{
      {.name = "full"},
      {.name = "cross", .q_len = 40, .k_len = 130},
      {.name = "one key", .q_len = 5, .k_len = 1},
      {.name = "top left", .causal = Causal::top_left},
      {.name = "top left, more rows than keys", .q_len = 150, .k_len = 70, .causal = Causal::top_left},
      {.name = "bottom right, fewer rows", .q_len = 37, .k_len = 200, .causal = Causal::bottom_right},
      {.name = "bottom right, rows without keys", .q_len = 150, .k_len = 70, .causal = Causal::bottom_right},
      {.name = "window",
       .q_len = 90,
       .k_len = 160,
       .causal = Causal::bottom_right,
       .window = {.left = 17, .right = -1}},
      {.name = "window on both sides, not causal",
       .q_len = 100,
       .k_len = 60,
       .window = {.left = 9, .right = 3}},
      {.name = "top left window",
       .q_len = 100,
       .k_len = 60,
       .causal = Causal::top_left,
       .window = {.left = 30, .right = 0}},
      {.name = "lengths",
       .batch = 4,
       .q_len = 33,
       .k_len = 100,
       .causal = Causal::bottom_right,
       .kv_lengths = {100, 0, 65, 1}},
      {.name = "grouped heads", .batch = 2, .q_heads = 6, .kv_heads = 2, .q_len = 50, .k_len = 77},
      {.name = "mask", .batch = 2, .q_len = 40, .k_len = 90, .hidden_by_mask = 0.5},
      {.name = "nearly everything masked", .q_len = 64, .k_len = 70, .hidden_by_mask = 0.985},
      {.name = "bias", .q_len = 40, .k_len = 90, .causal = Causal::bottom_right, .with_bias = true},
      {.name = "packed",
       .q_heads = 4,
       .q_len = 150,
       .k_len = 300,
       .causal = Causal::bottom_right,
       .cu_q = {0, 1, 1, 90, 150},
       .cu_k = {0, 70, 75, 75, 300}},
      {.name = "odd head dim", .q_len = 33, .k_len = 65, .channels = 21},
      {.name = "scale 0", .scale = 0.0F, .has_scale = true},
      {.name = "negative scale", .scale = -0.2F, .has_scale = true},
  };
  unsigned seed = 100;
  for (Case& c : cases) {
    c.seed = ++seed;
    c.fill();
  }
  return cases;
}

Answer triple_loop(const Case& c) {
  Answer answer;
  answer.o.assign(c.q.size(), 0.0F);
  answer.lse.assign(static_cast<std::size_t>(c.batch * c.q_heads * c.q_len), 0.0F);
  const auto sequences = c.packed() ? static_cast<std::int64_t>(c.cu_q.size()) - 1 : c.batch;
  const double scale =
      c.has_scale ? static_cast<double>(c.scale) : 1.0 / std::sqrt(static_cast<double>(c.channels));
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::int64_t rows = c.packed() ? at(c.cu_q, s + 1) - at(c.cu_q, s) : c.q_len;
    const std::int64_t keys = c.packed()             ? at(c.cu_k, s + 1) - at(c.cu_k, s)
                              : c.kv_lengths.empty() ? c.k_len
                                                     : at(c.kv_lengths, s);
    for (std::int64_t h = 0; h < c.q_heads; ++h) {
      const std::int64_t kv_head = h / (c.q_heads / c.kv_heads);
      const auto q_at = [&](std::int64_t i) {
        return c.packed() ? ((at(c.cu_q, s) + i) * c.q_heads + h) * c.channels
                          : ((s * c.q_heads + h) * c.q_len + i) * c.channels;
      };
      const auto k_at = [&](std::int64_t j) {
        return c.packed() ? ((at(c.cu_k, s) + j) * c.kv_heads + kv_head) * c.channels
                          : ((s * c.kv_heads + kv_head) * c.k_len + j) * c.channels;
      };
      for (std::int64_t i = 0; i < rows; ++i) {
        std::vector<double> logits;
        std::vector<std::int64_t> visible;
        for (std::int64_t j = 0; j < keys; ++j) {
          const std::int64_t pair = ((s * c.q_heads + h) * c.q_len + i) * c.k_len + j;
          if (!sees(c, i, j, rows, keys) || (!c.mask.empty() && at(c.mask, pair) == 0)) continue;
          double dot = 0.0;
          for (std::int64_t d = 0; d < c.channels; ++d)
            dot += static_cast<double>(at(c.q, q_at(i) + d)) * static_cast<double>(at(c.k, k_at(j) + d));
          const double bias = c.bias.empty() ? 0.0 : static_cast<double>(at(c.bias, pair));
          if (std::isinf(bias)) continue;
          logits.push_back(dot * scale + bias);
          visible.push_back(j);
        }
        double sum = 0.0;
        std::vector<double> o(static_cast<std::size_t>(c.channels), 0.0);
        for (std::size_t n = 0; n < visible.size(); ++n) {
          const double weight = std::exp(logits[n]);
          sum += weight;
          for (std::size_t d = 0; d < o.size(); ++d)
            o[d] += weight * static_cast<double>(at(c.v, k_at(visible[n]) + static_cast<std::int64_t>(d)));
        }
        for (std::size_t d = 0; d < o.size(); ++d) {
          answer.o[static_cast<std::size_t>(q_at(i)) + d] =
              visible.empty() ? 0.0F : static_cast<float>(o[d] / sum);
        }
        const std::int64_t lse_at =
            c.packed() ? h * c.q_len + at(c.cu_q, s) + i : (s * c.q_heads + h) * c.q_len + i;
        answer.lse[static_cast<std::size_t>(lse_at)] = static_cast<float>(std::log(sum));
      }
    }
  }
  return answer;
}

Answer run(const Case& c, const Recipe& recipe, const std::string& kernel, const AttentionOptions& options) {
  Answer answer;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  answer.o.assign(c.q.size(), nan);
  answer.lse.assign(static_cast<std::size_t>(c.batch * c.q_heads * c.q_len), nan);
  MutableTensorView out(answer.o.data(), DType::f32, {c.batch, c.q_heads, c.q_len, c.channels});
  MutableTensorView lse(answer.lse.data(), DType::f32, {c.batch, c.q_heads, c.q_len});
  if (c.packed()) {
    out = MutableTensorView(answer.o.data(), DType::f32, {c.q_len, c.q_heads, c.channels});
    lse = MutableTensorView(answer.lse.data(), DType::f32, {c.q_heads, c.q_len});
  }
  answer.status =
      attention(c.q_view(), c.k_view(), c.v_view(), out, lse, recipe, options, PlanOptions{kernel});
  return answer;
}

Answer run(const Case& c, const Recipe& recipe, const std::string& kernel) {
  return run(c, recipe, kernel, c.options());
}

Recipe preset(const std::string& name) { return *recipe(name); }

Recipe unrounded(const std::function<void(Recipe&)>& change) {
  Recipe r = preset("exact");
  r.name = "unrounded";
  change(r);
  return r;
}

double relative_l1(const std::vector<float>& a, const std::vector<float>& reference) {
  double difference = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::abs(static_cast<double>(a[i]) - static_cast<double>(reference[i]));
    size += std::abs(static_cast<double>(reference[i]));
  }
  return difference / size;
}

double relative_l2(const std::vector<float>& a, const std::vector<float>& reference) {
  double difference = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(reference[i]);
    difference += d * d;
    size += static_cast<double>(reference[i]) * static_cast<double>(reference[i]);
  }
  return std::sqrt(difference / size);
}

double cossim(const std::vector<float>& a, const std::vector<float>& reference) {
  double ab = 0.0;
  double aa = 0.0;
  double bb = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(a[i]);
    const auto y = static_cast<double>(reference[i]);
    ab += x * y;
    aa += x * x;
    bb += y * y;
  }
  return ab / std::sqrt(aa * bb);
}

double max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    worst = std::isfinite(d) ? std::max(worst, d) : std::numeric_limits<double>::infinity();
  }
  return worst;
}

}  // namespace octavo::testing
