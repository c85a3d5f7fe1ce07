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

// cudaMemset, and cudaMemcpy from memory that is not pinned, may return before the bytes are on the device.
// They run on the default stream, which streams made with cudaStreamNonBlocking do not wait for, so a kernel
// there could read what was before, or have its output overwritten. Tests fill device memory by these alone.

inline cudaError_t fill_device(void* to, int byte, std::size_t bytes) {
  const cudaError_t error = cudaMemset(to, byte, bytes);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}
inline cudaError_t copy_to_device(void* to, const void* from, std::size_t bytes) {
  const cudaError_t error = cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

/// Bytes on the device, with a guard behind them; all of them poison at first.
class DeviceBytes {
 public:
  static constexpr std::size_t kGuard = 4096;

  explicit DeviceBytes(std::size_t bytes, std::uint8_t poison = 0xA5) : bytes_(bytes) {
    EXPECT_EQ(cudaMalloc(&data_, bytes + kGuard), cudaSuccess) << bytes << " bytes";
    EXPECT_EQ(fill_device(data_, poison, bytes), cudaSuccess);
    EXPECT_EQ(fill_device(data() + bytes, 0x5A, kGuard), cudaSuccess);
  }
  explicit DeviceBytes(const std::vector<std::byte>& from) : DeviceBytes(from.size()) {
    EXPECT_EQ(copy_to_device(data_, from.data(), from.size()), cudaSuccess);
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
