// The named recipes of docs/numerics.md, as data.
#include <array>

#include "core/text.hpp"
#include "octavo/recipe.hpp"

namespace octavo {
namespace {

Recipe sage2_8_8() { return Recipe{}; }  // the defaults of the struct are SageAttention2's

Recipe int4_with_smooth_q(Recipe r) {
  r.qk_format = Format::int4;
  r.q_range = r.k_range = 7.0F;
  r.smooth_q = true;
  return r;
}

Recipe narrowed_for_f16(
    Recipe r) {  // SageAttention2++: P_r * V_r <= 1023.5 lets two k = 32 products share an f16 accumulator
  r.p_range = 224.0F;
  r.v_range = 4.5F;
  r.pv_accumulator = PvAccumulator::f16_buffered;
  r.pv_buffer = 2;
  return r;
}

Recipe sage_8_16() {
  Recipe r;
  r.p_format = r.v_format = Format::f16;
  r.v_scale = ValueScale::none;
  r.p_range = r.v_range = 1.0F;
  r.pv_accumulator = PvAccumulator::f32;
  r.pv_buffer = 0;
  return r;
}

Recipe exact() {
  Recipe r = sage_8_16();
  r.qk_format = r.p_format = r.v_format = Format::input;
  r.qk_accumulator = QkAccumulator::f64;
  r.q_group = r.k_group = Granularity::none;
  r.q_range = r.k_range = 1.0F;
  r.smooth_k = false;
  r.pv_accumulator = PvAccumulator::f64;
  return r;
}

Recipe half() {
  Recipe r = exact();
  r.qk_format = r.p_format = r.v_format = Format::f16;
  r.qk_accumulator = QkAccumulator::f32;
  r.pv_accumulator = PvAccumulator::f32;
  r.key_order = KeyOrder::reverse;
  return r;
}

Recipe fp8_head() {
  Recipe r;
  r.qk_format = Format::e4m3;
  r.qk_accumulator = QkAccumulator::f32;
  r.q_group = r.k_group = Granularity::per_head;
  r.q_range = r.k_range = 448.0F;
  r.smooth_k = false;
  r.v_scale = ValueScale::per_head;
  r.p_range = 256.0F;
  r.pv_buffer = 512;
  r.key_order = KeyOrder::reverse;
  return r;
}

Recipe int8_icl() {
  Recipe r;
  r.q_group = Granularity::per_token;
  r.p_range = 256.0F;
  r.pv_buffer = 128;
  r.key_order = KeyOrder::reverse;
  r.normaliser = Normaliser::quantized;
  return r;
}

Recipe turbo8() {
  Recipe r = int8_icl();
  r.rotate = Rotation::hadamard;
  r.pv_buffer = 1024;
  r.exp2 = Exp2::direct;
  r.slack = 0.75F;  // 256 * 2^0.75 = 430.5 of 448
  return r;
}

Recipe turbo() {
  Recipe r = turbo8();
  r.qk_format = Format::e4m3;
  r.qk_accumulator = QkAccumulator::f16;
  r.q_group = Granularity::per_block;
  // e4m3 has its own exponents: finer scales of K gain nothing after Hadamard.
  r.k_group = Granularity::per_head;
  // Rows hardly move twice, which is worth 3 to 12% of the time. What the octaves cost, FP8 scores hide for
  // the most part.
  r.headroom = 3;
  // R_q * R_k * D <= 65504 keeps an f16 accumulator finite up to D = 128 (22 * 22 * 128 = 61,952).
  r.q_range = r.k_range = 22.0F;
  return r;
}

Recipe turbo16() {
  Recipe r = turbo8();
  r.qk_format = Format::f16;
  r.qk_accumulator = QkAccumulator::f16;
  r.q_group = r.k_group = Granularity::none;
  r.q_range = r.k_range = 1.0F;
  r.rotate = Rotation::none;
  return r;
}

Recipe cpu8() {
  Recipe r;
  r.q_group = r.k_group = Granularity::per_block;
  r.p_format = Format::u8;
  r.v_format = Format::int8;
  r.p_range = 255.0F;
  r.v_range = 127.0F;
  r.pv_accumulator = PvAccumulator::s32;
  r.pv_buffer = 0;
  r.exp2 = Exp2::table;
  r.p_reference = PReference::tile_max;
  r.normaliser = Normaliser::quantized;
  return r;
}

struct Entry {
  Preset about;
  Recipe (*make)();
};

const std::array<Entry, 15>& entries() {
  static const std::array<Entry, 15> table{{
      {{"exact", "softmax in f64 of the unquantized inputs: the reference", ""}, exact},
      {{"half", "16-bit operands, f32 sums, no quantization",
        "FP8 attention for tabular models, \"ours 16-bit\""},
       half},
      {{"sage2-8+8", "INT8 QK, FP8 PV, f32 sums flushed every 128 keys", "SageAttention2"}, sage2_8_8},
      {{"sage2-4+8", "INT4 QK, FP8 PV", "SageAttention2"}, [] { return int4_with_smooth_q(sage2_8_8()); }},
      {{"sage2++-8+8", "INT8 QK, FP8 PV with f16 accumulators kept safe by narrowed ranges",
        "SageAttention2++"},
       [] { return narrowed_for_f16(sage2_8_8()); }},
      {{"sage2++-4+8", "INT4 QK, FP8 PV with f16 accumulators", "SageAttention2++"},
       [] { return narrowed_for_f16(int4_with_smooth_q(sage2_8_8())); }},
      {{"sage-8+16", "INT8 QK, 16-bit PV", "SageAttention before FP8"}, sage_8_16},
      {{"fp8-head", "FP8 QK and PV, one scale a head", "FP8 attention for tabular models; FlashAttention-3"},
       fp8_head},
      {{"fp8-icl",
        "fp8-head for in-context learning: one quantized K, V for train and test rows, queries at the train "
        "rows' scale "
        "(q_absmax)",
        "FP8 attention for tabular models"},
       fp8_head},
      {{"int8-icl", "INT8 QK with a scale per query, FP8 PV: batch-invariant by construction", "Octavo"},
       int8_icl},
      {{"turbo8", "INT8 QK, Hadamard, exponential built from bits, FP8 PV", "Octavo"}, turbo8},
      {{"turbo",
        "FP8 QK with f16 accumulators, Hadamard, exponential built from bits: the last of the speed, at 1.3 "
        "to 2.2 times the error of turbo8",
        "Octavo"},
       turbo},
      {{"turbo16", "16-bit QK with f16 accumulators, exponential built from bits, FP8 PV", "Octavo"},
       turbo16},
      {{"turbo-icl", "turbo for in-context learning: queries at the train rows' scale (q_absmax)", "Octavo"},
       turbo},
      {{"cpu8",
        "INT8 QK, u8 weights and s8 values in exact integers, exponential from a table: the fastest on CPUs",
        "Octavo"},
       cpu8},
  }};
  return table;
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = [] {
    std::vector<Preset> list;
    for (const Entry& entry : entries()) list.push_back(entry.about);
    list.push_back(
        {"auto", "picks a preset for the shape, dtype and device, and says which and why", "Octavo"});
    return list;
  }();
  return all;
}

Result<Recipe> recipe(std::string_view name) {
  for (const Entry& entry : entries()) {
    if (entry.about.name != name) continue;
    Recipe r = entry.make();
    r.name = entry.about.name;
    return r;
  }
  if (name == "auto") {
    Recipe r;
    r.name = "auto";
    return r;
  }
  std::string known;
  for (const Preset& preset : presets()) known += (known.empty() ? "" : ", ") + preset.name;
  return invalid_argument(concat("recipe '", name, "' is not known; there are: ", known));
}

}  // namespace octavo
