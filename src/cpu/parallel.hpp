// One way to use several threads: independent items, whose results do not depend on which thread runs them or
// how many there are.
#pragma once

#include <cstdint>
#include <functional>

namespace octavo::cpu {

/// Processors this process may run on (its affinity mask), at least 1.
int default_threads();

/// Runs body(item, thread) for every item in [0, items); thread < threads names a scratch area nobody else
/// uses at that moment. Items are handed out in order, one at a time. An exception of a body is rethrown here
/// after all threads have stopped.
void parallel_for(int threads, std::int64_t items,
                  const std::function<void(std::int64_t item, int thread)>& body);

}  // namespace octavo::cpu
