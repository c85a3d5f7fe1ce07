#include "cuda/sm90/launch.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <numbers>
#include <set>
#include <utility>

#include "core/heads_view.hpp"
#include "cuda/layout.hpp"
#include "cuda/runtime.hpp"
#include "cuda/sm90/arguments.hpp"
#include "cuda/sm90/extras.hpp"
#include "cuda/sm90/schedule.hpp"
#include "numerics/exp2.hpp"

namespace octavo::cuda::sm90 {
namespace {

constexpr std::size_t kCachedBytes = std::size_t{32}
                                     << 20;  // of L2, for the K and V of heads that are walked together

Element operand(const Recipe& r, bool wide) {
  return !wide ? Element::u8 : r.qk_format == Format::bf16 ? Element::bf16 : Element::f16;
}

/// Rows of an operand: element (x, row, head, plane) by strides in bytes; a box is box_rows rows of
/// box_elements.
struct Rows {
  const void* data = nullptr;
  Element element = Element::u8;
  std::int64_t elements = 0;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t planes = 1;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t plane_stride = 0;
};

std::int64_t bytes_of(Element e) { return e == Element::u8 ? 1 : 2; }

/// A dense operand of one plane.
Rows dense(const std::byte* data, Element element, std::int64_t elements, std::int64_t rows,
           std::int64_t heads) {
  const std::int64_t row = elements * bytes_of(element);
  return {data, element, elements, rows, heads, 1, row, row * rows, row * rows * heads};
}

Status rows_map(CUtensorMap* map, const Rows& rows, int box_elements, int box_rows) {
  const auto u = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
  TensorMapSpec spec;
  spec.address = rows.data;
  spec.element = rows.element;
  spec.rank = 4;
  spec.dims = {u(rows.elements), u(rows.rows), u(rows.heads), u(rows.planes)};
  spec.strides = {u(rows.row_stride), u(rows.head_stride), u(rows.plane_stride)};
  spec.box = {static_cast<std::uint32_t>(box_elements), static_cast<std::uint32_t>(box_rows), 1, 1};
  switch (box_elements * bytes_of(rows.element)) {
    case 128:
      spec.swizzle = Swizzle::bytes128;
      break;
    case 64:
      spec.swizzle = Swizzle::bytes64;
      break;
    default:
      spec.swizzle = Swizzle::bytes32;
  }
  return encode_tensor_map(map, spec);
}

/// Q, K and 16-bit V.
Status encode_rows(Maps& maps, const Instance& instance, const Rows& q, const Rows& k) {
  const int chunk = instance.chunk_bytes / static_cast<int>(bytes_of(q.element));
  if (Status s = rows_map(&maps.q, q, chunk, instance.rows); !s.ok()) return s;
  return rows_map(&maps.k, k, chunk, instance.keys);
}

Status encode(Maps& maps, const Instance& instance, const Recipe& r, const QLayout& q, const std::byte* qq,
              const KvLayout& kv, const std::byte* data) {
  const Element element = operand(r, instance.wide_operands);
  if (Status s = encode_rows(maps, instance, dense(qq + q.q, element, q.padded_dim, q.q_rows, q.kv_heads),
                             dense(data + kv.k, element, kv.padded_dim, kv.key_rows, kv.heads));
      !s.ok())
    return s;
  if (instance.wide_values) {
    const Element values = r.v_format == Format::bf16 ? Element::bf16 : Element::f16;
    Status s = rows_map(&maps.v, dense(data + kv.v, values, kv.padded_dim, kv.key_rows, kv.heads), 64,
                        instance.keys);
    maps.v_rest = maps.v;
    return s;
  }
  const Rows v = dense(data + kv.v, Element::u8, kv.key_rows, instance.columns, kv.heads);
  if (Status s = rows_map(&maps.v, v, 128, instance.columns); !s.ok()) return s;
  return rows_map(&maps.v_rest, v, instance.keys % 128 == 0 ? 128 : instance.keys % 128, instance.columns);
}

int limit(std::int64_t side) {
  return side < 0 ? kNoLimit : static_cast<int>(std::min<std::int64_t>(side, kNoLimit));
}

StridedTensor strided(const MutableTensorView& t, const Problem& p) {
  const MutableHeadsView v = heads_view(t, p.options.layout);
  return {v.data, v.dtype, v.batch_stride, v.head_stride, v.token_stride, v.channel_stride};
}

StridedTensor strided_lse(const MutableTensorView& t, const Problem& p) {
  if (t.empty()) return {};
  if (p.packed()) return {t.data, t.dtype, 0, t.strides[0], t.strides[1], 0};
  return {t.data, t.dtype, t.strides[0], t.strides[1], t.strides[2], 0};
}

StridedTensor strided(const TensorView& t) {
  const BroadcastView b = broadcast_view(t);
  return {const_cast<void*>(b.data), b.dtype, b.strides[0], b.strides[1], b.strides[2], b.strides[3]};
}

/// Once a kernel and device: the call takes microseconds.
Status reserve_shared(const Instance& instance, int device) {
  static std::mutex mutex;
  static std::set<std::pair<const void*, int>> done;
  const std::lock_guard lock(mutex);
  if (done.contains({instance.function, device})) return {};
  Status s = check(cudaFuncSetAttribute(instance.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        instance.shared_bytes),
                   "reserving shared memory");
  if (s.ok()) done.emplace(instance.function, device);
  return s;
}

/// Tiles that share an accumulator. Kernels that give back what it loses of V's mean (direct weights) take
/// what the recipe allows; the others, whose loss stays, 256 keys at most; row sums of rounded exact weights,
/// which are in the accumulator too, even where the recipe flushes nothing.
int flush_tiles(const Recipe& r, const Instance& instance) {
  constexpr int kNever = std::numeric_limits<int>::max();
  constexpr int kLongest = 256;
  const bool exact = r.exp2 != Exp2::direct;
  int keys = r.pv_accumulator == PvAccumulator::f32_buffered ? r.pv_buffer : kNever;
  if (exact && (keys != kNever || r.normaliser == Normaliser::quantized)) keys = std::min(keys, kLongest);
  return keys == kNever ? kNever : std::max(1, keys / instance.keys);
}

/// What does not depend on where the operands lie.
Arguments common_arguments(const Problem& p, const Recipe& r, const Instance& instance,
                           const Schedule& schedule, const MutableTensorView& out,
                           const MutableTensorView& lse, std::byte* workspace) {
  Arguments a;
  a.scale = std::fabs(p.scale) * std::numbers::log2e_v<float>;
  a.kv_heads = IndexDivisor(schedule.kv_heads);
  a.group = IndexDivisor(schedule.group);
  a.head_dim = static_cast<int>(p.head_dim);

  a.left = limit(p.options.window.left);
  a.right = limit(p.options.window.right);
  if (p.options.causal != Causal::none) a.right = std::min(a.right, 0);
  a.bottom_right =
      p.options.causal != Causal::top_left;  // windows without a causal mask are anchored there too
  a.mask = strided(p.options.mask);
  a.bias = strided(p.options.bias);

  a.p_log2 = std::log2(r.p_range);
  a.offset = r.exp2 == Exp2::direct ? 8.0F * a.p_log2 + numerics::kDirectBias : a.p_log2;
  a.headroom = static_cast<float>(r.headroom);
  a.limit = a.offset + 8.0F * r.slack;
  a.half_limit = 0x10001U * numerics::f32_to_f16(a.limit);
  a.flush_tiles = flush_tiles(r, instance);
  a.reverse = r.key_order == KeyOrder::reverse;
  a.quantized_normaliser = r.normaliser == Normaliser::quantized;
  a.smooth_v = r.smooth_v;

  a.out = strided(out, p);
  a.lse = strided_lse(lse, p);

  a.tiles = static_cast<int>(schedule.tiles);
  a.items = static_cast<int>(schedule.items());
  a.whole = static_cast<int>(schedule.whole);
  a.splits = IndexDivisor(schedule.splits);
  a.split_tiles = static_cast<int>(schedule.split_tiles);
  a.longest_first = schedule.longest_first;
  std::int64_t head_block = 1;
  if (a.longest_first) {
    const auto pair_bytes =
        static_cast<std::size_t>(std::max<std::int64_t>(1, longest(p, &Sequence::k_len))) *
        static_cast<std::size_t>(instance.row_bytes + (instance.wide_values ? 2 : 1) * instance.columns);
    head_block = static_cast<std::int64_t>(
        std::clamp<std::size_t>(kCachedBytes / pair_bytes, 1, static_cast<std::size_t>(schedule.pairs)));
  }
  a.head_block = IndexDivisor(head_block);
  a.block_tiles = IndexDivisor(head_block * schedule.tiles);
  a.last_block = static_cast<int>(pieces(schedule.pairs, head_block) - 1);
  a.last_head_block = IndexDivisor(schedule.pairs - a.last_block * head_block);
  if (schedule.dynamic) a.counter = reinterpret_cast<int*>(workspace + schedule.counter);
  a.partial_out = reinterpret_cast<float*>(workspace + schedule.partial_out);
  a.partial_lse = reinterpret_cast<float*>(workspace + schedule.partial_lse);
  return a;
}

Status launch(const Instance& instance, const Schedule& schedule, Maps& maps, Arguments& a, int device,
              cudaStream_t stream) {
  if (a.counter != nullptr) {
    if (Status s = launch_clear(a.counter, stream); !s.ok()) return s;
  }
  if (Status s = reserve_shared(instance, device); !s.ok()) return s;
  const Result<const DeviceProperties*> properties = device_properties(device);
  if (!properties.ok()) return properties.status();
  const int grid = std::min(a.items, (*properties)->sm_count);
  const void* pointers[] = {&maps, &a};
  if (Status s = launch_kernel({instance.function, instance.name, grid, instance.threads,
                                static_cast<std::size_t>(instance.shared_bytes)},
                               pointers, stream);
      !s.ok())
    return s;
  if (a.whole == a.items) return {};
  const auto filled = static_cast<int>(std::min<std::int64_t>(schedule.rows, instance.rows));
  return launch_merge(a, instance.rows, filled, stream);
}

Status check_items(const Schedule& schedule) {
  // Blocks count past the end before they stop.
  if (schedule.items() < (std::int64_t{1} << 31) - 65536) return {};
  return unsupported("the problem has 2^31 query tiles or more; call it in parts of the batch");
}

}  // namespace

std::size_t workspace_bytes(const Problem& problem, const Recipe& recipe, const Instance& instance) {
  return Schedule(problem, recipe, instance, true).bytes;
}

Status attend(const KernelCall& call, const Instance& instance, const std::byte* qq, const KvBuffer& kv,
              const MutableTensorView& out, const MutableTensorView& lse, std::byte* workspace) {
  const Problem& p = call.problem;
  const Recipe& r = call.recipe;
  auto* stream = static_cast<cudaStream_t>(call.stream);
  const QLayout q(p, r);
  const KvLayout k(p, r, kv.heads);
  const Schedule schedule(p, r, instance, true);
  if (schedule.items() == 0) return {};
  if (Status s = check_items(schedule); !s.ok()) return s;

  const auto floats = [](const std::byte* at) { return reinterpret_cast<const float*>(at); };
  Arguments a = common_arguments(p, r, instance, schedule, out, lse, workspace);
  a.q_scale = floats(qq + q.q_scale);
  a.lse_shift = floats(qq + q.lse_shift);
  a.k_scale = floats(kv.data + k.k_scale);
  a.v_scale = floats(kv.data + k.v_scale);
  a.v_mean = floats(kv.data + k.v_mean);
  a.sequences = sequence_list(p, r, reinterpret_cast<const SequenceRow*>(qq + q.table));
  a.q_rows = q.q_rows;
  a.key_rows = k.key_rows;
  a.first_head = static_cast<int>(kv.first_head);
  a.q_blocks = q.q_blocks;
  if (r.smooth_q) {
    auto* correction = reinterpret_cast<float*>(workspace + schedule.correction);
    a.correction = correction;
    a.terms = term_elements(p);
    if (Status s = launch_correction(floats(qq + q.q_mean), floats(kv.data + k.k_exact), correction, a,
                                     static_cast<int>(k.padded_dim), longest(p, &Sequence::k_len), stream);
        !s.ok())
      return s;
  }
  Maps maps;
  if (Status s = encode(maps, instance, r, q, qq, k, kv.data); !s.ok()) return s;
  return launch(instance, schedule, maps, a, p.device.index, stream);
}

namespace {

constexpr std::int64_t kMapStride = std::int64_t{1}
                                    << 40;  // strides of a tensor map are below, and multiples of 16 bytes

/// The caller's q, k or v as a tensor map sees it; false where the hardware cannot.
bool rows_of(const TensorView& t, const Problem& p, std::int64_t heads, std::int64_t tokens, Rows& rows) {
  const HeadsView v = heads_view(t, p.options.layout);
  const auto bytes = static_cast<std::int64_t>(size_of(t.dtype));
  const Element element = t.dtype == DType::bf16 ? Element::bf16 : Element::f16;
  rows = {v.data,
          element,
          p.head_dim,
          tokens,
          heads,
          p.batch,
          v.token_stride * bytes,
          v.head_stride * bytes,
          v.batch_stride * bytes};
  if ((v.channel_stride != 1 && p.head_dim > 1) || reinterpret_cast<std::uintptr_t>(v.data) % 16 != 0)
    return false;
  const std::int64_t row = (p.head_dim * bytes + 15) / 16 * 16;
  const auto fits = [&](std::int64_t& stride, std::int64_t count) {
    if (count == 1) stride = row;  // never used
    return stride > 0 && stride % 16 == 0 && stride < kMapStride;
  };
  return fits(rows.row_stride, tokens) && fits(rows.head_stride, heads) && fits(rows.plane_stride, p.batch);
}

}  // namespace

bool direct_accepts(const Problem& p, const Recipe& r, const TensorView& q, const TensorView& k,
                    const TensorView& v) {
  Rows rows;
  const bool plain = r.qk_format == r.v_format && r.qk_accumulator == QkAccumulator::f32 && !r.smooth_k &&
                     !r.smooth_q && !r.smooth_v && r.rotate == Rotation::none;
  const DType dtype = r.qk_format == Format::bf16 ? DType::bf16 : DType::f16;
  return plain && p.dtype == dtype && uniform(p) && !p.check_finite && p.scale > 0.0F && p.q_len > 0 &&
         p.kv_len > 0 && rows_of(q, p, p.q_heads, p.q_len, rows) &&
         rows_of(k, p, p.kv_heads, p.kv_len, rows) && rows_of(v, p, p.kv_heads, p.kv_len, rows);
}

namespace {

/// With one query the heads of a group can be the rows of a map, so that they share a tile and its keys. With
/// more, token and head within the group would be two dimensions of it.
bool packs_heads(const Problem& p) { return p.q_len == 1; }

Rows heads_as_rows(Rows q, std::int64_t group) {
  q.rows = group;
  q.row_stride = q.head_stride;
  q.heads /= group;
  q.head_stride *= group;
  return q;
}

}  // namespace

std::size_t direct_workspace_bytes(const Problem& problem, const Recipe& recipe, const Instance& instance) {
  return Schedule(problem, recipe, instance, packs_heads(problem)).bytes;
}

Status attend_direct(const KernelCall& call, const Instance& instance, const TensorView& q,
                     const TensorView& k, const TensorView& v, const MutableTensorView& out,
                     const MutableTensorView& lse, std::byte* workspace) {
  const Problem& p = call.problem;
  const Schedule schedule(p, call.recipe, instance, packs_heads(p));
  if (schedule.items() == 0) return {};
  if (Status s = check_items(schedule); !s.ok()) return s;
  Arguments a = common_arguments(p, call.recipe, instance, schedule, out, lse, workspace);
  a.sequences = sequence_list(p, call.recipe, nullptr);
  a.sequences.q_row_step = a.sequences.k_row_step = 0;  // each sequence has its own plane
  a.planes = true;
  a.head_group = static_cast<int>(p.group() / schedule.group);
  Rows q_rows;
  Rows k_rows;
  Rows v_rows;
  rows_of(q, p, p.q_heads, p.q_len, q_rows);
  rows_of(k, p, p.kv_heads, p.kv_len, k_rows);
  rows_of(v, p, p.kv_heads, p.kv_len, v_rows);
  if (packs_heads(p)) q_rows = heads_as_rows(q_rows, p.group());
  Maps maps;
  if (Status s = encode_rows(maps, instance, q_rows, k_rows); !s.ok()) return s;
  if (Status s = rows_map(&maps.v, v_rows, 64, instance.keys); !s.ok()) return s;
  maps.v_rest = maps.v;
  return launch(instance, schedule, maps, a, p.device.index, static_cast<cudaStream_t>(call.stream));
}

}  // namespace octavo::cuda::sm90
