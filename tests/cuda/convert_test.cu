// The hardware conversions of cuda/quantize/convert.cuh have the bits of src/numerics, over every f32 input.
#include <gtest/gtest.h>

#include <cstring>

#include "cuda/device.hpp"
#include "cuda/quantize/convert.cuh"
#include "numerics/bfloat16.hpp"
#include "numerics/e4m3.hpp"
#include "numerics/float16.hpp"
#include "numerics/integers.hpp"

namespace octavo::test {
namespace {

enum Which : int { kE4m3, kF16, kBf16, kInt8, kCount };

__global__ void compare(unsigned long long* differences) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < (std::uint64_t{1} << 32);
       i += step) {
    const float x = __uint_as_float(static_cast<std::uint32_t>(i));
    const bool nan = x != x;
    const auto differ = [&](int which, std::uint32_t have, std::uint32_t want, std::uint32_t magnitude) {
      // every NaN is a NaN; which one is the hardware's choice
      const bool same = nan ? (have & 0x7FFFU & magnitude) > (which == kE4m3  ? 0x7EU
                                                              : which == kF16 ? 0x7C00U
                                                                              : 0x7F80U)
                            : have == want;
      if (!same) atomicAdd(differences + which, 1ULL);
    };
    differ(kE4m3, cuda::ptx::pack_e4m3(x, 0.0F, 0.0F, 0.0F), numerics::f32_to_e4m3(x), 0x7FU);
    differ(kF16, cuda::ptx::pack_f16(x, 0.0F), numerics::f32_to_f16(x), 0xFFFFU);
    differ(kBf16, cuda::ptx::pack_bf16(x, 0.0F), numerics::f32_to_bf16(x), 0xFFFFU);
    if (fabsf(x) <= 127.0F) {
      const auto low = static_cast<std::uint8_t>(numerics::quantize_integer(x, 127));
      const auto third = static_cast<std::uint8_t>(numerics::quantize_integer(-x, 127));
      const std::uint32_t want = low | std::uint32_t{third} << 16 | 0x01000000U;
      if (cuda::int8_x4(x, 0.0F, -x, 1.0F) != want) atomicAdd(differences + kInt8, 1ULL);
    }
  }
}

TEST(Convert, HardwareHasTheBitsOfNumerics) {
  OCTAVO_NEEDS_HOPPER();
  const DeviceBytes counts(kCount * sizeof(unsigned long long), 0);
  compare<<<1024, 256>>>(reinterpret_cast<unsigned long long*>(counts.data()));
  ASSERT_EQ(cudaGetLastError(), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<std::byte> bytes = counts.read();
  const char* names[kCount] = {"e4m3", "f16", "bf16", "int8"};
  for (int i = 0; i < kCount; ++i) {
    unsigned long long count = 0;
    std::memcpy(&count, bytes.data() + static_cast<std::size_t>(i) * sizeof count, sizeof count);
    EXPECT_EQ(count, 0ULL) << names[i];
  }
}

__global__ void widen(unsigned long long* differences) {
  for (std::uint32_t i = threadIdx.x; i < 0x10000U; i += blockDim.x) {
    float low = 0.0F;
    float high = 0.0F;
    const auto same = [](float have, float want) { return have == want || (have != have && want != want); };
    cuda::widen_x2<false>(i | (i ^ 0x8000U) << 16, low, high);
    const auto half = static_cast<std::uint16_t>(i);
    if (!same(low, numerics::f16_to_f32(half)) || !same(high, -numerics::f16_to_f32(half)))
      atomicAdd(differences, 1ULL);
    cuda::widen_x2<true>(i | (i ^ 0x8000U) << 16, low, high);
    if (!same(low, numerics::bf16_to_f32(half)) || !same(high, -numerics::bf16_to_f32(half)))
      atomicAdd(differences, 1ULL);
  }
}

TEST(Convert, WidensEvery16BitValue) {
  OCTAVO_NEEDS_HOPPER();
  const DeviceBytes count(sizeof(unsigned long long), 0);
  widen<<<1, 256>>>(reinterpret_cast<unsigned long long*>(count.data()));
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(count.read(), std::vector<std::byte>(sizeof(unsigned long long)));
}

}  // namespace
}  // namespace octavo::test
