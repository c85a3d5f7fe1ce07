// The amx tier: both products on tiles (cpu/amx), the softmax on AVX-512 (isa/amx.hpp).
//
//   int8     s8 scores on tiles, second product in bf16
//   float32  bf16 and e4m3 scores in bf16, same second product. f16 does not fit bf16: the avx512 tier runs
//   it cpu8     both products in integers
#include "cpu/isa/amx.hpp"

#include "cpu/amx/tile_cpu8.hpp"
#include "cpu/amx/tile_pack.hpp"
#include "cpu/amx/tile_scores.hpp"
#include "cpu/amx/tile_values.hpp"
#include "cpu/tier_ops.hpp"

namespace octavo::cpu {
namespace {

using V = Amx;
using Packing = TilePacking<V>;

template <class Kernel>
void run(const TileJob& job) {
  const FlushDenormals flush;
  const V::Tiles::Scope tiles;
  Kernel::run(job);
}

template <class Kernel>
AttentionOps bfloat_ops() {
  AttentionOps ops;
  ops.value_bytes = 2;
  ops.quantize_values = Packing::quantize_bfloat_values;
  ops.scratch_bytes = Kernel::scratch_bytes;
  ops.run = run<Kernel>;
  ops.f16_queries = false;
  ops.f16_values = false;
  return ops;
}

AttentionOps cpu8_ops() {
  using Kernel = TileCpu8<V>;
  AttentionOps ops;
  ops.value_bytes = 1;
  ops.quantize_values = Packing::quantize_s8_values;
  ops.scratch_bytes = Kernel::scratch_bytes;
  ops.run = run<Kernel>;
  return ops;
}

}  // namespace

const TierOps& amx_tier() {
  static const TierOps ops = [] {
    TierOps made = TierFunctions<V>::make("amx");
    made.quantize_queries = Packing::quantize_queries;
    made.quantize_keys = Packing::quantize_keys;
    made.int8 = bfloat_ops<Attention<V, Int8Scores<V>, TileValues<V>>>();
    made.float32 = bfloat_ops<Attention<V, FloatScores<V>, TileValues<V>>>();
    made.cpu8 = cpu8_ops();
    return made;
  }();
  return ops;
}

}  // namespace octavo::cpu
