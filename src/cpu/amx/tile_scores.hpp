// First product on tiles: S^T = K Q^T. K is the left operand in plain rows, 16 keys by 64 bytes; Q, packed
// [bytes / 4][row][4 bytes], is the right one. 16 keys by 32 rows are a step: two sums, one key tile and two
// query tiles for every 64 bytes of a row. Q stays in its tiles for rows up to 128 bytes; loading it anew for
// every step cost up to half a cycle per score.
//
// Tile registers are not renamed: a product that begins a new sum waits until the old one was stored, 52
// cycles after its last product. Hence two sets of sums that take turns, and a step in two halves: begin()
// issues the products, end() stores the sums, with other work between (docs/kernels/amx.md). Steps are 2 KB:
// a load waits for every earlier store whose address has the same lower 12 bits, so larger steps side by side
// would wait for each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/attend.hpp"
#include "cpu/isa/amx.hpp"

namespace octavo::cpu {

/// Keys of one step of the first product.
inline constexpr int kTileKeys = 16;

/// bf16 channels of a row are padded to this, a tile's 64 bytes.
static inline int bfloat_channels(int channels) { return (channels + 31) / 32 * 32; }

/// K Q^T of 16 keys at a time. kBfloat: K and Q as tile_pack.hpp makes them; else s8.
template <class V, bool kBfloat>
class TileProducts {
 public:
  using T = typename V::Tiles;
  static constexpr int kRows = V::kLanes * V::kGroups;
  static_assert(V::kLanes == T::kRows && V::kGroups == 2);

  explicit TileProducts(const TileJob& job)
      : job_(job),
        row_bytes_(kBfloat ? 2 * bfloat_channels(job.channels) : job.channels),
        steps_(static_cast<int>((row_bytes_ + T::kRowBytes - 1) / T::kRowBytes)),
        q_(static_cast<const std::byte*>(job.q)) {
    if (row_bytes_ % T::kRowBytes != 0) {
      // Head dims that do not fill the last tile: zeros in Q. What a key tile then reads of the next row, or
      // behind the last, is multiplied by them.
      const std::size_t used = static_cast<std::size_t>(row_bytes_) * kRows;
      std::memcpy(padded_, q_, used);
      std::memset(padded_ + used, 0, static_cast<std::size_t>(steps_) * T::kRowBytes * kRows - used);
      q_ = padded_;
    }
    load_queries<6, 7>(0);
    if (steps_ == 2) load_queries<4, 5>(1);
  }

  /// Issues the products of keys [key, key + 16) into set 0 or 1; end() of that set must come before the next
  /// begin(). Tiles 4-7 may hold Q between calls.
  template <int kSet>
  void begin(std::int64_t key) {
    const std::byte* keys = key_row(key);
    if (steps_ == 2) {  // Q fits into four tiles, which leaves one set of sums
      T::template zero<0>();
      T::template zero<1>();
      T::template load<2>(keys, row_bytes_);
      product<0, 2, 6>();
      product<1, 2, 7>();
      T::template load<3>(keys + T::kRowBytes, row_bytes_);
      product<0, 3, 4>();
      product<1, 3, 5>();
      return;
    }
    T::template zero<2 * kSet>();
    T::template zero<2 * kSet + 1>();
    for (int c = 0; c < steps_; ++c) {
      T::template load<4 + kSet>(keys + c * T::kRowBytes, row_bytes_);
      if (steps_ > 1) load_queries<6, 7>(c);
      product<2 * kSet, 4 + kSet, 6>();
      product<2 * kSet + 1, 4 + kSet, 7>();
    }
  }

  /// Stores the set as [16 keys][rows], s32 or f32.
  template <int kSet>
  void end(void* products) {
    if (steps_ == 2) {
      store<0>(products);
    } else {
      store<kSet>(products);
    }
  }

 private:
  static constexpr std::ptrdiff_t kPitch = kRows * 4;  // bytes: 32 rows of 4

  template <int kFirst, int kSecond>
  void load_queries(int step) {
    const std::byte* q = q_ + step * (T::kRows * kPitch);
    T::template load<kFirst>(q, kPitch);
    T::template load<kSecond>(q + T::kRowBytes, kPitch);
  }

  template <int kSet>
  static inline void store(void* products) {
    auto* to = static_cast<std::byte*>(products);
    T::template store<2 * kSet>(to, kPitch);
    T::template store<2 * kSet + 1>(to + T::kRowBytes, kPitch);
  }

  [[nodiscard]] const std::byte* key_row(std::int64_t key) const {
    const auto* k = static_cast<const std::byte*>(job_.k);
    if constexpr (!kBfloat) return k + key * row_bytes_;
    return k + key / kKeyBlock * (kKeyBlock * job_.channels * std::ptrdiff_t{4}) +
           key % kKeyBlock * row_bytes_;
  }

  template <int kSum, int kLeft, int kRight>
  static inline void product() {
    if constexpr (kBfloat) {
      T::template dot_bf16<kSum, kLeft, kRight>();
    } else {
      T::template dot_s8_s8<kSum, kLeft, kRight>();
    }
  }

  const TileJob& job_;
  std::ptrdiff_t row_bytes_;
  int steps_;
  const std::byte* q_;
  alignas(64) std::byte padded_[256 * kRows];
};

/// S of a key tile as the other steps take it, with the row maxima.
template <class V, bool kBfloat>
struct TileScores {
  using F = typename V::F;
  static constexpr int kRows = V::kLanes * V::kGroups;

  static inline void run(const TileJob& job, std::int64_t key0, float* s, F (&top)[V::kGroups]) {
    TileProducts<V, kBfloat> products(job);
    F scale[V::kGroups];
    OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) scale[g] = V::load(job.q_scale + g * V::kLanes);
    products.template begin<0>(key0);
    products.template end<0>(s);
    constexpr int kStep = kTileKeys * kRows;
    for (int k = 0; k < job.key_tile; k += 2 * kTileKeys, s += 2 * kStep) {
      products.template begin<1>(key0 + k + kTileKeys);
      products.template end<1>(s + kStep);
      convert(job.k_scale + key0 + k, s, scale, top);
      if (k + 2 * kTileKeys < job.key_tile) {
        products.template begin<0>(key0 + k + 2 * kTileKeys);
        products.template end<0>(s + 2 * kStep);
      }
      convert(job.k_scale + key0 + k + kTileKeys, s + kStep, scale, top);
    }
  }

 private:
  /// Products to logits, in place.
  static inline void convert(const float* k_scale, float* s, const F (&scale)[V::kGroups],
                             F (&top)[V::kGroups]) {
    for (int k = 0; k < kTileKeys; k += 2) {
      OCTAVO_UNROLL for (int j = 0; j < 2; ++j) {
        const F key_scale = V::set(k_scale[k + j]);
        OCTAVO_UNROLL for (int g = 0; g < V::kGroups; ++g) {
          float* at = s + static_cast<std::ptrdiff_t>(k + j) * kRows + g * V::kLanes;
          F product;
          if constexpr (kBfloat) {
            product = V::load(at);
          } else {
            product = V::to_float(V::load_int(reinterpret_cast<const std::int32_t*>(at)));
          }
          const F value = V::mul(product, V::mul(scale[g], key_scale));
          top[g] = V::max(value, top[g]);
          V::store(at, value);
        }
      }
    }
  }
};

/// The steps that ask for scores of integers (attend.hpp, attend_cpu8.hpp) get them from tiles.
template <>
struct Int8Scores<Amx> : TileScores<Amx, false> {};
template <>
struct FloatScores<Amx> : TileScores<Amx, true> {};

}  // namespace octavo::cpu
