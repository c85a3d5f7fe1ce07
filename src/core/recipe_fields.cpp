// Recipe fields by name: one table serves the command line, JSON, documentation and error messages.
#include <array>
#include <charconv>
#include <cmath>
#include <functional>

#include "core/recipe_fields.hpp"
#include "core/text.hpp"

namespace octavo {
namespace {

template <class Enum>
struct Names;  // the words of an enum, in the order of its values

#define OCTAVO_NAMES(Enum, ...)                                              \
  template <>                                                                \
  struct Names<Enum> {                                                       \
    static constexpr auto words = std::to_array<const char*>({__VA_ARGS__}); \
  }
OCTAVO_NAMES(Format, "input", "f16", "bf16", "e4m3", "int8", "int4", "u8");
OCTAVO_NAMES(Granularity, "none", "per_head", "per_block", "per_warp", "per_thread", "per_token");
OCTAVO_NAMES(ValueScale, "none", "per_channel", "per_head");
OCTAVO_NAMES(QkAccumulator, "f64", "f32", "f16", "s32");
OCTAVO_NAMES(PvAccumulator, "f64", "f32", "f32_buffered", "f16_buffered", "s32");
OCTAVO_NAMES(Exp2, "exact", "direct", "mixed", "table");
OCTAVO_NAMES(KeyOrder, "forward", "reverse");
OCTAVO_NAMES(PReference, "running", "tile_max");
OCTAVO_NAMES(Normaliser, "unquantized", "quantized");
OCTAVO_NAMES(Rotation, "none", "hadamard");
#undef OCTAVO_NAMES

struct Field {
  const char* name;
  const char* help;
  std::string values;
  std::function<std::string(const Recipe&)> get;
  std::function<bool(Recipe&, std::string_view)> set;  // false: the text is not one of `values`
  std::function<bool(const Recipe&)> holds;            // its value is one of `values`
};

template <class Enum>
Field enum_field(const char* name, Enum Recipe::*member, const char* help) {
  std::string values;
  for (const char* word : Names<Enum>::words) values.append(values.empty() ? "" : "|").append(word);
  const auto known = [member](const Recipe& r) {
    return static_cast<std::size_t>(r.*member) < Names<Enum>::words.size();
  };
  return {name,
          help,
          values,
          [member, known](const Recipe& r) {
            return known(r) ? std::string(Names<Enum>::words[static_cast<std::size_t>(r.*member)])
                            : concat("number ", static_cast<std::int64_t>(r.*member));
          },
          [member](Recipe& r, std::string_view text) {
            for (std::size_t i = 0; i < Names<Enum>::words.size(); ++i) {
              if (text != Names<Enum>::words[i]) continue;
              r.*member = static_cast<Enum>(i);
              return true;
            }
            return false;
          },
          known};
}

Field bool_field(const char* name, bool Recipe::*member, const char* help) {
  return {name,
          help,
          "true|false",
          [member](const Recipe& r) { return std::string(r.*member ? "true" : "false"); },
          [member](Recipe& r, std::string_view text) {
            if (text != "true" && text != "false") return false;
            r.*member = text == "true";
            return true;
          },
          [](const Recipe&) { return true; }};
}

template <class Number>
Field number_field(const char* name, Number Recipe::*member, const char* help, Number least, Number most,
                   const char* values) {
  const auto within = [least, most](Number x) { return x >= least && x <= most; };  // NaN is not
  return {name,
          help,
          values,
          [member](const Recipe& r) { return concat(r.*member); },
          [member, within](Recipe& r, std::string_view text) {
            Number parsed{};
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
            if (error != std::errc{} || end != text.data() + text.size()) return false;
            if (!within(parsed)) return false;
            r.*member = parsed;
            return true;
          },
          [member, within](const Recipe& r) { return within(r.*member); }};
}

const std::vector<Field>& table() {
  constexpr const char* kRange = "a number from 2^-100 to 2^100";
  constexpr float kLeast = 0x1p-100F;
  constexpr float kMost = 0x1p100F;
  static const std::vector<Field> all{
      enum_field("qk_format", &Recipe::qk_format, "format of Q and K in the first product"),
      enum_field("qk_accumulator", &Recipe::qk_accumulator, "accumulator of the first product"),
      enum_field("q_group", &Recipe::q_group, "query rows that share a scale"),
      enum_field("k_group", &Recipe::k_group, "keys that share a scale"),
      number_field("q_range", &Recipe::q_range, "R: absmax of a group maps to it", kLeast, kMost, kRange),
      number_field("k_range", &Recipe::k_range, "R of the keys", kLeast, kMost, kRange),
      bool_field("smooth_k", &Recipe::smooth_k, "subtract the mean key of the sequence"),
      bool_field("smooth_q", &Recipe::smooth_q,
                 "subtract the mean of 128 query rows, add its product with K back in f32"),
      bool_field("smooth_v", &Recipe::smooth_v, "subtract the mean of each value channel, add it back to O"),
      enum_field("rotate", &Recipe::rotate,
                 "rotate Q and K, which leaves logits unchanged and spreads outlier channels"),
      number_field<std::uint64_t>("rotate_seed", &Recipe::rotate_seed, "seed of the rotation's signs", 0,
                                  ~std::uint64_t{0}, "a whole number from 0 to 2^64 - 1"),
      enum_field("p_format", &Recipe::p_format, "format of the weights in the second product"),
      enum_field("v_format", &Recipe::v_format, "format of V in the second product"),
      enum_field("v_scale", &Recipe::v_scale, "values that share a scale"),
      number_field("p_range", &Recipe::p_range, "P_r: a weight of 1 maps to it", kLeast, kMost, kRange),
      number_field("v_range", &Recipe::v_range, "V_r: absmax of a value group maps to it", kLeast, kMost,
                   kRange),
      number_field("slack", &Recipe::slack, "log2 of how far a lazily updated maximum may be exceeded", 0.0F,
                   16.0F, "a number from 0 to 16"),
      number_field("headroom", &Recipe::headroom,
                   "with slack, whole octaves above a tile's maximum, to which it is updated", 1, 8,
                   "a whole number from 1 to 8"),
      enum_field("pv_accumulator", &Recipe::pv_accumulator, "accumulator of the second product"),
      number_field("pv_buffer", &Recipe::pv_buffer,
                   "keys (f32_buffered) or k = 32 products (f16_buffered) before a sum moves to f32", 0,
                   1 << 24, "a whole number from 0 to 2^24"),
      enum_field("exp2", &Recipe::exp2, "how 2^x is computed"),
      number_field("mixed_direct", &Recipe::mixed_direct,
                   "n of mixed(n/m): of m groups of 8 keys, n are direct", 0, 64,
                   "a whole number from 0 to 64"),
      number_field("mixed_period", &Recipe::mixed_period, "m of mixed(n/m)", 1, 64,
                   "a whole number from 1 to 64"),
      enum_field("key_order", &Recipe::key_order, "order in which key tiles are walked"),
      enum_field("p_reference", &Recipe::p_reference, "maximum that weights are taken against"),
      enum_field("normaliser", &Recipe::normaliser,
                 "what O is divided by: the sum of weights before or after their rounding"),
      number_field("key_tile", &Recipe::key_tile, "keys a tile; 0 leaves it to the kernel", 0, 1 << 20,
                   "0 or a multiple of 32 up to 2^20"),
      bool_field("check_budget", &Recipe::check_budget,
                 "refuse ranges that can overflow; false shows what overflow does"),
  };
  return all;
}

}  // namespace

std::vector<RecipeField> fields(const Recipe& recipe) {
  std::vector<RecipeField> list;
  for (const Field& f : table()) list.push_back({f.name, f.get(recipe), f.values, f.help});
  return list;
}

Status check_fields(const Recipe& recipe) {
  for (const Field& f : table()) {
    if (!f.holds(recipe))
      return invalid_argument(
          concat("recipe field ", f.name, " = ", f.get(recipe), " is not possible; it takes ", f.values));
  }
  return {};
}

Status set_field(Recipe& recipe, std::string_view field, std::string_view value) {
  std::string known;
  for (const Field& f : table()) {
    if (field == f.name) {
      if (f.set(recipe, value)) return {};
      return invalid_argument(
          concat("recipe field ", field, " = '", value, "' is not possible; it takes ", f.values));
    }
    known.append(known.empty() ? "" : ", ").append(f.name);
  }
  return invalid_argument(concat("recipe field '", field, "' is not known; there are: ", known));
}

}  // namespace octavo
