#include "cuda/sm90/schedule.hpp"

#include <algorithm>

#include "cuda/layout.hpp"
#include "cuda/runtime.hpp"

namespace octavo::cuda::sm90 {
namespace {

constexpr std::int64_t kSection = 256;       // alignment of the workspace's parts
constexpr std::int64_t kMinSplitKeys = 512;  // a part must be worth its merge
constexpr std::int64_t kMostTailParts = 8;
// Measured costs, in key tiles of about 1 us: an item's start and end, and the launch of the merge with its
// traffic.
constexpr std::int64_t kItemTiles = 3;
constexpr std::int64_t kMergeTiles = 8;

std::size_t section(std::int64_t floats) {
  return static_cast<std::size_t>(round_up(floats * std::int64_t{sizeof(float)}, kSection));
}

}  // namespace

Schedule::Schedule(const Problem& p, const Recipe& r, const Instance& instance, bool packed)
    : group(packed ? p.group() : 1), kv_heads(packed ? p.kv_heads : p.q_heads) {
  std::int64_t multiprocessors = 132;
  if (const auto properties = device_properties(p.device.index); properties.ok())
    multiprocessors = (*properties)->sm_count;
  tiles = pieces(longest(p, &Sequence::q_len) * group, instance.rows);
  pairs = static_cast<std::int64_t>(p.sequences.size()) * kv_heads;
  longest_first = p.options.causal != Causal::none || p.options.window.right >= 0;
  dynamic = longest_first || !uniform(p);
  whole = tiles * pairs;
  split(p, r, instance, multiprocessors);

  bytes = dynamic ? kSection : 0;
  correction = bytes;
  if (r.smooth_q) bytes += section(p.q_heads * term_elements(p));
  partial_out = bytes;
  const std::int64_t rows = (items() - whole) * instance.rows;
  bytes += section(rows * p.head_dim);
  partial_lse = bytes;
  bytes += section(rows);
}

void Schedule::split(const Problem& p, const Recipe& r, const Instance& instance,
                     std::int64_t multiprocessors) {
  const std::int64_t count = tiles * pairs;
  const std::int64_t key_tiles = pieces(longest(p, &Sequence::k_len), instance.keys);
  if (const std::int64_t asked = p.options.key_splits; asked > 0) {
    // Lengths of other batch entries must not move the cuts: dense layouts count padding, packed ones cut
    // each sequence.
    const std::int64_t all = pieces(p.kv_len, instance.keys);
    split_tiles = p.packed() ? 0 : std::max<std::int64_t>(1, pieces(all, asked));
    splits = p.packed() ? asked : std::max<std::int64_t>(1, pieces(all, split_tiles));
    if (splits > 1) whole = 0;
    return;
  }
  // Few query tiles leave multiprocessors idle: they share out the keys. Enough parts for one wave, none too
  // short.
  if (count * 10 < multiprocessors * 8 && key_tiles > 4) {
    const std::int64_t wanted = std::max<std::int64_t>(1, multiprocessors / std::max<std::int64_t>(1, count));
    split_tiles = std::max(pieces(key_tiles, wanted), pieces(kMinSplitKeys, instance.keys));
    splits = std::max<std::int64_t>(1, pieces(key_tiles, split_tiles));
    if (splits > 1) whole = 0;
    return;
  }
  // The last wave leaves some idle too: its tiles' keys are split so that all end together. Not where the
  // parts' own maxima would round weights elsewhere (direct weights refer to whole octaves, 16-bit ones
  // hardly round).
  const bool insensitive = r.exp2 == Exp2::direct || instance.wide_values;
  const std::int64_t rest = count % multiprocessors;
  if (dynamic || !insensitive || rest == 0 || count < multiprocessors) return;
  // In key tiles: waves of parts, each with its own start and end.
  const auto time = [&](std::int64_t parts) {
    return pieces(rest * parts, multiprocessors) * (pieces(key_tiles, parts) + kItemTiles);
  };
  std::int64_t best = 1;
  for (std::int64_t parts = 2; parts <= kMostTailParts; ++parts) {
    if (time(parts) < time(best)) best = parts;
  }
  if (time(1) - time(best) <= kMergeTiles) return;
  whole = count - rest;
  split_tiles = pieces(key_tiles, best);
  splits = pieces(key_tiles, split_tiles);
  if (splits == 1) whole = count;
}

}  // namespace octavo::cuda::sm90
