#include "cuda/sm90/launch.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <set>
#include <utility>

#include "core/heads_view.hpp"
#include "cuda/layout.hpp"
#include "cuda/runtime.hpp"
#include "cuda/sm90/arguments.hpp"
#include "cuda/sm90/extras.hpp"
#include "numerics/exp2.hpp"

namespace octavo::cuda::sm90 {
namespace {

/// As the kernel's parameter of that name.
struct Maps {
  CUtensorMap q;
  CUtensorMap k;
  CUtensorMap v;
  CUtensorMap v_rest;
};

constexpr std::int64_t kMinSplitKeys = 512;  // a split must be worth its merge
constexpr std::size_t kCachedBytes = std::size_t{32}
                                     << 20;  // of L2, for the K and V of heads that are walked together
constexpr std::size_t kSection = 256;

std::size_t round_up(std::size_t n) { return (n + kSection - 1) / kSection * kSection; }
std::int64_t blocks(std::int64_t n, std::int64_t of) { return (n + of - 1) / of; }

std::int64_t longest_queries(const Problem& p) {
  std::int64_t n = 0;
  for (const Sequence& s : p.sequences) n = std::max(n, s.q_len);
  return n;
}
std::int64_t longest_keys(const Problem& p) {
  std::int64_t n = 0;
  for (const Sequence& s : p.sequences) n = std::max(n, s.k_len);
  return n;
}

/// Schedule and workspace of a problem, decided from its shape alone.
struct Schedule {
  std::int64_t tiles = 0;  ///< query tiles of the longest sequence
  std::int64_t pairs = 0;
  std::int64_t splits = 1;
  std::int64_t split_tiles = 0;
  bool dynamic = false;
  std::size_t counter = 0;
  std::size_t correction = 0;
  std::size_t partial_out = 0;
  std::size_t partial_lse = 0;
  std::size_t bytes = 0;

  Schedule(const Problem& p, const Recipe& r, const Instance& instance) {
    const QLayout q(p, r);
    tiles = blocks(longest_queries(p) * p.group(), instance.rows);
    pairs = static_cast<std::int64_t>(p.sequences.size()) * p.kv_heads;
    const std::int64_t key_tiles = blocks(longest_keys(p), instance.keys);
    std::int64_t sms = 132;
    if (const auto properties = device_properties(p.device.index); properties.ok())
      sms = (*properties)->sm_count;
    // Few query tiles leave multiprocessors idle: they share out the keys. Enough splits for one wave, none
    // too short.
    const std::int64_t items = std::max<std::int64_t>(1, tiles * pairs);
    if (const std::int64_t asked = p.options.key_splits; asked > 0) {
      // Lengths of other batch entries must not move the cuts, so padding counts.
      const std::int64_t all = blocks(p.packed() ? longest_keys(p) : p.kv_len, instance.keys);
      split_tiles = std::max<std::int64_t>(1, blocks(all, asked));
      splits = std::max<std::int64_t>(1, blocks(all, split_tiles));
    } else if (items * 10 < sms * 8 && key_tiles > 4) {
      const std::int64_t wanted = std::max<std::int64_t>(1, sms / items);
      split_tiles = std::max(blocks(key_tiles, wanted), blocks(kMinSplitKeys, instance.keys));
      splits = blocks(key_tiles, split_tiles);
    }
    dynamic = p.options.causal != Causal::none || p.options.window.right >= 0 || !uniform(p);
    counter = 0;
    bytes = dynamic ? kSection : 0;
    correction = bytes;
    if (r.smooth_q) {
      const KvLayout kv(p, r, p.kv_heads);
      bytes += round_up(static_cast<std::size_t>(p.q_heads * q.q_blocks * kv.key_rows) * sizeof(float));
    }
    partial_out = bytes;
    if (splits > 1) {
      const auto rows = static_cast<std::size_t>(p.kv_heads * splits * q.q_rows);
      bytes += round_up(rows * static_cast<std::size_t>(p.head_dim) * sizeof(float));
      partial_lse = bytes;
      bytes += round_up(rows * sizeof(float));
    }
  }
};

Element operand(const Recipe& r, bool wide) {
  return !wide ? Element::u8 : r.qk_format == Format::bf16 ? Element::bf16 : Element::f16;
}

Status rows_map(CUtensorMap* map, const void* address, Element element, std::uint64_t element_bytes,
                std::int64_t dim, std::int64_t rows, std::int64_t heads, int box_elements, int box_rows) {
  TensorMapSpec spec;
  spec.address = address;
  spec.element = element;
  spec.dims = {static_cast<std::uint64_t>(dim), static_cast<std::uint64_t>(rows),
               static_cast<std::uint64_t>(heads)};
  spec.strides = {static_cast<std::uint64_t>(dim) * element_bytes,
                  static_cast<std::uint64_t>(dim * rows) * element_bytes};
  spec.box = {static_cast<std::uint32_t>(box_elements), static_cast<std::uint32_t>(box_rows), 1};
  switch (static_cast<std::uint64_t>(box_elements) * element_bytes) {
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

Status encode(Maps& maps, const Instance& instance, const Recipe& r, const QLayout& q, const std::byte* qq,
              const KvLayout& kv, const std::byte* data) {
  const Element element = operand(r, instance.wide_operands);
  const std::uint64_t bytes = instance.wide_operands ? 2 : 1;
  const int chunk = instance.chunk_bytes / static_cast<int>(bytes);
  if (Status s = rows_map(&maps.q, qq + q.q, element, bytes, q.padded_dim, q.q_rows, q.kv_heads, chunk,
                          instance.rows);
      !s.ok())
    return s;
  if (Status s = rows_map(&maps.k, data + kv.k, element, bytes, kv.padded_dim, kv.key_rows, kv.heads, chunk,
                          instance.keys);
      !s.ok())
    return s;
  if (instance.wide_values) {
    const Element values = r.v_format == Format::bf16 ? Element::bf16 : Element::f16;
    if (Status s = rows_map(&maps.v, data + kv.v, values, 2, kv.padded_dim, kv.key_rows, kv.heads, 64,
                            instance.keys);
        !s.ok())
      return s;
    maps.v_rest = maps.v;
    return {};
  }
  if (Status s = rows_map(&maps.v, data + kv.v, Element::u8, 1, kv.key_rows, instance.columns, kv.heads, 128,
                          instance.columns);
      !s.ok())
    return s;
  const int rest = instance.keys % 128 == 0 ? 128 : instance.keys % 128;
  return rows_map(&maps.v_rest, data + kv.v, Element::u8, 1, kv.key_rows, instance.columns, kv.heads, rest,
                  instance.columns);
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

}  // namespace

std::size_t workspace_bytes(const Problem& problem, const Recipe& recipe, const Instance& instance) {
  return Schedule(problem, recipe, instance).bytes;
}

Status attend(const KernelCall& call, const Instance& instance, const std::byte* qq, const KvBuffer& kv,
              const MutableTensorView& out, const MutableTensorView& lse, std::byte* workspace) {
  const Problem& p = call.problem;
  const Recipe& r = call.recipe;
  auto* stream = static_cast<cudaStream_t>(call.stream);
  const QLayout q(p, r);
  const KvLayout k(p, r, kv.heads);
  const Schedule schedule(p, r, instance);
  if (schedule.tiles * schedule.pairs == 0) return {};

  const auto floats = [](const std::byte* at) { return reinterpret_cast<const float*>(at); };
  Arguments a;
  a.q_scale = floats(qq + q.q_scale);
  a.lse_shift = floats(qq + q.lse_shift);
  a.k_scale = floats(kv.data + k.k_scale);
  a.v_scale = floats(kv.data + k.v_scale);
  a.v_mean = floats(kv.data + k.v_mean);
  a.sequences = sequence_list(p, reinterpret_cast<const SequenceRow*>(qq + q.table));
  a.q_rows = q.q_rows;
  a.key_rows = k.key_rows;
  a.kv_heads = static_cast<int>(p.kv_heads);
  a.first_head = static_cast<int>(kv.first_head);
  a.group = static_cast<int>(p.group());
  a.head_dim = static_cast<int>(p.head_dim);

  a.left = limit(p.options.window.left);
  a.right = limit(p.options.window.right);
  if (p.options.causal != Causal::none) a.right = std::min(a.right, 0);
  a.bottom_right =
      p.options.causal != Causal::top_left;  // windows without a causal mask are anchored there too
  a.mask = strided(p.options.mask);
  a.bias = strided(p.options.bias);
  a.q_blocks = q.q_blocks;

  a.p_log2 = std::log2(r.p_range);
  a.offset = r.exp2 == Exp2::direct ? 8.0F * a.p_log2 + numerics::kDirectBias : a.p_log2;
  a.slack = 8.0F * r.slack;
  a.flush_tiles = r.pv_accumulator == PvAccumulator::f32_buffered ? std::max(1, r.pv_buffer / instance.keys)
                                                                  : std::numeric_limits<int>::max();
  a.reverse = r.key_order == KeyOrder::reverse;
  a.quantized_normaliser = r.normaliser == Normaliser::quantized;

  a.out = strided(out, p);
  a.lse = strided_lse(lse, p);

  a.tiles = static_cast<int>(schedule.tiles);
  a.splits = static_cast<int>(schedule.splits);
  a.split_tiles = static_cast<int>(schedule.split_tiles);
  a.items = static_cast<int>(schedule.tiles * schedule.pairs * schedule.splits);
  a.longest_first = a.right < kNoLimit;
  if (a.longest_first) {
    const std::size_t pair_bytes =
        static_cast<std::size_t>(longest_keys(p)) *
        static_cast<std::size_t>(instance.row_bytes + (instance.wide_values ? 2 : 1) * instance.columns);
    a.head_block = static_cast<int>(std::clamp<std::size_t>(
        kCachedBytes / std::max<std::size_t>(pair_bytes, 1), 1, static_cast<std::size_t>(schedule.pairs)));
  }
  if (schedule.dynamic) {
    a.counter = reinterpret_cast<int*>(workspace + schedule.counter);
    if (Status s = check(cudaMemsetAsync(a.counter, 0, kSection, stream), "clearing the tile counter");
        !s.ok())
      return s;
  }
  if (schedule.splits > 1) {
    a.partial_out = reinterpret_cast<float*>(workspace + schedule.partial_out);
    a.partial_lse = reinterpret_cast<float*>(workspace + schedule.partial_lse);
  }
  if (r.smooth_q) {
    auto* correction = reinterpret_cast<float*>(workspace + schedule.correction);
    a.correction = correction;
    if (Status s = launch_correction(floats(qq + q.q_mean), floats(kv.data + k.k_exact), correction, a,
                                     static_cast<int>(k.padded_dim), stream);
        !s.ok())
      return s;
  }

  Maps maps;
  if (Status s = encode(maps, instance, r, q, qq, k, kv.data); !s.ok()) return s;
  if (Status s = reserve_shared(instance, p.device.index); !s.ok()) return s;
  const Result<const DeviceProperties*> properties = device_properties(p.device.index);
  if (!properties.ok()) return properties.status();
  const int grid = std::min(a.items, (*properties)->sm_count);
  void* arguments[] = {&maps, &a};
  if (Status s = check(cudaLaunchKernel(instance.function, dim3(static_cast<unsigned>(grid)),
                                        dim3(static_cast<unsigned>(instance.threads)), arguments,
                                        static_cast<std::size_t>(instance.shared_bytes), stream),
                       instance.name);
      !s.ok())
    return s;
  if (schedule.splits == 1) return {};
  Arguments merge = a;
  merge.tiles = static_cast<int>(longest_queries(p) * p.group());  // rows, for the merge
  return launch_merge(merge, a.out, a.lse, stream);
}

}  // namespace octavo::cuda::sm90
