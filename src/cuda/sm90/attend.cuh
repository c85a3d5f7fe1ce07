// Attention on Hopper: one kernel, every recipe (docs/kernels/sm90.md).
//
// Roles: a persistent grid, one block an SM. Two to four consumer warpgroups of 64 query rows, and a
// producer warpgroup of which one thread copies Q, K and V tiles into rings (TMA + mbarrier).
//
// A key tile is walked in one or two pieces (Config::kPieces). Step of a piece: softmax S -> P while older
// products are under way; wait for those; fold; issue S = Q K of a later piece, then O += P V. Two sets of
// weights, taken in turns, are what allows this. With two sets of scores (Config::kTwoSets) a piece's scores
// are issued a whole step before they are read; with one they are waited for at once, while O += P V goes on.
//
// Traps: ptxas hoists a wait over arithmetic that does not depend on it, and serialises products when
// accumulators or weights are touched between issue and wait; ptx::hold, ptx::complete and the barrier waits
// before the products' wait are there for that. It says so with warnings C7510 to C7515: treat them as
// errors.
#pragma once

#include "cuda/sm90/producer.cuh"
#include "cuda/sm90/write_rows.cuh"

namespace octavo::cuda::sm90 {

/// One warpgroup's work on its 64 rows of every item.
template <class C>
OCTAVO_DEVICE void consume(const Shared<C>& shared, const Arguments& a, int warpgroup) {
  using ptx::barrier_arrive;
  using ptx::barrier_wait;
  // of a thread's four scales in a block of 64 keys
  const std::uint32_t scale_at = ptx::keep(shared.key_scales(0) + 4 * (threadIdx.x & 3));
  // Descriptors of the first stage's K, and how far V is behind it.
  const std::uint32_t stages_at = ptx::keep_uniform(ptx::descriptor_address(shared.k(0)));
  constexpr std::uint32_t kValuesAt =
      ptx::descriptor_address(C::kKBytes, C::kWideValues ? C::kKeys * 128 : 16) - ptx::descriptor_address(0);
  Ring<C::kQStages> q;
  Ring<C::kSlots> slot;
  Ring<C::kStages> ring;
  const auto arrive = [&](std::uint32_t barrier) {
    if (ptx::elected()) barrier_arrive(barrier);
  };

  while (true) {
    barrier_wait(shared.known(slot.stage), slot.phase);
    const int index = item_number(shared, slot.stage);
    if (index < 0) break;
    const Item item = decode(a, index);
    const SequenceRow s = a.sequences[item.sequence];
    const int rows = static_cast<int>(s.q_len) * a.group.value();
    const Visibility visible(a, s);
    const int first_row = item.tile * C::kRows + warpgroup * 64;
    TileRange block = tiles_of<C::kKeys, C::kPiece>(visible, item.tile * C::kRows, C::kRows, rows, a.group);
    TileRange mine = tiles_of<C::kKeys, C::kPiece>(visible, first_row, 64, rows, a.group);
    take_part<C::kKeys>(a, item.part, visible.keys, block);
    take_part<C::kKeys>(a, item.part, visible.keys, mine);
    const int n = mine.last - mine.first;
    const int total = block.last - block.first;
    const int before = n == 0 ? total : a.reverse ? block.last - mine.last : mine.first - block.first;

    const auto skip = [&](int tiles) {  // tiles that only other warpgroups need
      for (int j = 0; j < tiles; ++j) {
        barrier_wait(shared.full(ring.stage), ring.phase);
        arrive(shared.empty(ring.stage));
        ring.advance();
      }
    };
    skip(before);
    barrier_wait(shared.q_full(q.stage), q.phase);

    const int row0 = first_row + row_of_thread();
    Rows<C> r;
    Output<C> o;
    const auto scale_of = [&](int i) {
      return row_scale<C>(shared, a, item, s, slot.stage, row0 + 8 * i, rows);
    };
    start(r, a, scale_of(0), scale_of(1));
    OCTAVO_UNROLL for (int i = 0; i < C::kOutputRegisters; ++i) o.part[i] = typename C::Output(0);
    clear_sums(o, shared);

    int since = 0;  // tiles in the tensor-core accumulators
    bool has_sums = false;
    if (n > 0) {
      typename C::Score score0[C::kScoreRegisters];
      typename C::Score spare[C::kTwoSets ? C::kScoreRegisters : 4];
      auto& score1 =
          reinterpret_cast<typename C::Score(&)[C::kScoreRegisters]>(*(C::kTwoSets ? spare : score0));
      std::uint32_t weight0[C::kWeightRegisters];
      std::uint32_t spare_weight[C::kLatePack ? 4 : C::kWeightRegisters];
      auto& weight1 =
          reinterpret_cast<std::uint32_t(&)[C::kWeightRegisters]>(*(C::kLatePack ? weight0 : spare_weight));
      const std::uint32_t q_at = ptx::descriptor_address(shared.q(q.stage) + warpgroup * 64 * C::kChunkBytes);
      const auto stage_of = [&](const Ring<C::kStages>& at) {
        return stages_at + at.stage * (C::kStageBytes / 16);
      };
      std::uint32_t at_stage = stage_of(ring);
      int left = n;
      const auto tile = [&] { return a.reverse ? mine.first + left - 1 : mine.last - left; };
      // Tiles that every row sees whole: where clear_least <= left < clear_least + clear_count.
      const int clear_least = a.reverse ? mine.clear_first - mine.first + 1 : mine.last - mine.clear_last + 1;
      const unsigned clear_count = max(0, mine.clear_last - mine.clear_first);
      // The last tile's second piece holds no key that a row sees; in reverse it is walked first, and whole.
      const bool shortened = !a.reverse && C::kPieces * mine.last > mine.pieces;
      const auto flushed = [&] { return since != n - left; };

      // In reverse the pieces of a tile change places too, where the order matters.
      const int swapped = C::kSwaps && a.reverse ? 1 : 0;
      const auto place = [&](int at) { return at ^ swapped; };
      const std::uint32_t k_piece[2] = {swapped * C::kPieceOfK, C::kPieceOfK - swapped * C::kPieceOfK};
      const std::uint32_t v_piece[2] = {swapped * C::kPieceOfV, C::kPieceOfV - swapped * C::kPieceOfV};
      const auto scores = [&](typename C::Score(&score)[C::kScoreRegisters], int at, std::uint32_t k) {
        issue_scores<C>(score, q_at, C::kPieces == 1 ? k : k + k_piece[at]);
      };
      const auto values = [&]<int kAt>(std::uint32_t(&p)[C::kWeightRegisters]) {
        const int accumulate = C::kHalfOutput ? 0 : !C::kFlushes || kAt == 1 ? 1 : since != 0;
        issue_values<C, C::kSwaps ? 0 : kAt>(o, p, at_stage + kValuesAt + (C::kSwaps ? v_piece[kAt] : 0),
                                             accumulate);
      };
      // K scales, read from shared memory a piece ahead.
      float next_scale[C::kPieces][Scales<C>::kBlocks];
      const auto load_scales = [&](int at, std::uint32_t stage) {
        OCTAVO_UNROLL for (int b = 0; b < Scales<C>::kBlocks; ++b) {
          next_scale[at][b] =
              C::kBlockScales
                  ? ptx::load_shared(scale_at + 64 * stage + 16 * (Scales<C>::kBlocks * place(at) + b))
                  : 1.0F;
        }
      };
      /// in a piece that some row does not see whole
      const auto hide_piece = [&](typename C::Score(&score)[C::kScoreRegisters], int piece,
                                  const Scales<C>& scale) {
        const int key = piece * C::kPiece + 2 * (ptx::thread_index() & 3);
        const int row[2] = {min(row0, rows - 1), min(row0 + 8, rows - 1)};
        Limits limits;
        OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
          const int token = a.group.quotient(row[i]);
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
            const float scales[2] = {scale_of(0), scale_of(1)};
            if (scores_are_codes<C>(a)) {
              settle_codes<C>(r, a, score, key, scales, extras);
            } else {
              settle_half<C>(score, key, scales, extras);
            }
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
          settle_scores<C>(score, key, limits);
        }
      };
      /// scores -> weights
      const auto weights = [&]<bool kSettled>(typename C::Score(&score)[C::kScoreRegisters],
                                              const Scales<C>& scale,
                                              std::uint32_t(&p)[C::kWeightRegisters]) {
        if constexpr (C::kHalfScores) {
          const Moved moved = update_half<C>(r, a, score, scale_of);
          direct_half<C>(r, score, p);
          return moved;
        } else {
          Moved moved;
          if constexpr (C::kDirect) {
            float constant[Scales<C>::kBlocks][2];
            moved = update_direct<C, kSettled>(r, a, score, scale, constant);
            weigh_direct<C, kSettled>(a, score, scale, constant, p);
          } else {
            moved = update<C, kSettled>(r, score, scale);
            weigh<C, kSettled>(r, a, score, scale, p);
          }
          return moved;
        }
      };
      // The stage whose last products are under way; at first one that nobody waits for.
      std::uint32_t finished = C::kStages;
      /// The step of one piece: its scores -> weights while products are under way, then waits for those and
      /// folds. With kMore scores follow: what waits for their K, and for V, has a branch, which with
      /// `complete` keeps ptxas from hoisting the products' wait above the arithmetic it is to hide behind.
      const auto softmax = [&]<int kAt, bool kMore, Turn kTurn = Turn::counted>(
          typename C::Score(&score)[C::kScoreRegisters], typename C::Score(&other)[C::kScoreRegisters],
          std::uint32_t(&p)[C::kWeightRegisters], const Ring<C::kStages>& next) {
        constexpr bool kStart = kAt == 0;  // of a tile
        constexpr bool kWaits =
            kMore && kStart == (C::kTwoSets || C::kPieces == 1);  // for the stage whose scores follow
        Scales<C> scale;
        OCTAVO_UNROLL for (int b = 0; b < Scales<C>::kBlocks; ++b) {
          OCTAVO_UNROLL for (int i = 0; i < 2 && !C::kHalfScores; ++i) scale.of[b][i] =
              C::kBlockScales ? r.scale[i] * next_scale[kAt][b] : r.scale[i];
        }
        const auto piece = [&] { return C::kPieces * tile() + place(kAt); };
        // Asked before the arithmetic, needed after it.
        bool ready = false;
        if constexpr (kWaits && C::kAsksEarly)
          ready = ptx::barrier_passed_already(shared.full(next.stage), next.phase);
        const bool clear = C::kPieces == 1
                               ? static_cast<unsigned>(left - clear_least) < clear_count
                               : !C::kGeneral && piece() >= mine.clear_first && piece() < mine.clear_last;
        Moved moved;
        if constexpr (C::kSettles) {
          if (__builtin_expect(clear, 1)) {
            moved = weights.template operator()<false>(score, scale, p);
          } else {
            // In a copy where they can be: ptxas serialises products otherwise (C7514).
            typename C::Score copy[C::kScoreRegisters];
            auto& settled = C::kLatePack ? score : copy;
            OCTAVO_UNROLL for (int i = 0; i < C::kScoreRegisters && !C::kLatePack; ++i) copy[i] = score[i];
            hide_piece(settled, piece(), scale);
            moved = weights.template operator()<true>(settled, scale, p);
          }
        } else {
          if (__builtin_expect(!clear, 0)) hide_piece(score, piece(), scale);
          moved = weights.template operator()<false>(score, scale, p);
        }
        // What the arithmetic left must be there before the products' wait.
        const auto finish = [&](auto& left_behind) {
          ptx::hold(left_behind);
          if constexpr (kWaits) {
            if (!C::kAsksEarly) ready = ptx::barrier_passed(shared.full(next.stage), next.phase);
            if (__builtin_expect(!ready, 0)) {
              ptx::complete(left_behind, shared.base, a.never);
              barrier_wait(shared.full(next.stage), next.phase);
            }
          } else {
            ptx::complete(left_behind, shared.base, a.never);
          }
        };
        if constexpr (C::kLatePack) {
          finish(score);
        } else {
          finish(p);
        }
        if constexpr (kMore && C::kTwoSets) load_scales(kAt, next.stage);
        ptx::wgmma_wait<0>();
        if constexpr (C::kTwoSets) ptx::hold(other);
        hold_output(o);
        if (kStart) arrive(shared.empty(finished));
        since = fold<C, !kStart, kTurn>(o, r, shared, a, moved, since, flushed());
        if constexpr (C::kLatePack) pack_late<C>(score, p);
        if constexpr (kMore) start_scores<C>(score);
        ptx::hold(p);
        ptx::hold(score);
        hold_output(o);
        ptx::wgmma_fence();
      };
      const auto next_tile = [&](const Ring<C::kStages>& next) {
        ++since;
        --left;
        finished = ring.stage;
        ring = next;
        at_stage = stage_of(next);
      };
      const auto after = [&] {
        Ring<C::kStages> next = ring;
        next.advance();
        return next;
      };

      const auto end_products = [&] {
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        hold_output(o);
      };

      barrier_wait(shared.full(ring.stage), ring.phase);
      start_scores<C>(score0);
      if constexpr (C::kTwoSets) start_scores<C>(score1);
      ptx::hold(score0);
      if constexpr (C::kTwoSets) ptx::hold(score1);
      hold_output(o);
      ptx::wgmma_fence();
      scores(score0, 0, at_stage);
      ptx::wgmma_commit();
      if constexpr (C::kTwoSets) {
        scores(score1, 1, at_stage);
        ptx::wgmma_commit();
      }
      OCTAVO_UNROLL for (int at = 0; at < C::kPieces; ++at) load_scales(at, ring.stage);
      ptx::wgmma_wait<C::kTwoSets ? 1 : 0>();
      ptx::hold(score0);
      if constexpr (C::kTwoSets) {
        while (left > 1) {
          const Ring<C::kStages> next = after();
          softmax.template operator()<0, true>(score0, score1, weight0, next);
          scores(score0, 0, stage_of(next));
          values.template operator()<0>(weight0);
          ptx::wgmma_commit();
          softmax.template operator()<1, true>(score1, score0, weight1, next);
          scores(score1, 1, stage_of(next));
          values.template operator()<1>(weight1);
          ptx::wgmma_commit();
          next_tile(next);
        }
        softmax.template operator()<0, false>(score0, score1, weight0, ring);
        arrive(shared.q_empty(q.stage));  // the last scores are there: the next item's queries may come
        values.template operator()<0>(weight0);
        ptx::wgmma_commit();
        softmax.template operator()<1, false>(score1, score0, weight1, ring);
        values.template operator()<1>(weight1);
        end_products();
      } else {
        /// a piece and the scores of the next; those are waited for, its own products are not
        const auto step = [&]<int kAt, Turn kTurn>(std::uint32_t(&p)[C::kWeightRegisters]) {
          constexpr bool kLastOfTile = kAt == C::kPieces - 1;
          const Ring<C::kStages> next = kLastOfTile ? after() : ring;
          softmax.template operator()<kAt, true, kTurn>(score0, score0, p, next);
          scores(score0, kLastOfTile ? 0 : 1, stage_of(next));
          ptx::wgmma_commit();
          values.template operator()<kAt>(p);
          ptx::wgmma_commit();
          if constexpr (kLastOfTile) next_tile(next);
          load_scales(kLastOfTile ? 0 : 1, ring.stage);
          ptx::wgmma_wait<1>();
          ptx::hold(score0);
        };
        const auto last_step = [&]<int kAt, Turn kTurn>(std::uint32_t(&p)[C::kWeightRegisters]) {
          arrive(shared.q_empty(q.stage));  // the last scores are there: the next item's queries may come
          softmax.template operator()<kAt, false, kTurn>(score0, score0, p, ring);
          values.template operator()<kAt>(p);
          end_products();
        };
        if constexpr (C::kLatePack) {
          while (left > 1) step.template operator()<0, Turn::first>(weight0);
          last_step.template operator()<0, Turn::first>(weight0);
        } else {  // two exits instead of a tail that copies weights: copies make ptxas serialise (C7513)
          constexpr int kSecond = C::kPieces - 1;  // the piece that takes the second set of weights
          constexpr Turn kOdd = kSecond == 0 ? Turn::first : Turn::counted;
          constexpr Turn kEven = kSecond == 0 ? Turn::second : Turn::counted;
          while (true) {
            if (left == 1 && (kSecond == 0 || shortened)) {
              last_step.template operator()<0, kOdd>(weight0);
              break;
            }
            step.template operator()<0, kOdd>(weight0);
            if (left == 1) {
              last_step.template operator()<kSecond, kEven>(weight1);
              break;
            }
            step.template operator()<kSecond, kEven>(weight1);
          }
        }
      }
      arrive(shared.empty(ring.stage));
      ring.advance();
      if constexpr (C::kShares) take_sums(o, r, a.zero);
      if constexpr (C::kSumsInRegisters) flush(o, shared, a);
      has_sums = flushed();
    }
    if (n == 0) arrive(shared.q_empty(q.stage));
    q.advance();
    skip(total - before - n);
    write_rows<C>(o, r, shared, a, slot.stage, warpgroup, has_sums);
    slot.advance();
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    attend(const __grid_constant__ Maps maps, const __grid_constant__ Arguments a) {
  extern __shared__ std::uint8_t raw[];
  const Shared<C> shared(raw);
  const int warpgroup = ptx::keep_uniform(static_cast<int>(threadIdx.x) / 128);
  if (threadIdx.x == 0) {
    for (int i = 0; i <= C::kStages; ++i) {
      ptx::barrier_init(shared.full(i), 1);
      ptx::barrier_init(shared.empty(i), i < C::kStages ? C::kConsumers * 4 : ptx::kMostArrivals);
    }
    for (int i = 0; i < 2; ++i) {
      ptx::barrier_init(shared.q_full(i), 1);
      ptx::barrier_init(shared.q_empty(i), C::kConsumers * 4);
    }
    for (int i = 0; i < C::kSlots; ++i) ptx::barrier_init(shared.known(i), 1);
    ptx::barrier_init_fence();
    ptx::prefetch_map(&maps.q);
    ptx::prefetch_map(&maps.k);
    ptx::prefetch_map(&maps.v);
  }
  ptx::admit_successor();
  __syncthreads();
  if (warpgroup == C::kConsumers) {
    ptx::give_registers<C::kProducerRegisters>();
    if (threadIdx.x == C::kConsumers * 128) produce<C>(shared, maps, a);
  } else {
    ptx::take_registers<C::kConsumerRegisters>();
    ptx::wait_for_predecessors();
    consume<C>(shared, a, warpgroup);
  }
}

}  // namespace octavo::cuda::sm90
