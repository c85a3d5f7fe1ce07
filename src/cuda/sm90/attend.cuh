// Attention on Hopper: one kernel, every recipe (docs/kernels/sm90.md).
//
// Roles: a persistent grid, one block an SM. Two or three consumer warpgroups of 64 query rows, and a
// producer warpgroup of which one thread copies Q, K and V tiles into rings (TMA + mbarrier).
//
// Step j: issue S = Q K(j), then O += P(j-1) V(j-1); wait for S; softmax: S -> P(j), while the second product
// runs; wait for it; fold. Two sets of weight registers, taken in turns by a loop that does two steps, are
// what allows this.
//
// Traps: ptxas hoists a wait over arithmetic that does not depend on it, and serialises products when
// accumulators or weights are touched between issue and wait; ptx::hold, ptx::complete, the barrier waits
// before the product's wait and the two loop exits are there for that. It says so with warnings C7510 to
// C7515: treat them as errors.
#pragma once

#include "cuda/sm90/output.cuh"
#include "cuda/sm90/producer.cuh"

namespace octavo::cuda::sm90 {

/// One warpgroup's work on its 64 rows of every item.
template <class C>
OCTAVO_DEVICE void consume(const Shared<C>& shared, const Arguments& a, int warpgroup) {
  using ptx::barrier_arrive;
  using ptx::barrier_wait;
  const int lane = threadIdx.x & 31;
  Ring<C::kQStages> q;
  Ring<C::kStages> k;
  Ring<C::kStages> v;
  const auto arrive = [&](std::uint32_t barrier) {
    if (lane == 0) barrier_arrive(barrier);
  };

  while (true) {
    barrier_wait(shared.q_full(q.stage), q.phase);
    int index;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(index) : "r"(shared.item(q.stage)) : "memory");
    // A reduction leaves it in a uniform register, so that decoding, loop counters, branches and descriptors
    // stay on the uniform path. Publishing decoded items instead costs registers: several reductions end in
    // ordinary ones.
    index = __reduce_max_sync(~0U, index);
    if (index < 0) break;
    const Item item = decode(a, index);
    const SequenceRow s = a.sequences[item.sequence];
    const int rows = static_cast<int>(s.q_len) * a.group;
    const Visibility visible(a, s);
    const int first_row = item.tile * C::kRows + warpgroup * 64;
    TileRange block = tiles_of<C::kKeys>(visible, item.tile * C::kRows, C::kRows, rows, a.group);
    TileRange mine = tiles_of<C::kKeys>(visible, first_row, 64, rows, a.group);
    take_part<C::kKeys>(a, item.part, visible.keys, block);
    take_part<C::kKeys>(a, item.part, visible.keys, mine);
    const int n = mine.last - mine.first;
    const int total = block.last - block.first;
    const int before = n == 0 ? total : a.reverse ? block.last - mine.last : mine.first - block.first;

    const auto skip = [&](int tiles) {  // tiles that only other warpgroups need
      for (int j = 0; j < tiles; ++j) {
        barrier_wait(shared.k_full(k.stage), k.phase);
        arrive(shared.k_empty(k.stage));
        k.advance();
        barrier_wait(shared.v_full(v.stage), v.phase);
        arrive(shared.v_empty(v.stage));
        v.advance();
      }
    };
    skip(before);

    const int row0 = first_row + (ptx::thread_index() >> 5 & 3) * 16 + (lane >> 2);
    Rows<C> r;
    Output<C> o;
    const float* k_scale = a.k_scale + ((a.first_head + item.head) * a.key_rows + s.k_row) / 16 + (lane & 3);
    {
      float q_scale0 = a.scale;
      float q_scale1 = a.scale;
      if (a.q_scale != nullptr) {
        const float* q_scale = a.q_scale + item.head * a.q_rows + s.q_row;
        q_scale0 = row0 < rows ? __ldg(q_scale + row0) : 0.0F;
        q_scale1 = row0 + 8 < rows ? __ldg(q_scale + row0 + 8) : 0.0F;
      }
      if constexpr (C::kScores == Mma::e4m3_f16) {  // one K scale a head
        q_scale0 *= __ldg(k_scale);
        q_scale1 *= __ldg(k_scale);
      }
      start(r, q_scale0, q_scale1);
    }
    OCTAVO_UNROLL for (int i = 0; i < C::kOutputRegisters; ++i) o.part0[i] = typename C::Output(0);
    clear_sums(o, shared);

    if (n > 0) {
      typename C::Score score[C::kScoreRegisters];
      std::uint32_t even[C::kWeightRegisters];
      std::uint32_t spare[C::kLatePack ? 4 : C::kWeightRegisters];
      auto& odd = reinterpret_cast<std::uint32_t(&)[C::kWeightRegisters]>(*(C::kLatePack ? even : spare));
      const std::uint32_t q_at = ptx::descriptor_address(shared.q(q.stage) + warpgroup * 64 * C::kChunkBytes);
      const std::uint32_t k_at = ptx::descriptor_address(shared.k(0));
      const std::uint32_t v_at = ptx::descriptor_address(shared.v(0), C::kWideValues ? C::kKeys * 128 : 16);
      const int step = a.reverse ? -1 : 1;
      int tile = a.reverse ? mine.last - 1 : mine.first;
      int since = 0;  // tiles in the tensor-core accumulators
      std::uint32_t k_used;

      // K scales of the next tile, fetched a tile ahead. A sequence's last tile may have no second block.
      const float* scale_at = k_scale + 8 * tile;
      const int last_block = (visible.keys - 1) / 64;
      float next_scale[2] = {1.0F, 1.0F};
      const auto load_scales = [&](int of_tile) {
        if constexpr (C::kBlockScales) {
          next_scale[0] = __ldg(scale_at);
          next_scale[1] = __ldg(scale_at + (2 * of_tile < last_block ? 4 : 0));
          scale_at += 8 * step;
        }
      };
      load_scales(tile);

      const auto scores = [&] {
        issue_scores<C>(score, q_at, k_at + k.stage * (C::kKBytes / 16));
        k_used = k.stage;
        k.advance();
      };
      const auto values = [&](std::uint32_t(&p)[C::kWeightRegisters]) {
        issue_values<C>(o, p, v_at + v.stage * (C::kVPitch / 16), C::kFlushes ? since != 0 : 1);
        ++since;
      };
      const auto hide_tile = [&](const Scales& scale) {  // in a tile that some row does not see whole
        const int key = tile * C::kKeys + 2 * (lane & 3);
        const int row[2] = {min(row0, rows - 1), min(row0 + 8, rows - 1)};
        Limits limits;
        OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
          const int token = a.group == 1 ? row[i] : row[i] / a.group;
          limits.begin[i] = visible.begin(token);
          limits.end[i] = visible.end(token);
        }
        if constexpr (!C::kSettles) hide<C>(score, key, limits);
        if constexpr (C::kGeneral) {
          const auto extras = [&](int i) {
            return [&, extra = RowExtras(a, s, item.head, row[i])](int at) {
              return extra.add(a, at, visible.keys) * Rows<C>::kUnit;
            };
          };
          if constexpr (C::kHalfScores) {
            settle_half<C>(score, key, r.scale, extras);
          } else if (a.mask.data == nullptr && a.bias.data == nullptr) {  // smooth_q's term alone
            settle<C>(score, key, limits, scale.of, [&](int i) {
              return [&, term = RowExtras(a, s, item.head, row[i]).correction](int at) {
                return __ldg(term + min(at, visible.keys - 1)) * Rows<C>::kUnit;
              };
            });
          } else {
            settle<C>(score, key, limits, scale.of, extras);
          }
        } else if constexpr (C::kSettles) {
          settle<C>(score, key, limits, scale.of, [](int) { return [](int) { return 0.0F; }; });
        }
      };
      /// scores -> weights
      const auto weights = [&]<bool kSettled>(const Scales& scale, std::uint32_t(&p)[C::kWeightRegisters],
                                              float(&part)[2]) {
        if constexpr (C::kHalfScores) {
          const Moved moved = update_half<C>(r, a, score);
          direct_half<C>(r, score, p);
          return moved;
        } else {
          const Moved moved = update<C, kSettled>(r, a, score, scale);
          if constexpr (C::kDirect) {
            weigh_direct<C, kSettled>(r, a, score, scale, p);
          } else {
            weigh<C, kSettled>(r, a, score, scale, p, part);
            if (a.quantized_normaliser) part[0] = part[1] = 0.0F;
          }
          return moved;
        }
      };
      /// scores of `tile` -> weights p; then waits for the product under way and folds it
      const auto softmax = [&](std::uint32_t(&p)[C::kWeightRegisters], int left, bool product) {
        // The last scores are there: the next item's queries may come while this one ends.
        if (left == 1) arrive(shared.q_empty(q.stage));
        Scales scale;
        if constexpr (!C::kHalfScores) {
          OCTAVO_UNROLL for (int row = 0; row < 2; ++row) {
            OCTAVO_UNROLL for (int b = 0; b < 2; ++b) scale.of[b][row] =
                C::kBlockScales ? r.scale[row] * next_scale[b] : r.scale[row];
          }
          if (left > 1) load_scales(tile + step);
        }
        const bool clear = !C::kGeneral && tile >= mine.clear_first && tile < mine.clear_last;
        Moved moved;
        float part[2] = {0.0F, 0.0F};
        if constexpr (C::kSettles) {
          if (__builtin_expect(clear, 1)) {
            moved = weights.template operator()<false>(scale, p, part);
          } else {
            hide_tile(scale);
            moved = weights.template operator()<true>(scale, p, part);
          }
        } else {
          if (__builtin_expect(!clear, 0)) hide_tile(scale);
          moved = weights.template operator()<false>(scale, p, part);
        }
        if constexpr (C::kLatePack) {
          ptx::hold(score);
          ptx::complete(score, shared.base, a.never);
        } else {
          ptx::hold(p);
          ptx::complete(p, shared.base, a.never);
        }
        const std::uint32_t v_used = v.stage;
        if (product) v.advance();
        // What the next step reads; these branches also keep ptxas from hoisting the product's wait above the
        // softmax.
        barrier_wait(shared.v_full(v.stage), v.phase);
        if (left > 1) barrier_wait(shared.k_full(k.stage), k.phase);
        if (product) {
          ptx::wgmma_wait<0>();
          hold_output(o);
          arrive(shared.v_empty(v_used));
          since = fold(o, r, shared, a, moved, since);
        }
        if constexpr (C::kDirect) {
          if (__builtin_expect(moved.any, 0)) {
            r.sum[0] *= moved.factor[0];
            r.sum[1] *= moved.factor[1];
          }
        } else {
          r.sum[0] = fmaf(r.sum[0], moved.factor[0], part[0]);
          r.sum[1] = fmaf(r.sum[1], moved.factor[1], part[1]);
        }
        if constexpr (C::kLatePack) pack_late<C>(score, p);
        tile += step;
      };
      const auto advance = [&](std::uint32_t(&finished)[C::kWeightRegisters],
                               std::uint32_t(&next)[C::kWeightRegisters], int left) {
        ptx::hold(finished);
        hold_output(o);
        scores();
        values(finished);
        ptx::wgmma_wait<1>();
        ptx::hold(score);
        arrive(shared.k_empty(k_used));
        softmax(next, left, true);
      };
      const auto finish = [&](std::uint32_t(&p)[C::kWeightRegisters]) {
        ptx::hold(p);
        hold_output(o);
        values(p);
        ptx::wgmma_wait<0>();
        hold_output(o);
        arrive(shared.v_empty(v.stage));
        v.advance();
      };

      barrier_wait(shared.k_full(k.stage), k.phase);
      scores();
      ptx::wgmma_wait<0>();
      ptx::hold(score);
      arrive(shared.k_empty(k_used));
      softmax(even, n, false);
      for (int left = n - 1;
           ;) {  // two exits instead of a tail that copies weights: copies make ptxas serialise (C7513)
        if (left == 0) {
          finish(even);
          break;
        }
        advance(even, odd, left--);
        if (left == 0) {
          finish(odd);
          break;
        }
        advance(odd, even, left--);
      }
      if constexpr (C::kFlushes) {
        if (C::kDirect || a.quantized_normaliser) take_sums(o, r, a.zero);
        flush(o, shared);
      }
    }
    if (n == 0) arrive(shared.q_empty(q.stage));
    q.advance();
    skip(total - before - n);
    write_rows<C>(o, r, shared, a, item, s, row0, rows);
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    attend(const __grid_constant__ Maps maps, const __grid_constant__ Arguments a) {
  extern __shared__ std::uint8_t raw[];
  const Shared<C> shared(raw);
  const int warpgroup = __reduce_max_sync(~0U, static_cast<int>(threadIdx.x) / 128);
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      ptx::barrier_init(shared.k_full(i), 1);
      ptx::barrier_init(shared.v_full(i), 1);
      ptx::barrier_init(shared.k_empty(i), C::kConsumers * 4);
      ptx::barrier_init(shared.v_empty(i), C::kConsumers * 4);
    }
    for (int i = 0; i < 2; ++i) {
      ptx::barrier_init(shared.q_full(i), 1);
      ptx::barrier_init(shared.q_empty(i), C::kConsumers * 4);
    }
    ptx::barrier_init_fence();
  }
  __syncthreads();
  if (warpgroup == C::kConsumers) {
    ptx::give_registers<C::kProducerRegisters>();
    if (threadIdx.x == C::kConsumers * 128) produce<C>(shared, maps, a);
  } else {
    ptx::take_registers<C::kConsumerRegisters>();
    consume<C>(shared, a, warpgroup);
  }
}

}  // namespace octavo::cuda::sm90
