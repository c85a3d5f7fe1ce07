// reference.emulate: the emulator as a kernel of the table, and as a call of its own with hooks.
#include "reference/emulate.hpp"

#include <vector>

#include "cpu/parallel.hpp"
#include "reference/emulate_layout.hpp"

namespace octavo {
namespace reference {

Recipe with_key_tile(Recipe recipe) {
  if (recipe.key_tile != 0) return recipe;
  // What the kernels use, so that an emulated error is theirs: 128 keys for the FP8 kernels, 64 for the INT8
  // and 16-bit ones, 256 for the s32 products of the CPU, whose sums of 256 * 255 * 127 stay far inside 32
  // bits.
  recipe.key_tile = recipe.exp2 == Exp2::table ? 256 : recipe.qk_format == Format::e4m3 ? 128 : 64;
  return recipe;
}

std::size_t kv_buffer_bytes(const Problem& problem, const Recipe& recipe) {
  return KvLayout(problem, recipe, problem.kv_heads).bytes();
}
std::size_t q_buffer_bytes(const Problem& problem, const Recipe& recipe) {
  return QLayout(problem, recipe).bytes();
}

Status emulate_rows(const Problem& problem, const Recipe& recipe, const TensorView& q, const TensorView& k,
                    const TensorView& v, const RowLists& rows, const MutableTensorView& out,
                    const MutableTensorView& lse, const EmulateHooks& hooks) {
  if (Status s = check(recipe, problem.head_dim); !s.ok()) return s;
  if (Status s = check_rows(problem, rows); !s.ok()) return s;
  const Recipe effective = with_key_tile(recipe);
  const KernelCall call{problem, effective, nullptr,
                        problem.options.threads > 0 ? problem.options.threads : cpu::default_threads()};
  std::vector<std::byte> kv(kv_buffer_bytes(problem, effective));
  std::vector<std::byte> qq(q_buffer_bytes(problem, effective));
  const KvBuffer buffer{kv.data(), problem.kv_heads, 0};
  if (Status s = quantize_kv(call, k, v, kv.data()); !s.ok()) return s;
  if (Status s = quantize_q(call, q, buffer, qq.data()); !s.ok()) return s;
  return attend(call, qq.data(), buffer, rows, out, lse, hooks);
}

namespace {

Status accepts(const Problem& problem, const Recipe&) {
  if (problem.device.kind == Device::Kind::cpu) return {};
  return unsupported("q is on a GPU; reference.emulate takes tensors in main memory");
}

Status attend_kernel(const KernelCall& call, const std::byte* qq, const KvBuffer& kv,
                     const MutableTensorView& out, const MutableTensorView& lse, std::byte* /*workspace*/) {
  return attend(call, qq, kv, {}, out, lse, {});
}

}  // namespace
}  // namespace reference

const Kernel& reference_emulate() {
  static const Kernel kernel{
      .name = "reference.emulate",
      .backend = "reference",
      .tier = "scalar",
      .file = "src/reference/emulate.cpp",
      .summary = "every recipe, step by step as docs/numerics.md says; every head dim",
      .rank = 2,  // below every kernel that is made for speed
      .available = [] { return true; },
      .accepts = reference::accepts,
      .effective = [](const Problem&, Recipe r) { return reference::with_key_tile(std::move(r)); },
      .kv_bytes = reference::kv_buffer_bytes,
      .q_bytes = reference::q_buffer_bytes,
      .workspace_bytes = [](const Problem&, const Recipe&, int) { return std::size_t{0}; },
      .quantize_kv = reference::quantize_kv,
      .quantize_q = reference::quantize_q,
      .attend = reference::attend_kernel,
  };
  return kernel;
}

}  // namespace octavo
