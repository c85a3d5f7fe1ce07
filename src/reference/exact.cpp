// reference.exact: softmax attention in f64 of the unquantized inputs. Everything else is measured against
// it.
//
// Blocked so that one thread holds 128 query rows while tiles of 64 keys pass: the tile (64 keys x D x 2 x 4
// B = 32 KB at D = 64) stays in the first two cache levels while all rows use it. The buffers are the
// emulator's, whose formats are `input` here: values as they are, keys 32 side by side so that both products
// vectorise.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/text.hpp"
#include "cpu/parallel.hpp"
#include "reference/emulate.hpp"
#include "reference/emulate_layout.hpp"

namespace octavo {
namespace reference {
namespace {

constexpr std::int64_t kRows = 128;
constexpr std::int64_t kTile = 2 * kKeysPerBlock;
constexpr double kHidden = -std::numeric_limits<double>::infinity();

/// The softmax of one row so far: weights are exp(score - max).
struct RowState {
  double max = kHidden;
  double sum = 0.0;
  bool seen = false;  // a key that is not hidden; NaN scores count, so that they show
};

/// scale * (q . k) of `count` keys, block by block.
void score_tile(const float* q, const float* keys, std::int64_t channels, std::int64_t count, double scale,
                double* scores) {
  std::fill_n(scores, kTile, 0.0);
  for (std::int64_t j = 0; j < count; j += kKeysPerBlock) {
    add_products(q, channels, keys + j * channels, kKeysPerBlock, kKeysPerBlock, scores + j);
  }
  for (std::int64_t j = 0; j < count; ++j) scores[j] *= scale;
}

/// Turns the scores of a tile into weights and adds it to the row.
void add_tile(RowState& state, double* scores, std::int64_t count, const float* values, std::int64_t channels,
              double* acc) {
  double max = state.max;
  bool seen = state.seen;
  for (std::int64_t j = 0; j < count; ++j) {
    seen = seen || scores[j] != kHidden;
    max = std::max(max, scores[j]);
  }
  if (!seen) return;
  const double shrink = state.seen ? std::exp(state.max - max) : 0.0;
  state = {max, state.sum * shrink, true};
  for (std::int64_t c = 0; c < channels; ++c) acc[c] *= shrink;
  for (std::int64_t j = 0; j < count; ++j) {
    scores[j] = scores[j] == kHidden ? 0.0 : std::exp(scores[j] - max);
    state.sum += scores[j];
  }
  add_products(scores, count, values, channels, channels, acc);
}

/// Output and LSE of the rows of one block.
class BlockOfRows {
 public:
  BlockOfRows(const Problem& problem, const RowBlock& block, const RowLists& rows)
      : problem_(problem),
        sequence_(problem.sequences[static_cast<std::size_t>(block.sequence)]),
        head_(block.head) {
    for (std::int64_t i = block.first; i < block.first + block.count; ++i) {
      rows_.push_back(
          rows.empty() ? i : rows[static_cast<std::size_t>(block.sequence)][static_cast<std::size_t>(i)]);
      ranges_.push_back(visible_keys(problem, sequence_, rows_.back()));
    }
    states_.resize(rows_.size());
    acc_.resize(rows_.size() * static_cast<std::size_t>(problem.head_dim), 0.0);
  }

  void walk(const MaskAndBias& given, const QHead<const float>& queries, const KvHead<const float>& keys) {
    double scores[kTile];
    for (std::int64_t begin = 0; begin < sequence_.k_len; begin += kTile) {
      const std::int64_t count = std::min(kTile, sequence_.k_len - begin);
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        if (ranges_[i].end <= begin || ranges_[i].begin >= begin + count) continue;
        score_tile(queries.codes + rows_[i] * problem_.head_dim, keys.codes + begin * problem_.head_dim,
                   problem_.head_dim, count, static_cast<double>(problem_.scale), scores);
        hide_and_bias(given, sequence_, ranges_[i], head_, rows_[i], begin, begin + count, 1.0, scores);
        add_tile(states_[i], scores, count, keys.values + begin * problem_.head_dim, problem_.head_dim,
                 acc_of(i));
      }
    }
  }

  void store(const MutableTensorView& out, const MutableTensorView& lse) {
    const MutableHeadsView outputs = heads_view(out, problem_.options.layout);
    std::vector<float> line(static_cast<std::size_t>(problem_.head_dim));
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      for (std::size_t c = 0; c < line.size(); ++c) {
        line[c] = states_[i].seen ? static_cast<float>(acc_of(i)[c] / states_[i].sum) : 0.0F;
      }
      store_row(outputs, sequence_.batch, head_, sequence_.q_begin + rows_[i], problem_.head_dim,
                line.data());
      if (lse.empty()) continue;
      static_cast<float*>(lse.data)[lse_offset(lse, problem_.packed(), sequence_, head_, rows_[i])] =
          static_cast<float>(states_[i].seen ? states_[i].max + std::log(states_[i].sum) : kHidden);
    }
  }

 private:
  double* acc_of(std::size_t i) { return acc_.data() + i * static_cast<std::size_t>(problem_.head_dim); }

  const Problem& problem_;
  const Sequence& sequence_;
  std::int64_t head_;
  std::vector<std::int64_t> rows_;
  std::vector<KeyRange> ranges_;
  std::vector<RowState> states_;
  std::vector<double> acc_;
};

void attend_exact(const KernelCall& call, const std::byte* qq, const KvBuffer& kv, const RowLists& rows,
                  const MutableTensorView& out, const MutableTensorView& lse) {
  const Problem& problem = call.problem;
  const KvLayout kv_layout(problem, call.recipe, kv.heads);
  const QLayout q_layout(problem, call.recipe);
  const MaskAndBias given(problem);
  const std::vector<RowBlock> blocks = row_blocks(problem, rows, kRows);
  cpu::parallel_for(call.threads, static_cast<std::int64_t>(blocks.size()), [&](std::int64_t item, int) {
    const RowBlock& block = blocks[static_cast<std::size_t>(item)];
    BlockOfRows work(problem, block, rows);
    work.walk(given, q_layout.head(reinterpret_cast<const float*>(qq), block.sequence, block.head),
              kv_layout.head(reinterpret_cast<const float*>(kv.data), block.sequence,
                             kv.first_head + block.head / problem.group()));
    work.store(out, lse);
  });
}

/// The recipe of the reference, whatever else a caller's recipe says.
Recipe exact_recipe() { return *recipe("exact"); }

Status accepts(const Problem& problem, const Recipe& r) {
  if (problem.device.kind != Device::Kind::cpu)
    return unsupported("q is on a GPU; reference.exact takes tensors in main memory");
  const bool unrounded =
      r.qk_format == Format::input && r.p_format == Format::input && r.v_format == Format::input;
  const bool plain = !r.smooth_k && !r.smooth_q && !r.smooth_v && r.rotate == Rotation::none &&
                     r.exp2 == Exp2::exact && r.pv_accumulator == PvAccumulator::f64 && r.slack == 0.0F;
  if (unrounded && plain) return {};
  return unsupported(concat("recipe ", r.name,
                            " rounds or transforms its operands; reference.exact runs qk_format, p_format "
                            "and v_format = input with "
                            "pv_accumulator = f64, exp2 = exact and no smoothing, rotation or slack"));
}

Status attend_kernel(const KernelCall& call, const std::byte* qq, const KvBuffer& kv,
                     const MutableTensorView& out, const MutableTensorView& lse, std::byte* /*workspace*/) {
  attend_exact(call, qq, kv, {}, out, lse);
  return {};
}

}  // namespace

Status exact_rows(const Problem& problem, const TensorView& q, const TensorView& k, const TensorView& v,
                  const RowLists& rows, const MutableTensorView& out, const MutableTensorView& lse) {
  if (Status s = check_rows(problem, rows); !s.ok()) return s;
  const Recipe r = with_key_tile(exact_recipe());
  const KernelCall call{problem, r, nullptr,
                        problem.options.threads > 0 ? problem.options.threads : cpu::default_threads()};
  std::vector<std::byte> kv(kv_buffer_bytes(problem, r));
  std::vector<std::byte> qq(q_buffer_bytes(problem, r));
  const KvBuffer buffer{kv.data(), problem.kv_heads, 0};
  if (Status s = quantize_kv(call, k, v, kv.data()); !s.ok()) return s;
  if (Status s = quantize_q(call, q, buffer, qq.data()); !s.ok()) return s;
  attend_exact(call, qq.data(), buffer, rows, out, lse);
  return {};
}

}  // namespace reference

const Kernel& reference_exact() {
  static const Kernel kernel{
      .name = "reference.exact",
      .backend = "reference",
      .tier = "f64",
      .file = "src/reference/exact.cpp",
      .summary = "recipe exact: softmax attention in f64 of the unquantized inputs; every head dim",
      // Above reference.emulate, which walks this recipe too, but with f32 logits. No other kernel takes
      // qk_format = input.
      .rank = 3,
      .available = [] { return true; },
      .accepts = reference::accepts,
      .effective = [](const Problem&, Recipe r) { return reference::with_key_tile(std::move(r)); },
      .kv_bytes = reference::kv_buffer_bytes,
      .q_bytes = reference::q_buffer_bytes,
      .workspace_bytes = [](const Problem&, const Recipe&, int) { return std::size_t{0}; },
      .quantize_kv = reference::quantize_kv,
      .quantize_q = reference::quantize_q,
      .attend = reference::attend_kernel,
  };
  return kernel;
}

}  // namespace octavo
