// Writing a file under a temporary name and renaming it when it is complete.
#include "io/atomic_file.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "io/temporaries.hpp"
#include "io/text.hpp"

namespace octavo::io {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1}
                                     << 20U;  // large enough that a system call's cost vanishes
constexpr int kNameAttempts = 16;  // names are 64 random bits; a second attempt is already unheard of

Status failed(const std::string& path, const std::string& what, int error) {
  return io_error(printable(path, PATH_MAX) + ": " + what + ": " + errno_text(error));
}

Status refused(const std::string& path, const std::string& what) {
  return io_error(printable(path, PATH_MAX) + ": " + what +
                  "; supported are new names and existing regular files");
}

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }
  /// File systems with delayed errors (NFS quota) report them here. 0 or an errno.
  int close() {
    const int fd = fd_;
    fd_ = -1;
    return ::close(fd) == 0 || errno == EINTR ? 0 : errno;  // after EINTR Linux has closed it all the same
  }

 private:
  int fd_;
};

/// Holds SIGXFSZ back in this thread, so that a write beyond RLIMIT_FSIZE returns EFBIG instead of ending the
/// process.
class FileSizeSignalBlocked {
 public:
  FileSizeSignalBlocked() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~FileSizeSignalBlocked() {
    const timespec no_wait{};
    if (sigismember(&before_, SIGXFSZ) == 0) {
      while (sigtimedwait(&signal_, nullptr, &no_wait) == SIGXFSZ) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  FileSizeSignalBlocked(const FileSizeSignalBlocked&) = delete;
  FileSizeSignalBlocked& operator=(const FileSizeSignalBlocked&) = delete;

 private:
  sigset_t signal_{};
  sigset_t before_{};
};

class FileSink final : public Sink {
 public:
  FileSink(int fd, const std::string& path) : fd_(fd), path_(path) { buffer_.reserve(kBufferBytes); }

  Status append(const void* data, std::size_t bytes) override {
    const auto* source = static_cast<const std::byte*>(data);
    if (bytes > kBufferBytes - buffer_.size()) {
      if (Status s = flush(); !s.ok()) return s;
      if (bytes >= kBufferBytes) return write_all(source, bytes);
    }
    buffer_.insert(buffer_.end(), source, source + bytes);
    return {};
  }

  Status flush() {
    Status s = write_all(buffer_.data(), buffer_.size());
    buffer_.clear();
    return s;
  }

 private:
  Status write_all(const std::byte* data, std::size_t bytes) {
    while (bytes > 0) {
      const ssize_t n = ::write(fd_, data, bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return failed(path_, "cannot write", errno);
      data += n;
      bytes -= static_cast<std::size_t>(n);
    }
    return {};
  }

  int fd_;
  const std::string& path_;
  std::vector<std::byte> buffer_;
};

struct Target {
  std::string directory;
  std::string name;
};

Result<Target> split(const std::string& path) {
  if (path.empty()) return invalid_argument("the path of the file to write is empty");
  if (path.find('\0') != std::string::npos)
    return invalid_argument("path " + in_quotes(path) + " holds a NUL");
  const std::size_t slash = path.rfind('/');
  if (slash == path.size() - 1) return refused(path, "is a directory name");
  if (slash == std::string::npos) return Target{".", path};
  return Target{slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

/// NAME.tmp.PID.RANDOM, NAME cut where the whole would exceed what a directory can hold.
std::string temporary_name(const std::string& name) {
  std::uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) != static_cast<ssize_t>(sizeof random)) {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);  // early boot or an old kernel: unique enough, since O_EXCL decides
    random = static_cast<std::uint64_t>(now.tv_nsec);
  }
  std::array<char, 17> hex{};
  std::snprintf(hex.data(), hex.size(), "%016" PRIx64, random);
  const std::string suffix = ".tmp." + std::to_string(getpid()) + "." + hex.data();
  std::size_t kept = std::min(name.size(), static_cast<std::size_t>(NAME_MAX) - suffix.size());
  const auto continues = [&](std::size_t i) {
    return (static_cast<unsigned char>(name[i]) & 0xC0U) == 0x80U;
  };
  while (kept > 0 && kept < name.size() && continues(kept)) --kept;  // not inside a UTF-8 sequence
  return name.substr(0, kept) + suffix;
}

struct Permissions {
  mode_t at_creation = 0666;  ///< the system takes the umask off
  bool exact = false;  ///< set them again, umask or not, because they are those of the file being replaced
};

/// Permissions for the new file; an error if `name` is something that a rename must not replace.
Result<Permissions> permissions_for(int directory, const std::string& name, const std::string& path) {
  struct stat info {};
  if (fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno != ENOENT) return failed(path, "cannot write", errno);
    return Permissions{};
  }
  if (S_ISDIR(info.st_mode)) return refused(path, "is a directory");
  if (S_ISLNK(info.st_mode)) return refused(path, "is a symbolic link");
  if (!S_ISREG(info.st_mode)) return refused(path, "is not a regular file");
  if (faccessat(directory, name.c_str(), W_OK, AT_EACCESS) != 0) return failed(path, "cannot write", errno);
  return Permissions{static_cast<mode_t>(info.st_mode & 0777U), true};
}

Status write_to(int fd, Permissions permissions, const std::string& path,
                const std::function<Status(Sink&)>& fill) {
  FileSink sink(fd, path);
  if (Status s = fill(sink); !s.ok()) return s;
  if (Status s = sink.flush(); !s.ok()) return s;
  if (permissions.exact && fchmod(fd, permissions.at_creation) != 0) {
    return failed(path, "cannot set its permissions", errno);
  }
  if (fsync(fd) != 0) return failed(path, "cannot sync", errno);
  return {};
}

Status write_and_rename(const std::string& path, const std::function<Status(Sink&)>& fill) {
  const Result<Target> target = split(path);
  if (!target.ok()) return target.status();
  // A directory that may be searched and written but not listed opens as O_PATH only, and cannot be synced.
  const char* where = target->directory.c_str();
  int directory_fd = open(where, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory_fd < 0 && errno == EACCES) directory_fd = open(where, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (directory_fd < 0) return failed(path, "cannot open its directory", errno);
  const Descriptor directory(directory_fd);
  const Result<Permissions> permissions = permissions_for(directory.get(), target->name, path);
  if (!permissions.ok()) return permissions.status();

  const FileSizeSignalBlocked guard;
  for (int attempt = 0;; ++attempt) {
    Temporary temporary(directory.get(), temporary_name(target->name));
    Descriptor file(openat(directory.get(), temporary.name().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                           permissions->at_creation));
    if (file.get() < 0) {
      const int error = errno;
      temporary.release();
      if (error == EEXIST && attempt < kNameAttempts) continue;
      return failed(path, "cannot create a file in its directory", error);
    }
    if (Status s = write_to(file.get(), *permissions, path, fill); !s.ok()) return s;
    if (const int error = file.close(); error != 0) return failed(path, "cannot write", error);
    if (renameat(directory.get(), temporary.name().c_str(), directory.get(), target->name.c_str()) != 0) {
      return failed(path, "cannot rename the complete file to it", errno);
    }
    temporary.release();
    break;
  }
  // Some file systems cannot sync directories and say so with these; the rename is then as durable as it
  // gets.
  if (fsync(directory.get()) != 0 && errno != EINVAL && errno != EBADF && errno != EROFS) {
    return failed(path, "written, but its directory cannot be synced", errno);
  }
  return {};
}

}  // namespace

Status write_atomically(const std::string& path, const std::function<Status(Sink&)>& fill) {
  try {
    return write_and_rename(path, fill);
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "out of memory"};  // short enough to need no allocation
  } catch (const std::exception& error) {
    return {StatusCode::internal, error.what()};
  }
}

Status write_text(const std::string& path, std::string_view text) {
  return write_atomically(path, [&](Sink& sink) { return sink.append(text.data(), text.size()); });
}

}  // namespace octavo::io
