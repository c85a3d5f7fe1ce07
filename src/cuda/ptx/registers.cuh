// Register arithmetic that C++ has no name for: packed halves, conversions to e4m3, register budgets, and the
// fences that keep the compiler from moving arithmetic across asynchronous products.
#pragma once

#include <cstdint>

#define OCTAVO_DEVICE __device__ __forceinline__
#define OCTAVO_UNROLL _Pragma("unroll")

namespace octavo::cuda::ptx {

// ---- two 16-bit floats in a 32-bit register, the first in the low half; nearest even ----
OCTAVO_DEVICE std::uint32_t pack_f16(float low, float high) {
  std::uint32_t d;
  asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(d) : "f"(low), "f"(high));
  return d;
}
OCTAVO_DEVICE std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(d) : "f"(low), "f"(high));
  return d;
}
OCTAVO_DEVICE float low_f16(std::uint32_t v) {
  float f;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(f) : "r"(v));
  return f;
}
OCTAVO_DEVICE float high_f16(std::uint32_t v) {
  float f;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(f) : "r"(v));
  return f;
}
OCTAVO_DEVICE std::uint32_t fma_f16x2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
/// max(a * b + c, 0): one instruction
OCTAVO_DEVICE std::uint32_t fma_relu_f16x2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t d;
  asm("fma.rn.relu.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
OCTAVO_DEVICE std::uint32_t add_f16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t d;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
OCTAVO_DEVICE std::uint32_t max_f16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t d;
  asm("max.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
/// whether a half of a is above that of b
OCTAVO_DEVICE bool any_above_f16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t yes;
  asm("{.reg .pred p, q; setp.gt.f16x2 p|q, %1, %2; or.pred p, p, q; selp.u32 %0, 1, 0, p;}"
      : "=r"(yes)
      : "r"(a), "r"(b));
  return yes != 0;
}

/// the larger, NaN if either is
OCTAVO_DEVICE float max_nan(float a, float b) {
  float d;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
}

/// 1.5 * 2^23: added to |x| < 2^22 it leaves the nearest integer in the low bits.
inline constexpr float kMagic = 12582912.0F;

// ---- exponentials and 8-bit weights ----
/// 2^x on the special-function unit: relative error 2^-22, results below 2^-126 are 0
OCTAVO_DEVICE float exp2_approx(float x) {
  float d;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
  return d;
}
/// 1 / x within 2^-23, of subnormals infinity
OCTAVO_DEVICE float reciprocal(float x) {
  float d;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
  return d;
}
/// four e4m3 bytes, the first lowest, nearest even, saturating at 448; NaN stays NaN
OCTAVO_DEVICE std::uint32_t pack_e4m3(float a, float b, float c, float d) {
  std::uint32_t r;
  asm("{.reg .b16 x, y; cvt.rn.satfinite.e4m3x2.f32 x, %2, %1; cvt.rn.satfinite.e4m3x2.f32 y, %4, %3; "
      "mov.b32 %0, {x, y};}"
      : "=r"(r)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return r;
}
/// four bytes 0..255, nearest even, saturating; NaN gives 0. cvt.pack puts its third operand's pair into the
/// high half.
OCTAVO_DEVICE std::uint32_t pack_u8(float a, float b, float c, float d) {
  std::uint32_t r;
  asm("{.reg .u32 x, y, z, w, t; cvt.rni.u32.f32 x, %1; cvt.rni.u32.f32 y, %2; cvt.rni.u32.f32 z, %3; "
      "cvt.rni.u32.f32 w, %4;"
      " cvt.pack.sat.u8.s32.b32 t, w, z, 0; cvt.pack.sat.u8.s32.b32 %0, y, x, t;}"
      : "=r"(r)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return r;
}

// ---- register budgets: a warpgroup gives registers away or takes them; multiples of 8 ----
template <int kRegisters>
OCTAVO_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
OCTAVO_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- launches that follow each other (cuda::launch) ----
/// Waits until the kernels before this one in the stream have ended; before it nothing of theirs may be
/// touched.
OCTAVO_DEVICE void wait_for_predecessors() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/// The next kernel's blocks may take this one's places as they become free.
OCTAVO_DEVICE void admit_successor() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---- order ----
/// The compiler may not move uses of these registers across this point.
template <class T, int N>
OCTAVO_DEVICE void hold(T (&r)[N]) {
  OCTAVO_UNROLL for (int i = 0; i < N; ++i) {
    if constexpr (sizeof(T) == 4 && T(0.5F) != T(0)) {
      asm volatile("" : "+f"(r[i])::"memory");
    } else {
      asm volatile("" : "+r"(r[i])::"memory");
    }
  }
}
/// Makes ptxas finish r before this point: a store that never happens (never < 0 at run time, which ptxas
/// cannot know). Without it the exponentials sink below the wait for the running product and nothing
/// overlaps.
template <class T, int N>
OCTAVO_DEVICE void complete(const T (&r)[N], std::uint32_t shared_address, int never) {
  static_assert(sizeof(T) == 4);
  const auto bits = [&](int i) {
    std::uint32_t b;
    if constexpr (T(0.5F) != T(0)) {
      b = __float_as_uint(r[i]);
    } else {
      b = static_cast<std::uint32_t>(r[i]);
    }
    return b;
  };
  if (__builtin_expect(never < 0, 0)) {
    OCTAVO_UNROLL for (int i = 0; i < N; i += 4) {
      asm volatile("st.shared.v4.b32 [%4], {%0, %1, %2, %3};" ::"r"(bits(i)), "r"(bits(i + 1)),
                   "r"(bits(i + 2)), "r"(bits(i + 3)), "r"(shared_address + 4 * i)
                   : "memory");
    }
  }
}

/// The same value, but ptxas keeps it in a register instead of computing it again where it is needed; of a
/// warp that is converged.
OCTAVO_DEVICE std::uint32_t keep(std::uint32_t x) { return __shfl_sync(~0U, x, threadIdx.x & 31); }
/// The same of a value that all threads of the warp have, in a uniform register.
template <class T>
OCTAVO_DEVICE T keep_uniform(T x) {
  return __reduce_max_sync(~0U, x);
}
/// True in one thread of a warp of which all come here.
OCTAVO_DEVICE bool elected() {
  std::uint32_t yes;
  asm volatile("{.reg .pred p; elect.sync _|p, 0xFFFFFFFF; selp.u32 %0, 1, 0, p;}" : "=r"(yes));
  return yes != 0;
}

/// threadIdx.x read again where it is needed: holding it through the main loop costs a register.
OCTAVO_DEVICE int thread_index() {
  int t;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
  return t;
}

OCTAVO_DEVICE std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

OCTAVO_DEVICE float load_shared(std::uint32_t at) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
  return x;
}
OCTAVO_DEVICE float2 load_shared_pair(std::uint32_t at) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at) : "memory");
  return x;
}

OCTAVO_DEVICE float4 load_shared_quad(std::uint32_t at) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(at)
               : "memory");
  return v;
}
OCTAVO_DEVICE void store_shared_quad(std::uint32_t at, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}

}  // namespace octavo::cuda::ptx
