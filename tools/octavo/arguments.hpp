// Option values from text. Each function throws Failure (exit code 2) that names the option, the value and
// what is supported.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octavo/attention.hpp"

namespace octavo::tool {

std::int64_t parse_integer(const std::string& option, const std::string& text, std::int64_t least,
                           std::int64_t most);
/// "1024,4096"
std::vector<std::int64_t> parse_integers(const std::string& option, const std::string& text,
                                         std::int64_t least, std::int64_t most);
/// "half,cpu8"
std::vector<std::string> parse_names(const std::string& option, const std::string& text);
/// 0 (all) to kMaxThreads.
int parse_threads(const std::string& text);
float parse_scale(const std::string& text);
Window parse_window(const std::string& text);
/// Words may be written with '-' or '_'. `option` may also be "metadata causal of FILE".
Causal parse_causal(const std::string& option, const std::string& text);
Layout parse_layout(const std::string& option, const std::string& text);
/// "f32", "f16" or "bf16"
DType parse_out_dtype(const std::string& text);

/// A preset with `field=value` overrides.
Recipe parse_recipe(const std::string& name, const std::vector<std::string>& settings);

/// "top-left", as the options spell it.
std::string to_text(Causal causal);

/// "--set a=1 b=2 FILE" as "--set a=1 --set b=2 FILE", so that one --set may take several settings without
/// taking FILE.
std::vector<std::string> spread_settings(const std::vector<std::string>& arguments);

}  // namespace octavo::tool
