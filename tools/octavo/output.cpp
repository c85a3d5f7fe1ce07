// Tables, text, JSON and the checks of output paths.
#include "output.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "failure.hpp"
#include "io/atomic_file.hpp"
#include "io/text.hpp"

namespace octavo::tool {
namespace {

constexpr std::size_t kLabelWidth = 12;

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  if (std::filesystem::equivalent(a, b, error) && !error) return true;  // also by another name or link
  // A name that does not exist yet stays relative unless it is made absolute first.
  const auto canonical = [&](const std::string& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  };
  const std::filesystem::path first = canonical(a);
  if (error) return a == b;
  const std::filesystem::path second = canonical(b);
  return error ? a == b : first == second;
}

}  // namespace

Table::Table(std::vector<std::string> header, std::string alignment) : alignment_(std::move(alignment)) {
  rows_.push_back(std::move(header));
}

void Table::add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

std::string Table::text() const {
  std::vector<std::size_t> widths(alignment_.size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  const auto line = [&](const std::vector<std::string>& row) {
    std::string text;
    for (std::size_t c = 0; c < row.size(); ++c) {
      text += c == 0 ? "" : "  ";
      text += alignment_[c] == '<' ? fmt::format("{:<{}}", row[c], widths[c])
                                   : fmt::format("{:>{}}", row[c], widths[c]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
    return text;
  };
  std::size_t total = 2 * (widths.size() - 1);
  for (const std::size_t width : widths) total += width;
  std::string text = fmt::format("{}{:-<{}}\n", line(rows_.front()), "", total);
  for (std::size_t r = 1; r < rows_.size(); ++r) text += line(rows_[r]);
  return text;
}

std::string wrapped(std::string_view text, std::size_t indent) {
  std::istringstream words{std::string(text)};
  std::string result;
  std::size_t column = indent;
  for (std::string word; words >> word;) {
    if (column > indent && column + 1 + word.size() > kColumns) {
      result += '\n';
      result.append(indent, ' ');
      column = indent;
    }
    if (column > indent) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
  }
  result += '\n';
  return result;
}

std::string labelled(std::string_view label, std::string_view text) {
  return fmt::format("{:<{}}", label, kLabelWidth) + wrapped(text, kLabelWidth);
}

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void finish_standard_output() {
  const bool failed_before = std::ferror(stdout) != 0;
  if (std::fflush(stdout) != 0 || failed_before) {
    throw Failure(kExitFile, "standard output cannot be written: " + io::errno_text(errno) +
                                 "; check where it is redirected to");
  }
}

void require_writable(const std::string& option, const std::string& path) {
  bool reached = false;
  // The content fails at once, so that the file appears under its temporary name only, and is removed again.
  const Status status = io::write_atomically(path, [&](io::Sink&) {
    reached = true;
    return io_error("probe");
  });
  if (!reached) require(status, option + " ");
}

void require_different(const std::string& option, const std::string& path, const std::string& what,
                       const std::string& other) {
  if (same_file(path, other)) {
    throw Failure(kExitUsage,
                  fmt::format("{} = {} is {}; give it another name", option, io::in_quotes(path), what));
  }
}

void write_json(const std::string& path, const Json& json) {
  // Text from files may be broken UTF-8; a report is still worth having.
  const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  if (path == "-") {
    print(text);
  } else {
    require(io::write_text(path, text), "--json ");
  }
}

std::string format_seconds(double seconds) {
  if (!(seconds >= 1e-3)) return fmt::format("{:.1f} us", 1e6 * seconds);
  if (seconds < 1.0) return fmt::format("{:.2f} ms", 1e3 * seconds);
  return fmt::format("{:.2f} s", seconds);
}

std::string format_percent(double fraction) {
  const double percent = 100.0 * fraction;
  if (percent == 0.0) return "0";
  if (percent < 0.1) return fmt::format("{:.1e}", percent);
  return fmt::format("{:.{}f}", percent, percent < 10.0 ? 2 : 1);
}

std::string format_small(double value) { return value == 0.0 ? "0" : fmt::format("{:.1e}", value); }

std::string format_cossim(double value) {
  // 0.9999996 must not read as a perfect 1.000000.
  return value < 1.0 && value > 0.0 ? fmt::format("{:.6f}", std::floor(value * 1e6) / 1e6)
                                    : fmt::format("{:.6f}", value);
}

Json to_json(const ErrorMeasures& m) {
  return {{"relative_l1", m.relative_l1},
          {"relative_l2", m.relative_l2},
          {"cossim", m.cossim},
          {"rmse", m.rmse},
          {"max_abs", m.max_abs}};
}

Json to_json(const Recipe& recipe) {
  Json values = Json::object();
  for (const RecipeField& field : fields(recipe)) values[field.name] = field.value;
  return {{"name", recipe.name}, {"fields", values}};
}

}  // namespace octavo::tool
