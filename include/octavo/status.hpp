// Status and Result<T>: how every call of Octavo reports what went wrong, without exceptions and without
// global state.
//
// A message is one sentence that names the argument, its value and what is supported.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "octavo/export.hpp"

namespace octavo {

/// The kinds of failure a caller can act on. The numbers are part of the C ABI.
enum class StatusCode : std::int32_t {
  ok = 0,
  invalid_argument = 1,  ///< the call is wrong: shapes, strides, values, names, non-finite data
  unsupported = 2,       ///< the call is right, but nothing here can run it
  io_error = 3,          ///< a file cannot be read or written
  out_of_memory = 4,     ///< an allocation failed, or a caller's workspace is too small
  internal = 5,          ///< a defect of Octavo
};

/// "ok", "invalid argument", ...
OCTAVO_API const char* to_string(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  [[nodiscard]] bool ok() const { return code_ == StatusCode::ok; }
  [[nodiscard]] StatusCode code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

inline Status invalid_argument(std::string message) {
  return {StatusCode::invalid_argument, std::move(message)};
}
inline Status unsupported(std::string message) { return {StatusCode::unsupported, std::move(message)}; }
inline Status io_error(std::string message) { return {StatusCode::io_error, std::move(message)}; }

/// A value or the reason why there is none. Reading the value of a failed Result is undefined, as for
/// std::optional.
template <class T>
class [[nodiscard]] Result {
 public:
  // Implicit, so that functions can `return value;` and `return status;`.
  Result(T value) : state_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return std::holds_alternative<T>(state_); }
  [[nodiscard]] Status status() const { return ok() ? Status{} : std::get<Status>(state_); }
  T& operator*() { return *std::get_if<T>(&state_); }
  const T& operator*() const { return *std::get_if<T>(&state_); }
  T* operator->() { return std::get_if<T>(&state_); }
  const T* operator->() const { return std::get_if<T>(&state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace octavo
