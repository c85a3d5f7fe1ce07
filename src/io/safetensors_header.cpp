// Header parser: a state machine over JSON events.
//
// Events instead of a document, because a document keeps only the last of two equal keys, and because the
// header's grammar is so small that anything nested deeper than it allows ends the parse at once: no tree is
// built, no depth is reached.
#include "io/safetensors_header.hpp"

#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "io/safetensors_format.hpp"
#include "io/text.hpp"

namespace octavo::io {
namespace {

constexpr int kNumberOutOfRange = 406;  // id of the JSON library's error for a number beyond double

class HeaderEvents final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Header header;
  std::string error;

  bool null() override { return wrong_type("null"); }
  bool boolean(bool /*value*/) override { return wrong_type("a boolean"); }
  bool binary(binary_t& /*value*/) override { return wrong_type("binary"); }

  bool number_integer(number_integer_t value) override {  // only called for negative numbers and -0
    if (place_ == Place::shape || place_ == Place::offsets) {
      return not_an_index(value == 0 ? "-0" : std::to_string(value));
    }
    return wrong_type("a number");
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
        return not_an_index(std::to_string(value));
      }
      if (tensor_.shape.size() == kMaxRank) {
        return fail(tensor_label(name_) + ": shape has more than " + std::to_string(kMaxRank) +
                    " dimensions");
      }
      tensor_.shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (place_ == Place::offsets) {
      if (offsets_seen_ == tensor_.offsets.size()) return wrong_offset_count();
      tensor_.offsets[offsets_seen_++] = value;
      return true;
    }
    return wrong_type("a number");
  }

  // Fractions, exponents, and integers of more than 64 bits.
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    if (place_ == Place::shape || place_ == Place::offsets) return not_an_index(printable(text, 40));
    return wrong_type("a number");
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      header.metadata.emplace(std::move(key_), std::move(value));
      return true;
    }
    if (place_ == Place::tensor && key_ == "dtype") {
      tensor_.dtype = std::move(value);
      return true;
    }
    return wrong_type("a string");
  }

  bool start_object(std::size_t /*elements*/) override {
    switch (place_) {
      case Place::start:
        place_ = Place::top;
        return true;
      case Place::top:
        if (name_ == kMetadataKey) {
          place_ = Place::metadata;
        } else {
          place_ = Place::tensor;
          tensor_ = {};
          fields_.clear();
        }
        return true;
      default:
        return wrong_type("an object");
    }
  }

  bool key(string_t& value) override {
    if (place_ == Place::top) {
      name_ = std::move(value);
      if (name_.find('\0') != std::string::npos) return fail(tensor_label(name_) + ": the name holds a NUL");
      return names_.insert(name_).second || fail(entry() + " is given twice");
    }
    key_ = std::move(value);
    if (place_ == Place::metadata) {
      return !header.metadata.contains(key_) ||
             fail(entry() + ": key " + in_quotes(key_) + " is given twice");
    }
    if (key_ != "dtype" && key_ != "shape" && key_ != "data_offsets") {
      return fail(entry() + ": unknown field " + in_quotes(key_) +
                  " (dtype, shape and data_offsets are known)");
    }
    return fields_.insert(key_).second || fail(entry() + ": " + key_ + " is given twice");
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!fields_.contains(field)) return fail(entry() + ": " + field + " is missing");
      }
      tensor_.name = name_;
      header.tensors.push_back(std::move(tensor_));
    }
    if (place_ == Place::metadata || place_ == Place::tensor) place_ = Place::top;
    return true;
  }

  bool start_array(std::size_t /*elements*/) override {
    if (place_ == Place::tensor && key_ == "shape") {
      place_ = Place::shape;
      return true;
    }
    if (place_ == Place::tensor && key_ == "data_offsets") {
      place_ = Place::offsets;
      offsets_seen_ = 0;
      return true;
    }
    return wrong_type("an array");
  }

  bool end_array() override {
    if (place_ == Place::offsets && offsets_seen_ != tensor_.offsets.size()) return wrong_offset_count();
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& reason) override {
    if (reason.id == kNumberOutOfRange) return fail("the header holds a number that is out of range");
    return fail("the header is not valid JSON (at byte " + std::to_string(position) + " of it)");
  }

 private:
  enum class Place { start, top, metadata, tensor, shape, offsets };

  bool fail(std::string message) {
    error = std::move(message);
    return false;
  }

  /// The top-level entry being read.
  [[nodiscard]] std::string entry() const {
    return name_ == kMetadataKey ? std::string(kMetadataKey) : tensor_label(name_);
  }

  bool wrong_type(const std::string& found) {
    switch (place_) {
      case Place::top:
        return fail(entry() + " is " + found +
                    (name_ == kMetadataKey ? ", not a map of strings" : ", not an object"));
      case Place::metadata:
        return fail(entry() + ": " + in_quotes(key_) + " is " + found + ", not a string");
      case Place::tensor:
        return fail(entry() + ": " + key_ + " is " + found +
                    (key_ == "dtype" ? ", not a string" : ", not an array of integers"));
      default:
        return fail(entry() + ": " + key_ + " holds " + found + "; integers from 0 to 2^63-1 are allowed");
    }
  }

  bool not_an_index(const std::string& value) {
    return fail(entry() + ": " + key_ + " holds " + value + "; integers from 0 to 2^63-1 are allowed");
  }

  bool wrong_offset_count() { return fail(entry() + ": data_offsets does not hold exactly two numbers"); }

  Place place_ = Place::start;
  std::string name_;              // key at the top level
  std::string key_;               // key inside an entry
  std::set<std::string> names_;   // a tree, not a hash table: hostile names cannot make it slow
  std::set<std::string> fields_;  // fields of the current tensor
  HeaderTensor tensor_;
  std::size_t offsets_seen_ = 0;
};

}  // namespace

std::string tensor_label(std::string_view name) { return "tensor " + in_quotes(name); }

Result<Header> parse_header(std::string_view text) {
  // Checked first: the JSON library takes a NUL for the end of the text and skips a byte order mark.
  if (const std::optional<std::size_t> at = first_invalid_utf8(text)) {
    return io_error("the header is not UTF-8 (at byte " + std::to_string(*at + 1) + " of it)");
  }
  if (const std::size_t at = text.find('\0'); at != std::string_view::npos) {
    return io_error("the header holds a NUL (at byte " + std::to_string(at + 1) + " of it)");
  }
  if (!text.starts_with('{')) return io_error("the header is not a JSON object: it does not begin with '{'");
  HeaderEvents events;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &events)) return io_error(std::move(events.error));
  return std::move(events.header);
}

}  // namespace octavo::io
