// Second product: O += P V, its flushes into f32, and the last step that writes O and LSE.
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
  float sum[C::kSumsInRegisters ? C::kDim / 2 + 2 : 1];  ///< and the two rows' kept sums (kShares)
  float pending[2];  ///< what references moved since the last flush: the sums' factor at the next
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

// Row sums come out of the product twice. Columns kDim + 2c, moved into f32 every second tile, hardly lose
// anything: they are the normaliser. Column kDim + 1 stays in the accumulator as long as the output does and
// so loses the same share: what it lacks at the end is what V's mean lacks, and is given back (kShares).

/// Adds the ones columns to the row sums and clears them. The product with `zero` instead of a literal 0,
/// because ptxas serialises the products around a literal (warning C7511).
template <class C>
OCTAVO_DEVICE void take_sums(Output<C>& o, Rows<C>& r, float zero) {
  constexpr int n = C::kOutputRegisters;
  if constexpr (C::kHalfOutput) {
    r.sum[0] += ptx::low_f16(o.part[n - 2]);
    r.sum[1] += ptx::low_f16(o.part[n - 1]);
  } else if constexpr (C::kFlushes) {
    r.sum[0] += o.part[n - 4];
    r.sum[1] += o.part[n - 2];
    o.part[n - 4] *= zero;
    o.part[n - 2] *= zero;
  }
}

/// The thread's f32 sums in shared memory: 16 bytes of each thread side by side, so no bank conflicts.
template <class C>
OCTAVO_DEVICE std::uint32_t sum_address(const Shared<C>& shared, int i) {
  return shared.sums() + ptx::thread_index() * 16 + i / 4 * (C::kConsumers * 128 * 16);
}
OCTAVO_DEVICE float4 load_shared(std::uint32_t at) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(at)
               : "memory");
  return v;
}
OCTAVO_DEVICE void store_shared(std::uint32_t at, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}

template <class C>
OCTAVO_DEVICE void clear_sums(Output<C>& o, const Shared<C>& shared) {
  if constexpr (C::kSumsInShared) {
    OCTAVO_UNROLL for (int i = 0; i < C::kFlushed; i += 4)
        store_shared(sum_address(shared, i), make_float4(0, 0, 0, 0));
  } else if constexpr (C::kSumsInRegisters) {
    OCTAVO_UNROLL for (int i = 0; i < C::kDim / 2 + 2; ++i) o.sum[i] = 0.0F;
  }
  o.pending[0] = o.pending[1] = 1.0F;
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

/// sums = sums * pending + accumulators. That the references' moves wait for the next flush costs nothing
/// there and saves passes over the sums.
template <class C>
OCTAVO_DEVICE void flush(Output<C>& o, const Shared<C>& shared) {
  if constexpr (C::kSumsInShared) {
    OCTAVO_UNROLL for (int i = 0; i < C::kFlushed; i += 4) {
      const std::uint32_t at = sum_address(shared, i);
      const float4 f = load_shared(at);
      store_shared(
          at, make_float4(fmaf(f.x, o.pending[0], o.part[i]), fmaf(f.y, o.pending[0], o.part[i + 1]),
                          fmaf(f.z, o.pending[1], o.part[i + 2]), fmaf(f.w, o.pending[1], o.part[i + 3])));
    }
  } else if constexpr (C::kSumsInRegisters) {
    OCTAVO_UNROLL for (int i = 0; i < C::kDim / 2; ++i) o.sum[i] =
        fmaf(o.sum[i], o.pending[i / 2 % 2], accumulated(o, i));
    if constexpr (C::kShares) {
      OCTAVO_UNROLL for (int i = 0; i < 2; ++i) o.sum[C::kDim / 2 + i] =
          fmaf(o.sum[C::kDim / 2 + i], o.pending[i], accumulated(o, C::kDim / 2 + 1 + 2 * i));
    }
  }
  o.pending[0] = o.pending[1] = 1.0F;
}

template <class C>
OCTAVO_DEVICE void scale_accumulators(Output<C>& o, const float (&factor)[2]) {
  if constexpr (!C::kHalfOutput) {
    OCTAVO_UNROLL for (int i = 0; i < C::kOutputRegisters; ++i) o.part[i] *= factor[i / 2 % 2];
  }
}

/// Everything that follows a finished product: `since` tiles are in the accumulators, and in the middle
/// of a tile (kMiddle) its first piece. Returns how many are left there.
template <class C, bool kMiddle>
OCTAVO_DEVICE int fold(Output<C>& o, Rows<C>& r, const Shared<C>& shared, const Arguments& a,
                       const Moved& moved, int since) {
  if constexpr (C::kFlushes && (!kMiddle || C::kHalfOutput)) {
    const bool due = C::kHalfOutput || since >= a.flush_tiles;
    // A branch on purpose: unconditional, it draws C7511. With a normaliser of unrounded weights the columns
    // are not used.
    if ((due || since % C::kSumTiles == 0) && (C::kDirect || a.quantized_normaliser)) take_sums(o, r, a.zero);
    if (due) {
      flush(o, shared);
      since = 0;
    }
  }
  if (__builtin_expect(moved.any, 0)) {
    if (C::kFlushes) {
      o.pending[0] *= moved.factor[0];
      o.pending[1] *= moved.factor[1];
    }
    if (kMiddle || since != 0 || !C::kFlushes) scale_accumulators(o, moved.factor);
  }
  return since;
}

/// Two neighbouring channels, element by element.
OCTAVO_DEVICE void store_pair(const StridedTensor& out, std::int64_t at, bool both, float x, float y) {
  if (out.dtype == DType::f32) {
    auto* p = static_cast<float*>(out.data) + at;
    p[0] = x;
    if (both) p[out.last] = y;
    return;
  }
  auto* p = static_cast<std::uint16_t*>(out.data) + at;
  const std::uint32_t packed = out.dtype == DType::f16 ? ptx::pack_f16(x, y) : ptx::pack_bf16(x, y);
  p[0] = static_cast<std::uint16_t>(packed);
  if (both) p[out.last] = static_cast<std::uint16_t>(packed >> 16);
}

/// True where two neighbouring channels of every row can be written in one store.
OCTAVO_DEVICE bool pairs(const StridedTensor& t) {
  const std::uintptr_t bytes = t.dtype == DType::f32 ? 8 : 4;
  return t.last == 1 && ((t.batch | t.head | t.token) & 1) == 0 &&
         reinterpret_cast<std::uintptr_t>(t.data) % bytes == 0;
}

/// The same for 16 bytes of 16-bit channels.
OCTAVO_DEVICE bool vectors_of_16_bytes(const StridedTensor& t) {
  return t.last == 1 && ((t.batch | t.head | t.token) & 7) == 0 &&
         reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0;
}

/// Four threads with four words each: thread t gets the t-th word of every one.
OCTAVO_DEVICE void transpose_in_quad(std::uint32_t (&w)[4], int t) {
  const auto exchange = [&](std::uint32_t& low, std::uint32_t& high, int distance) {
    const bool upper = (t & distance) != 0;
    const std::uint32_t got = __shfl_xor_sync(~0U, upper ? low : high, distance);
    (upper ? low : high) = got;
  };
  exchange(w[0], w[1], 1);
  exchange(w[2], w[3], 1);
  exchange(w[0], w[2], 2);
  exchange(w[1], w[3], 2);
}

/// Where the thread's two rows go: elements from the start of `out`, which may be negative; kNoRow for rows
/// beyond the sequence.
struct Destination {
  static constexpr std::int64_t kNoRow = std::int64_t{-1} << 63;
  StridedTensor out;
  std::int64_t at[2] = {kNoRow, kNoRow};

  [[nodiscard]] OCTAVO_DEVICE bool row(int i) const { return at[i] != kNoRow; }
};

/// Row sums to 1 / l, and the LSE: ln 2 * (reference + log2 l) + what smoothing took; without a key 0 and
/// -infinity. l: of all four threads of a row.
template <class C>
OCTAVO_DEVICE Destination end_rows(Rows<C>& r, const Shared<C>& shared, const Arguments& a, const Item& item,
                                   const SequenceRow& s, std::uint32_t slot, const float (&l)[2], int row0,
                                   int rows) {
  constexpr float kLn2 = 0x1.62e43p-1F;
  const bool partial = item.part >= 0;
  const bool first = (ptx::thread_index() & 3) == 0;
  Destination to;
  to.out = partial ? StridedTensor{a.partial_out, DType::f32, 0, 0, 0, 1} : a.out;
  OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
    const int row = row0 + 8 * i;
    if (row >= rows) continue;
    const int token = a.group.quotient(row);
    const int q_head = item.head * a.group.value() + (row - token * a.group.value());
    const int in_tile = row - item.tile * C::kRows;
    const std::int64_t line = static_cast<std::int64_t>(item.part) * C::kRows + in_tile;
    to.at[i] = partial ? line * a.head_dim
                       : s.batch * to.out.batch + q_head * to.out.head + (s.q_begin + token) * to.out.token;
    if (!first || (!partial && a.lse.data == nullptr)) continue;
    float shift = 0.0F;
    if constexpr (C::kVectors) {
      shift = ptx::load_shared(shared.lse_shift(slot) + 4 * in_tile);
    } else if (a.lse_shift != nullptr) {
      shift = a.lse_shift[item.head * a.q_rows + s.q_row + row];
    }
    const float lse = l[i] == 0.0F
                          ? -INFINITY
                          : fmaf(kLn2, r.reference[i] / Rows<C>::kUnit - a.p_log2 + __log2f(l[i]), shift);
    if (partial) {
      a.partial_lse[line] = lse;
    } else {
      static_cast<float*>(
          a.lse.data)[s.batch * a.lse.batch + q_head * a.lse.head + (s.q_begin + token) * a.lse.token] = lse;
    }
  }
  return to;
}

/// Of both rows: their sums, and the share of V's mean that each gets back: all of it where smoothing took
/// it, else what the accumulators lost.
template <class C>
OCTAVO_DEVICE void sum_rows(const Output<C>& o, const Rows<C>& r, const Shared<C>& shared, const Arguments& a,
                            float (&l)[2], float (&inverse)[2], float (&share)[2]) {
  float kept[2] = {0.0F, 0.0F};
  if constexpr (C::kShares && C::kSumsInShared) {
    const float4 sums = load_shared(sum_address(shared, C::kDim / 2));
    kept[0] = sums.y;
    kept[1] = sums.w;
  } else if constexpr (C::kShares) {
    kept[0] = o.sum[C::kDim / 2];
    kept[1] = o.sum[C::kDim / 2 + 1];
  }
  OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
    l[i] = row_sum(r.sum[i]);
    inverse[i] = l[i] == 0.0F ? 0.0F : ptx::reciprocal(l[i]);
    share[i] = a.smooth_v ? 1.0F : 0.0F;
    if constexpr (C::kShares) {  // one thread of the four has the column, the others hold zeros
      const float all = row_sum(kept[i]);
      if (!a.smooth_v) share[i] = 1.0F - all * inverse[i] * (1.0F / kKeptValue);
    }
  }
}

/// O = sums * delta_V / l + a share of V's mean. The item is decoded
/// once more: what tells where its rows go would cost the main loop a dozen registers.
template <class C>
OCTAVO_DEVICE void write_rows(const Output<C>& o, Rows<C>& r, const Shared<C>& shared, const Arguments& a,
                              std::uint32_t slot, int warpgroup) {
  const Item item = decode(a, item_number(shared, slot));
  const SequenceRow s = a.sequences[item.sequence];
  const int rows = static_cast<int>(s.q_len) * a.group.value();
  const int row0 = item.tile * C::kRows + warpgroup * 64 + row_of_thread();
  const int t = ptx::thread_index() & 3;
  float l[2];
  float inverse[2];
  float share[2];
  sum_rows(o, r, shared, a, l, inverse, share);
  const Destination to = end_rows(r, shared, a, item, s, slot, l, row0, rows);

  /// the thread's two channels 8c + 2t, + 1 of both rows, finished
  const auto finished = [&](int c, float2(&y)[2]) {
    float4 x;
    if constexpr (C::kSumsInShared) {
      x = load_shared(sum_address(shared, 4 * c));
    } else if constexpr (C::kSumsInRegisters) {
      x = make_float4(o.sum[4 * c], o.sum[4 * c + 1], o.sum[4 * c + 2], o.sum[4 * c + 3]);
    } else {
      x = make_float4(o.part[4 * c], o.part[4 * c + 1], o.part[4 * c + 2], o.part[4 * c + 3]);
    }
    x = make_float4(x.x * inverse[0], x.y * inverse[0], x.z * inverse[1], x.w * inverse[1]);
    if constexpr (!C::kWideValues) {
      const float2 scale = ptx::load_shared_pair(shared.v_scale(slot) + 32 * c + 8 * t);
      const float2 mean = ptx::load_shared_pair(shared.v_mean(slot) + 32 * c + 8 * t);
      x = make_float4(fmaf(x.x, scale.x, share[0] * mean.x), fmaf(x.y, scale.y, share[0] * mean.y),
                      fmaf(x.z, scale.x, share[1] * mean.x), fmaf(x.w, scale.y, share[1] * mean.y));
    }
    y[0] = make_float2(x.x, x.y);
    y[1] = make_float2(x.z, x.w);
  };
  // 16 bytes a store where rows allow it, else two channels. As few instructions as can be: every item finds
  // the cache full of the main loop's.
  const bool vectors = vectors_of_16_bytes(a.out);
  const auto write_16bit = [&](const auto& pack) {
    auto* out = static_cast<std::uint16_t*>(to.out.data);
    OCTAVO_UNROLL for (int first = 0; first < C::kDim / 8; first += 4) {
      std::uint32_t w[2][4];
      OCTAVO_UNROLL for (int c = 0; c < 4; ++c) {
        float2 y[2];
        finished(first + c, y);
        OCTAVO_UNROLL for (int i = 0; i < 2; ++i) w[i][c] = pack(y[i].x, y[i].y);
      }
      OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
        if (vectors) {
          transpose_in_quad(w[i], t);
          if (to.row(i))
            *reinterpret_cast<uint4*>(out + to.at[i] + 8 * first + 8 * t) = {w[i][0], w[i][1], w[i][2],
                                                                             w[i][3]};
        } else if (to.row(i)) {
          OCTAVO_UNROLL for (int c = 0; c < 4; ++c) *
              reinterpret_cast<std::uint32_t*>(out + to.at[i] + 8 * (first + c) + 2 * t) = w[i][c];
        }
      }
    }
  };
  const bool whole = a.head_dim == C::kDim && (item.part >= 0 || pairs(a.out));
  if (whole && to.out.dtype == DType::f16) {
    write_16bit([](float x, float y) { return ptx::pack_f16(x, y); });
  } else if (whole && to.out.dtype == DType::bf16) {
    write_16bit([](float x, float y) { return ptx::pack_bf16(x, y); });
  } else {
    OCTAVO_UNROLL for (int c = 0; c < C::kDim / 8; ++c) {
      float2 y[2];
      finished(c, y);
      const int channel = 8 * c + 2 * t;
      OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
        if (!to.row(i) || channel >= a.head_dim) continue;
        if (whole) {
          *reinterpret_cast<float2*>(static_cast<float*>(to.out.data) + to.at[i] + channel) = y[i];
        } else {
          store_pair(to.out, to.at[i] + channel * to.out.last, channel + 1 < a.head_dim, y[i].x, y[i].y);
        }
      }
    }
  }
  // Rows without a key are 0, also where a scale or mean is NaN. Other threads wrote what this one clears.
  __syncwarp();
  OCTAVO_UNROLL for (int i = 0; i < 2; ++i) {
    if (__builtin_expect(l[i] == 0.0F && to.row(i), 0)) {
      for (int channel = 2 * t; channel < a.head_dim; channel += 8)
        store_pair(to.out, to.at[i] + channel * to.out.last, channel + 1 < a.head_dim, 0.0F, 0.0F);
    }
  }
}

}  // namespace octavo::cuda::sm90
