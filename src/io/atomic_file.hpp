// Files that appear complete or not at all: written under a temporary name in the target's directory, synced,
// then renamed.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "octavo/status.hpp"

namespace octavo::io {

/// Where the content of a file goes; buffered.
class Sink {
 public:
  Sink() = default;
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;
  virtual ~Sink() = default;
  /// io_error with the system's reason when the bytes cannot be written; the caller then gives up.
  virtual Status append(const void* data, std::size_t bytes) = 0;
};

/// Calls `fill` to produce the content of `path`.
///
/// Target: a name in an existing directory that is free or is a regular file this process may write. Symbolic
/// links, directories and devices (/dev/stdout, /dev/full) are refused, because a rename would replace the
/// link or the device instead of writing to what it stands for. An existing file keeps its permission bits;
/// hard links to it keep the old content.
///
/// On failure the temporary file is removed, an existing target stays as it was, and the Status names the
/// path and the system's reason. One exception: when only the final sync of the directory fails, the new file
/// is in place and the error says so. A file size limit (RLIMIT_FSIZE) is an error like a full disk: SIGXFSZ
/// is held back meanwhile. Temporary files are called NAME.tmp.PID.RANDOM.
Status write_atomically(const std::string& path, const std::function<Status(Sink&)>& fill);

/// Atomic write of any text (JSON reports, tables).
Status write_text(const std::string& path, std::string_view text);

/// Removes the temporary files of writes in progress when the process gets SIGINT, SIGTERM, SIGHUP or
/// SIGQUIT, then dies of that signal as it would have. For programs, not libraries: it replaces the handlers
/// of these signals, except where a signal is ignored (nohup), which stays. At most 64 files at a time are
/// covered.
void remove_temporaries_on_signal();

}  // namespace octavo::io
