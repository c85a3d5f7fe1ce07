// A progress line on standard error: only on a terminal, only for work that takes longer than a second.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace octavo::tool {

class Progress {
 public:
  /// `total` of 0: how much there is to do is unknown, and only the elapsed time is shown.
  explicit Progress(std::string what, double total = 0.0);
  ~Progress();  ///< takes the line off the screen
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void say(std::string what);
  void advance(double amount);

 private:
  void draw_until_stopped();

  std::mutex mutex_;
  std::condition_variable stopped_;
  std::string what_;
  double total_;
  double done_ = 0.0;
  bool stop_ = false;
  std::thread painter_;  // not started when nobody would see it
};

}  // namespace octavo::tool
