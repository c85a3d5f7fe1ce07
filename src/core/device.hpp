// What the core asks of the device a call runs on: does it exist, which kernels run there, memory in stream
// order. The one place where core meets src/cuda; on the CPU, and in builds without CUDA, all of it is plain
// host code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "octavo/status.hpp"
#include "octavo/tensor.hpp"

namespace octavo {

/// "the CPU", "cuda:0"
std::string to_text(const Device& device);
/// With what it is: "cuda:0 (NVIDIA H200, sm_90)".
std::string describe(const Device& device);

/// ok when the device is there; else what this build or machine lacks.
Status check_device(const Device& device);
/// Whether kernels of that backend and tier run on the device.
bool serves(const Device& device, std::string_view backend, std::string_view tier);

/// Alignment of buffers: a cache line and the widest vector load, or what cudaMalloc gives.
std::size_t buffer_alignment(const Device& device);
/// Aligned memory that work on `stream` may use; a GPU's is given back in the order of that stream.
Result<std::shared_ptr<void>> allocate(std::size_t bytes, const Device& device, void* stream);
/// invalid_argument unless `memory` is aligned and on the device.
Status check_buffer(const char* name, const void* memory, const Device& device);
/// Copies to the host and waits for it. `what` names the argument.
Status copy_to_host(void* host, const void* source, std::size_t bytes, const Device& device, void* stream,
                    const char* what);

/// Makes a GPU current for kernels and allocations, and the former one again at the end of the scope.
class DeviceScope {
 public:
  explicit DeviceScope(const Device& device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  int former_ = -1;  ///< -1: nothing to restore
  Status status_;
};

}  // namespace octavo
