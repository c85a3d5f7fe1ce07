// quantize_kv and quantize_q of every CPU kernel: one work item for each (sequence, head).
#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <numbers>
#include <vector>

#include "core/rows.hpp"
#include "cpu/driver.hpp"
#include "cpu/parallel.hpp"
#include "numerics/e4m3.hpp"
#include "numerics/integers.hpp"

namespace octavo::cpu {
namespace {

constexpr std::size_t kScratchFloats = kQueryBlock * kMaxHeadDim;  // one block of rows at the widest head dim

RowSource row_source(const HeadsView& view, std::int64_t batch, std::int64_t head, std::int64_t begin,
                     std::int64_t head_dim) {
  const std::int64_t at = view.offset(batch, head, begin) * static_cast<std::int64_t>(size_of(view.dtype));
  return {static_cast<const std::byte*>(view.data) + at, view.dtype, view.token_stride, view.channel_stride,
          static_cast<int>(head_dim)};
}

/// e4m3 operands saturate at the grid value of their range.
float operand_range(Format format, float range) {
  return format == Format::e4m3 ? numerics::round_to_e4m3(range) : range;
}

/// Scratch of one thread, aligned for vector loads and stores.
struct Scratch {
  alignas(64) float block[kScratchFloats];
  alignas(64) float sums[2 * kMaxHeadDim];
};

std::vector<std::unique_ptr<Scratch>> scratch_for(int threads, std::int64_t items) {
  std::vector<std::unique_ptr<Scratch>> list(
      static_cast<std::size_t>(std::clamp<std::int64_t>(items, 1, threads)));
  for (auto& s : list) s = std::make_unique<Scratch>();
  return list;
}

/// Largest magnitude over all blocks of a head, for scales that cover the head.
float head_absmax(const TierOps& tier, BlockJob job, std::int64_t count, int block) {
  float top = 0.0F;
  for (std::int64_t begin = 0; begin < count; begin += block) {
    job.begin = begin;
    job.count = static_cast<int>(std::min<std::int64_t>(block, count - begin));
    const float here = tier.block_absmax(job);
    top = here > top || std::isnan(here) ? here : top;
  }
  return top;
}

}  // namespace

Status quantize_kv(const TierOps& tier, Family family, const KernelCall& call, const TensorView& k,
                   const TensorView& v, std::byte* kv) {
  const Problem& p = call.problem;
  const Recipe& r = call.recipe;
  const BufferLayout layout(tier, family, p, r);
  const AttentionOps& ops = attention_ops(tier, family);
  const HeadsView keys = heads_view(k, p.options.layout);
  const HeadsView values = heads_view(v, p.options.layout);
  const auto items = static_cast<std::int64_t>(p.sequences.size()) * p.kv_heads;
  const auto scratch = scratch_for(call.threads, items);
  std::atomic<bool> k_finite{true};
  std::atomic<bool> v_finite{true};

  parallel_for(call.threads, items, [&](std::int64_t item, int thread) {
    const std::int64_t index = item / p.kv_heads;
    const std::int64_t head = item % p.kv_heads;
    const Sequence& s = p.sequences[static_cast<std::size_t>(index)];
    const KvBlock at = layout.kv(kv, index, head, p.kv_heads);
    Scratch& own = *scratch[static_cast<std::size_t>(thread)];
    const std::int64_t padded = layout.padded_keys(s);

    BlockJob job;
    job.source = row_source(keys, s.batch, head, s.k_begin, p.head_dim);
    job.spec = {r.qk_format,
                r.k_group,
                operand_range(r.qk_format, r.k_range),
                r.rotate == Rotation::hadamard,
                r.rotate_seed,
                layout.channels()};
    job.divisor = r.k_range;
    job.scratch = own.block;
    std::fill(at.key_mean, at.key_mean + layout.channels(), 0.0F);
    if (r.smooth_k && s.k_len > 0) {
      tier.mean_of(job.source, s.k_len, own.sums, at.key_mean, layout.channels());
      job.mean = at.key_mean;
    }
    if (r.k_group == Granularity::per_head)
      job.given_delta = numerics::group_delta(head_absmax(tier, job, s.k_len, kKeyBlock), r.k_range);
    for (std::int64_t begin = 0; begin < padded; begin += kKeyBlock) {
      job.begin = begin;
      job.count = static_cast<int>(std::clamp<std::int64_t>(s.k_len - begin, 0, kKeyBlock));
      job.padded = kKeyBlock;
      const std::size_t row_bytes = static_cast<std::size_t>(layout.channels()) *
                                    (family == Family::float32 ? sizeof(float) : tier.key_bytes);
      job.payload = at.keys + static_cast<std::size_t>(begin) * row_bytes;
      job.scale = at.key_scale + begin;
      job.centred = at.centred == nullptr ? nullptr : at.centred + begin * layout.channels();
      if (!tier.quantize_keys(job)) k_finite = false;
      if (job.centred != nullptr)
        std::fill(job.centred + job.count * layout.channels(), job.centred + kKeyBlock * layout.channels(),
                  0.0F);
    }

    ValueJob value;
    value.source = row_source(values, s.batch, head, s.k_begin, p.head_dim);
    value.count = s.k_len;
    value.padded = padded;
    value.spec = {r.v_format, r.v_scale, operand_range(r.v_format, r.v_range), r.smooth_v, layout.values()};
    value.divisor = r.v_range;
    value.payload = at.values;
    value.delta = at.value_delta;
    value.mean = at.value_mean;
    value.scratch = own.block;
    if (!ops.quantize_values(value)) v_finite = false;
  });

  if (!p.check_finite) return {};
  if (!k_finite) return refuse_non_finite("k", k, p, false);
  if (!v_finite) return refuse_non_finite("v", v, p, false);
  return {};
}

Status quantize_q(const TierOps& tier, Family family, const KernelCall& call, const TensorView& q,
                  const KvBuffer& kv, std::byte* qq) {
  const Problem& p = call.problem;
  const Recipe& r = call.recipe;
  const BufferLayout layout(tier, family, p, r);
  const HeadsView rows = heads_view(q, p.options.layout);
  const auto items = static_cast<std::int64_t>(p.sequences.size()) * p.q_heads;
  const auto scratch = scratch_for(call.threads, items);
  std::atomic<bool> finite{true};

  parallel_for(call.threads, items, [&](std::int64_t item, int thread) {
    const std::int64_t index = item / p.q_heads;
    const std::int64_t head = item % p.q_heads;
    const Sequence& s = p.sequences[static_cast<std::size_t>(index)];
    const QBlock at = layout.q(qq, index, head);
    const KvBlock keys =
        layout.kv(const_cast<std::byte*>(kv.data), index, kv.first_head + head / p.group(), kv.heads);
    const std::int64_t padded = layout.padded_rows(s);

    BlockJob job;
    job.source = row_source(rows, s.batch, head, s.q_begin, p.head_dim);
    job.queries = true;
    job.spec = {r.qk_format,
                r.q_group,
                operand_range(r.qk_format, r.q_range),
                r.rotate == Rotation::hadamard,
                r.rotate_seed,
                layout.channels()};
    job.scratch = scratch[static_cast<std::size_t>(thread)]->block;
    job.divisor = r.q_range;
    job.factor = p.scale * std::numbers::log2e_v<float>;
    job.smooth_rows = r.smooth_q;
    alignas(64) float unused_mean[kMaxHeadDim];
    job.row_mean = unused_mean;
    if (const float given = given_q_absmax(p, s, head); given > 0.0F) {
      job.clamp = given;
      job.given_delta = numerics::group_delta(given, r.q_range);
    } else if (r.q_group == Granularity::per_head) {
      job.given_delta = numerics::group_delta(head_absmax(tier, job, s.q_len, kQueryBlock), r.q_range);
    }
    job.key_mean = r.smooth_k ? keys.key_mean : nullptr;
    const std::size_t row_bytes = static_cast<std::size_t>(layout.channels()) *
                                  (family == Family::float32 ? sizeof(float) : tier.query_bytes);
    for (std::int64_t begin = 0; begin < padded; begin += kQueryBlock) {
      job.begin = begin;
      job.count = static_cast<int>(std::clamp<std::int64_t>(s.q_len - begin, 0, kQueryBlock));
      job.padded = static_cast<int>(std::min<std::int64_t>(padded - begin, kQueryBlock));
      job.payload = at.rows + static_cast<std::size_t>(begin) * row_bytes;
      job.scale = at.scale + begin;
      job.sum = tier.query_sums && family != Family::float32 ? at.sum + begin : nullptr;
      job.key_mean_product = r.smooth_k ? at.key_mean_product + begin : nullptr;
      if (r.smooth_q) job.row_mean = at.row_mean + begin / kQueryBlock * layout.channels();
      if (!tier.quantize_queries(job)) finite = false;
    }
  });

  return !p.check_finite || finite ? Status{} : refuse_non_finite("q", q, p, true);
}

}  // namespace octavo::cpu
