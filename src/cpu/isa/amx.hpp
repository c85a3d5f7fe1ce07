// AMX tiles for both products and AVX-512 between them: 32 rows as on Avx512, keys stored as they are (tiles
// multiply s8 by s8).
//
// Tile products: 1024 int8 or 512 bf16 a cycle, one 16 x 16 x 64-byte product in 16 cycles; so attention is
// bound by the softmax, which runs on two 512-bit pipes. Hence the shorter exponential and rounding here: the
// same bits as Avx512's in fewer instructions (9 against 14, 4 against 5).
#pragma once

#include "cpu/amx/tiles.hpp"
#include "cpu/isa/avx512.hpp"
#include "cpu/isa/codes_avx512.hpp"
#include "cpu/isa/grids.hpp"

namespace octavo::cpu {

struct Amx : Avx512 {
  using Tiles = cpu::Tiles;
  using KeyElement = std::int8_t;
  static constexpr int kKeyOffset = 0;

  /// As Avx512::exp2. vreduceps takes the fraction in one step (0 of -inf), vscalefps applies the exponent
  /// and flushes what is below 2^-126, so no argument needs clamping.
  OCTAVO_INLINE F exp2(F x) {
    const F r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const F n = _mm512_sub_ps(x, r);
    F p = fma(set(numerics::kExp2Poly[5]), r, set(numerics::kExp2Poly[4]));
    p = fma(p, r, set(numerics::kExp2Poly[3]));
    p = fma(p, r, set(numerics::kExp2Poly[2]));
    p = fma(p, r, set(numerics::kExp2Poly[1]));
    p = fma(p, r, set(numerics::kExp2Poly[0]));
    return _mm512_scalef_ps(p, n);
  }
};

/// As the generic one; the anchor 1.5 * 2^(e + 20) is multiplied out inside the sums.
template <>
inline __attribute__((always_inline)) __m512 grid_e4m3<Amx>(__m512 x) {
  const __m512 power =
      Amx::max(Amx::from_bits(Amx::and_int(Amx::bits(x), Amx::set_int(0x7F800000))), Amx::set(0x1p-6F));
  const __m512 anchor = Amx::set(0x1.8p20F);
  return _mm512_fnmadd_ps(power, anchor, Amx::fma(power, anchor, x));
}

}  // namespace octavo::cpu
