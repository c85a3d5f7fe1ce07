#include "cpu/isa/avx2.hpp"

#include "cpu/isa_check.hpp"

namespace octavo::test {

std::string check_isa_avx2() { return IsaCheck<cpu::Avx2>::run(); }

}  // namespace octavo::test
