// What main() and the subcommands know of each other.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

namespace octavo::tool {

struct Context {
  std::string command_line;      ///< as typed, for reports
  std::function<void()> action;  ///< of the subcommand that was chosen; set while parsing, run afterwards
};

// Each declares its options and, when chosen, sets context.action. `context` outlives `app`.
void add_attend(CLI::App& app, Context& context);
void add_demo(CLI::App& app, Context& context);
void add_compare(CLI::App& app, Context& context);
void add_recipes(CLI::App& app, Context& context);
void add_info(CLI::App& app, Context& context);
void add_bench(CLI::App& app, Context& context);

}  // namespace octavo::tool
