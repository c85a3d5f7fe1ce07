// Holds the vector roundings and exponentials of one instruction set to the scalar functions of src/numerics,
// lane by lane.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "cpu/isa/grids.hpp"
#include "numerics/bfloat16.hpp"
#include "numerics/e4m3.hpp"
#include "numerics/exp2.hpp"
#include "numerics/float16.hpp"

namespace octavo::test {

/// Empty, or the first disagreement. Each tier's file instantiates this with its own flags, so it may only
/// use V and numerics.
template <class V>
struct IsaCheck {
  using F = typename V::F;

  template <class Vector, class Scalar>
  static std::string compare(const char* what, Vector vector, Scalar scalar, float tolerance,
                             const float* values) {
    alignas(64) float in[V::kLanes];
    alignas(64) float out[V::kLanes];
    std::memcpy(in, values, sizeof in);
    V::store(out, vector(V::load(in)));
    for (int i = 0; i < V::kLanes; ++i) {
      const float want = scalar(in[i]);
      const float slack = tolerance * std::fabs(want);
      if (out[i] == want || std::fabs(out[i] - want) <= slack || (want != want && out[i] != out[i])) continue;
      char text[160];
      std::snprintf(text, sizeof text, "%s(%a) = %a, numerics says %a", what, static_cast<double>(in[i]),
                    static_cast<double>(out[i]), static_cast<double>(want));
      return text;
    }
    return {};
  }

  static std::string run() {
    std::uint32_t state = 12345;
    const auto random = [&state] { return state = state * 1664525U + 1013904223U; };
    float v[V::kLanes];
    for (int round = 0; round < 200000; ++round) {
      for (float& x : v) {
        const std::uint32_t bits = random();
        const float unit = static_cast<float>(bits >> 8) * 0x1p-24F;
        switch (round % 4) {
          case 0:
            x = (unit - 0.5F) * 896.0F;
            break;  // the e4m3 range
          case 1:
            x = (unit - 0.5F) * 0x1p-5F;
            break;  // its subnormals
          case 2:   // exact ties between neighbouring codes, up to the largest value that rounds to 448
            x = numerics::e4m3_to_f32(static_cast<std::uint8_t>(bits % 0x7E)) * (1.0F + 0x1p-4F);
            x = x < 462.0F ? x : 462.0F;
            break;
          default:
            x = (unit - 1.0F) * 140.0F;
            break;  // exponents
        }
      }
      std::string bad = compare(
          "grid_e4m3", [](F x) { return cpu::grid_e4m3<V>(x); },
          [](float x) { return numerics::round_to_e4m3(x); }, 0.0F, v);
      if (bad.empty())
        bad = compare(
            "grid_bf16", [](F x) { return cpu::grid_bf16<V>(x); },
            [](float x) { return numerics::round_to_bf16(x); }, 0.0F, v);
      if (bad.empty())
        bad = compare(
            "round_to_f16", [](F x) { return V::round_to_f16(x); },
            [](float x) { return numerics::round_to_f16(x); }, 0.0F, v);
      if (bad.empty())
        bad = compare(
            "round_even", [](F x) { return V::round_even(x); }, [](float x) { return std::nearbyint(x); },
            0.0F, v);
      if (bad.empty() && round % 4 == 3) {
        // 2^-23: the scalar tier's fused multiply-add rounds in double first, the others give the same bits.
        bad = compare(
            "exp2", [](F x) { return V::exp2(x); }, [](float x) { return numerics::exp2_exact(x); }, 0x1p-23F,
            v);
        if (bad.empty()) {
          bad = compare(
              "direct_e4m3", [](F x) { return cpu::direct_e4m3<V>(x, V::set(numerics::kDirectBias)); },
              [](float x) { return numerics::e4m3_to_f32(numerics::exp2_direct_e4m3(x)); }, 0.0F, v);
        }
      }
      if (!bad.empty()) return bad;
    }
    for (float& x : v) x = -__builtin_inff();
    std::string bad = compare(
        "exp2", [](F x) { return V::exp2(x); }, [](float) { return 0.0F; }, 0.0F, v);
    if (bad.empty()) {
      bad = compare(
          "direct_e4m3", [](F x) { return cpu::direct_e4m3<V>(x, V::set(numerics::kDirectBias)); },
          [](float) { return 0.0F; }, 0.0F, v);
    }
    return bad;
  }
};

}  // namespace octavo::test
