// AVX-512 with bfloat16 dot products: Avx512 and vdpbf16ps, which multiplies pairs of bf16 and adds them in
// f32.
//
// Zen 4 and 5: 2 a cycle, so 64 products a cycle against 32 of FMA. Sapphire and Emerald Rapids: 15 measured
// against 31 of FMA, so there this is the slower tier (tier.cpp ranks it by vendor).
#pragma once

#include "cpu/isa/avx512.hpp"

namespace octavo::cpu {

struct Avx512Bf16 : Avx512 {
  /// acc += a0 b0 + a1 b1 for the two bf16 of each lane. asm: as Avx512::dot.
  OCTAVO_INLINE void dot_pairs(F& acc, F a, F b) { asm("vdpbf16ps %2,%1,%0" : "+v"(acc) : "v"(a), "v"(b)); }
};

}  // namespace octavo::cpu
