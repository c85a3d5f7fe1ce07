// The border between C and C++: errors become a number and a thread's last sentence, structs become views.
#pragma once

#include <exception>
#include <new>
#include <string_view>

#include "core/text.hpp"
#include "octavo/attention.hpp"
#include "octavo/octavo.h"

namespace octavo::capi {

/// Keeps the sentence for octavo_last_error() and returns the number.
octavo_status fail(StatusCode code, std::string_view message) noexcept;

/// Runs a body that returns a Status; nothing it throws gets out.
template <class Body>
octavo_status contained(Body body) noexcept {
  try {
    const Status status = body();
    return status.ok() ? OCTAVO_OK : fail(status.code(), status.message());
  } catch (const std::bad_alloc&) {
    return fail(StatusCode::out_of_memory, "out of memory: a temporary buffer could not be allocated");
  } catch (const std::exception& e) {
    return fail(StatusCode::internal, e.what());
  } catch (...) {
    return fail(StatusCode::internal, "an unknown exception was thrown");
  }
}

inline Status null_argument(const char* name) {
  return invalid_argument(concat(name, " is NULL; it must be given"));
}

/// The view of an argument, or why it is none. Shapes and strides are checked by make_problem.
Status to_view(const char* name, const octavo_tensor* tensor, MutableTensorView& view);

/// As to_view, but NULL leaves the view empty: "not given".
inline Status to_optional_view(const char* name, const octavo_tensor* tensor, MutableTensorView& view) {
  return tensor == nullptr ? Status{} : to_view(name, tensor, view);
}

/// NULL gives the defaults.
Status to_options(const octavo_options* options, AttentionOptions& to, PlanOptions& plan_options);

/// Copies text and its final 0 into the caller's buffer; text = null and size = 0 only asks for the length.
Status copy_text(std::string_view from, char* text, std::size_t size, std::size_t* length);

/// The value of a field by name, "name" included.
Status field_text(const Recipe& recipe, const char* field, char* text, std::size_t size, std::size_t* length);

}  // namespace octavo::capi
