// What host code asks of the CUDA runtime: checked calls, devices, stream-ordered memory, small uploads and
// tensor maps. Every function that can fail returns a Status; none leaves an error behind for the caller's
// own cudaGetLastError().
//
// Nothing here touches CUDA before it is called, so the library loads and runs where there is no GPU or no
// driver.
#pragma once

#include <cuda.h>  // types only; the driver's functions are looked up at run time
#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/status.hpp"

namespace octavo::cuda {

/// ok, out_of_memory for a failed allocation, else internal: "WHAT failed: cudaErrorX (description)".
Status check(cudaError_t error, const char* what);
/// For `kernel<<<...>>>()`: the error of that launch.
inline Status check_launch(const char* what) { return check(cudaGetLastError(), what); }

struct Launch {
  const void* kernel = nullptr;
  const char* what = "";  ///< for the error
  std::int64_t blocks = 0;
  int threads = 0;
  std::size_t shared_bytes = 0;
};
/// Launches a kernel that calls ptx::wait_for_predecessors() before it touches memory that those before it
/// may still write or read: its blocks may start while the last ones of the kernel before it run.
/// `arguments`: a pointer to each. Without blocks there is nothing to do; 2^31 or more are unsupported.
Status launch_kernel(const Launch& launch, const void* const* arguments, cudaStream_t stream);

struct DeviceProperties {
  int index = 0;
  std::string name;
  int major = 0;  ///< compute capability
  int minor = 0;
  int sm_count = 0;
  int clock_khz = 0;       ///< highest SM clock
  std::size_t memory = 0;  ///< bytes
  std::size_t l2_bytes = 0;
  std::size_t shared_per_block = 0;  ///< bytes a block may ask for
};

/// The GPUs this process sees; empty without a driver. Read once, thread-safe.
const std::vector<DeviceProperties>& devices();
/// Any GPU.
inline bool available() { return !devices().empty(); }
/// Any GPU of exactly this compute capability.
bool has_device(int major, int minor);
/// The device's properties, or invalid_argument that says which there are.
Result<const DeviceProperties*> device_properties(int index);
/// Whether code of a kernel tier runs there: "sm90a" on compute capability 9.0 alone, "sm80" on 8.0 to 8.9.
bool runs_tier(const DeviceProperties& device, std::string_view tier);

/// Makes a device current. `former` gets the one before, or -1 when there is nothing to restore.
Status make_current(int device, int& former);
void restore_current(int former) noexcept;

/// The same for a scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : status_(make_current(device, former_)) {}
  ~DeviceGuard() { restore_current(former_); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  int former_ = -1;
  Status status_;
};

/// Whether the stream records a graph, in which nothing may wait for the device.
Result<bool> is_capturing(cudaStream_t stream);

/// Device memory in the order of `stream`, 256-byte aligned: usable by later work on that stream, given back
/// on it, so the stream must outlive it, and work on other streams that uses it must have been joined before.
/// Works in stream capture, where memory and its release become nodes of the graph. Comes from a pool of
/// Octavo's own, which keeps some memory between calls, because giving it back to the driver at every
/// synchronisation costs milliseconds.
Result<std::shared_ptr<void>> allocate_device(std::size_t bytes, int device, cudaStream_t stream);

/// Copies a host table to device memory in the order of `stream`. The bytes travel as kernel parameters:
/// `host` may change as soon as this returns, no pinned memory is needed, and a captured graph keeps the
/// values. For tables of up to some hundred KB: 32,000 bytes a launch.
Status upload(void* device_destination, const void* host, std::size_t bytes, cudaStream_t stream);

/// Copies to the host and waits for it. Refused while the stream is capturing; `what` names the argument.
Status download(void* host, const void* device_source, std::size_t bytes, cudaStream_t stream,
                const char* what);

/// check_finite on a device: waits for the stream and turns a flag that is not 0 into an invalid_argument
/// about `what` ("k or v").
Status refuse_nonfinite(const void* device_flag, const char* what, cudaStream_t stream);

/// Device or managed memory, by the driver's books.
bool is_device_pointer(const void* pointer);

/// The current device's SM clock in Hz over the next `microseconds`: waits for the stream, counts cycles
/// against the device's nanosecond timer. Right after a kernel it reads the clock that kernel ran at, power
/// limits included.
Result<double> measure_sm_clock(cudaStream_t stream, int microseconds = 200);

enum class Element : std::uint8_t { u8, f16, bf16, f32 };
enum class Swizzle : std::uint8_t { none, bytes32, bytes64, bytes128 };

/// What a tensor map describes: innermost dimension first, up to `rank` of them.
struct TensorMapSpec {
  const void* address = nullptr;  ///< 16-byte aligned
  Element element = Element::u8;
  int rank = 3;
  std::array<std::uint64_t, 5> dims{};  ///< elements, each 1 to 2^32
  std::array<std::uint64_t, 4>
      strides{};  ///< bytes from one index to the next of dims[1], dims[2], ...; multiples of 16
  std::array<std::uint32_t, 5> box{};  ///< elements a copy moves, each 1 to 256
  Swizzle swizzle = Swizzle::none;
};

/// Fills a map for tiled copies; elements outside read as 0. Works on the host alone, in stream capture too.
Status encode_tensor_map(CUtensorMap* map, const TensorMapSpec& spec);

}  // namespace octavo::cuda
