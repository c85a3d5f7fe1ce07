#include "cuda/auto_recipe.hpp"

#include "core/text.hpp"

namespace octavo {
namespace {

constexpr std::int64_t kShort = 1024;  // keys below which quantizing costs more than 8-bit products save

}  // namespace

Result<Recipe> auto_recipe_cuda(const Problem& p, std::string& reason) {
  if (!p.options.mask.empty() || !p.options.bias.empty()) {
    reason = "auto: half, since reading a mask or bias takes longer than the products";
    return recipe("half");
  }
  if (p.kv_len < kShort) {
    reason = concat("auto: half, since below ", kShort, " keys quantizing costs more than it saves");
    return recipe("half");
  }
  // At 64 channels the exponentials set the pace, and 16-bit queries and keys cost nothing beside them.
  const char* name = p.head_dim <= 64 ? "turbo16" : "turbo8";
  reason = concat("auto: ", name, " is the fastest accurate recipe at head_dim ", p.head_dim);
  return recipe(name);
}

}  // namespace octavo
