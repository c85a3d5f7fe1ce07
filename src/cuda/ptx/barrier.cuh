// mbarrier and the bulk tensor copy (TMA) of one block.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ptx/registers.cuh"

namespace octavo::cuda::ptx {

inline constexpr int kMostArrivals = (1 << 20) - 1;  ///< that a barrier can expect

OCTAVO_DEVICE void barrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
OCTAVO_DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
/// arrives and announces bytes that copies will bring
OCTAVO_DEVICE void barrier_expect(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
OCTAVO_DEVICE void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
OCTAVO_DEVICE bool barrier_passed(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}
/// The same without waiting at all. Its answer takes as long as that of a read: ask early.
OCTAVO_DEVICE bool barrier_passed_already(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}
/// waits until the phase of that parity has ended
OCTAVO_DEVICE void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  while (!barrier_passed(barrier, parity)) {
  }
}
/// The same for who has time: polls take issue slots from the warps that compute (a tenth of them, measured).
OCTAVO_DEVICE void barrier_wait_patiently(std::uint32_t barrier, std::uint32_t parity) {
  while (!barrier_passed(barrier, parity)) __nanosleep(64);
}

/// Box at (x, y, z, w) of a rank-4 map into shared memory; bytes are counted on `barrier`.
OCTAVO_DEVICE void copy_box(std::uint32_t to, const CUtensorMap* map, int x, int y, int z, int w,
                            std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
      "%5}], [%6];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
      : "memory");
}

/// `bytes`, a multiple of 16, between addresses that are too.
OCTAVO_DEVICE void copy_bytes(std::uint32_t to, const void* from, int bytes, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
OCTAVO_DEVICE void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

}  // namespace octavo::cuda::ptx
