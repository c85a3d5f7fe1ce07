// Where results go: tables and text on standard output, JSON on standard output or in a file, and checks that
// a file can be written before the work that fills it starts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/metrics.hpp"
#include "octavo/recipe.hpp"

namespace octavo::tool {

using Json = nlohmann::ordered_json;

inline constexpr std::size_t kColumns = 100;  // the width that every table and text keeps to

/// Columns as wide as their widest cell, two spaces apart; '<' left, '>' right for each.
class Table {
 public:
  Table(std::vector<std::string> header, std::string alignment);
  void add(std::vector<std::string> row);
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;  // the header is the first
  std::string alignment_;
};

/// "label       text", text wrapped between words to kColumns and indented under itself.
std::string labelled(std::string_view label, std::string_view text);
/// Words wrapped to kColumns; lines after the first are indented by `indent`.
std::string wrapped(std::string_view text, std::size_t indent = 0);

void print(std::string_view text);  ///< on standard output
/// Throws Failure (file) when standard output did not take everything: a full disk behind a redirection.
void finish_standard_output();

/// Throws Failure unless `path` can be written. `option` names it in messages. Nothing is left behind.
void require_writable(const std::string& option, const std::string& path);
/// Throws Failure (usage) when two paths are one file.
void require_different(const std::string& option, const std::string& path, const std::string& what,
                       const std::string& other);
/// To a file, or to standard output when the path is "-". NaN and infinity become null.
void write_json(const std::string& path, const Json& json);

std::string format_seconds(double seconds);   ///< "12.3 ms"
std::string format_percent(double fraction);  ///< "1.62", of 0.0162
std::string format_small(double value);       ///< "1.2e-03"
std::string format_cossim(double value);      ///< never rounded up to 1

Json to_json(const ErrorMeasures& measures);
Json to_json(const Recipe& recipe);  ///< {"name", "fields": {name: value text}}

}  // namespace octavo::tool
