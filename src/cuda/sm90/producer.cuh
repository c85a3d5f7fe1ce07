// The producer: one thread that walks the items and keeps the rings of Q and of K and V full.
#pragma once

#include "cuda/ptx/barrier.cuh"
#include "cuda/sm90/config.cuh"
#include "cuda/sm90/tiles.cuh"

namespace octavo::cuda::sm90 {

/// Where a sequence's rows lie in the maps.
struct Plane {
  int head;
  int plane;
};

template <class C>
OCTAVO_DEVICE void load_rows(std::uint32_t to, const CUtensorMap* map, int rows, int row, Plane at,
                             std::uint32_t barrier) {
  constexpr int kElements = C::kChunkBytes / (C::kWideOperands ? 2 : 1);
  OCTAVO_UNROLL for (int c = 0; c < C::kChunks; ++c)
      ptx::copy_box(to + c * rows * 128, map, c * kElements, row, at.head, at.plane, barrier);
}

template <class C>
OCTAVO_DEVICE void load_values(std::uint32_t to, const Maps& maps, int row, Plane at, std::uint32_t barrier) {
  if constexpr (C::kWideValues) {
    OCTAVO_UNROLL for (int c = 0; c < C::kDim / 64; ++c)
        ptx::copy_box(to + c * C::kKeys * 128, &maps.v, 64 * c, row, at.head, at.plane, barrier);
  } else {
    OCTAVO_UNROLL for (int c = 0; c < C::kKeys / 128; ++c)
        ptx::copy_box(to + c * C::kColumns * 128, &maps.v, row + 128 * c, 0, at.head, at.plane, barrier);
    if constexpr (C::kKeys % 128 != 0) {
      constexpr int kWhole = C::kKeys / 128;
      ptx::copy_box(to + kWhole * C::kColumns * 128, &maps.v_rest, row + 128 * kWhole, 0, at.head, at.plane,
                    barrier);
    }
  }
}

/// Scales and shifts of an item. Rows end where the buffer does: their arrays have no rows to spare.
template <class C>
struct Vectors {
  std::int64_t first_row;
  std::int64_t channel;
  std::int64_t block;
  int rows;

  OCTAVO_DEVICE Vectors(const Arguments& a, const Item& item, const SequenceRow& s)
      : first_row(item.head * a.q_rows + s.q_row + item.tile * C::kRows),
        channel(((a.first_head + item.head) * a.sequences.count + item.sequence) * C::kDim),
        block(((a.first_head + item.head) * a.key_rows + s.k_row) / 16),
        rows(static_cast<int>(
            min(static_cast<std::int64_t>(C::kRows), a.q_rows - s.q_row - item.tile * C::kRows))) {}

  [[nodiscard]] OCTAVO_DEVICE int bytes() const {
    return C::kVectors ? 4 * (2 * rows + (C::kHeadScale ? 4 : 0) + (C::kWideValues ? 0 : 2 * C::kDim)) : 0;
  }
  OCTAVO_DEVICE void load(const Shared<C>& shared, const Arguments& a, std::uint32_t slot,
                          std::uint32_t barrier) const {
    if constexpr (C::kVectors) {
      ptx::copy_bytes(shared.q_scale(slot), a.q_scale + first_row, 4 * rows, barrier);
      ptx::copy_bytes(shared.lse_shift(slot), a.lse_shift + first_row, 4 * rows, barrier);
      if constexpr (C::kHeadScale) ptx::copy_bytes(shared.k_scale(slot), a.k_scale + block, 16, barrier);
      if constexpr (!C::kWideValues) {
        ptx::copy_bytes(shared.v_scale(slot), a.v_scale + channel, 4 * C::kDim, barrier);
        ptx::copy_bytes(shared.v_mean(slot), a.v_mean + channel, 4 * C::kDim, barrier);
      }
    }
  }
};

template <class C>
OCTAVO_DEVICE void produce(const Shared<C>& shared, const Maps& maps, const Arguments& a) {
  Ring<C::kQStages> q;
  Ring<C::kSlots> slot;
  Ring<C::kStages> ring;
  // Items are decoded before they are needed, the first one while the kernel before still runs.
  int index = static_cast<int>(blockIdx.x);
  Item item = decode(a, index);
  ptx::wait_for_predecessors();
  const auto take = [&](int next) {
    index = next;
    item = decode(a, min(next, a.items - 1));
  };
  if (a.counter != nullptr) take(atomicAdd(a.counter, 1));
  while (true) {
    ptx::barrier_wait_patiently(shared.q_empty(q.stage), q.phase ^ 1);
    publish(shared, slot.stage, item, index < a.items ? index : -1);
    ptx::barrier_arrive(shared.known(slot.stage));
    if (index >= a.items) break;
    const int next = a.counter != nullptr ? atomicAdd(a.counter, 1) : index + static_cast<int>(gridDim.x);
    const SequenceRow s = a.sequences[item.sequence];
    const int rows = static_cast<int>(s.q_len) * a.group.value();
    const int row = item.tile * C::kRows;
    const Visibility visible(a, s);
    TileRange t = tiles_of<C::kKeys, C::kPiece>(visible, row, C::kRows, rows, a.group);
    take_part<C::kKeys>(a, item.part, visible.keys, t);
    const Vectors<C> vectors(a, item, s);
    // Of packed sequences a short one's last tiles have no rows, nor room for scales.
    const bool any = row < rows;
    ptx::barrier_expect(shared.q_full(q.stage), C::kQBytes + (any ? vectors.bytes() : 0));
    const int plane = a.planes ? item.sequence : 0;
    load_rows<C>(shared.q(q.stage), &maps.q, C::kRows, static_cast<int>(s.q_row) + row, {item.head, plane},
                 shared.q_full(q.stage));
    if (any) vectors.load(shared, a, slot.stage, shared.q_full(q.stage));
    q.advance();
    slot.advance();
    const Plane at{a.first_head + item.head / a.head_group, plane};
    const int last_block = (visible.keys - 1) / 64;
    int tile = a.reverse ? t.last - 1 : t.first;
    for (int count = t.last - t.first; count > 0; --count) {
      const int key_row = static_cast<int>(s.k_row) + tile * C::kKeys;
      ptx::barrier_wait_patiently(shared.empty(ring.stage), ring.phase ^ 1);
      ptx::barrier_expect(shared.full(ring.stage), C::kKBytes + C::kKeyScaleBytes + C::kVBytes);
      if constexpr (C::kBlockScales) {  // the last tile may end before its last block: any scale will do
        OCTAVO_UNROLL for (int b = 0; b < C::kKeys / 64; ++b)
            ptx::copy_bytes(shared.key_scales(ring.stage) + 16 * b,
                            a.k_scale + vectors.block + 4 * min(tile * (C::kKeys / 64) + b, last_block), 16,
                            shared.full(ring.stage));
      }
      load_rows<C>(shared.k(ring.stage), &maps.k, C::kKeys, key_row, at, shared.full(ring.stage));
      load_values<C>(shared.v(ring.stage), maps, key_row, at, shared.full(ring.stage));
      ring.advance();
      tile += a.reverse ? -1 : 1;
    }
    take(next);
  }
}

}  // namespace octavo::cuda::sm90
