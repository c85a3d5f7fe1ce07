// The two kernels of the runtime: tables that travel as kernel parameters, and the SM clock.
#include <algorithm>
#include <cstring>

#include "cuda/runtime.hpp"

namespace octavo::cuda {
namespace {

constexpr int kThreads = 256;

template <int kBytes>
struct Chunk {
  std::uint32_t words[kBytes / 4];
};

// 4,096 bytes of parameters on every driver; 32,764 from CUDA 12.1 on, whose launches cost more.
constexpr std::size_t kSmall = 4000;
constexpr std::size_t kLarge = 32000;

template <int kBytes>
__global__ void write_chunk(std::byte* to, unsigned bytes, const __grid_constant__ Chunk<kBytes> chunk) {
  for (unsigned i = threadIdx.x * 4; i < bytes; i += kThreads * 4) {
    const std::uint32_t word = chunk.words[i / 4];
    if (i + 4 <= bytes && (reinterpret_cast<std::uintptr_t>(to) & 3U) == 0) {
      *reinterpret_cast<std::uint32_t*>(to + i) = word;
    } else {
      for (unsigned b = 0; b < 4 && i + b < bytes; ++b) to[i + b] = static_cast<std::byte>(word >> (8 * b));
    }
  }
}

template <int kBytes>
Status send(std::byte* to, const std::byte* from, std::size_t bytes, cudaStream_t stream) {
  Chunk<kBytes> chunk;
  std::memset(&chunk, 0, sizeof chunk);
  std::memcpy(&chunk, from, bytes);
  write_chunk<kBytes><<<1, kThreads, 0, stream>>>(to, static_cast<unsigned>(bytes), chunk);
  return check_launch("uploading a table");
}

__global__ void count_cycles(long long* cycles_and_ns, long long ns) {
  const auto now = [] {
    long long t = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
  };
  // Start on a step of the timer, which is coarser than a nanosecond.
  long long begin = now();
  for (const long long before = begin; begin == before;) begin = now();
  const long long first = clock64();
  long long end = begin;
  while (end - begin < ns) end = now();
  cycles_and_ns[0] = clock64() - first;
  cycles_and_ns[1] = end - begin;
}

}  // namespace

Status upload(void* device_destination, const void* host, std::size_t bytes, cudaStream_t stream) {
  auto* to = static_cast<std::byte*>(device_destination);
  const auto* from = static_cast<const std::byte*>(host);
  for (std::size_t at = 0; at < bytes;) {
    const std::size_t n = std::min(bytes - at, kLarge);
    Status s = n <= kSmall ? send<kSmall>(to + at, from + at, n, stream)
                           : send<kLarge>(to + at, from + at, n, stream);
    if (!s.ok()) return s;
    at += n;
  }
  return {};
}

Result<double> measure_sm_clock(cudaStream_t stream, int microseconds) {
  int device = 0;
  if (Status s = check(cudaGetDevice(&device), "asking for the current CUDA device"); !s.ok()) return s;
  Result<std::shared_ptr<void>> memory = allocate_device(2 * sizeof(long long), device, stream);
  if (!memory.ok()) return memory.status();
  count_cycles<<<1, 1, 0, stream>>>(static_cast<long long*>(memory->get()), 1000LL * microseconds);
  if (Status s = check_launch("measuring the SM clock"); !s.ok()) return s;
  long long counts[2] = {0, 1};
  if (Status s = download(counts, memory->get(), sizeof counts, stream, "the SM clock"); !s.ok()) return s;
  return 1e9 * static_cast<double>(counts[0]) / static_cast<double>(counts[1]);
}

}  // namespace octavo::cuda
