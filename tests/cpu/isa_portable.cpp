#include "cpu/isa/portable.hpp"

#include "cpu/isa_check.hpp"

namespace octavo::test {

std::string check_isa_portable() { return IsaCheck<cpu::Portable>::run(); }

}  // namespace octavo::test
