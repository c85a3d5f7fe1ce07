// An independent computation of what the GPU quantizers must leave, in plain loops; see quantize_check.cpp.
#pragma once

#include <vector>

#include "cuda/quantize_case.hpp"

namespace octavo::test {

/// What the tests read of a buffer.
struct Quantized {
  std::vector<std::byte> kv;
  std::vector<std::byte> q;
};

/// Runs both quantizers into poisoned buffers; the K, V buffer's guard and the Q buffer's are checked.
Quantized quantize(const QuantizeCase& c, std::uint8_t poison = 0xA5);

/// Every payload byte, scale and mean against the host. `tainted` heads (key heads of sequence 0) are left
/// out.
void check_keys(const QuantizeCase& c, const Quantized& got);
void check_values(const QuantizeCase& c, const Quantized& got);
void check_queries(const QuantizeCase& c, const Quantized& got);

}  // namespace octavo::test
