// A recipe is data: one field per idea. docs/numerics.md says exactly what each value means.
//
// Presets are named recipes; every field can be overridden by name, so a command line, a test and a kernel
// table speak about the same thing. A kernel either runs a recipe as written or refuses it: no field is ever
// ignored.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/export.hpp"
#include "octavo/status.hpp"

namespace octavo {

/// Number formats of the operands of the two products.
enum class Format : std::uint8_t {
  input,  ///< the caller's values, unrounded (the exact reference)
  f16,
  bf16,
  e4m3,
  int8,
  int4,
  u8,  ///< unsigned, weights only
};

/// Which elements share one scale. Blocks start at row or key 0 of each sequence.
enum class Granularity : std::uint8_t {
  none,        ///< nothing is scaled (16-bit and input formats)
  per_head,    ///< one scale for a batch entry and head
  per_block,   ///< 128 query rows, 64 keys
  per_warp,    ///< 32 query rows, 64 keys
  per_thread,  ///< in 32 rows, rows equal mod 8; in 64 keys, keys with equal floor((n mod 8) / 2)
  per_token,   ///< one scale for a row or key
};

enum class ValueScale : std::uint8_t { none, per_channel, per_head };
enum class QkAccumulator : std::uint8_t { f64, f32, f16, s32 };
enum class PvAccumulator : std::uint8_t {
  f64,
  f32,
  f32_buffered,  ///< at most `pv_buffer` keys, then added to a running f32 sum
  f16_buffered,  ///< `pv_buffer` products of k = 32 in f16, then added in f32
  s32,           ///< exact, one key tile at a time
};
enum class Exp2 : std::uint8_t { exact, direct, mixed, table };
enum class KeyOrder : std::uint8_t { forward, reverse };
enum class PReference : std::uint8_t { running, tile_max };
enum class Normaliser : std::uint8_t { unquantized, quantized };
enum class Rotation : std::uint8_t { none, hadamard };

struct Recipe {
  std::string name = "custom";

  Format qk_format = Format::int8;
  QkAccumulator qk_accumulator = QkAccumulator::s32;
  Granularity q_group = Granularity::per_thread;
  Granularity k_group = Granularity::per_thread;
  float q_range = 127.0F;  ///< R: e4m3 448 or less, int8 127, int4 7
  float k_range = 127.0F;

  bool smooth_k = true;
  bool smooth_q = false;  ///< mean of 128 query rows
  bool smooth_v = false;
  Rotation rotate = Rotation::none;
  std::uint64_t rotate_seed = 0x0c7a0;  ///< of the Hadamard matrix's sign vector

  Format p_format = Format::e4m3;
  Format v_format = Format::e4m3;
  ValueScale v_scale = ValueScale::per_channel;
  float p_range = 448.0F;  ///< P_r
  float v_range = 448.0F;  ///< V_r
  float slack = 0.0F;      ///< log2 of how far a lazily updated maximum may be exceeded
  int headroom = 1;        ///< with slack: whole octaves above a tile's maximum, to which it is updated

  PvAccumulator pv_accumulator = PvAccumulator::f32_buffered;
  int pv_buffer = 128;  ///< keys (f32_buffered) or k = 32 products (f16_buffered)
  Exp2 exp2 = Exp2::exact;
  int mixed_direct = 4;  ///< n and m of mixed(n/m)
  int mixed_period = 8;
  KeyOrder key_order = KeyOrder::forward;
  PReference p_reference = PReference::running;
  Normaliser normaliser = Normaliser::unquantized;
  int key_tile = 0;          ///< keys a tile; 0 leaves it to the kernel, which fills it in
  bool check_budget = true;  ///< false only to show what overflow does

  bool operator==(const Recipe&) const = default;
};

/// One field of a recipe, for command lines, JSON and documentation.
struct RecipeField {
  std::string name;
  std::string value;   ///< of the recipe asked about
  std::string values;  ///< what can be set: "int8|int4|e4m3|f16|bf16|input", "a number > 0", ...
  std::string help;
};

struct Preset {
  std::string name;
  std::string summary;
  std::string source;
};

/// Every preset, in the order of docs/numerics.md, `auto` last.
OCTAVO_API const std::vector<Preset>& presets();

/// The preset of that name, or an error that lists the names there are. "auto" is a recipe too: `plan`
/// replaces it.
OCTAVO_API Result<Recipe> recipe(std::string_view name);

/// Sets one field from text ("p_range", "224"). The error names the field, the value and what can be set.
OCTAVO_API Status set_field(Recipe& recipe, std::string_view field, std::string_view value);

/// The fields of a recipe with their values, in the order of the struct.
OCTAVO_API std::vector<RecipeField> fields(const Recipe& recipe);

/// Checks that the fields fit together and that no accumulator can overflow (range budgets of
/// docs/numerics.md); the error names the bound. `head_dim` <= 0 leaves out the bounds that depend on it.
OCTAVO_API Status check(const Recipe& recipe, std::int64_t head_dim = 0);

/// The range budget of a recipe in words, for `octavo recipes NAME`.
OCTAVO_API std::string describe_budget(const Recipe& recipe);

}  // namespace octavo
