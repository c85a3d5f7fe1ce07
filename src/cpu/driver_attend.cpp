// attend of every CPU kernel: work items of one query head and 128 rows, in tiles of the tier's rows. The
// split depends on the problem alone, so that any number of threads gives the same bits.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "core/rows.hpp"
#include "core/text.hpp"
#include "cpu/driver.hpp"
#include "cpu/parallel.hpp"

namespace octavo::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kFloatKeyTile = 64;  // the published tile: f16_buffered(2) is exactly one
constexpr int kCpu8KeyTile = 256;  // u8 x s8 sums of 256 keys; larger tiles gain 1%, smaller ones lose 6%

std::size_t round_up(std::size_t n) { return (n + 63) / 64 * 64; }

/// What one thread needs, cut from the workspace.
struct Workspace {
  float* out;       // [value channels][rows]
  float* m;         // [rows]
  float* l;         // [rows]
  float* key_term;  // [padded keys]
  float* addend;    // [padded keys][rows]
  std::byte* scratch;
};

struct WorkspaceSizes {
  std::size_t out, row, key_term, addend, scratch;
  [[nodiscard]] std::size_t total() const { return out + 2 * row + key_term + addend + scratch; }
};

std::int64_t longest_keys(const BufferLayout& layout, const Problem& p) {
  std::int64_t longest = 0;
  for (const Sequence& s : p.sequences) longest = std::max(longest, layout.padded_keys(s));
  return longest;
}

WorkspaceSizes workspace_sizes(const TierOps& tier, Family family, const Problem& p, const Recipe& r) {
  const BufferLayout layout(tier, family, p, r);
  const auto rows = static_cast<std::size_t>(tier.rows);
  const auto keys = static_cast<std::size_t>(longest_keys(layout, p));
  const bool masked = !p.options.mask.empty() || !p.options.bias.empty();
  return {round_up(static_cast<std::size_t>(layout.values()) * rows * sizeof(float)),
          round_up(rows * sizeof(float)), r.smooth_q ? round_up(keys * sizeof(float)) : 0,
          masked ? round_up(keys * rows * sizeof(float)) : 0,
          round_up(attention_ops(tier, family).scratch_bytes(r.key_tile))};
}

Workspace cut(std::byte* base, const WorkspaceSizes& size) {
  const auto take = [&base](std::size_t bytes) {
    std::byte* part = bytes == 0 ? nullptr : base;
    base += bytes;
    return part;
  };
  Workspace w{};
  w.out = reinterpret_cast<float*>(take(size.out));
  w.m = reinterpret_cast<float*>(take(size.row));
  w.l = reinterpret_cast<float*>(take(size.row));
  w.key_term = reinterpret_cast<float*>(take(size.key_term));
  w.addend = reinterpret_cast<float*>(take(size.addend));
  w.scratch = take(size.scratch);
  return w;
}

SoftmaxSpec softmax_spec(const Recipe& r) {
  SoftmaxSpec spec;
  switch (r.p_format) {
    case Format::f16:
      spec.weight = WeightKind::f16;
      break;
    case Format::bf16:
      spec.weight = WeightKind::bf16;
      break;
    default:
      spec.weight = r.exp2 == Exp2::exact   ? WeightKind::e4m3_exact
                    : r.exp2 == Exp2::mixed ? WeightKind::e4m3_mixed
                                            : WeightKind::e4m3_direct;
  }
  spec.mixed_direct = r.exp2 == Exp2::direct ? 1 : r.mixed_direct;
  spec.mixed_period = r.exp2 == Exp2::direct ? 1 : r.mixed_period;
  spec.p_range = r.p_range;
  spec.log2_p_range = std::log2(r.p_range);
  spec.tile_max = r.p_reference == PReference::tile_max;
  spec.reverse = r.key_order == KeyOrder::reverse;
  spec.quantized_normaliser = r.normaliser == Normaliser::quantized;
  spec.f16_products = r.pv_accumulator == PvAccumulator::f16_buffered ? r.pv_buffer : 0;
  return spec;
}

/// Everything about the rows of one tile.
struct TileRows {
  std::array<std::int32_t, kMaxTileRows> begin{};
  std::array<std::int32_t, kMaxTileRows> end{};
  KeyRange any{};    // union of what the rows see
  KeyRange every{};  // intersection
};

TileRows tile_rows(const Problem& p, const Sequence& s, std::int64_t row0, int rows) {
  TileRows t;
  t.any = {s.k_len, 0};
  t.every = {0, s.k_len};
  for (int i = 0; i < rows; ++i) {
    const KeyRange seen = row0 + i < s.q_len ? visible_keys(p, s, row0 + i) : KeyRange{0, 0};
    const auto at = static_cast<std::size_t>(i);
    t.begin[at] = static_cast<std::int32_t>(seen.begin);
    t.end[at] = static_cast<std::int32_t>(seen.end);
    // Rows of padding are thrown away: what they see must not cost the others their unmasked tiles.
    if (row0 + i >= s.q_len) continue;
    if (seen.begin < seen.end) {
      t.any.begin = std::min(t.any.begin, seen.begin);
      t.any.end = std::max(t.any.end, seen.end);
    }
    t.every.begin = std::max(t.every.begin, seen.begin);
    t.every.end = std::min(t.every.end, seen.end);
  }
  if (t.any.begin >= t.any.end) t.any = {0, 0};
  if (t.every.begin >= t.every.end) t.every = {0, 0};
  return t;
}

/// Mask and bias of one tile in base 2: -inf hides, keys nobody sees are left alone.
void fill_addend(const Problem& p, const Sequence& s, std::int64_t head, std::int64_t row0, int rows,
                 const KeyRange& keys, float* addend) {
  const BroadcastView mask = broadcast_view(p.options.mask);
  const BroadcastView bias = broadcast_view(p.options.bias);
  for (std::int64_t key = keys.begin; key < keys.end; ++key) {
    float* line = addend + key * rows;
    for (int i = 0; i < rows; ++i) {
      float value = 0.0F;
      const std::int64_t row = row0 + i;
      if (row < s.q_len && key < s.k_len) {
        if (mask.data != nullptr &&
            static_cast<const std::uint8_t*>(mask.data)[mask.offset(s.batch, head, row, key)] == 0)
          value = -kInf;  // whatever the bias is
        else if (bias.data != nullptr)
          value = read_element(bias.data, bias.dtype, bias.offset(s.batch, head, row, key)) *
                  std::numbers::log2e_v<float>;
      }
      line[i] = value;
    }
  }
}

/// O = sum / l * delta_V + vbar and the LSE of each row of a tile, in the caller's dtype and strides.
void finish_tile(const KernelCall& call, const Workspace& w, const KvBlock& kv, const QBlock& q,
                 const SoftmaxSpec& spec, const Sequence& s, std::int64_t head, std::int64_t row0, int rows,
                 const MutableHeadsView& out, const MutableTensorView& lse) {
  const Problem& p = call.problem;
  for (int i = 0; i < rows && row0 + i < s.q_len; ++i) {
    // A row of NaN scores has no maximum either, but its sum shows it.
    const bool empty = (w.m[i] == -kInf && !std::isnan(w.l[i])) || w.l[i] == 0.0F;
    const float inverse = empty ? 0.0F : 1.0F / w.l[i];
    const std::int64_t at = out.offset(s.batch, head, s.q_begin + row0 + i);
    float row[kMaxHeadDim];
    if (empty) {
      std::fill(row, row + p.head_dim, 0.0F);
    } else {
      for (std::int64_t d = 0; d < p.head_dim; ++d)
        row[d] = w.out[d * rows + i] * inverse * kv.value_delta[d] + kv.value_mean[d];
    }
    write_row(out.data, out.dtype, at, out.channel_stride, row, p.head_dim);
    if (lse.empty()) continue;
    float value = -kInf;
    if (!empty) {
      value = (w.m[i] + std::log2(w.l[i]) - spec.log2_p_range) * std::numbers::ln2_v<float>;
      if (call.recipe.smooth_k) value += p.scale * q.key_mean_product[row0 + i];
    }
    write_element(lse.data, DType::f32, lse_offset(lse, p.packed(), s, head, row0 + i), value);
  }
}

}  // namespace

Status accepts(const TierOps& tier, Family family, const Problem& p, const Recipe& r) {
  if (p.device.kind != Device::Kind::cpu) return unsupported("runs on CPU tensors only");
  if (attention_ops(tier, family).run == nullptr) return unsupported("this tier has no such kernel");
  if (p.kv_len > std::numeric_limits<std::int32_t>::max() - 1024)
    return unsupported("runs up to 2^31 - 1025 keys");
  const bool integers = r.qk_format == Format::int8 || r.qk_format == Format::int4;
  if (family == Family::float32) {
    if (integers || r.qk_format == Format::input || r.qk_accumulator != QkAccumulator::f32) {
      return unsupported("runs qk_format f16, bf16 and e4m3 with qk_accumulator f32");
    }
  } else if (!integers) {
    return unsupported("runs qk_format int8 and int4");
  }
  if ((r.p_format == Format::u8) != (family == Family::cpu8)) {
    return unsupported(family == Family::cpu8 ? "runs p_format u8 with v_format int8"
                                              : "runs p_format e4m3, f16 and bf16");
  }
  if (r.key_tile != 0 && (r.key_tile % kKeyBlock != 0 || r.key_tile > 512))
    return unsupported("runs key_tile 64 to 512 in steps of 64");
  if (family == Family::cpu8) return {};
  if (r.p_format == Format::input || r.v_format == Format::input)
    return unsupported("runs p_format and v_format e4m3, f16 and bf16");
  if (r.p_format != r.v_format) return unsupported("runs p_format equal to v_format");
  if (r.pv_accumulator == PvAccumulator::f64)
    return unsupported("runs pv_accumulator f32, f32_buffered and f16_buffered");
  return {};
}

Recipe effective(Family family, const Problem& p, Recipe r) {
  if (r.key_tile == 0) r.key_tile = family == Family::cpu8 ? kCpu8KeyTile : kFloatKeyTile;
  r.slack = 0.0F;  // leave to lag, which saves nothing here
  // numerics.md leaves the 16-bit format of these presets to the processor; bf16 is what CPUs multiply. It is
  // recorded here.
  if (r.name == "sage-8+16" && r.p_format == Format::f16 && r.v_format == Format::f16)
    r.p_format = r.v_format = Format::bf16;
  if (r.name == "half" && p.dtype == DType::bf16) r.qk_format = r.p_format = r.v_format = Format::bf16;
  return r;
}

std::size_t workspace_bytes(const TierOps& tier, Family family, const Problem& p, const Recipe& r,
                            int threads) {
  return workspace_sizes(tier, family, p, r).total() * static_cast<std::size_t>(std::max(threads, 1));
}

Status attend(const TierOps& tier, Family family, const KernelCall& call, const std::byte* qq,
              const KvBuffer& kv, const MutableTensorView& out, const MutableTensorView& lse,
              std::byte* workspace) {
  const Problem& p = call.problem;
  const Recipe& r = call.recipe;
  const BufferLayout layout(tier, family, p, r);
  const AttentionOps& ops = attention_ops(tier, family);
  const WorkspaceSizes sizes = workspace_sizes(tier, family, p, r);
  const SoftmaxSpec spec = softmax_spec(r);
  const MutableHeadsView target = heads_view(out, p.options.layout);
  const bool masked = !p.options.mask.empty() || !p.options.bias.empty();
  const int rows = tier.rows;

  // Items of a sequence follow each other, heads outermost, so that neighbours read the same keys.
  std::vector<std::int64_t> first_item{0};
  for (const Sequence& s : p.sequences)
    first_item.push_back(first_item.back() + p.q_heads * ((s.q_len + kQueryBlock - 1) / kQueryBlock));

  parallel_for(call.threads, first_item.back(), [&](std::int64_t item, int thread) {
    const auto index = std::upper_bound(first_item.begin(), first_item.end(), item) - first_item.begin() - 1;
    const Sequence& s = p.sequences[static_cast<std::size_t>(index)];
    const std::int64_t blocks = (s.q_len + kQueryBlock - 1) / kQueryBlock;
    const std::int64_t within = item - first_item[static_cast<std::size_t>(index)];
    const std::int64_t head = within / blocks;
    const std::int64_t block_row = within % blocks * kQueryBlock;
    const Workspace w = cut(workspace + sizes.total() * static_cast<std::size_t>(thread), sizes);
    const QBlock q = layout.q(const_cast<std::byte*>(qq), index, head);
    const KvBlock keys =
        layout.kv(const_cast<std::byte*>(kv.data), index, kv.first_head + head / p.group(), kv.heads);
    const std::size_t query_bytes = static_cast<std::size_t>(layout.channels()) *
                                    (family == Family::float32 ? sizeof(float) : tier.query_bytes);

    TileJob job;
    job.rows = rows;
    job.channels = layout.channels();
    job.value_channels = layout.values();
    job.key_tile = r.key_tile;
    job.keys_padded = layout.padded_keys(s);
    job.k = keys.keys;
    job.k_scale = keys.key_scale;
    job.v = keys.values;
    job.spec = spec;
    job.scratch = w.scratch;
    job.out = w.out;
    job.m = w.m;
    job.l = w.l;
    if (r.smooth_q) {
      tier.key_terms(q.row_mean + block_row / kQueryBlock * layout.channels(), keys.centred, job.keys_padded,
                     layout.channels(), p.scale * std::numbers::log2e_v<float>, w.key_term);
      job.key_term = w.key_term;
    }
    for (std::int64_t row0 = block_row; row0 < std::min(s.q_len, block_row + kQueryBlock); row0 += rows) {
      const TileRows seen = tile_rows(p, s, row0, rows);
      job.q = q.rows + static_cast<std::size_t>(row0) * query_bytes;
      job.q_scale = q.scale + row0;
      job.q_sum = q.sum + row0;
      job.row_begin = seen.begin.data();
      job.row_end = seen.end.data();
      job.tile_begin = seen.any.begin / r.key_tile;
      job.tile_end = (seen.any.end + r.key_tile - 1) / r.key_tile;
      job.full_begin = seen.every.begin;
      job.full_end = seen.every.end;
      if (masked) {
        fill_addend(p, s, head, row0, rows, {job.tile_begin * r.key_tile, job.tile_end * r.key_tile},
                    w.addend);
        job.addend = w.addend;
      }
      ops.run(job);
      finish_tile(call, w, keys, q, spec, s, head, row0, rows, target, lse);
    }
  });
  return {};
}

}  // namespace octavo::cpu
