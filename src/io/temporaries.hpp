// The temporary files that exist right now, in a form a signal handler may use: a fixed table, no locks, no
// allocation.
#pragma once

#include <string>

namespace octavo::io {

/// Claims the duty to remove `name` in an open directory. Create it before the file: a signal in between then
/// finds it.
class Temporary {
 public:
  Temporary(int directory, std::string name);
  ~Temporary();  ///< removes the file unless released
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  /// The file has been renamed, or never was ours: nothing is to be removed any more.
  void release();
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  int directory_;
  std::string name_;
  int slot_;  ///< -1 when the table was full: removed on errors, not on signals
  bool active_ = true;
};

}  // namespace octavo::io
