// The host's side of the CUDA runtime.
#include "cuda/runtime.hpp"

#include <algorithm>
#include <charconv>
#include <mutex>

#include "core/text.hpp"

namespace octavo::cuda {
namespace {

/// Calls that are safe during another thread's capture, but that CUDA cannot know to be.
class RelaxedCapture {
 public:
  RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, which, device) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return value;
}

std::vector<DeviceProperties> find_devices() {
  std::vector<DeviceProperties> found;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {  // no driver, or none that is new enough
    (void)cudaGetLastError();
    return found;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p{};
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) {
      (void)cudaGetLastError();
      return {};  // indices would no longer be the caller's
    }
    found.push_back({i, p.name, p.major, p.minor, p.multiProcessorCount, attribute(cudaDevAttrClockRate, i),
                     p.totalGlobalMem, static_cast<std::size_t>(std::max(p.l2CacheSize, 0)),
                     p.sharedMemPerBlockOptin});
  }
  return found;
}

/// The pool of a device. Never destroyed: at exit the driver may be gone before us, and it cleans up anyway.
struct Pool {
  std::once_flag once;
  cudaMemPool_t pool = nullptr;
  Status status;
};

// Kept between calls: the quantized Q, K and V of 16 heads of 64k tokens of 128 channels and some workspace.
constexpr std::uint64_t kKeptBytes = std::uint64_t{1} << 30;

Result<cudaMemPool_t> pool_of(int device) {
  static std::vector<Pool> pools(devices().size());
  if (device < 0 || static_cast<std::size_t>(device) >= pools.size())
    return device_properties(device).status();
  Pool& p = pools[static_cast<std::size_t>(device)];
  std::call_once(p.once, [&] {
    const RelaxedCapture relaxed;
    cudaMemPoolProps props{};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = device;
    p.status = check(cudaMemPoolCreate(&p.pool, &props), "creating a memory pool");
    std::uint64_t kept = kKeptBytes;
    if (p.status.ok())
      p.status = check(cudaMemPoolSetAttribute(p.pool, cudaMemPoolAttrReleaseThreshold, &kept),
                       "setting up a memory pool");
  });
  if (!p.status.ok()) return p.status;
  return p.pool;
}

/// Gives memory back in the order of its stream. What was allocated outside of a capture must not be released
/// as a node of it, so that is freed at once.
struct StreamOrderedFree {
  int device;
  cudaStream_t stream;
  bool in_capture;

  void operator()(void* memory) const {
    const DeviceGuard guard(device);
    if (!guard.status().ok()) return;  // the process is ending
    const Result<bool> capturing = is_capturing(stream);
    if (capturing.ok() && *capturing && !in_capture) {
      const RelaxedCapture relaxed;
      (void)cudaFree(memory);
    } else {
      (void)cudaFreeAsync(memory, stream);
    }
    (void)cudaGetLastError();  // nobody to tell; after the driver is gone there is nothing to free
  }
};

}  // namespace

Status check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();  // said here, not to be met again by whoever asks next
  return {error == cudaErrorMemoryAllocation ? StatusCode::out_of_memory : StatusCode::internal,
          concat(what, " failed: ", cudaGetErrorName(error), " (", cudaGetErrorString(error), ")")};
}

Status launch_kernel(const Launch& launch, const void* const* arguments, cudaStream_t stream) {
  if (launch.blocks == 0) return {};
  constexpr std::int64_t kMostBlocks = 0x7FFFFFFF;
  if (launch.blocks > kMostBlocks)
    return unsupported(
        concat(launch.what, " would take ", launch.blocks, " blocks; ", kMostBlocks, " are supported"));
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(launch.blocks));
  config.blockDim = dim3(static_cast<unsigned>(launch.threads));
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return check(cudaLaunchKernelExC(&config, launch.kernel, const_cast<void**>(arguments)), launch.what);
}

const std::vector<DeviceProperties>& devices() {
  static const std::vector<DeviceProperties> found = find_devices();
  return found;
}

bool has_device(int major, int minor) {
  return std::any_of(devices().begin(), devices().end(),
                     [&](const DeviceProperties& d) { return d.major == major && d.minor == minor; });
}

Result<const DeviceProperties*> device_properties(int index) {
  const auto& all = devices();
  if (all.empty())
    return unsupported(
        concat("device cuda:", index, " was asked for; there is no CUDA device or driver here"));
  if (index < 0 || static_cast<std::size_t>(index) >= all.size())
    return invalid_argument(
        concat("device cuda:", index, " does not exist; there are cuda:0 to cuda:", all.size() - 1));
  return &all[static_cast<std::size_t>(index)];
}

bool runs_tier(const DeviceProperties& device, std::string_view tier) {
  if (!tier.starts_with("sm")) return false;
  const bool exact = tier.ends_with('a');
  int number = 0;
  const char* last = tier.data() + tier.size() - (exact ? 1 : 0);
  if (const auto [end, error] = std::from_chars(tier.data() + 2, last, number);
      error != std::errc{} || end != last)
    return false;
  const int have = device.major * 10 + device.minor;
  return exact ? have == number : device.major == number / 10 && have >= number;
}

Status make_current(int device, int& former) {
  former = -1;
  int current = 0;
  if (Status s = check(cudaGetDevice(&current), "asking for the current CUDA device"); !s.ok()) return s;
  if (current == device) return {};
  if (Status s = check(cudaSetDevice(device), "making a CUDA device current"); !s.ok()) return s;
  former = current;
  return {};
}

void restore_current(int former) noexcept {
  if (former >= 0 && cudaSetDevice(former) != cudaSuccess) (void)cudaGetLastError();
}

Result<bool> is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(stream, &state);
  if (error == cudaErrorStreamCaptureImplicit) {  // the legacy default stream, while another one captures
    (void)cudaGetLastError();
    return true;
  }
  if (Status s = check(error, "asking whether the stream is capturing"); !s.ok()) return s;
  return state != cudaStreamCaptureStatusNone;
}

Result<std::shared_ptr<void>> allocate_device(std::size_t bytes, int device, cudaStream_t stream) {
  const DeviceGuard guard(device);
  if (!guard.status().ok()) return guard.status();
  const Result<cudaMemPool_t> pool = pool_of(device);
  if (!pool.ok()) return pool.status();
  const Result<bool> capturing = is_capturing(stream);
  if (!capturing.ok()) return capturing.status();
  void* memory = nullptr;
  if (Status s = check(cudaMallocFromPoolAsync(&memory, std::max<std::size_t>(bytes, 1), *pool, stream),
                       "allocating device memory");
      !s.ok())
    return Status(s.code(), concat(bytes, " bytes on cuda:", device, ": ", s.message()));
  return std::shared_ptr<void>(memory, StreamOrderedFree{device, stream, *capturing});
}

Status download(void* host, const void* device_source, std::size_t bytes, cudaStream_t stream,
                const char* what) {
  const Result<bool> capturing = is_capturing(stream);
  if (!capturing.ok()) return capturing.status();
  if (*capturing)
    return invalid_argument(
        concat(what, " must be read by the host, which a stream that is being captured does not allow"));
  if (Status s = check(cudaMemcpyAsync(host, device_source, bytes, cudaMemcpyDefault, stream),
                       "copying to the host");
      !s.ok())
    return s;
  return check(cudaStreamSynchronize(stream), "waiting for the stream");
}

Status refuse_nonfinite(const void* device_flag, const char* what, cudaStream_t stream) {
  std::uint32_t flag = 0;
  if (Status s =
          download(&flag, device_flag, sizeof flag, stream, "check_finite = true: the device's answer");
      !s.ok())
    return s;
  return flag == 0
             ? Status{}
             : invalid_argument(concat(
                   what, " holds a NaN or Inf among its valid values; check_finite = false computes anyway"));
}

bool is_device_pointer(const void* pointer) {
  cudaPointerAttributes a{};
  if (pointer == nullptr || devices().empty()) return false;
  if (cudaPointerGetAttributes(&a, pointer) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return a.type == cudaMemoryTypeDevice || a.type == cudaMemoryTypeManaged;
}

Status encode_tensor_map(CUtensorMap* map, const TensorMapSpec& spec) {
  // libcuda is not linked, so that the library loads without a driver.
  using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                              const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  constexpr unsigned kSince = 12000;  // CUDA 12.0 brought tensor maps
  static const Result<Encode> encode = []() -> Result<Encode> {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    if (Status s = check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSince,
                                                          cudaEnableDefault, &found),
                         "looking up cuTensorMapEncodeTiled");
        !s.ok())
      return s;
    if (found != cudaDriverEntryPointSuccess || function == nullptr)
      return unsupported(
          "the CUDA driver has no tensor maps; Hopper kernels need a driver of CUDA 12 or newer");
    return reinterpret_cast<Encode>(function);
  }();
  if (!encode.ok()) return encode.status();

  constexpr CUtensorMapDataType kTypes[] = {CU_TENSOR_MAP_DATA_TYPE_UINT8, CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                                            CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                            CU_TENSOR_MAP_DATA_TYPE_FLOAT32};
  constexpr CUtensorMapSwizzle kSwizzles[] = {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B,
                                              CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_128B};
  constexpr cuuint32_t kSteps[5] = {1, 1, 1, 1, 1};
  // Boxes are at most 128 bytes wide. Promoted to 256, a row of 128 f16 channels, which comes in two boxes,
  // is asked for twice: reading 65,536 keys for one query took 5 to 7% longer.
  const CUresult result =
      (*encode)(map, kTypes[static_cast<std::size_t>(spec.element)], static_cast<cuuint32_t>(spec.rank),
                const_cast<void*>(spec.address), spec.dims.data(), spec.strides.data(), spec.box.data(),
                kSteps, CU_TENSOR_MAP_INTERLEAVE_NONE, kSwizzles[static_cast<std::size_t>(spec.swizzle)],
                CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  std::string text =
      concat("encoding a tensor map failed: error ", static_cast<int>(result), "; address ", spec.address);
  for (int d = 0; d < spec.rank; ++d) {
    const auto i = static_cast<std::size_t>(d);
    text += concat(", dim ", d, ": ", spec.dims[i], " (box ", spec.box[i]);
    if (d > 0) text += concat(", stride ", spec.strides[i - 1], " bytes");
    text += ")";
  }
  return {StatusCode::internal, text};
}

}  // namespace octavo::cuda
