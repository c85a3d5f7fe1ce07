// Device memory for tests, and the skip where there is no GPU that runs the kernels.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/runtime.hpp"

#define OCTAVO_NEEDS_HOPPER() \
  if (!octavo::cuda::has_device(9, 0)) GTEST_SKIP() << "no GPU of compute capability 9.0 (H100, H200) here"

namespace octavo::test {

/// Bytes on the device, with a guard behind them; all of them poison at first.
class DeviceBytes {
 public:
  static constexpr std::size_t kGuard = 4096;

  explicit DeviceBytes(std::size_t bytes, std::uint8_t poison = 0xA5) : bytes_(bytes) {
    EXPECT_EQ(cudaMalloc(&data_, bytes + kGuard), cudaSuccess) << bytes << " bytes";
    EXPECT_EQ(cudaMemset(data_, poison, bytes), cudaSuccess);
    EXPECT_EQ(cudaMemset(data() + bytes, 0x5A, kGuard), cudaSuccess);
  }
  explicit DeviceBytes(const std::vector<std::byte>& from) : DeviceBytes(from.size()) {
    EXPECT_EQ(cudaMemcpy(data_, from.data(), from.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~DeviceBytes() { (void)cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::vector<std::byte> read() const { return read(0, bytes_); }
  [[nodiscard]] bool guard_intact() const {
    for (const std::byte b : read(bytes_, kGuard)) {
      if (b != std::byte{0x5A}) return false;
    }
    return true;
  }

 private:
  [[nodiscard]] std::vector<std::byte> read(std::size_t at, std::size_t count) const {
    std::vector<std::byte> host(count);
    EXPECT_EQ(cudaMemcpy(host.data(), data() + at, count, cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace octavo::test
