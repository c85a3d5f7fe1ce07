#include "cpu/isa/avx512.hpp"

#include "cpu/isa_check.hpp"

namespace octavo::test {

std::string check_isa_avx512() { return IsaCheck<cpu::Avx512>::run(); }

}  // namespace octavo::test
