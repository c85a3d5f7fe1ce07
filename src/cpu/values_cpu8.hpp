// V for the cpu8 kernel: s8 with a scale for each channel, packed in the order in which the second product
// reads it (value_offset in attend_cpu8.hpp).
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/attend_cpu8.hpp"
#include "cpu/quantize.hpp"

namespace octavo::cpu {

template <class V>
struct Cpu8Values {
  using F = typename V::F;
  using I = typename V::I;
  using Rows = RowLoader<V>;
  using Q = Quantizer<V>;
  static constexpr int kChunk = 16;  // keys at once: a cache line of every channel pass is then written whole
  static constexpr int kMask = static_cast<int>((std::uint32_t{1} << (32 / V::kPack)) - 1);

  static bool quantize(const ValueJob& job) {
    const bool finite = Q::value_deltas(job);
    const int channels = job.spec.channels;
    for (std::int64_t begin = 0; begin < job.padded; begin += kChunk) {
      const std::int64_t rest = job.count - begin;
      const int count = rest <= 0 ? 0 : rest < kChunk ? static_cast<int>(rest) : kChunk;
      for (int n = 0; n < count; ++n)
        Rows::load_row(job.source, begin + n, job.scratch + n * channels, channels);
      for (int i = 0; i < channels; i += V::kLanes) {
        const typename Q::Divider divider(V::load(job.delta + i));
        if (count == kChunk && !divider.divides()) {
          pack_chunk<false, true>(job, begin, kChunk, i, divider);
        } else {
          pack_chunk<true, false>(job, begin, count, i, divider);
        }
      }
    }
    return finite;
  }

 private:
  /// kLanes channels from `channel` on of keys [begin, begin + kChunk), zeros from `count` keys on.
  template <bool kDivides, bool kWhole>
  static inline void pack_chunk(const ValueJob& job, std::int64_t begin, int count, int channel,
                                const typename Q::Divider& divider) {
    const int channels = job.spec.channels;
    const float* row = job.scratch + channel;
    const F mean = V::load(job.mean + channel);
    const typename Q::Limit limit(job.spec.range);
    auto* to = static_cast<std::byte*>(job.payload) + value_offset<V>(begin, channel, channels, job.padded);
    const std::ptrdiff_t pass_bytes = value_block_keys(begin, job.padded) / V::kPack * V::kChannelUnroll * 4;
    for (int k = 0; k < kChunk; k += V::kPack) {
      I word = V::set_int(0);
      OCTAVO_UNROLL for (int j = V::kPack - 1; j >= 0; --j) {
        I value = V::set_int(0);
        if (kWhole || k + j < count) {
          const F x = V::sub(V::load(row + j * channels), mean);
          value = limit.nearest(divider.template quotient<kDivides>(x));
        }
        word = append(word, value);
      }
      row += V::kPack * channels;
      alignas(64) std::int32_t lanes[V::kLanes];
      std::memcpy(lanes, &word, sizeof lanes);
      OCTAVO_UNROLL for (int c = 0; c < V::kLanes; c += V::kChannelUnroll) {
        std::memcpy(to + c / V::kChannelUnroll * pass_bytes, lanes + c, V::kChannelUnroll * 4);
      }
      to += V::kChannelUnroll * 4;
    }
  }

  /// The next key in front: its integer takes the lowest bits.
  static inline I append(I word, I integer) {
    return V::add_int(V::template shift_left<32 / V::kPack>(word), V::and_int(integer, V::set_int(kMask)));
  }
};

}  // namespace octavo::cpu
