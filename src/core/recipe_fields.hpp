#pragma once

#include "octavo/recipe.hpp"

namespace octavo {

/// Does every field hold one of the values that set_field() takes? A Recipe is a plain struct: C++ callers
/// can write anything into it.
Status check_fields(const Recipe& recipe);

}  // namespace octavo
