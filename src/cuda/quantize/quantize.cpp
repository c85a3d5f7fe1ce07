// The host's side of the quantizers: from a call to kernel arguments, and the order of the passes.
#include "cuda/quantize/quantize.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "core/heads_view.hpp"
#include "cuda/layout.hpp"
#include "cuda/quantize/kernels.hpp"
#include "cuda/runtime.hpp"
#include "numerics/e4m3.hpp"
#include "numerics/hadamard.hpp"

namespace octavo::cuda {
namespace {

constexpr std::int64_t kVectorBytes = 16;
// Two tiles a block share the work before the first load; below this there are too few blocks to fill the
// last wave of a GPU of some 130 multiprocessors that hold 4 each.
constexpr std::int64_t kManyTiles = 4096;
constexpr std::int64_t kSliceChannels = 8;  // of a thread in a chunk of 64

CallerRows caller_rows(const TensorView& tensor, const Problem& p) {
  const HeadsView view = heads_view(tensor, p.options.layout);
  const auto bytes = static_cast<std::int64_t>(size_of(view.dtype));
  CallerRows rows;
  rows.data = static_cast<const std::byte*>(view.data);
  rows.batch_stride = view.batch_stride * bytes;
  rows.head_stride = view.head_stride * bytes;
  rows.token_stride = view.token_stride * bytes;
  rows.channel_stride = view.channel_stride * bytes;
  rows.head_dim = static_cast<int>(p.head_dim);
  rows.dtype = view.dtype;
  return rows;
}

/// 16-byte vectors where every row starts at a multiple of 16 bytes and holds whole slices; a stride that is
/// never taken does not count.
Access access_of(const CallerRows& rows, std::int64_t batch, std::int64_t heads, std::int64_t tokens) {
  const auto aligned = [](std::int64_t stride, std::int64_t count) {
    return count <= 1 || stride % kVectorBytes == 0;
  };
  const bool vectors = rows.channel_stride == static_cast<std::int64_t>(size_of(rows.dtype)) &&
                       rows.head_dim % kSliceChannels == 0 &&
                       reinterpret_cast<std::uintptr_t>(rows.data) % kVectorBytes == 0 &&
                       aligned(rows.batch_stride, batch) && aligned(rows.head_stride, heads) &&
                       aligned(rows.token_stride, tokens);
  if (!vectors) return Access::any;
  return rows.dtype == DType::f32 ? Access::f32 : rows.dtype == DType::f16 ? Access::f16 : Access::bf16;
}

/// clamps: the values may exceed the range. So they may, too, where the range itself is not on the grid.
GridSpec grid_spec(Format format, float range, bool clamps) {
  GridSpec grid;
  grid.format = format;
  grid.range = range;
  grid.inverse_range = 1.0F / range;
  grid.limit = format == Format::e4m3 ? numerics::round_to_e4m3(range) : range;
  grid.clamps = clamps || grid.limit != range;
  return grid;
}

RotationSpec rotation_spec(const Recipe& r, std::int64_t head_dim) {
  RotationSpec rotation;
  if (r.rotate != Rotation::hadamard) return rotation;
  rotation.size = numerics::next_power_of_two(static_cast<int>(head_dim));
  rotation.scale = numerics::hadamard_scale(rotation.size);
  int exponent = 0;
  if (std::frexp(rotation.scale, &exponent) == 0.5F) {
    rotation.left = rotation.scale;
    rotation.left_inverse = 1.0F / rotation.scale;
  }
  for (int c = 0; c < rotation.size; ++c) {
    if (numerics::hadamard_sign(r.rotate_seed, c) < 0.0F) rotation.signs[c / 32] |= 1U << (c % 32);
  }
  return rotation;
}

/// The device's list of sequences; the table goes there first where one is needed.
Status make_list(const KernelCall& call, std::byte* table, SequenceList& list) {
  list = sequence_list(call.problem, call.recipe, reinterpret_cast<const SequenceRow*>(table));
  if (list.table == nullptr) return {};
  const std::vector<SequenceRow> rows = sequence_rows(call.problem, call.recipe);
  return upload(table, rows.data(), rows.size() * sizeof(SequenceRow),
                static_cast<cudaStream_t>(call.stream));
}

/// Pieces of a sequence; no sequence, no pieces, and nobody divides.
IndexDivisor pieces_each(std::int64_t length, std::int64_t size) {
  return IndexDivisor(std::max<std::int64_t>(pieces(length, size), 1));
}

template <class T>
T* section(std::byte* buffer, std::size_t offset) {
  return reinterpret_cast<T*>(buffer + offset);
}

Status clear(void* data, std::size_t bytes, cudaStream_t stream) {
  return check(cudaMemsetAsync(data, 0, bytes, stream), "clearing quantized rows");
}

KvArguments kv_arguments(const KernelCall& call, const KvLayout& layout, std::byte* kv) {
  const Recipe& r = call.recipe;
  KvArguments a;
  a.heads = IndexDivisor(layout.heads);
  a.padded_dim = static_cast<int>(layout.padded_dim);
  a.key_rows = static_cast<int>(layout.key_rows);
  a.row_align = static_cast<int>(layout.row_align);
  a.partials = static_cast<int>(layout.key_rows / kPartialKeys + layout.sequences + 1);
  a.k = kv + layout.k;
  a.v = kv + layout.v;
  a.k_scale = section<float>(kv, layout.k_scale);
  a.k_mean = section<float>(kv, layout.k_mean);
  a.v_scale = section<float>(kv, layout.v_scale);
  a.v_mean = section<float>(kv, layout.v_mean);
  if (r.smooth_q) a.k_exact = section<float>(kv, layout.k_exact);
  a.scratch = section<float>(kv, layout.scratch);
  a.nonfinite = section<std::uint32_t>(kv, layout.nonfinite);
  a.k_grid = grid_spec(r.qk_format, r.k_range, false);
  a.v_grid = grid_spec(r.v_format, r.v_range, false);
  a.rotation = rotation_spec(r, call.problem.head_dim);
  a.k_group = r.k_group;
  a.value_scale = r.v_scale;
  a.smooth_k = r.smooth_k;
  a.smooth_v = r.smooth_v;
  if (layout.heads * layout.key_rows / kTileRows >= kManyTiles) a.span = 2;
  a.value_mean = r.smooth_v || r.v_format == Format::e4m3;
  a.value_statistics = a.value_mean || r.v_scale != ValueScale::none;
  return a;
}

struct KvWork {
  KvArguments a;
  Access access = Access::any;
  std::int64_t keys = 0;  ///< 0: no payload
};

struct QWork {
  QArguments a;
  Access access = Access::any;
  bool any = false;  ///< heads to quantize
  bool absmax_pass = false;
};

/// Arguments of all passes; the table of sequences, and what no pass writes, goes to the device.
Status prepare(const KernelCall& call, const TensorView& k, const TensorView& v, std::byte* kv,
               KvWork& work) {
  const Problem& p = call.problem;
  const KvLayout layout(p, call.recipe, p.kv_heads);
  const auto stream = static_cast<cudaStream_t>(call.stream);
  KvArguments& a = work.a;
  a = kv_arguments(call, layout, kv);
  if (Status s = make_list(call, kv + layout.table, a.sequences); !s.ok()) return s;
  a.k_rows = caller_rows(k, p);
  a.v_rows = caller_rows(v, p);
  work.access = access_of(a.k_rows, p.batch, p.kv_heads, p.kv_len);
  if (access_of(a.v_rows, p.batch, p.kv_heads, p.kv_len) != work.access) work.access = Access::any;
  a.partials_each = pieces_each(a.sequences.first.k_len, kPartialKeys);
  a.spans_each = pieces_each(a.sequences.first.k_len, a.span * kTileRows);

  for (const Sequence& s : p.sequences) work.keys += s.k_len;
  if (work.keys > 0) return {};
  // The layout's least rows belong to no sequence, but may be read.
  a.smooth_k = a.smooth_v = a.value_mean = a.value_statistics = false;
  if (Status s = clear(a.nonfinite, sizeof *a.nonfinite, stream); !s.ok()) return s;
  return clear(a.k, layout.k_scale - layout.k, stream);
}

/// Everything before the payload.
Status launch_scales(const KvWork& work, cudaStream_t stream) {
  const KvArguments& a = work.a;
  if (a.smooth_k || a.value_statistics) {
    if (Status s = launch_statistics(a, work.access, stream); !s.ok()) return s;
  }
  if (Status s = launch_finish(a, stream); !s.ok()) return s;
  if (work.keys == 0 || a.k_group != Granularity::per_head) return {};
  KvArguments first = a;
  first.absmax_only = true;
  return launch_keys_values(first, work.access, stream);
}

Status prepare(const KernelCall& call, const TensorView& q, const KvBuffer& kv, std::byte* qq, QWork& work) {
  const Problem& p = call.problem;
  const Recipe& r = call.recipe;
  const QLayout layout(p, r);
  const KvLayout keys(p, r, kv.heads);
  const auto stream = static_cast<cudaStream_t>(call.stream);
  QArguments& a = work.a;
  if (Status s = make_list(call, qq + layout.table, a.sequences); !s.ok()) return s;
  work.any = p.q_heads > 0;
  if (!work.any) return {};  // no rows, and nothing to divide by
  a.rows = caller_rows(q, p);
  work.access = access_of(a.rows, p.batch, p.q_heads, p.q_len);
  a.heads = IndexDivisor(layout.kv_heads * layout.group);
  a.group = IndexDivisor(layout.group);
  a.padded_dim = static_cast<int>(layout.padded_dim);
  a.q_rows = static_cast<int>(layout.q_rows);
  a.q_blocks = static_cast<int>(layout.q_blocks);
  a.tiles_each = pieces_each(a.sequences.first.q_len, kQueryBlock);
  a.q = qq + layout.q;
  a.q_scale = section<float>(qq, layout.q_scale);
  a.lse_shift = section<float>(qq, layout.lse_shift);
  if (r.smooth_q) a.q_mean = section<float>(qq, layout.q_mean);
  a.head_absmax = section<float>(qq, layout.scratch);
  a.nonfinite = section<std::uint32_t>(qq, layout.nonfinite);
  if (r.smooth_k) {
    a.k_mean = reinterpret_cast<const float*>(kv.data + keys.k_mean) +
               kv.first_head * keys.sequences * keys.padded_dim;
  }
  const TensorView& given = p.options.q_absmax;
  const bool has_given = !given.empty() && r.q_group != Granularity::none;
  if (has_given) {
    a.given = static_cast<const float*>(given.data);
    a.given_head_stride = given.strides[given.rank == 2 ? 1 : 0];
    a.given_sequence_stride = given.rank == 2 ? given.strides[0] : 0;
  }
  a.grid = grid_spec(r.qk_format, r.q_range, has_given);
  a.rotation = rotation_spec(r, p.head_dim);
  a.q_group = r.q_group;
  a.scale = p.scale;
  a.logit_factor = std::abs(p.scale) * std::numbers::log2e_v<float>;
  work.absmax_pass = r.q_group == Granularity::per_head && !has_given && layout.q_blocks > 0;

  if (p.check_finite) {  // else nobody reads it
    if (Status s = clear(a.nonfinite, sizeof *a.nonfinite, stream); !s.ok()) return s;
  }
  if (layout.q_blocks == 0) {  // the layout's least rows belong to no sequence, but may be read
    if (Status s = clear(a.q, layout.q_mean - layout.q, stream); !s.ok()) return s;
  }
  if (!work.absmax_pass) return {};
  const auto heads = static_cast<std::size_t>(layout.kv_heads * layout.group * layout.sequences);
  return clear(a.head_absmax, heads * sizeof(float), stream);
}

Status launch_scales(const QWork& work, cudaStream_t stream) {
  if (!work.absmax_pass) return {};
  QArguments first = work.a;
  first.absmax_only = true;
  return launch_queries(first, work.access, stream);
}

Status launch_rows(const KvWork& work, cudaStream_t stream) {
  return work.keys > 0 ? launch_keys_values(work.a, work.access, stream) : Status{};
}

Status launch_rows(const QWork& work, cudaStream_t stream) {
  return work.any ? launch_queries(work.a, work.access, stream) : Status{};
}

/// In one launch where they can be.
Status launch_rows(const KvWork& keys, const QWork& queries, cudaStream_t stream) {
  if (keys.keys > 0 && queries.any && payload_accepts(keys.a, keys.access, queries.a, queries.access))
    return launch_payload(keys.a, queries.a, keys.access, stream);
  if (Status s = launch_rows(keys, stream); !s.ok()) return s;
  return launch_rows(queries, stream);
}

/// With check_finite: what the device found.
Status report_nonfinite(const KernelCall& call, const KvWork& work) {
  if (!call.problem.check_finite) return {};
  return refuse_nonfinite(work.a.nonfinite, "k or v", static_cast<cudaStream_t>(call.stream));
}

Status report_nonfinite(const KernelCall& call, const QWork& work) {
  if (!call.problem.check_finite || !work.any) return {};
  return refuse_nonfinite(work.a.nonfinite, "q", static_cast<cudaStream_t>(call.stream));
}

}  // namespace

Status quantize_kv(const KernelCall& call, const TensorView& k, const TensorView& v, std::byte* kv) {
  const auto stream = static_cast<cudaStream_t>(call.stream);
  KvWork keys;
  if (Status s = prepare(call, k, v, kv, keys); !s.ok()) return s;
  if (Status s = launch_scales(keys, stream); !s.ok()) return s;
  if (Status s = launch_rows(keys, stream); !s.ok()) return s;
  return report_nonfinite(call, keys);
}

Status quantize_q(const KernelCall& call, const TensorView& q, const KvBuffer& kv, std::byte* qq) {
  const auto stream = static_cast<cudaStream_t>(call.stream);
  QWork queries;
  if (Status s = prepare(call, q, kv, qq, queries); !s.ok()) return s;
  if (Status s = launch_scales(queries, stream); !s.ok()) return s;
  if (Status s = launch_rows(queries, stream); !s.ok()) return s;
  return report_nonfinite(call, queries);
}

Status quantize_all(const KernelCall& call, const TensorView& q, const TensorView& k, const TensorView& v,
                    std::byte* kv, std::byte* qq) {
  const auto stream = static_cast<cudaStream_t>(call.stream);
  KvWork keys;
  QWork queries;
  if (Status s = prepare(call, k, v, kv, keys); !s.ok()) return s;
  if (Status s = prepare(call, q, {kv, call.problem.kv_heads, 0}, qq, queries); !s.ok()) return s;
  if (Status s = launch_scales(keys, stream); !s.ok()) return s;
  if (Status s = launch_scales(queries, stream); !s.ok()) return s;
  if (Status s = launch_rows(keys, queries, stream); !s.ok()) return s;
  if (Status s = report_nonfinite(call, keys); !s.ok()) return s;
  return report_nonfinite(call, queries);
}

}  // namespace octavo::cuda
