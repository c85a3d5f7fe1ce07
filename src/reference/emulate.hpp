// The emulator: walks any recipe step by step, tile by tile, exactly as docs/numerics.md says. It is the
// definition that every kernel is tested against, and the tool to find out which step of a recipe an error
// comes from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "core/kernel.hpp"
#include "octavo/attention.hpp"
#include "reference/rows.hpp"

namespace octavo {

/// Table entries: the f64 reference, and the emulator of every recipe.
const Kernel& reference_exact();
const Kernel& reference_emulate();

}  // namespace octavo

namespace octavo::reference {

/// Ways to look into the walk. A logit is s2: base 2, scaled, bias and the smooth_q term included, -infinity
/// where hidden.
struct EmulateHooks {
  /// Logits to use in place of the computed ones, f32 [q_len, k_len] of that sequence and query head; null
  /// computes them. Hidden keys stay hidden. After an f16 QK accumulator the accumulator is recovered from
  /// the logit.
  std::function<const float*(std::int64_t sequence, std::int64_t head)> logits_in{};
  /// Receives the logits used, f32 [q_len, k_len]; only visited rows are written, -infinity in hidden keys.
  std::function<float*(std::int64_t sequence, std::int64_t head)> logits_out{};
};

/// Runs a recipe through the emulator. q, k, v as in make_problem(); out f32 or q's dtype, lse f32 or empty.
/// Only the rows listed (see RowLists) are computed and written, all scales still come from the whole
/// tensors. Errors: what check(recipe) refuses, rows that do not exist, NaN or Inf when
/// problem.check_finite.
Status emulate_rows(const Problem& problem, const Recipe& recipe, const TensorView& q, const TensorView& k,
                    const TensorView& v, const RowLists& rows, const MutableTensorView& out,
                    const MutableTensorView& lse, const EmulateHooks& hooks = {});

/// The same for the f64 reference: softmax attention of the unquantized inputs.
Status exact_rows(const Problem& problem, const TensorView& q, const TensorView& k, const TensorView& v,
                  const RowLists& rows, const MutableTensorView& out, const MutableTensorView& lse);

// The steps, also those of reference.exact (whose operands are the unrounded inputs). `recipe` is effective.
Recipe with_key_tile(Recipe recipe);
std::size_t kv_buffer_bytes(const Problem& problem, const Recipe& recipe);
std::size_t q_buffer_bytes(const Problem& problem, const Recipe& recipe);
Status quantize_kv(const KernelCall& call, const TensorView& k, const TensorView& v, std::byte* kv);
Status quantize_q(const KernelCall& call, const TensorView& q, const KvBuffer& kv, std::byte* qq);
Status attend(const KernelCall& call, const std::byte* qq, const KvBuffer& kv, const RowLists& rows,
              const MutableTensorView& out, const MutableTensorView& lse, const EmulateHooks& hooks);

}  // namespace octavo::reference
