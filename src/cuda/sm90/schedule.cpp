#include "cuda/sm90/schedule.hpp"

#include <algorithm>

#include "cuda/layout.hpp"
#include "cuda/runtime.hpp"

namespace octavo::cuda::sm90 {
namespace {

constexpr std::int64_t kSection = 256;       // alignment of the workspace's parts
constexpr std::int64_t kMinSplitKeys = 512;  // a part must be worth its merge
constexpr std::int64_t kMostTailParts = 8;

// Measured costs (docs/kernels/sm90.md), in key tiles of a plain instance, of about 1 us: a key tile, and an
// item's start and end. A narrow instance has fewer warpgroups that wait for each other, a wide one more.
struct Cost {
  double tile = 1.0;
  double item = 4.0;
  explicit Cost(const Instance& i) {
    if (i.variant == Variant::narrow) {
      tile = 0.76;
      item = 3.6;
    } else if (i.variant == Variant::wide) {
      tile = 1.333;
      item = 5.5;
    }
  }
  [[nodiscard]] double of(std::int64_t key_tiles) const {
    return tile * static_cast<double>(key_tiles) + item;
  }
};
constexpr double kMerge = 10.0;  // of split keys: its launch and traffic

std::size_t section(std::int64_t floats) {
  return static_cast<std::size_t>(round_up(floats * std::int64_t{sizeof(float)}, kSection));
}

}  // namespace

Schedule::Schedule(const Problem& p, const Recipe& r, const Instance& instance, bool packed)
    : group(packed ? p.group() : 1), kv_heads(packed ? p.kv_heads : p.q_heads) {
  std::int64_t multiprocessors = 132;
  if (const auto properties = device_properties(p.device.index); properties.ok())
    multiprocessors = (*properties)->sm_count;
  rows = longest(p, &Sequence::q_len) * group;
  tiles = pieces(rows, instance.rows);
  pairs = static_cast<std::int64_t>(p.sequences.size()) * kv_heads;
  longest_first = p.options.causal != Causal::none || p.options.window.right >= 0;
  dynamic = longest_first || !uniform(p);
  whole = tiles * pairs;
  divide(p, r, instance, multiprocessors);
  if (items() <= multiprocessors) dynamic = false;  // each has a block of its own: no counter to clear first

  bytes = dynamic ? kSection : 0;
  correction = bytes;
  if (r.smooth_q) bytes += section(p.q_heads * term_elements(p));
  partial_out = bytes;
  const std::int64_t partial_rows = (items() - whole) * instance.rows;
  bytes += section(partial_rows * p.head_dim);
  partial_lse = bytes;
  bytes += section(partial_rows);
}

void Schedule::divide(const Problem& p, const Recipe& r, const Instance& instance,
                      std::int64_t multiprocessors) {
  const Cost cost(instance);
  const std::int64_t count = tiles * pairs;
  const std::int64_t key_tiles = pieces(longest(p, &Sequence::k_len), instance.keys);
  if (dynamic) {  // blocks end together, unless one tile outlasts all
    double all = 0.0;
    for (const Sequence& s : p.sequences) {
      const std::int64_t seen = pieces(s.k_len, instance.keys);
      all += static_cast<double>(pieces(s.q_len * group, instance.rows) * kv_heads) *
             cost.of(longest_first ? pieces(seen, 2) : seen);
    }
    time = std::max(cost.of(key_tiles), all / static_cast<double>(multiprocessors));
  } else {
    time = static_cast<double>(pieces(count, multiprocessors)) * cost.of(key_tiles);
  }
  if (const std::int64_t asked = p.options.key_splits; asked > 0) {
    // Lengths of other batch entries must not move the cuts: dense layouts count padding, packed ones cut
    // each sequence.
    const std::int64_t all = pieces(p.kv_len, instance.keys);
    split_tiles = p.packed() ? 0 : std::max<std::int64_t>(1, pieces(all, asked));
    splits = p.packed() ? asked : std::max<std::int64_t>(1, pieces(all, split_tiles));
    if (splits > 1) whole = 0;
    return;
  }
  /// waves of `parts` parts of so many tiles
  const auto parts_time = [&](std::int64_t some, std::int64_t parts) {
    return static_cast<double>(pieces(some * parts, multiprocessors)) * cost.of(pieces(key_tiles, parts));
  };
  const auto split = [&](std::int64_t whole_tiles, double first, std::int64_t most) {
    for (std::int64_t parts = 2; parts <= most; ++parts) {
      const double then = first + parts_time(count - whole_tiles, parts) + kMerge;
      if (then >= time) continue;
      time = then;
      whole = whole_tiles;
      split_tiles = pieces(key_tiles, parts);
      splits = pieces(key_tiles, split_tiles);
    }
  };
  if (count < multiprocessors) {
    // Few query tiles leave multiprocessors idle: they share out the keys. At most one wave, no part but the
    // last too short.
    const std::int64_t least = pieces(kMinSplitKeys, instance.keys);
    if (count > 0) split(0, 0.0, std::min(multiprocessors / count, key_tiles / least));
    return;
  }
  // The last wave leaves some idle too: its tiles' keys are split so that all end together. Not where the
  // parts' own maxima would round weights elsewhere (direct weights refer to whole octaves, 16-bit ones
  // hardly round).
  const bool insensitive = r.exp2 == Exp2::direct || instance.wide_values;
  const std::int64_t rest = count % multiprocessors;
  if (dynamic || !insensitive || rest == 0) return;
  split(count - rest, static_cast<double>(count / multiprocessors) * cost.of(key_tiles), kMostTailParts);
}

}  // namespace octavo::cuda::sm90
