// What recipe `auto` stands for on a GPU.
#pragma once

#include <string>

#include "octavo/attention.hpp"

namespace octavo {

/// A preset by head dim and length; `reason` says which and why.
Result<Recipe> auto_recipe_cuda(const Problem& problem, std::string& reason);

}  // namespace octavo
