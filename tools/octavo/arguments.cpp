// Option values from text, strictly: the whole text must be the value.
#include "arguments.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "failure.hpp"
#include "io/text.hpp"

namespace octavo::tool {
namespace {

// Threads beyond any processor's are a typing error, not a wish.
constexpr std::int64_t kMaxThreads = 1024;

[[noreturn]] void refuse(const std::string& option, const std::string& text, const std::string& supported) {
  throw Failure(kExitUsage,
                fmt::format("{} = {} is not possible; it takes {}", option, io::in_quotes(text), supported));
}

template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::string with_underscores(std::string text) {
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

}  // namespace

std::int64_t parse_integer(const std::string& option, const std::string& text, std::int64_t least,
                           std::int64_t most) {
  const std::optional<std::int64_t> value = number<std::int64_t>(text);
  if (!value || *value < least || *value > most) {
    refuse(option, text, fmt::format("a whole number from {} to {}", least, most));
  }
  return *value;
}

std::vector<std::int64_t> parse_integers(const std::string& option, const std::string& text,
                                         std::int64_t least, std::int64_t most) {
  std::vector<std::int64_t> values;
  for (const std::string& part : split(text)) {
    const std::optional<std::int64_t> value = number<std::int64_t>(part);
    if (!value || *value < least || *value > most) {
      refuse(option, text, fmt::format("whole numbers from {} to {}, separated by commas", least, most));
    }
    values.push_back(*value);
  }
  return values;
}

std::vector<std::string> parse_names(const std::string& option, const std::string& text) {
  std::vector<std::string> names = split(text);
  for (const std::string& name : names) {
    if (name.empty()) refuse(option, text, "names separated by commas");
  }
  return names;
}

int parse_threads(const std::string& text) {
  return static_cast<int>(parse_integer("--threads", text, 0, kMaxThreads));
}

float parse_scale(const std::string& text) {
  const std::optional<float> value = number<float>(text);
  if (!value || !std::isfinite(*value))
    refuse("--scale", text, "a finite number that f32 can hold, such as 0.125");
  return *value;
}

Window parse_window(const std::string& text) {
  const std::vector<std::string> sides = split(text);
  const std::optional<std::int64_t> left = number<std::int64_t>(sides[0]);
  const std::optional<std::int64_t> right = sides.size() == 2 ? number<std::int64_t>(sides[1]) : std::nullopt;
  if (!left || !right || *left < -1 || *right < -1) {
    refuse("--window", text, "LEFT,RIGHT: keys seen on each side, -1 for no limit, such as 256,0");
  }
  return {*left, *right};
}

Causal parse_causal(const std::string& option, const std::string& text) {
  const std::string word = with_underscores(text);
  if (word == "none") return Causal::none;
  if (word == "top_left") return Causal::top_left;
  if (word == "bottom_right") return Causal::bottom_right;
  refuse(option, text, "none, top-left or bottom-right");
}

Layout parse_layout(const std::string& option, const std::string& text) {
  for (const Layout layout : {Layout::hnd, Layout::nhd, Layout::thd}) {
    if (text == to_string(layout)) return layout;
  }
  refuse(option, text, "hnd, nhd or thd");
}

DType parse_out_dtype(const std::string& text) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    if (text == to_string(dtype)) return dtype;
  }
  refuse("--out-dtype", text, "f32, f16 or bf16");
}

Recipe parse_recipe(const std::string& name, const std::vector<std::string>& settings) {
  Recipe made = require(recipe(name));
  if (made.name == "auto" && !settings.empty()) {
    throw Failure(
        kExitUsage,
        fmt::format("--set {} needs a recipe to change; recipe auto picks its own, so name one with --recipe",
                    io::printable(settings.front())));
  }
  for (const std::string& setting : settings) {
    const std::size_t equals = setting.find('=');
    if (equals == std::string::npos || equals == 0)
      refuse("--set", setting, "FIELD=VALUE, such as p_range=224");
    require(
        set_field(made, io::printable(setting.substr(0, equals)), io::printable(setting.substr(equals + 1))));
  }
  require(check(made));
  return made;
}

std::string to_text(Causal causal) {
  switch (causal) {
    case Causal::none:
      return "none";
    case Causal::top_left:
      return "top-left";
    case Causal::bottom_right:
      return "bottom-right";
  }
  return "?";
}

std::vector<std::string> spread_settings(const std::vector<std::string>& arguments) {
  const auto is_setting = [](const std::string& text) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) return false;
    return std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(equals),
                       [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; });
  };
  std::vector<std::string> spread;
  bool after_setting = false;  // the argument before was a value of --set
  for (const std::string& argument : arguments) {
    if (after_setting && is_setting(argument)) spread.emplace_back("--set");
    const bool is_value = !spread.empty() && spread.back() == "--set";
    after_setting = is_value || argument.starts_with("--set=");
    spread.push_back(argument);
  }
  return spread;
}

}  // namespace octavo::tool
