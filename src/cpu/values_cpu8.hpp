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
    alignas(64) float inverse[256];
    for (int i = 0; i < channels; i += V::kLanes)
      V::store(inverse + i, V::div(V::set(1.0F), V::load(job.delta + i)));
    for (std::int64_t begin = 0; begin < job.padded; begin += kChunk) {
      const std::int64_t rest = job.count - begin;
      const int count = rest <= 0 ? 0 : rest < kChunk ? static_cast<int>(rest) : kChunk;
      for (int n = 0; n < count; ++n)
        Rows::load_row(job.source, begin + n, job.scratch + n * channels, channels);
      for (int i = 0; i < channels; i += V::kLanes) pack_chunk(job, begin, count, i, inverse);
    }
    return finite;
  }

 private:
  /// kLanes channels from `channel` on of keys [begin, begin + kChunk), zeros from `count` keys on.
  static inline void pack_chunk(const ValueJob& job, std::int64_t begin, int count, int channel,
                                const float* inverse) {
    const int channels = job.spec.channels;
    const float* rows = job.scratch + channel;
    const F mean = V::load(job.mean + channel);
    const F delta = V::load(job.delta + channel);
    const F reciprocal = V::load(inverse + channel);
    const F limit = V::set(job.spec.range);
    auto* to = static_cast<std::byte*>(job.payload) + value_offset<V>(begin, channel, channels, job.padded);
    const std::ptrdiff_t pass_bytes = value_block_keys(begin, job.padded) / V::kPack * V::kChannelUnroll * 4;
    for (int k = 0; k < kChunk; k += V::kPack) {
      I word = V::set_int(0);
      typename Q::NearTie near;
      OCTAVO_UNROLL for (int j = V::kPack - 1; j >= 0; --j) {
        if (k + j < count) {
          const F x = V::sub(V::load(rows + (k + j) * channels), mean);
          word = append(word, Q::round_integer(x, reciprocal, limit, near));
        } else {
          word = append(word, V::set_int(0));
        }
      }
      if (near.any()) {
        word = V::set_int(0);
        OCTAVO_UNROLL for (int j = V::kPack - 1; j >= 0; --j) {
          const F x = k + j < count ? V::sub(V::load(rows + (k + j) * channels), mean) : V::zero();
          word = append(word, Q::round_quotient(x, delta, limit));
        }
      }
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
