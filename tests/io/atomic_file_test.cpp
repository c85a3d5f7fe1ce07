// A write either gives the whole file or changes nothing, on every failure and on signals.
#include "io/atomic_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "io/safetensors.hpp"
#include "io/temporaries.hpp"
#include "io/test_files.hpp"
#include "io/text.hpp"

namespace octavo::io {
namespace {

using testing::read_bytes;
using testing::TemporaryDirectory;
using testing::write_bytes;

using Names = std::vector<std::string>;

void expect_io_error(const Status& s, const std::string& path, const std::string& expected) {
  EXPECT_EQ(s.code(), StatusCode::io_error) << s.message();
  EXPECT_TRUE(s.message().starts_with(path + ": ")) << s.message();
  EXPECT_NE(s.message().find(expected), std::string::npos) << s.message();
}

mode_t mode_of(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(stat(path.c_str(), &info), 0);
  return info.st_mode & 07777U;
}

TEST(AtomicFile, WritesNewFilesAndReplacesOldOnes) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(write_text(directory / "t", "first, and longer").ok());
  EXPECT_EQ(read_bytes(directory / "t"), "first, and longer");
  ASSERT_TRUE(write_text(directory / "t", std::string("a\0b", 3)).ok());
  EXPECT_EQ(read_bytes(directory / "t"), std::string("a\0b", 3));
  ASSERT_TRUE(write_text(directory / "t", "").ok());
  EXPECT_EQ(read_bytes(directory / "t"), "");
  EXPECT_EQ(directory.names(), Names{"t"});
}

TEST(AtomicFile, ReadersSeeTheOldFileUntilTheNewOneIsComplete) {
  const TemporaryDirectory directory;
  write_bytes(directory / "t", "old");
  const Status s = write_atomically(directory / "t", [&](Sink& sink) {
    const std::string part(std::size_t{3} << 20U, 'n');  // beyond the buffer: it is on disk by now
    Status written = sink.append(part.data(), part.size());
    EXPECT_EQ(read_bytes(directory / "t"), "old");
    const Names names = directory.names();
    EXPECT_EQ(names.size(), 2U);
    EXPECT_TRUE(names.back().starts_with("t.tmp." + std::to_string(getpid()) + ".")) << names.back();
    return written;
  });
  ASSERT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(read_bytes(directory / "t").size(), std::size_t{3} << 20U);
  EXPECT_EQ(directory.names(), Names{"t"});
}

TEST(AtomicFile, PermissionsFollowTheUmaskOrTheFileReplaced) {
  const TemporaryDirectory directory;
  const mode_t before = umask(027);
  const Status fresh = write_text(directory / "new", "x");
  write_bytes(directory / "old", "x");
  ASSERT_EQ(chmod((directory / "old").c_str(), 0606), 0);
  const Status replaced = write_text(directory / "old", "y");
  umask(before);
  ASSERT_TRUE(fresh.ok() && replaced.ok());
  EXPECT_EQ(mode_of(directory / "new"), 0640U);
  EXPECT_EQ(mode_of(directory / "old"), 0606U);
}

TEST(AtomicFile, LongNamesAreWritten) {
  std::string accents;
  for (int i = 0; i < 127; ++i) accents += "é";
  // 254 and 255 bytes, so that the temporary name must be cut; one of the two cuts would fall inside a
  // character.
  for (const std::string& name : {accents, "a" + accents}) {
    const TemporaryDirectory directory;
    const Status s = write_atomically(directory / name, [&](Sink& sink) {
      const Names names = directory.names();
      EXPECT_EQ(names.size(), 1U);
      for (const std::string& n : names) EXPECT_FALSE(first_invalid_utf8(n)) << printable(n);
      return sink.append("x", 1);
    });
    ASSERT_TRUE(s.ok()) << s.message();
    EXPECT_EQ(directory.names(), Names{name});
  }
  const TemporaryDirectory directory;
  const std::string beyond = directory / std::string(256, 'n');
  expect_io_error(write_text(beyond, "x"), beyond, "File name too long");
}

TEST(AtomicFile, RelativePathsWork) {
  const TemporaryDirectory directory;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  const Status s = write_text("t", "x");
  std::filesystem::current_path(before);
  ASSERT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(read_bytes(directory / "t"), "x");
}

TEST(AtomicFile, OnlyRegularFilesAreReplaced) {
  const TemporaryDirectory directory;
  const std::string other = "; supported are new names and existing regular files";
  std::filesystem::create_directory(directory / "dir");
  write_bytes(directory / "real", "real");
  std::filesystem::create_symlink("real", directory / "link");
  std::filesystem::create_symlink("nowhere", directory / "dangling");
  ASSERT_EQ(mkfifo((directory / "fifo").c_str(), 0600), 0);
  const Names before = directory.names();

  expect_io_error(write_text(directory / "dir", "x"), directory / "dir", "is a directory" + other);
  expect_io_error(write_text((directory / "dir") + "/", "x"), (directory / "dir") + "/",
                  "is a directory name" + other);
  expect_io_error(write_text((directory / "dir") + "/..", "x"), (directory / "dir") + "/..",
                  "is a directory" + other);
  expect_io_error(write_text(directory / "link", "x"), directory / "link", "is a symbolic link" + other);
  expect_io_error(write_text(directory / "dangling", "x"), directory / "dangling",
                  "is a symbolic link" + other);
  expect_io_error(write_text(directory / "fifo", "x"), directory / "fifo", "is not a regular file" + other);
  expect_io_error(write_text("/dev/full", "x"), "/dev/full", "is not a regular file" + other);
  expect_io_error(write_text("/dev/stdout", "x"), "/dev/stdout", "is a symbolic link" + other);
  expect_io_error(write_safetensors("/dev/null", {}), "/dev/null", "is not a regular file" + other);

  EXPECT_EQ(directory.names(), before);
  EXPECT_EQ(read_bytes(directory / "real"), "real");
}

TEST(AtomicFile, DirectoriesThatCannotBeWrittenAreAnError) {
  const TemporaryDirectory directory;
  write_bytes(directory / "file", "kept");
  expect_io_error(write_text(directory / "none/t", "x"), directory / "none/t", "No such file or directory");
  expect_io_error(write_text(directory / "file/t", "x"), directory / "file/t", "Not a directory");
  expect_io_error(write_text("/proc/t", "x"), "/proc/t", "(errno ");  // not even root can create files there
  EXPECT_EQ(write_text("", "x").code(), StatusCode::invalid_argument);
  EXPECT_EQ(write_text((directory / "a") + std::string("\0b", 2), "x").code(), StatusCode::invalid_argument);
  EXPECT_EQ(read_bytes(directory / "file"), "kept");
  EXPECT_EQ(directory.names(), Names{"file"});
}

TEST(AtomicFile, PermissionsAreRespected) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const TemporaryDirectory directory;
  write_bytes(directory / "read_only", "kept");
  ASSERT_EQ(chmod((directory / "read_only").c_str(), 0444), 0);
  expect_io_error(write_text(directory / "read_only", "x"), directory / "read_only", "Permission denied");
  EXPECT_EQ(read_bytes(directory / "read_only"), "kept");
  ASSERT_EQ(chmod(directory.path().c_str(), 0555), 0);
  const Status s = write_text(directory / "t", "x");
  ASSERT_EQ(chmod(directory.path().c_str(), 0755), 0);
  expect_io_error(s, directory / "t", "Permission denied");
  EXPECT_EQ(directory.names(), Names{"read_only"});
}

/// Lowers RLIMIT_FSIZE for a scope: writes beyond it fail as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit now = before_;
    now.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

TEST(AtomicFile, AFullDiskLeavesTheOldFileAndNothingElse) {
  const TemporaryDirectory directory;
  const std::vector<float> data(1 << 20, 1.0F);
  const NamedTensor q{"q", {data.data(), DType::f32, {1 << 20}}};
  write_bytes(directory / "t", "old");
  Status replaced;
  Status fresh;
  Status at_flush;
  {
    // SIGXFSZ has its default action here, which would end this program.
    const FileSizeLimit limit(1000);
    replaced = write_safetensors(directory / "t", {&q, 1});
    fresh = write_safetensors(directory / "new", {&q, 1});
    at_flush =
        write_text(directory / "new", std::string(2000, 'x'));  // fits the buffer: fails when that is flushed
  }
  expect_io_error(replaced, directory / "t", "cannot write: File too large (errno 27)");
  expect_io_error(fresh, directory / "new", "cannot write: File too large (errno 27)");
  expect_io_error(at_flush, directory / "new", "cannot write: File too large (errno 27)");
  EXPECT_EQ(read_bytes(directory / "t"), "old");
  EXPECT_EQ(directory.names(), Names{"t"});
  sigset_t pending{};
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGXFSZ), 0);
  EXPECT_TRUE(write_safetensors(directory / "t", {&q, 1}).ok()) << "the next write is not affected";
}

TEST(AtomicFile, WhatTheProducerReportsOrThrowsBecomesTheStatus) {
  const TemporaryDirectory directory;
  write_bytes(directory / "t", "old");
  const std::string path = directory / "t";
  const auto with = [&](const std::function<void()>& act) {
    return write_atomically(path, [&](Sink& sink) {
      Status s = sink.append("part", 4);
      act();
      return s.ok() ? unsupported("no") : s;
    });
  };
  EXPECT_EQ(with([] {}).code(), StatusCode::unsupported);
  EXPECT_EQ(with([] { throw std::bad_alloc(); }).code(), StatusCode::out_of_memory);
  EXPECT_EQ(with([] { throw std::runtime_error("thrown"); }).message(), "thrown");
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(directory.names(), Names{"t"});
}

TEST(AtomicFile, WritersOfOneNameDoNotMix) {
  const TemporaryDirectory directory;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string text(100'000, static_cast<char>('a' + t));
      for (int i = 0; i < 10; ++i) EXPECT_TRUE(write_text(directory / "t", text).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = read_bytes(directory / "t");
  EXPECT_EQ(text, std::string(100'000, text.at(0)));
  EXPECT_EQ(directory.names(), Names{"t"});
}

TEST(AtomicFile, ADirectoryThatIsReplacedMidwayIsAnError) {
  const TemporaryDirectory directory;
  const Status s = write_atomically(directory / "t", [&](Sink& sink) {
    std::filesystem::create_directory(directory / "t");  // after the check of the target
    return sink.append("x", 1);
  });
  expect_io_error(s, directory / "t", "cannot rename");
  EXPECT_EQ(directory.names(), Names{"t"});
}

/// Runs `child` in a process of its own and gives its wait status.
template <class Child>
int status_of(const Child& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    child();
    _exit(99);
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}

void expect_killed_by(int status, int signal_number) {
  EXPECT_TRUE(WIFSIGNALED(status)) << "wait status " << status;
  EXPECT_EQ(WTERMSIG(status), signal_number);
}

TEST(Signals, RemoveTemporariesThenEndTheProcess) {
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    const TemporaryDirectory directory;
    write_bytes(directory / "t", "old");
    const int status = status_of([&] {
      const rlimit no_core{};
      setrlimit(RLIMIT_CORE, &no_core);
      remove_temporaries_on_signal();
      (void)write_atomically(directory / "t", [&](Sink& sink) {
        const std::string part(std::size_t{2} << 20U, 'n');
        (void)sink.append(part.data(), part.size());
        if (directory.names().size() != 2) _exit(98);
        std::raise(signal_number);
        return Status{};
      });
    });
    expect_killed_by(status, signal_number);
    EXPECT_EQ(read_bytes(directory / "t"), "old");
    EXPECT_EQ(directory.names(), Names{"t"}) << "signal " << signal_number;
  }
}

TEST(Signals, FromOutsideDuringALongWrite) {
  const TemporaryDirectory directory;
  const std::byte zero{};
  TensorView huge(&zero, DType::u8, {std::int64_t{1} << 36});
  huge.strides[0] = 0;  // 64 GB out of one byte: cannot be complete when the signal comes
  const pid_t pid = fork();
  if (pid == 0) {
    remove_temporaries_on_signal();
    const NamedTensor q{"q", huge};
    (void)write_safetensors(directory / "t", {&q, 1});
    _exit(99);
  }
  for (int i = 0; i < 10'000 && directory.names().empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(directory.names().size(), 1U);
  kill(pid, SIGTERM);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  expect_killed_by(status, SIGTERM);
  EXPECT_EQ(directory.names(), Names{});
}

TEST(Signals, IgnoredSignalsStayIgnored) {  // nohup
  const TemporaryDirectory directory;
  const int status = status_of([&] {
    std::signal(SIGHUP, SIG_IGN);
    remove_temporaries_on_signal();
    const Status s = write_atomically(directory / "t", [&](Sink& sink) {
      std::raise(SIGHUP);
      return sink.append("x", 1);
    });
    _exit(s.ok() ? 0 : 1);
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_bytes(directory / "t"), "x");
}

TEST(Signals, AForkedChildLeavesItsParentsFilesAlone) {
  const TemporaryDirectory directory;
  const Status s = write_atomically(directory / "t", [&](Sink& sink) {
    const int status = status_of([] {
      remove_temporaries_on_signal();
      std::raise(SIGTERM);
    });
    expect_killed_by(status, SIGTERM);
    return sink.append("x", 1);
  });
  EXPECT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(read_bytes(directory / "t"), "x");
}

TEST(Temporaries, MoreThanTheTableHoldsAreStillRemovedOnErrors) {
  const TemporaryDirectory directory;
  const int fd = open(directory.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  {
    std::vector<std::unique_ptr<Temporary>> all;
    for (int i = 0; i < 100; ++i) {
      all.push_back(std::make_unique<Temporary>(fd, std::to_string(i)));
      write_bytes(directory / all.back()->name(), "x");
    }
    EXPECT_EQ(directory.names().size(), 100U);
    all.front()->release();
  }
  EXPECT_EQ(directory.names(), Names{"0"});
  close(fd);
}

}  // namespace
}  // namespace octavo::io
