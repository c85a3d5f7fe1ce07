#include "core/device.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/text.hpp"
#if defined(OCTAVO_HAS_CUDA)
#include "cuda/runtime.hpp"
#endif

namespace octavo {

std::string to_text(const Device& device) {
  return device.kind == Device::Kind::cpu ? "the CPU" : concat("cuda:", device.index);
}

#if defined(OCTAVO_HAS_CUDA)

namespace {

bool on_gpu(const Device& device) { return device.kind == Device::Kind::cuda; }
cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

DeviceScope::DeviceScope(const Device& device) {
  if (on_gpu(device)) status_ = cuda::make_current(device.index, former_);
}

DeviceScope::~DeviceScope() { cuda::restore_current(former_); }

std::string describe(const Device& device) {
  if (!on_gpu(device)) return to_text(device);
  const auto found = cuda::device_properties(device.index);
  if (!found.ok()) return to_text(device);
  return concat(to_text(device), " (", (*found)->name, ", sm_", (*found)->major, (*found)->minor, ")");
}

Status check_device(const Device& device) {
  return on_gpu(device) ? cuda::device_properties(device.index).status() : Status{};
}

bool serves(const Device& device, std::string_view backend, std::string_view tier) {
  if (on_gpu(device) != (backend == "cuda")) return false;
  if (!on_gpu(device)) return true;
  const auto found = cuda::device_properties(device.index);
  return found.ok() && cuda::runs_tier(**found, tier);
}

#else  // a CUDA device is met only to be refused

namespace {

constexpr bool on_gpu(const Device&) { return false; }

}  // namespace

DeviceScope::DeviceScope(const Device&) {}
DeviceScope::~DeviceScope() = default;

std::string describe(const Device& device) { return to_text(device); }

Status check_device(const Device& device) {
  if (device.kind == Device::Kind::cpu) return {};
  return unsupported(concat("device ", to_text(device),
                            " is not supported: this Octavo was built without CUDA (make cuda, or cmake "
                            "-DOCTAVO_CUDA=ON)"));
}

bool serves(const Device& device, std::string_view backend, std::string_view) {
  return device.kind == Device::Kind::cpu && backend != "cuda";
}

#endif

std::size_t buffer_alignment(const Device& device) { return device.kind == Device::Kind::cpu ? 64 : 256; }

Result<std::shared_ptr<void>> allocate(std::size_t bytes, const Device& device,
                                       [[maybe_unused]] void* stream) {
#if defined(OCTAVO_HAS_CUDA)
  if (on_gpu(device)) return cuda::allocate_device(bytes, device.index, stream_of(stream));
#endif
  const std::size_t alignment = buffer_alignment(device);
  void* memory = std::aligned_alloc(
      alignment, (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment);
  if (memory == nullptr)
    return Status(StatusCode::out_of_memory, concat(bytes, " bytes could not be allocated"));
  return std::shared_ptr<void>(memory, std::free);
}

Status check_buffer(const char* name, const void* memory, const Device& device) {
#if defined(OCTAVO_HAS_CUDA)
  if (on_gpu(device) && !cuda::is_device_pointer(memory))
    return invalid_argument(concat(name, " is not in device memory; this plan is for ", to_text(device)));
#endif
  const std::size_t alignment = buffer_alignment(device);
  if (reinterpret_cast<std::uintptr_t>(memory) % alignment != 0)
    return invalid_argument(concat(name, " is not aligned to ", alignment, " bytes"));
  return {};
}

Status copy_to_host(void* host, const void* source, std::size_t bytes, const Device& device,
                    [[maybe_unused]] void* stream, [[maybe_unused]] const char* what) {
  if (bytes == 0) return {};
#if defined(OCTAVO_HAS_CUDA)
  if (on_gpu(device)) {
    const DeviceScope scope(device);  // the default stream is the current device's
    if (!scope.status().ok()) return scope.status();
    return cuda::download(host, source, bytes, stream_of(stream), what);
  }
#endif
  if (Status s = check_device(device); !s.ok()) return s;
  std::memcpy(host, source, bytes);
  return {};
}

}  // namespace octavo
