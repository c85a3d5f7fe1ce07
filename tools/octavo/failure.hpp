// How the command fails: one exception that carries the exit code and the one line for standard error.
//
// Codes: 0 done; 2 wrong usage or argument; 3 not supported here; 4 a file cannot be read or written; 1
// anything else.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "octavo/status.hpp"

namespace octavo::tool {

inline constexpr int kExitOther = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitUnsupported = 3;
inline constexpr int kExitFile = 4;

class Failure : public std::runtime_error {
 public:
  Failure(int code, const std::string& message) : std::runtime_error(message), code_(code) {}
  [[nodiscard]] int code() const { return code_; }

 private:
  int code_;
};

inline int exit_code(StatusCode code) {
  switch (code) {
    case StatusCode::invalid_argument:
      return kExitUsage;
    case StatusCode::unsupported:
      return kExitUnsupported;
    case StatusCode::io_error:
      return kExitFile;
    case StatusCode::ok:
    case StatusCode::out_of_memory:
    case StatusCode::internal:
      break;
  }
  return kExitOther;
}

/// Throws unless the status is ok. `where` ("FILE: ") goes in front of the message.
inline void require(const Status& status, const std::string& where = {}) {
  if (!status.ok()) throw Failure(exit_code(status.code()), where + status.message());
}

template <class T>
T require(Result<T> result, const std::string& where = {}) {
  require(result.status(), where);
  return std::move(*result);
}

}  // namespace octavo::tool
