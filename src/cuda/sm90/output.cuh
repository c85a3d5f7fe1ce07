// Second product: O += P V, and its flushes into f32.
//
// FP8 products are cut to about 13 bits below the accumulator's running value, so long sums shrink: O moves
// into f32 sums after `flush_tiles` tiles, the row sum out of the ones columns after two
// (docs/kernels/sm90.md).
#pragma once

#include "cuda/sm90/softmax.cuh"

namespace octavo::cuda::sm90 {

/// Tensor-core accumulators, and f32 sums where they are registers.
template <class C>
struct Output {
  typename C::Output part[C::kOutputRegisters];
  float sum[C::kSumsInRegisters ? C::kDim / 2 + 2 : 1];  ///< and the two rows' sums of other columns
  /// What references moved since the last flush: the sums' factor at the next.
  float pending[C::kPends ? 2 : 1];
};

/// Where the k-step `step` of a V stage lies: its distance from the stage's start, and the descriptor's high
/// half.
struct ValuePlace {
  std::uint32_t offset;
  std::uint32_t high;
};
template <class C>
constexpr ValuePlace value_place(int step) {
  if (C::kWideValues)  // [channel chunk of 64][key][128 bytes]; a step is 16 keys
    return {static_cast<std::uint32_t>(step * (16 * 128 / 16)),
            ptx::descriptor_high(ptx::Swizzle::bytes128, 1024)};
  // [chunk of 128 keys][column][128 bytes], then a narrower rest; a step is 32 keys
  constexpr int kWhole = C::kKeys / 128;
  const int key = 32 * step;
  if (key < kWhole * 128)
    return {static_cast<std::uint32_t>(((key / 128) * C::kColumns * 128 + key % 128) / 16),
            ptx::descriptor_high(ptx::Swizzle::bytes128, 1024)};
  constexpr auto kSwizzle = C::kKeys % 128 == 64 ? ptx::Swizzle::bytes64 : ptx::Swizzle::bytes32;
  return {static_cast<std::uint32_t>((kWhole * C::kColumns * 128 + key - kWhole * 128) / 16),
          ptx::descriptor_high(kSwizzle, 8 * (C::kKeys % 128))};
}

/// Starts the products of piece kAt of the stage at `v`. `accumulate` = 0: from zero. Fences and commits are
/// the caller's.
template <class C, int kAt>
OCTAVO_DEVICE void issue_values(Output<C>& o, const std::uint32_t (&p)[C::kWeightRegisters], std::uint32_t v,
                                int accumulate) {
  constexpr int kSteps = C::kWeightRegisters / 4;
  OCTAVO_UNROLL for (int step = 0; step < kSteps; ++step) {
    const ValuePlace at = value_place<C>(kAt * kSteps + step);
    C::Product::issue(o.part, p[4 * step], p[4 * step + 1], p[4 * step + 2], p[4 * step + 3],
                      ptx::descriptor(v + at.offset, at.high), step == 0 ? accumulate : 1);
  }
}

template <class C>
OCTAVO_DEVICE void hold_output(Output<C>& o) {
  ptx::hold(o.part);
}

// With direct weights row sums come out of the product twice. Columns kDim + 2c, moved into f32 every second
// tile, hardly lose anything: they are the normaliser. Columns kDim + 2c + 1 stay in the accumulator as long
// as the output does and so lose the same share: what they lack at the end is what V's mean lacks, and is
// given back (kShares). With exact weights everything is flushed after two tiles at most, columns kDim + 2c
// too where they are the normaliser.

/// Adds the ones columns to the row sums and clears them. The product with `zero` instead of a literal 0,
/// because ptxas serialises the products around a literal (warning C7511).
template <class C>
OCTAVO_DEVICE void take_sums(Output<C>& o, Rows<C>& r, float zero) {
  static_assert(C::kShares);
  constexpr int n = C::kOutputRegisters;
  r.sum[0] += o.part[n - 4];
  r.sum[1] += o.part[n - 2];
  o.part[n - 4] *= zero;
  o.part[n - 2] *= zero;
}

/// The thread's f32 sums in shared memory: 16 bytes of each thread side by side, so no bank conflicts.
template <class C>
OCTAVO_DEVICE std::uint32_t sum_address(const Shared<C>& shared, int i) {
  return shared.sums() + ptx::thread_index() * 16 + i / 4 * (C::kConsumers * 128 * 16);
}
template <class C>
OCTAVO_DEVICE void clear_sums(Output<C>& o, const Shared<C>& shared) {
  if constexpr (C::kSumsInShared && !C::kLazy) {
    OCTAVO_UNROLL for (int i = 0; i < C::kDim / 2 + 4; i += 4)
        ptx::store_shared_quad(sum_address(shared, i), make_float4(0, 0, 0, 0));
  } else if constexpr (C::kSumsInRegisters) {
    OCTAVO_UNROLL for (int i = 0; i < C::kDim / 2 + 2; ++i) o.sum[i] = 0.0F;
  }
  if constexpr (C::kPends) o.pending[0] = o.pending[1] = 1.0F;
}

/// Element i of the accumulators as f32: of every four, two columns of the upper row, two of the lower.
template <class C>
OCTAVO_DEVICE float accumulated(const Output<C>& o, int i) {
  if constexpr (C::kHalfOutput) {
    const int at = i / 4 * 2 + i / 2 % 2;
    return i % 2 == 0 ? ptx::low_f16(o.part[at]) : ptx::high_f16(o.part[at]);
  } else {
    return o.part[i];
  }
}

/// Sums of accumulators i to i + 3 in shared memory, 0 where nothing was flushed to them yet.
template <class C>
OCTAVO_DEVICE float4 shared_sums(const Shared<C>& shared, int i, bool flushed) {
  return !C::kLazy || flushed ? ptx::load_shared_quad(sum_address(shared, i)) : make_float4(0, 0, 0, 0);
}

/// Every f32 sum of the thread, `columns` too, becomes `change(sum, accumulator, row)`.
template <class C, class Change>
OCTAVO_DEVICE void change_sums(Output<C>& o, const Shared<C>& shared, bool flushed, bool columns,
                               const Change& change) {
  if constexpr (C::kSumsInShared) {
    OCTAVO_UNROLL for (int i = 0; i < C::kDim / 2 + 4; i += 4) {
      if (i == C::kDim / 2 && !columns) break;
      const std::uint32_t at = sum_address(shared, i);
      const float4 f = shared_sums(shared, i, flushed);
      ptx::store_shared_quad(at, make_float4(change(f.x, o.part[i], 0), change(f.y, o.part[i + 1], 0),
                                             change(f.z, o.part[i + 2], 1), change(f.w, o.part[i + 3], 1)));
    }
  } else if constexpr (C::kSumsInRegisters) {
    OCTAVO_UNROLL for (int i = 0; i < C::kDim / 2; ++i) o.sum[i] =
        change(o.sum[i], accumulated(o, i), i / 2 % 2);
    if (columns) {
      OCTAVO_UNROLL for (int i = 0; i < 2; ++i) o.sum[C::kDim / 2 + i] =
          change(o.sum[C::kDim / 2 + i], accumulated(o, C::kDim / 2 + (C::kShares ? 1 : 0) + 2 * i), i);
    }
  }
}

/// sums = sums * pending + accumulators. That the references' moves wait for the next flush costs nothing
/// there and saves passes over the sums.
template <class C>
OCTAVO_DEVICE void flush(Output<C>& o, const Shared<C>& shared, const Arguments& a, bool flushed = true) {
  const bool columns = C::kShares || a.quantized_normaliser;
  if constexpr (C::kPends) {
    change_sums(o, shared, flushed, columns,
                [&](float sum, float part, int row) { return fmaf(sum, o.pending[row], part); });
    o.pending[0] = o.pending[1] = 1.0F;
  } else {
    change_sums(o, shared, flushed, columns, [](float sum, float part, int) { return sum + part; });
  }
}

/// At the end, the sums of accumulators i to i + 3, a multiple of 4: two of the upper row, two of the lower.
/// What lies in shared memory still lacks the last products.
template <class C>
OCTAVO_DEVICE float4 final_sums(const Output<C>& o, const Shared<C>& shared, int i, bool flushed) {
  if constexpr (C::kSumsInShared) {
    const float4 f = shared_sums(shared, i, flushed);
    const auto added = [&](float sum, int at) {
      return C::kPends ? fmaf(sum, o.pending[at / 2 % 2], o.part[at]) : sum + o.part[at];
    };
    return make_float4(added(f.x, i), added(f.y, i + 1), added(f.z, i + 2), added(f.w, i + 3));
  } else if constexpr (C::kSumsInRegisters) {
    return make_float4(o.sum[i], o.sum[i + 1], o.sum[i + 2], o.sum[i + 3]);
  } else {
    return make_float4(o.part[i], o.part[i + 1], o.part[i + 2], o.part[i + 3]);
  }
}

/// The two rows' sums of the columns that are flushed with the output.
template <class C>
OCTAVO_DEVICE float2 flushed_columns(const Output<C>& o, const Shared<C>& shared, bool flushed) {
  if constexpr (C::kSumsInShared) {
    const float4 sums = final_sums(o, shared, C::kDim / 2, flushed);
    return C::kShares ? make_float2(sums.y, sums.w) : make_float2(sums.x, sums.z);
  } else if constexpr (C::kSumsInRegisters) {
    return make_float2(o.sum[C::kDim / 2], o.sum[C::kDim / 2 + 1]);
  } else {
    return make_float2(0.0F, 0.0F);
  }
}

template <class C>
OCTAVO_DEVICE void scale_accumulators(Output<C>& o, const float (&factor)[2]) {
  if constexpr (!C::kHalfOutput) {
    OCTAVO_UNROLL for (int i = 0; i < C::kOutputRegisters; ++i) o.part[i] *= factor[i / 2 % 2];
  }
}

/// When the ones columns are taken into the row sums (direct weights): every second tile, and before every
/// flush, which clears them.
enum class Turn { first, second, counted };

/// Everything that follows a finished product: `since` tiles are in the accumulators, and in the middle
/// of a tile (kMiddle) its first piece. Returns how many are left there. `flushed`: whether any were flushed
/// before.
template <class C, bool kMiddle, Turn kTurn>
OCTAVO_DEVICE int fold(Output<C>& o, Rows<C>& r, const Shared<C>& shared, const Arguments& a,
                       const Moved& moved, int since, bool flushed) {
  if constexpr (C::kFlushes && (!kMiddle || C::kHalfOutput)) {
    const bool due = C::kHalfOutput || since >= a.flush_tiles;
    if constexpr (C::kShares) {
      // A branch on purpose, which is always taken in the second turn: unconditional, it draws C7511.
      if (kTurn == Turn::second ? a.never >= 0 : due || (kTurn == Turn::counted && since % 2 == 0))
        take_sums(o, r, a.zero);
    }
    if (due) {
      flush(o, shared, a, flushed);
      flushed = true;
      since = 0;
    }
  }
  const auto pend = [&] {
    o.pending[0] *= moved.factor[0];
    o.pending[1] *= moved.factor[1];
  };
  if constexpr (C::kPends && !C::kDirect) pend();
  if (__builtin_expect(moved.any, 0)) {
    if constexpr (C::kDirect) {
      r.sum[0] *= moved.factor[0];
      r.sum[1] *= moved.factor[1];
    }
    if constexpr (C::kPends && C::kDirect) {
      pend();
    } else if (C::kSumsInShared && !C::kPends && flushed) {
      change_sums(o, shared, true, true, [&](float sum, float, int row) { return sum * moved.factor[row]; });
    }
    if (kMiddle || since != 0 || !C::kFlushes) scale_accumulators(o, moved.factor);
  }
  return since;
}

}  // namespace octavo::cuda::sm90
