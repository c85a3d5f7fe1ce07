// The warpgroup products, one wrapper per shape: D[64, N] (+)= A[64, k] B[k, N], k = 32 bytes of operands.
// Operand lists are built from blocks of eight registers. `accumulate` = 0 starts from zero.
#pragma once

#include <cstdint>

#include "cuda/ptx/registers.cuh"

namespace octavo::cuda::ptx {

OCTAVO_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
OCTAVO_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// waits until at most kPending groups of products are under way
template <int kPending>
OCTAVO_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// How a matrix lies in shared memory, as the high half of a descriptor wants it.
enum class Swizzle : int { bytes128 = 1, bytes64 = 2, bytes32 = 3 };
/// Shared address as a descriptor's low half counts it; bit 16 sets the leading offset to 1, which swizzled
/// K-major operands ignore. For MN-major operands give the leading offset (bytes).
constexpr __device__ std::uint32_t descriptor_address(std::uint32_t shared,
                                                      std::uint32_t leading_offset = 16) {
  return (shared >> 4) | (leading_offset >> 4) << 16;
}
constexpr std::uint32_t descriptor_high(Swizzle swizzle, int stride_offset) {
  return static_cast<std::uint32_t>(swizzle) << 30 | static_cast<std::uint32_t>(stride_offset >> 4);
}
OCTAVO_DEVICE std::uint64_t descriptor(std::uint32_t low, std::uint32_t high) {
  std::uint64_t d;
  asm("mov.b64 %0, {%1, %2};" : "=l"(d) : "r"(low), "r"(high));
  return d;
}

// clang-format off
#define OCTAVO_S8(a,b,c,d,e,f,g,h) "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define OCTAVO_L16 OCTAVO_S8(0,1,2,3,4,5,6,7) "," OCTAVO_S8(8,9,10,11,12,13,14,15)
#define OCTAVO_L32 OCTAVO_L16 "," OCTAVO_S8(16,17,18,19,20,21,22,23) "," OCTAVO_S8(24,25,26,27,28,29,30,31)
#define OCTAVO_L24 OCTAVO_L16 "," OCTAVO_S8(16,17,18,19,20,21,22,23)
#define OCTAVO_L40 OCTAVO_L32 "," OCTAVO_S8(32,33,34,35,36,37,38,39)
#define OCTAVO_L48 OCTAVO_L40 "," OCTAVO_S8(40,41,42,43,44,45,46,47)
#define OCTAVO_L64 OCTAVO_L48 "," OCTAVO_S8(48,49,50,51,52,53,54,55) "," OCTAVO_S8(56,57,58,59,60,61,62,63)
#define OCTAVO_L18 OCTAVO_L16 ",%16,%17"
#define OCTAVO_L34 OCTAVO_L32 ",%32,%33"
#define OCTAVO_L36 OCTAVO_L32 ",%32,%33,%34,%35"
#define OCTAVO_L68 OCTAVO_L64 ",%64,%65,%66,%67"
#define OCTAVO_O2(C,i) C(d[i]),C(d[i+1])
#define OCTAVO_O4(C,i) OCTAVO_O2(C,i),OCTAVO_O2(C,i+2)
#define OCTAVO_O16_(C,i) OCTAVO_O4(C,i),OCTAVO_O4(C,i+4),OCTAVO_O4(C,i+8),OCTAVO_O4(C,i+12)
#define OCTAVO_O16(C) OCTAVO_O16_(C,0)
#define OCTAVO_O18(C) OCTAVO_O16(C),OCTAVO_O2(C,16)
#define OCTAVO_O32(C) OCTAVO_O16(C),OCTAVO_O16_(C,16)
#define OCTAVO_O34(C) OCTAVO_O32(C),OCTAVO_O2(C,32)
#define OCTAVO_O36(C) OCTAVO_O32(C),OCTAVO_O4(C,32)
#define OCTAVO_O24(C) OCTAVO_O16(C),OCTAVO_O4(C,16),OCTAVO_O4(C,20)
#define OCTAVO_O40(C) OCTAVO_O36(C),OCTAVO_O4(C,36)
#define OCTAVO_O48(C) OCTAVO_O32(C),OCTAVO_O16_(C,32)
#define OCTAVO_O64(C) OCTAVO_O48(C),OCTAVO_O16_(C,48)
#define OCTAVO_O68(C) OCTAVO_O64(C),OCTAVO_O4(C,64)

/// Formats of a product: operands and accumulator.
enum class Mma { e4m3_f32, e4m3_f16, int8, f16_f32, f16_f16, bf16_f32 };

/// Scores: both operands in shared memory, K-major.
template <Mma kMma, int kKeys> struct ScoreProduct;
#define OCTAVO_SCORES(KIND, KEYS, REGISTER, CONSTRAINT, N, A, B, P, PTX, TAIL)                                             \
  template <> struct ScoreProduct<Mma::KIND, KEYS> {                                                                       \
    static OCTAVO_DEVICE void issue(REGISTER (&d)[N], std::uint64_t a, std::uint64_t b, int accumulate) {                  \
      asm volatile("{.reg .pred p; setp.ne.b32 p," P ",0; wgmma.mma_async.sync.aligned.m64n" #KEYS PTX " {" OCTAVO_L##N "}," \
                   A "," B ",p" TAIL ";}" : OCTAVO_O##N(CONSTRAINT) : "l"(a), "l"(b), "r"(accumulate));                    \
    }                                                                                                                      \
  };
OCTAVO_SCORES(e4m3_f16, 96, std::uint32_t, "+r", 24, "%24", "%25", "%26", "k32.f16.e4m3.e4m3", ",1,1")
OCTAVO_SCORES(e4m3_f16, 192, std::uint32_t, "+r", 48, "%48", "%49", "%50", "k32.f16.e4m3.e4m3", ",1,1")
OCTAVO_SCORES(f16_f16, 64, std::uint32_t, "+r", 16, "%16", "%17", "%18", "k16.f16.f16.f16", ",1,1,0,0")
OCTAVO_SCORES(f16_f16, 96, std::uint32_t, "+r", 24, "%24", "%25", "%26", "k16.f16.f16.f16", ",1,1,0,0")
OCTAVO_SCORES(f16_f16, 192, std::uint32_t, "+r", 48, "%48", "%49", "%50", "k16.f16.f16.f16", ",1,1,0,0")
OCTAVO_SCORES(f16_f16, 160, std::uint32_t, "+r", 40, "%40", "%41", "%42", "k16.f16.f16.f16", ",1,1,0,0")
OCTAVO_SCORES(int8, 64, int, "+r", 32, "%32", "%33", "%34", "k32.s32.s8.s8", "")
OCTAVO_SCORES(int8, 128, int, "+r", 64, "%64", "%65", "%66", "k32.s32.s8.s8", "")
OCTAVO_SCORES(e4m3_f32, 64, float, "+f", 32, "%32", "%33", "%34", "k32.f32.e4m3.e4m3", ",1,1")
OCTAVO_SCORES(e4m3_f32, 128, float, "+f", 64, "%64", "%65", "%66", "k32.f32.e4m3.e4m3", ",1,1")
OCTAVO_SCORES(f16_f32, 64, float, "+f", 32, "%32", "%33", "%34", "k16.f32.f16.f16", ",1,1,0,0")
OCTAVO_SCORES(f16_f32, 128, float, "+f", 64, "%64", "%65", "%66", "k16.f32.f16.f16", ",1,1,0,0")
OCTAVO_SCORES(bf16_f32, 64, float, "+f", 32, "%32", "%33", "%34", "k16.f32.bf16.bf16", ",1,1,0,0")
OCTAVO_SCORES(bf16_f32, 128, float, "+f", 64, "%64", "%65", "%66", "k16.f32.bf16.bf16", ",1,1,0,0")

/// Output: weights in registers, values in shared memory (8-bit: K-major, i.e. transposed; 16-bit: as they are, MN-major).
template <Mma kMma, int kColumns> struct ValueProduct;
#define OCTAVO_VALUES(KIND, COLUMNS, REGISTER, CONSTRAINT, N, A0, A1, A2, A3, B, P, PTX, TAIL)                              \
  template <> struct ValueProduct<Mma::KIND, COLUMNS> {                                                                    \
    static constexpr int kRegisters = N;                                                                                   \
    using Register = REGISTER;                                                                                             \
    static OCTAVO_DEVICE void issue(REGISTER (&d)[N], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,                \
                                    std::uint32_t a3, std::uint64_t b, int accumulate) {                                   \
      asm volatile("{.reg .pred p; setp.ne.b32 p," P ",0; wgmma.mma_async.sync.aligned.m64n" #COLUMNS PTX " {" OCTAVO_L##N \
                   "},{" A0 "," A1 "," A2 "," A3 "}," B ",p" TAIL ";}" : OCTAVO_O##N(CONSTRAINT)                           \
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate));                                         \
    }                                                                                                                      \
  };
OCTAVO_VALUES(e4m3_f32,  72, float, "+f", 36, "%36", "%37", "%38", "%39", "%40", "%41", "k32.f32.e4m3.e4m3", ",1,1")
OCTAVO_VALUES(e4m3_f32, 136, float, "+f", 68, "%68", "%69", "%70", "%71", "%72", "%73", "k32.f32.e4m3.e4m3", ",1,1")
OCTAVO_VALUES(e4m3_f16,  72, std::uint32_t, "+r", 18, "%18", "%19", "%20", "%21", "%22", "%23", "k32.f16.e4m3.e4m3", ",1,1")
OCTAVO_VALUES(e4m3_f16, 136, std::uint32_t, "+r", 34, "%34", "%35", "%36", "%37", "%38", "%39", "k32.f16.e4m3.e4m3", ",1,1")
OCTAVO_VALUES(f16_f32,   64, float, "+f", 32, "%32", "%33", "%34", "%35", "%36", "%37", "k16.f32.f16.f16", ",1,1,1")
OCTAVO_VALUES(f16_f32,  128, float, "+f", 64, "%64", "%65", "%66", "%67", "%68", "%69", "k16.f32.f16.f16", ",1,1,1")
OCTAVO_VALUES(bf16_f32,  64, float, "+f", 32, "%32", "%33", "%34", "%35", "%36", "%37", "k16.f32.bf16.bf16", ",1,1,1")
OCTAVO_VALUES(bf16_f32, 128, float, "+f", 64, "%64", "%65", "%66", "%67", "%68", "%69", "k16.f32.bf16.bf16", ",1,1,1")
#undef OCTAVO_SCORES
#undef OCTAVO_VALUES
// clang-format on

}  // namespace octavo::cuda::ptx
