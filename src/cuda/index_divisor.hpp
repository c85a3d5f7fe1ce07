// Division by a number that is known before the launch: one multiplication and a shift.
#pragma once

#include <cstdint>

#include "cuda/layout.hpp"

namespace octavo::cuda {

/// n / d for 0 <= n < 2^31 and 1 <= d < 2^31. With l = ceil(log2 d) and m = ceil(2^(31 + l) / d) < 2^32 the
/// quotient is floor(n m / 2^(31 + l)): m d exceeds 2^(31 + l) by less than d, so n m / 2^(31 + l) exceeds
/// n / d by less than 1 / d.
class IndexDivisor {
 public:
  IndexDivisor() = default;
  explicit IndexDivisor(std::int64_t d) : value_(static_cast<int>(d)) {
    while ((std::int64_t{1} << shift_) < d) ++shift_;
    const std::uint64_t power = std::uint64_t{1} << (31 + shift_);
    magic_ = static_cast<std::uint32_t>((power + static_cast<std::uint64_t>(d) - 1) /
                                        static_cast<std::uint64_t>(d));
  }

  [[nodiscard]] OCTAVO_HOST_DEVICE int value() const { return value_; }

  [[nodiscard]] OCTAVO_HOST_DEVICE int quotient(int n) const {
    const std::uint32_t twice = static_cast<std::uint32_t>(n) * 2U;
#ifdef __CUDA_ARCH__
    const std::uint32_t high = __umulhi(twice, magic_);
#else
    const auto high = static_cast<std::uint32_t>((static_cast<std::uint64_t>(twice) * magic_) >> 32);
#endif
    return static_cast<int>(high >> shift_);
  }

 private:
  int value_ = 1;
  std::uint32_t magic_ = std::uint32_t{1} << 31;
  std::uint32_t shift_ = 0;
};

}  // namespace octavo::cuda
