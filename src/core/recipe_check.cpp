// Do the fields of a recipe fit together, and can any accumulator overflow? (docs/numerics.md, "V and the
// second product")
#include <cmath>
#include <tuple>

#include "core/recipe_fields.hpp"
#include "core/text.hpp"
#include "numerics/e4m3.hpp"

namespace octavo {
namespace {

constexpr double kF16Max = 65504.0;
constexpr double kS32Max = 2147483647.0;
// the smallest normal values
constexpr float kE4m3Normal = 0x1p-6F;
constexpr float kF16Normal = 0x1p-14F;

bool is_integer(Format f) { return f == Format::int8 || f == Format::int4; }
bool is_sixteen_bit(Format f) { return f == Format::f16 || f == Format::bf16; }

/// What a group's absmax becomes after rounding to the format's own grid.
double grid_range(Format format, float range) {
  return format == Format::e4m3 ? static_cast<double>(numerics::round_to_e4m3(range))
                                : static_cast<double>(range);
}

Status check_qk(const Recipe& r) {
  const bool quantized = is_integer(r.qk_format) || r.qk_format == Format::e4m3;
  if (r.qk_format == Format::u8)
    return invalid_argument(
        "recipe field qk_format = u8 is not possible; it takes int8, int4, e4m3, f16, bf16 or input");
  if (quantized != (r.q_group != Granularity::none) || quantized != (r.k_group != Granularity::none)) {
    return invalid_argument(
        concat("recipe fields q_group and k_group must name a granularity for qk_format int8, int4 and e4m3, "
               "and be none for f16, bf16 and input"));
  }
  if (is_integer(r.qk_format) != (r.qk_accumulator == QkAccumulator::s32)) {
    return invalid_argument(
        "recipe field qk_accumulator must be s32 for qk_format int8 and int4, and only for them");
  }
  if ((r.qk_format == Format::input) != (r.qk_accumulator == QkAccumulator::f64)) {
    return invalid_argument("recipe field qk_accumulator must be f64 for qk_format input, and only for it");
  }
  if (r.qk_accumulator == QkAccumulator::f16 && r.qk_format == Format::bf16) {
    return invalid_argument("recipe field qk_accumulator = f16 takes qk_format f16 or e4m3, not bf16");
  }
  const float limit = r.qk_format == Format::int8   ? 127.0F
                      : r.qk_format == Format::int4 ? 7.0F
                                                    : numerics::kE4m3Max;
  const bool fixed = is_integer(r.qk_format);
  for (const auto& [name, range] : {std::pair{"q_range", r.q_range}, std::pair{"k_range", r.k_range}}) {
    if (quantized && (range > limit || (fixed && range != limit))) {
      return invalid_argument(concat("recipe field ", name, " = ", range, " must be ",
                                     fixed ? "" : "at most ", limit, " for this qk_format"));
    }
  }
  return {};
}

Status check_pv(const Recipe& r) {
  const bool integers = r.p_format == Format::u8;
  if (is_integer(r.p_format))
    return invalid_argument(concat("recipe field p_format = ", r.p_format == Format::int8 ? "int8" : "int4",
                                   " is not possible; it takes e4m3, f16, bf16, u8 or input"));
  if (r.v_format == Format::int4 || r.v_format == Format::u8)
    return invalid_argument(concat("recipe field v_format = ", r.v_format == Format::u8 ? "u8" : "int4",
                                   " is not possible; it takes e4m3, f16, bf16, int8 or input"));
  if (integers != (r.v_format == Format::int8) || integers != (r.pv_accumulator == PvAccumulator::s32) ||
      integers != (r.exp2 == Exp2::table)) {
    return invalid_argument(
        "recipe fields p_format = u8, v_format = int8, pv_accumulator = s32 and exp2 = table go together");
  }
  if (integers && (r.p_range != 255.0F || r.v_range != 127.0F || r.p_reference != PReference::tile_max ||
                   r.normaliser != Normaliser::quantized)) {
    return invalid_argument(
        "recipe field p_format = u8 needs p_range 255, v_range 127, p_reference tile_max and normaliser "
        "quantized");
  }
  const bool scaled = r.v_format == Format::e4m3 || r.v_format == Format::int8;
  if (scaled != (r.v_scale != ValueScale::none)) {
    return invalid_argument(
        "recipe field v_scale must name a granularity for v_format e4m3 and int8, and be none for f16, bf16 "
        "and input");
  }
  if (r.v_format == Format::e4m3 && r.v_range > numerics::kE4m3Max) {
    return invalid_argument(
        concat("recipe field v_range = ", r.v_range, " must be at most 448 for v_format e4m3"));
  }
  if ((r.exp2 == Exp2::direct || r.exp2 == Exp2::mixed) &&
      (r.p_format != Format::e4m3 || r.normaliser != Normaliser::quantized)) {
    return invalid_argument(
        "recipe field exp2 = direct or mixed needs p_format e4m3 and normaliser quantized");
  }
  if (r.exp2 == Exp2::mixed && r.mixed_direct > r.mixed_period) {
    return invalid_argument(concat("recipe field mixed_direct = ", r.mixed_direct,
                                   " must be at most mixed_period = ", r.mixed_period));
  }
  if ((r.pv_accumulator == PvAccumulator::f32_buffered || r.pv_accumulator == PvAccumulator::f16_buffered) &&
      r.pv_buffer < 1) {
    return invalid_argument(
        concat("recipe field pv_buffer = ", r.pv_buffer, " must be at least 1 for a buffered accumulator"));
  }
  if (r.pv_accumulator == PvAccumulator::f32_buffered && r.pv_buffer % 32 != 0) {
    return invalid_argument(
        concat("recipe field pv_buffer = ", r.pv_buffer, " must be a multiple of 32 keys for f32_buffered"));
  }
  if (r.key_tile % 32 != 0)
    return invalid_argument(concat("recipe field key_tile = ", r.key_tile,
                                   " must be a multiple of 32 (0 leaves it to the kernel)"));
  if (is_sixteen_bit(r.p_format) != is_sixteen_bit(r.v_format) && r.p_format != Format::input &&
      r.v_format != Format::input) {
    return invalid_argument("recipe fields p_format and v_format must both be 16-bit or both be 8-bit");
  }
  return {};
}

Status check_budgets(const Recipe& r, std::int64_t head_dim) {
  const double p = static_cast<double>(r.p_range) * std::exp2(static_cast<double>(r.slack));
  if (r.p_format == Format::e4m3 && p > static_cast<double>(numerics::kE4m3Max)) {
    return invalid_argument(concat("range budget: p_range * 2^slack = ", static_cast<float>(p),
                                   " exceeds 448, the largest e4m3 value, so weights would saturate"));
  }
  if (r.p_format == Format::f16 && p > kF16Max) {
    return invalid_argument(concat("range budget: p_range * 2^slack = ", static_cast<float>(p),
                                   " exceeds 65504, the largest f16, so weights would overflow"));
  }
  const bool e4m3 = r.p_format == Format::e4m3;
  const float normal = e4m3 ? kE4m3Normal : r.p_format == Format::f16 ? kF16Normal : 0.0F;
  const char* of_p = e4m3 ? "2^-6, the smallest normal e4m3 value" : "2^-14, the smallest normal f16 value";
  // With slack the largest weight of a row lies up to headroom + 1 octaves below P_r.
  const float least = r.p_range * std::exp2(-1.0F - static_cast<float>(r.headroom));
  if (r.slack > 0.0F && least < normal) {
    return invalid_argument(concat("range budget: p_range / 2^(headroom + 1) = ", least, " is below ", of_p,
                                   ", so rows would vanish"));
  }
  if (r.p_range < normal) {
    return invalid_argument(
        concat("range budget: p_range = ", r.p_range, " is below ", of_p, ", so weights would vanish"));
  }
  for (const auto& [name, format, range] :
       {std::tuple{"q_range", r.qk_format, r.q_range}, std::tuple{"k_range", r.qk_format, r.k_range},
        std::tuple{"v_range", r.v_format, r.v_range}}) {
    if (format == Format::e4m3 && range < kE4m3Normal)
      return invalid_argument(
          concat("range budget: ", name, " = ", range,
                 " is below 2^-6, the smallest normal e4m3 value, so values would vanish"));
  }
  if (r.p_format == Format::u8) {
    const double bound = static_cast<double>(r.p_range) * r.v_range * r.key_tile;
    if (bound > kS32Max)
      return invalid_argument(concat("range budget: p_range * v_range * key_tile = ", bound,
                                     " exceeds 2^31 - 1, the largest s32: key_tile = ", r.key_tile,
                                     " must be at most ", static_cast<int>(kS32Max / r.p_range / r.v_range)));
  }
  if (r.pv_accumulator == PvAccumulator::f16_buffered && r.v_scale == ValueScale::none) {
    return invalid_argument(
        "range budget: pv_accumulator f16_buffered needs a scaled v_format (e4m3); unscaled values have no "
        "range that bounds "
        "the sum");
  }
  if (r.pv_accumulator == PvAccumulator::f16_buffered) {
    const double bound = 32.0 * r.pv_buffer * grid_range(r.p_format, static_cast<float>(p)) *
                         grid_range(r.v_format, r.v_range);
    if (!(bound <= kF16Max)) {
      return invalid_argument(concat("range budget: 32 * pv_buffer * p_range * 2^slack * v_range = ", bound,
                                     " exceeds 65504, the largest f16: with pv_buffer ", r.pv_buffer,
                                     " the product p_range * 2^slack * v_range must be at most ",
                                     kF16Max / (32.0 * r.pv_buffer)));
    }
  }
  if (r.qk_accumulator == QkAccumulator::f16 && r.qk_format == Format::e4m3 && head_dim > 0) {
    const double bound = grid_range(r.qk_format, r.q_range) * grid_range(r.qk_format, r.k_range) *
                         static_cast<double>(head_dim);
    if (!(bound <= kF16Max)) {  // the recipe is sound, it does not reach this head dim
      return unsupported(concat("range budget: q_range * k_range * head_dim = ", bound,
                                " exceeds 65504, the largest f16: at head_dim ", head_dim,
                                " the product q_range * k_range must be at most ",
                                kF16Max / static_cast<double>(head_dim)));
    }
  }
  return {};
}

}  // namespace

Status check(const Recipe& recipe, std::int64_t head_dim) {
  if (recipe.name == "auto") return {};
  if (Status s = check_fields(recipe); !s.ok()) return s;
  if (Status s = check_qk(recipe); !s.ok()) return s;
  if (Status s = check_pv(recipe); !s.ok()) return s;
  return recipe.check_budget ? check_budgets(recipe, head_dim) : Status{};
}

std::string describe_budget(const Recipe& r) {
  std::string text;
  if (r.pv_accumulator == PvAccumulator::f16_buffered) {
    const double p = grid_range(r.p_format, r.p_range * std::exp2(r.slack));
    const double bound = 32.0 * r.pv_buffer * p * grid_range(r.v_format, r.v_range);
    text = concat("32 * ", r.pv_buffer, " products * ", p, " * ", grid_range(r.v_format, r.v_range), " = ",
                  bound, " of 65504 (", std::lround(100.0 * bound / kF16Max), "% of f16's range)");
  } else if (r.p_format == Format::e4m3) {
    text = concat("p_range ", r.p_range, " of 448; f32 accumulators cannot overflow");
  } else {
    text = "no narrow accumulator in the second product";
  }
  if (r.qk_accumulator == QkAccumulator::f16 && r.qk_format == Format::f16) {
    text += "; the f16 accumulator of 16-bit Q K^T has no bound of its own: |q . k| beyond 65504 overflows";
  }
  if (r.qk_accumulator == QkAccumulator::f16 && r.qk_format == Format::e4m3) {
    text += concat("; q_range * k_range * D <= 65504 holds up to D = ",
                   static_cast<std::int64_t>(
                       kF16Max / (grid_range(r.qk_format, r.q_range) * grid_range(r.qk_format, r.k_range))));
  }
  return text;
}

}  // namespace octavo
