// The producer: one thread that walks the items and keeps the rings of Q, K and V full. K runs one tile ahead
// of V, as the consumers read them.
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

template <class C>
OCTAVO_DEVICE void produce(const Shared<C>& shared, const Maps& maps, const Arguments& a) {
  Ring<C::kQStages> q;
  Ring<C::kStages> k;
  Ring<C::kStages> v;
  int index = a.counter != nullptr ? atomicAdd(a.counter, 1) : static_cast<int>(blockIdx.x);
  while (true) {
    ptx::barrier_wait_patiently(shared.q_empty(q.stage), q.phase ^ 1);
    // Seen after the arrival on q_full.
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared.item(q.stage)), "r"(index < a.items ? index : -1)
                 : "memory");
    if (index >= a.items) {
      ptx::barrier_arrive(shared.q_full(q.stage));
      break;
    }
    const Item item = decode(a, index);
    index = a.counter != nullptr ? atomicAdd(a.counter, 1) : index + static_cast<int>(gridDim.x);
    const SequenceRow s = a.sequences[item.sequence];
    const int rows = static_cast<int>(s.q_len) * a.group;
    const int row = item.tile * C::kRows;
    const Visibility visible(a, s);
    TileRange t = tiles_of<C::kKeys>(visible, row, C::kRows, rows, a.group);
    take_part<C::kKeys>(a, item.part, visible.keys, t);
    ptx::barrier_expect(shared.q_full(q.stage), C::kQBytes);
    const int plane = a.planes ? item.sequence : 0;
    load_rows<C>(shared.q(q.stage), &maps.q, C::kRows, static_cast<int>(s.q_row) + row, {item.head, plane},
                 shared.q_full(q.stage));
    q.advance();
    const Plane at{a.first_head + item.head / a.head_group, plane};
    const int count = t.last - t.first;
    int k_row = static_cast<int>(s.k_row) + (a.reverse ? t.last - 1 : t.first) * C::kKeys;
    int v_row = k_row;
    const int step = a.reverse ? -C::kKeys : C::kKeys;
    for (int j = 0; j <= count && count > 0; ++j) {
      if (j < count) {
        ptx::barrier_wait_patiently(shared.k_empty(k.stage), k.phase ^ 1);
        ptx::barrier_expect(shared.k_full(k.stage), C::kKBytes);
        load_rows<C>(shared.k(k.stage), &maps.k, C::kKeys, k_row, at, shared.k_full(k.stage));
        k.advance();
        k_row += step;
      }
      if (j > 0) {
        ptx::barrier_wait_patiently(shared.v_empty(v.stage), v.phase ^ 1);
        ptx::barrier_expect(shared.v_full(v.stage), C::kVBytes);
        load_values<C>(shared.v(v.stage), maps, v_row, at, shared.v_full(v.stage));
        v.advance();
        v_row += step;
      }
    }
  }
}

}  // namespace octavo::cuda::sm90
