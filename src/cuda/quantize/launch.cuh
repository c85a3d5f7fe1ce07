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
  kernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(arguments);
  return check_launch(what);
}

}  // namespace octavo::cuda
