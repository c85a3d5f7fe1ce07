// The table itself, made from kernels.inc.
#include <array>

#include "core/kernel.hpp"

namespace octavo {

#define OCTAVO_KERNEL(function) const Kernel& function();
#include "core/kernels.inc"
#undef OCTAVO_KERNEL

std::span<const Kernel* const> kernel_table() {
  static const auto table = std::to_array<const Kernel*>({
#define OCTAVO_KERNEL(function) &function(),
#include "core/kernels.inc"
#undef OCTAVO_KERNEL
  });
  return table;
}

std::vector<KernelInfo> kernels() {
  std::vector<KernelInfo> list;
  for (const Kernel* k : kernel_table()) {
    list.push_back({std::string(k->name), std::string(k->backend), std::string(k->tier), std::string(k->file),
                    std::string(k->summary), k->available()});
  }
  return list;
}

}  // namespace octavo
