// Model of a tensor core's f16 accumulator: one step adds the exact sum of 32 products to the accumulator and
// rounds once to f16, nearest even, to infinity from 65520 on. That is why P and V ranges are budgeted.
#pragma once

#include "numerics/config.hpp"
#include "numerics/float16.hpp"
#include "numerics/rounding.hpp"

namespace octavo::numerics {

// accumulator: a value of the f16 grid (or infinity, which stays). exact_sum_of_32_products: finite, exact in
// double (products of two e4m3 are multiples of 2^-18 up to 448^2, so 32 of them need 41 bits).
OCTAVO_HD constexpr float f16_accumulate(float accumulator_on_f16_grid, double exact_sum_of_32_products) {
  constexpr float infinity = float_from_bits(0x7F800000);
  const float accumulator = accumulator_on_f16_grid;
  if (!(accumulator < infinity && accumulator > -infinity)) return accumulator;
  return f16_to_f32(f64_to_f16(add_round_to_odd(static_cast<double>(accumulator), exact_sum_of_32_products)));
}

}  // namespace octavo::numerics
