// How the quantizers launch: a kernel and its one argument, whose types are checked.
#pragma once

#include <cstdint>

#include "cuda/runtime.hpp"

namespace octavo::cuda {

template <class Arguments>
Status launch(const char* what, void (*kernel)(Arguments), std::int64_t blocks, int threads,
              cudaStream_t stream, const Arguments& arguments) {
  const void* pointers[] = {&arguments};
  return launch_kernel({reinterpret_cast<const void*>(kernel), what, blocks, threads}, pointers, stream);
}

}  // namespace octavo::cuda
