// Table of temporary files and the signal handler that removes them.
#include "io/temporaries.hpp"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <climits>
#include <csignal>
#include <cstring>
#include <utility>

#include "io/atomic_file.hpp"

namespace octavo::io {
namespace {

// A handler can reach nothing but globals; this is the one piece of global state in octavo, and it holds no
// results.
struct Slot {
  enum State : int { kFree, kClaimed, kArmed };
  std::atomic<int> state{kFree};
  int directory = -1;
  pid_t owner = 0;  ///< a forked child inherits the table, but not the duty
  std::array<char, NAME_MAX + 1> name{};
};
static_assert(std::atomic<int>::is_always_lock_free, "the handler must not block");

constexpr std::size_t kSlots =
    64;  // files written at once; far above what one process does, and 18 KB of memory
constinit std::array<Slot, kSlots> slots{};

int claim_slot(int directory, const std::string& name) {
  if (name.size() > NAME_MAX) return -1;
  for (std::size_t i = 0; i < kSlots; ++i) {
    Slot& slot = slots[i];
    int expected = Slot::kFree;
    if (!slot.state.compare_exchange_strong(expected, Slot::kClaimed)) continue;
    slot.directory = directory;
    slot.owner = getpid();
    slot.name.fill('\0');
    std::memcpy(slot.name.data(), name.data(), name.size());
    slot.state.store(Slot::kArmed);
    return static_cast<int>(i);
  }
  return -1;
}

// Only async-signal-safe calls: getpid, unlinkat, raise. SA_RESETHAND has restored the default action, so
// raise ends the process with the status its parent expects. A thread that is between arming its slot and
// creating the file while another thread runs this can still leave a file behind; a program whose main thread
// writes and takes the signals has no such window.
void remove_and_die(int signal_number) {
  const pid_t self = getpid();
  for (const Slot& slot : slots) {
    if (slot.state.load() == Slot::kArmed && slot.owner == self)
      unlinkat(slot.directory, slot.name.data(), 0);
  }
  std::raise(signal_number);
}

}  // namespace

Temporary::Temporary(int directory, std::string name)
    : directory_(directory), name_(std::move(name)), slot_(claim_slot(directory_, name_)) {}

Temporary::~Temporary() {
  if (active_) unlinkat(directory_, name_.c_str(), 0);
  release();
}

void Temporary::release() {
  if (slot_ >= 0) slots[static_cast<std::size_t>(slot_)].state.store(Slot::kFree);
  slot_ = -1;
  active_ = false;
}

void remove_temporaries_on_signal() {
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    struct sigaction current {};
    if (sigaction(signal_number, nullptr, &current) != 0) continue;
    // With SA_SIGINFO the union holds another member, which is never SIG_IGN.
    if ((current.sa_flags & SA_SIGINFO) == 0 && current.sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = remove_and_die;
    action.sa_flags = static_cast<int>(SA_RESETHAND | static_cast<unsigned>(SA_NODEFER));
    sigemptyset(&action.sa_mask);
    sigaction(signal_number, &action, nullptr);
  }
}

}  // namespace octavo::io
