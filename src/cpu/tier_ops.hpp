// From an instruction set's few primitives to its table of functions. Included by tiers/*.cpp only.
#pragma once

#include <cstring>

#include "cpu/attend.hpp"
#include "cpu/attend_cpu8.hpp"
#include "cpu/quantize.hpp"
#include "cpu/tier.hpp"
#include "cpu/values_cpu8.hpp"

namespace octavo::cpu {

/// Denormals flush to zero inside a kernel: weights far below the maximum would cost 60 times a normal one,
/// and GPUs flush too.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(saved_ | 0x8040U); }
  ~FlushDenormals() { __builtin_ia32_ldmxcsr(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned saved_;
};

template <class V>
struct TierFunctions {
  static bool quantize_float_values(const ValueJob& job) {
    const auto row_bytes = static_cast<std::size_t>(job.spec.channels) * sizeof(float);
    return Quantizer<V>::quantize_values(job, [&](std::int64_t n, const float* row) {
      std::memcpy(static_cast<std::byte*>(job.payload) + static_cast<std::size_t>(n) * row_bytes, row,
                  row_bytes);
    });
  }

  template <class Kernel>
  static void run(const TileJob& job) {
    const FlushDenormals flush;
    Kernel::run(job);
  }

  template <class Kernel>
  static AttentionOps float_values() {
    return {sizeof(float), quantize_float_values, Kernel::scratch_bytes, run<Kernel>};
  }

  static AttentionOps cpu8() {
    using Kernel = Cpu8Attention<V>;
    return {sizeof(typename Codes<V>::ValueElement), Cpu8Values<V>::quantize, Kernel::scratch_bytes,
            run<Kernel>};
  }

  static TierOps make(std::string_view name) {
    TierOps ops;
    ops.name = name;
    ops.rows = V::kLanes * V::kGroups;
    ops.query_bytes = sizeof(typename V::QueryElement);
    ops.key_bytes = sizeof(typename V::KeyElement);
    ops.query_sums = V::kKeyOffset != 0;
    ops.quantize_queries = Quantizer<V>::quantize_queries;
    ops.quantize_keys = Quantizer<V>::quantize_keys;
    ops.block_absmax = Quantizer<V>::block_absmax;
    ops.mean_of = Quantizer<V>::mean_of;
    ops.key_terms = Quantizer<V>::key_terms;
    ops.int8 = float_values<Attention<V, Int8Scores<V>, FloatValues<V>>>();
    ops.float32 = float_values<Attention<V, FloatScores<V>, FloatValues<V>>>();
    ops.cpu8 = cpu8();
    return ops;
  }
};

}  // namespace octavo::cpu
