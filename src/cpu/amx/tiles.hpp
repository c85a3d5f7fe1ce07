// The eight AMX tile registers, all configured as 16 rows of 64 bytes.
//
// Own wrappers instead of _tile_*: those are macros that stringise the tile number, so a template parameter
// does not assemble with GCC 12, and their loads do not tell the compiler that memory is read. All three
// tiles of a product must differ.
#pragma once

#include <cstddef>
#include <cstdint>

#define OCTAVO_TILE static inline __attribute__((always_inline))

namespace octavo::cpu {

struct Tiles {
  static constexpr int kRows = 16;
  static constexpr int kRowBytes = 64;
  static constexpr std::ptrdiff_t kBytes = kRows * kRowBytes;

  /// Tile registers are in use; released at the end, because they add 8 KB to every context switch.
  class Scope {
   public:
    Scope() {
      struct alignas(64) Config {
        std::uint8_t palette = 1;
        std::uint8_t start_row = 0;
        std::uint8_t reserved[14] = {};
        std::uint16_t row_bytes[16] = {};
        std::uint8_t rows[16] = {};
      } config;
      for (int t = 0; t < 8; ++t) {
        config.row_bytes[t] = kRowBytes;
        config.rows[t] = kRows;
      }
      asm volatile("ldtilecfg %0" : : "m"(config));
    }
    ~Scope() { asm volatile("tilerelease"); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

  template <int kTile>
  OCTAVO_TILE void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  OCTAVO_TILE void load(const void* rows, std::ptrdiff_t stride) {
    asm volatile("tileloadd (%0,%1,1),%%tmm%c2" : : "r"(rows), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  OCTAVO_TILE void store(void* rows, std::ptrdiff_t stride) {
    asm volatile("tilestored %%tmm%c2,(%0,%1,1)" : : "r"(rows), "r"(stride), "i"(kTile) : "memory");
  }
  /// sum[m][n] += left[m][4 k + i] * right[k][4 n + i], both s8.
  template <int kSum, int kLeft, int kRight>
  OCTAVO_TILE void dot_s8_s8() {
    asm volatile("tdpbssd %%tmm%c2,%%tmm%c1,%%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
  }
  /// The same with right u8.
  template <int kSum, int kLeft, int kRight>
  OCTAVO_TILE void dot_s8_u8() {
    asm volatile("tdpbsud %%tmm%c2,%%tmm%c1,%%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
  }
  /// sum[m][n] += left[m][2 k + i] * right[k][2 n + i], bf16 to f32. Denormals count as zero.
  template <int kSum, int kLeft, int kRight>
  OCTAVO_TILE void dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2,%%tmm%c1,%%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
  }
};

}  // namespace octavo::cpu
