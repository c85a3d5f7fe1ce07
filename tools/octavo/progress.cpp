// The progress line: a thread that repaints it a few times a second.
#include "progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace octavo::tool {
namespace {

constexpr std::chrono::milliseconds kQuietTime{1000};  // short work shows nothing
constexpr std::chrono::milliseconds kRepaint{200};
constexpr int kBarWidth = 30;

bool can_draw() {
  const char* terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

}  // namespace

Progress::Progress(std::string what, double total) : what_(std::move(what)), total_(total) {
  if (!can_draw()) return;
  // Signals are the main thread's business; this thread must not run a handler in the middle of a repaint.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  painter_ = std::thread([this] { draw_until_stopped(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Progress::~Progress() {
  if (!painter_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  painter_.join();
}

void Progress::say(std::string what) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
}

void Progress::advance(double amount) {
  const std::lock_guard lock(mutex_);
  done_ += amount;
}

void Progress::draw_until_stopped() {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  bool drawn = false;
  std::chrono::milliseconds wait = kQuietTime;
  while (!stopped_.wait_for(lock, wait, [this] { return stop_; })) {
    wait = kRepaint;
    drawn = true;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::string line;
    if (total_ > 0.0) {
      const double part = std::clamp(done_ / total_, 0.0, 1.0);
      const int full = static_cast<int>(part * kBarWidth);
      line =
          fmt::format("{} [{}{}] {:3.0f}%  {:.0f} s", what_, std::string(static_cast<std::size_t>(full), '#'),
                      std::string(static_cast<std::size_t>(kBarWidth - full), '.'), 100.0 * part, seconds);
    } else {
      line = fmt::format("{} ...  {:.0f} s", what_, seconds);
    }
    std::fprintf(stderr, "\r\033[K%s", line.c_str());
    std::fflush(stderr);
  }
  if (drawn) {
    std::fprintf(stderr, "\r\033[K");
    std::fflush(stderr);
  }
}

}  // namespace octavo::tool
