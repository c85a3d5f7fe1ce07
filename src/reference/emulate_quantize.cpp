// The emulator's first half: subtract means, then rotate, then quantize (docs/numerics.md, "Before
// quantization" and "Quantization of Q and K"). Everything is f32; means are summed in f64 and rounded once,
// so that no order of summation is part of the definition.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "cpu/parallel.hpp"
#include "numerics/bfloat16.hpp"
#include "numerics/e4m3.hpp"
#include "numerics/float16.hpp"
#include "numerics/hadamard.hpp"
#include "numerics/integers.hpp"
#include "reference/emulate.hpp"
#include "reference/emulate_layout.hpp"

namespace octavo::reference {
namespace {

/// `count` rows of `channels` values, one after the other.
struct Matrix {
  Matrix(std::int64_t rows, std::int64_t columns)
      : count(rows), channels(columns), data(static_cast<std::size_t>(rows * columns)) {}
  float* row(std::int64_t i) { return data.data() + i * channels; }
  [[nodiscard]] const float* row(std::int64_t i) const { return data.data() + i * channels; }
  std::int64_t count;
  std::int64_t channels;
  std::vector<float> data;
};

/// Rows [begin, begin + count) of one head; clears `finite` at NaN or infinity.
Matrix load(const HeadsView& tensor, const Sequence& sequence, std::int64_t head, std::int64_t begin,
            std::int64_t count, std::int64_t channels, std::atomic<bool>& finite) {
  Matrix m(count, channels);
  for (std::int64_t i = 0; i < count; ++i)
    load_row(tensor, sequence.batch, head, begin + i, channels, m.row(i));
  if (!std::all_of(m.data.begin(), m.data.end(), [](float x) { return std::isfinite(x); })) finite = false;
  return m;
}

/// Mean of rows [first, first + count) per channel.
void mean_of(const Matrix& m, std::int64_t first, std::int64_t count, float* mean) {
  std::vector<double> sum(static_cast<std::size_t>(m.channels), 0.0);
  for (std::int64_t i = first; i < first + count; ++i) {
    const float* row = m.row(i);
    for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += static_cast<double>(row[c]);
  }
  for (std::size_t c = 0; c < sum.size(); ++c)
    mean[c] = static_cast<float>(sum[c] / static_cast<double>(std::max<std::int64_t>(count, 1)));
}

void subtract(Matrix& m, std::int64_t first, std::int64_t count, const float* mean) {
  for (std::int64_t i = first; i < first + count; ++i) {
    float* row = m.row(i);
    for (std::int64_t c = 0; c < m.channels; ++c) row[c] -= mean[c];
  }
}

/// Q or K times the Hadamard matrix, its channels padded with zeros to `padded`; without rotation the rows as
/// they are.
Matrix rotated(Matrix m, const Recipe& recipe, std::int64_t padded) {
  if (recipe.rotate == Rotation::none) return m;
  Matrix wide(m.count, padded);
  for (std::int64_t i = 0; i < m.count; ++i) {
    std::copy_n(m.row(i), m.channels, wide.row(i));
    numerics::hadamard_rotate(wide.row(i), static_cast<int>(padded), recipe.rotate_seed);
  }
  return wide;
}

/// The group of a query row or key, counted from the start of its sequence.
std::int64_t group_of_query(Granularity group, std::int64_t row) {
  switch (group) {
    case Granularity::per_block:
      return row / 128;
    case Granularity::per_warp:
      return row / 32;
    case Granularity::per_thread:
      return row / 32 * 8 + row % 8;
    case Granularity::per_token:
      return row;
    default:
      return 0;
  }
}
std::int64_t group_of_key(Granularity group, std::int64_t key) {
  switch (group) {
    case Granularity::per_block:
    case Granularity::per_warp:
      return key / 64;
    case Granularity::per_thread:
      return key / 64 * 4 + key % 8 / 2;
    case Granularity::per_token:
      return key;
    default:
      return 0;
  }
}

/// delta of every row: amax of its group / range.
std::vector<float> group_deltas(const Matrix& m, Granularity group,
                                std::int64_t (*group_of)(Granularity, std::int64_t), float range) {
  std::vector<float> delta(static_cast<std::size_t>(m.count), 1.0F);
  if (group == Granularity::none) return delta;
  std::vector<float> amax;
  const auto slot = [&](std::int64_t i) { return static_cast<std::size_t>(group_of(group, i)); };
  for (std::int64_t i = 0; i < m.count; ++i) {
    if (slot(i) >= amax.size()) amax.resize(slot(i) + 1, 0.0F);
    const float* row = m.row(i);
    for (std::int64_t c = 0; c < m.channels; ++c) amax[slot(i)] = std::max(amax[slot(i)], std::abs(row[c]));
  }
  for (std::int64_t i = 0; i < m.count; ++i)
    delta[static_cast<std::size_t>(i)] = numerics::group_delta(amax[slot(i)], range);
  return delta;
}

/// x on the grid of its format, in units of delta; groups reach +-range.
float on_grid(Format format, float x, float delta, float range) {
  switch (format) {
    case Format::int8:
    case Format::int4:
      return static_cast<float>(numerics::quantize_integer(x / delta, static_cast<int>(range)));
    case Format::e4m3: {
      const float limit = numerics::round_to_e4m3(range);  // R', the range on the grid
      return numerics::round_to_e4m3(std::clamp(x / delta, -limit, limit));
    }
    case Format::f16:
      return numerics::round_to_f16(x);
    case Format::bf16:
      return numerics::round_to_bf16(x);
    default:
      return x;
  }
}

/// Channel-major in blocks of 32 keys, zeros behind the last key.
void store_key_blocks(const Matrix& m, float* blocks) {
  const std::int64_t count = blocks_of(m.count, kKeysPerBlock) * kKeysPerBlock;
  std::fill_n(blocks, count * m.channels, 0.0F);
  for (std::int64_t i = 0; i < m.count; ++i) {
    float* block = blocks + i / kKeysPerBlock * kKeysPerBlock * m.channels + i % kKeysPerBlock;
    for (std::int64_t c = 0; c < m.channels; ++c) block[c * kKeysPerBlock] = m.row(i)[c];
  }
}

void quantize_keys(Matrix k, const Recipe& recipe, std::int64_t padded, const KvHead<float>& at) {
  std::fill_n(at.key_mean, k.channels, 0.0F);
  if (recipe.smooth_k) mean_of(k, 0, k.count, at.key_mean);
  subtract(k, 0, k.count, at.key_mean);
  if (recipe.smooth_q)
    store_key_blocks(k, at.smoothed);  // the second term of smooth_q takes K' as it is here

  k = rotated(std::move(k), recipe, padded);
  const std::vector<float> delta = group_deltas(k, recipe.k_group, group_of_key, recipe.k_range);
  std::fill_n(at.delta, blocks_of(k.count, kKeysPerBlock) * kKeysPerBlock, 1.0F);
  std::copy(delta.begin(), delta.end(), at.delta);
  for (std::int64_t i = 0; i < k.count; ++i) {
    for (std::int64_t c = 0; c < k.channels; ++c)
      k.row(i)[c] = on_grid(recipe.qk_format, k.row(i)[c], at.delta[i], recipe.k_range);
  }
  store_key_blocks(k, at.codes);
}

void quantize_values(Matrix v, const Recipe& recipe, const KvHead<float>& at) {
  std::fill_n(at.value_mean, v.channels, 0.0F);
  if (recipe.smooth_v) mean_of(v, 0, v.count, at.value_mean);
  subtract(v, 0, v.count, at.value_mean);

  std::vector<float> amax(static_cast<std::size_t>(v.channels), 0.0F);
  for (std::int64_t i = 0; i < v.count; ++i) {
    for (std::size_t c = 0; c < amax.size(); ++c) amax[c] = std::max(amax[c], std::abs(v.row(i)[c]));
  }
  if (recipe.v_scale == ValueScale::per_head)
    std::fill(amax.begin(), amax.end(), *std::max_element(amax.begin(), amax.end()));
  for (std::size_t c = 0; c < amax.size(); ++c) {
    at.value_delta[c] =
        recipe.v_scale == ValueScale::none ? 1.0F : numerics::group_delta(amax[c], recipe.v_range);
  }
  for (std::int64_t i = 0; i < v.count; ++i) {
    float* values = at.values + i * v.channels;
    for (std::int64_t c = 0; c < v.channels; ++c)
      values[c] = on_grid(recipe.v_format, v.row(i)[c], at.value_delta[c], recipe.v_range);
  }
}

}  // namespace

Status quantize_kv(const KernelCall& call, const TensorView& k, const TensorView& v, std::byte* kv) {
  const Problem& problem = call.problem;
  const KvLayout layout(problem, call.recipe, problem.kv_heads);
  const HeadsView keys = heads_view(k, problem.options.layout);
  const HeadsView values = heads_view(v, problem.options.layout);
  const std::int64_t items = layout.sequences * problem.kv_heads;
  std::atomic<bool> finite_k{true};
  std::atomic<bool> finite_v{true};
  cpu::parallel_for(call.threads, items, [&](std::int64_t item, int) {
    const std::int64_t index = item / problem.kv_heads;
    const std::int64_t head = item % problem.kv_heads;
    const Sequence& s = problem.sequences[static_cast<std::size_t>(index)];
    const KvHead<float> at = layout.head(reinterpret_cast<float*>(kv), index, head);
    quantize_keys(load(keys, s, head, s.k_begin, s.k_len, problem.head_dim, finite_k), call.recipe,
                  layout.padded, at);
    quantize_values(load(values, s, head, s.k_begin, s.k_len, problem.head_dim, finite_v), call.recipe, at);
  });
  if (!problem.check_finite) return {};
  if (!finite_k) return refuse_non_finite("k", k, problem, false);
  return finite_v ? Status{} : refuse_non_finite("v", v, problem, false);
}

Status quantize_q(const KernelCall& call, const TensorView& q, const KvBuffer& kv, std::byte* qq) {
  const Problem& problem = call.problem;
  const Recipe& recipe = call.recipe;
  const KvLayout kv_layout(problem, recipe, kv.heads);
  const QLayout layout(problem, recipe);
  const HeadsView queries = heads_view(q, problem.options.layout);
  const std::int64_t items = layout.sequences * problem.q_heads;
  std::atomic<bool> finite{true};
  cpu::parallel_for(call.threads, items, [&](std::int64_t item, int) {
    const std::int64_t index = item / problem.q_heads;
    const std::int64_t head = item % problem.q_heads;
    const Sequence& s = problem.sequences[static_cast<std::size_t>(index)];
    const QHead<float> at = layout.head(reinterpret_cast<float*>(qq), index, head);
    const KvHead<const float> keys = kv_layout.head(reinterpret_cast<const float*>(kv.data), index,
                                                    kv.first_head + head / problem.group());
    Matrix m = load(queries, s, head, s.q_begin, s.q_len, problem.head_dim, finite);

    const float given = given_q_absmax(problem, s, head);
    if (given >= 0.0F) {
      for (float& x : m.data) x = std::clamp(x, -given, given);
    }
    for (std::int64_t i = 0; i < m.count; ++i) {
      float dot = 0.0F;
      for (std::int64_t c = 0; c < m.channels; ++c) dot += m.row(i)[c] * keys.key_mean[c];
      at.lse_shift[i] = recipe.smooth_k ? problem.scale * dot : 0.0F;
    }
    for (std::int64_t first = 0; recipe.smooth_q && first < m.count; first += kRowsPerQueryMean) {
      const std::int64_t count = std::min(kRowsPerQueryMean, m.count - first);
      float* mean = at.mean + first / kRowsPerQueryMean * m.channels;
      mean_of(m, first, count, mean);
      subtract(m, first, count, mean);
    }

    m = rotated(std::move(m), recipe, layout.padded);
    std::vector<float> delta = group_deltas(m, recipe.q_group, group_of_query, recipe.q_range);
    if (given >= 0.0F && recipe.q_group != Granularity::none) {
      std::fill(delta.begin(), delta.end(), numerics::group_delta(given, recipe.q_range));
    }
    for (std::int64_t i = 0; i < m.count; ++i) {
      at.delta[i] = delta[static_cast<std::size_t>(i)];
      float* codes = at.codes + i * m.channels;
      for (std::int64_t c = 0; c < m.channels; ++c)
        codes[c] = on_grid(recipe.qk_format, m.row(i)[c], at.delta[i], recipe.q_range);
    }
  });
  if (!problem.check_finite || finite) return {};
  return refuse_non_finite("q", q, problem, true);
}

}  // namespace octavo::reference
