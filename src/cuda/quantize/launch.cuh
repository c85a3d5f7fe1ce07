// One way to launch a kernel of the quantizers: 1-D grid, checked.
#pragma once

#include <cstdint>

#include "core/text.hpp"
#include "cuda/runtime.hpp"

namespace octavo::cuda {

template <class Arguments>
Status launch(const char* what, void (*kernel)(Arguments), std::int64_t blocks, int threads,
              cudaStream_t stream, const Arguments& arguments) {
  if (blocks == 0) return {};
  constexpr std::int64_t kMostBlocks = 0x7FFFFFFF;
  if (blocks > kMostBlocks)
    return unsupported(concat(what, " would take ", blocks, " blocks; ", kMostBlocks, " are supported"));
  const void* pointers[] = {&arguments};
  return launch_kernel({reinterpret_cast<const void*>(kernel), what, dim3(static_cast<unsigned>(blocks)),
                        static_cast<unsigned>(threads)},
                       pointers, stream);
}

}  // namespace octavo::cuda
