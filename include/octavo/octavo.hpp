// Everything a C++ user of Octavo needs.
#pragma once

#include "octavo/attention.hpp"  // IWYU pragma: export
#include "octavo/metrics.hpp"    // IWYU pragma: export
#include "octavo/quantize.hpp"   // IWYU pragma: export
#include "octavo/recipe.hpp"     // IWYU pragma: export
#include "octavo/status.hpp"     // IWYU pragma: export
#include "octavo/tensor.hpp"     // IWYU pragma: export
