// The command `octavo`: parses the command line, runs one subcommand, and turns every failure into one line
// and an exit code.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "commands.hpp"
#include "cpu/tier.hpp"
#include "failure.hpp"
#include "io/atomic_file.hpp"
#include "io/text.hpp"
#include "octavo/attention.hpp"
#include "output.hpp"

namespace octavo::tool {
namespace {

constexpr std::size_t kLongestMessage = 4000;

int report(int code, const std::string& message) {
  std::string line = message;
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  std::fflush(stdout);
  // printable(): whatever a file or an argument put into the message, it stays one line of text.
  std::fprintf(stderr, "octavo: error: %s\n", io::printable(line, kLongestMessage).c_str());
  return code;
}

void check_subcommand(const CLI::App& app, const std::vector<std::string>& arguments) {
  std::string names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!arguments.empty() && sub->get_name() == arguments.front()) return;
    names += (names.empty() ? "" : ", ") + sub->get_name();
  }
  if (arguments.empty())
    throw Failure(kExitUsage, "a subcommand is missing; there are: " + names + " (octavo --help says more)");
  if (!arguments.front().starts_with("-")) {
    throw Failure(kExitUsage, fmt::format("subcommand {} is not known; there are: {}",
                                          io::in_quotes(arguments.front()), names));
  }
}

/// "--json=" would take the next argument for its value.
void check_equals_signs(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument.starts_with("--") && argument.ends_with("="))
      throw Failure(kExitUsage, argument + " has an empty value");
  }
}

/// An unset variable in a script (-o "$OUT") must not read as "not given".
void check_values(const CLI::App& app) {
  for (const CLI::App* sub : app.get_subcommands()) {
    for (const CLI::Option* option : sub->get_options()) {
      for (const std::string& value : option->results()) {
        if (value.empty())
          throw Failure(kExitUsage, option->get_name() + " has an empty value; see octavo " +
                                        sub->get_name() + " --help");
      }
    }
  }
}

/// CLI11's own refusals, with where to read on.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  std::string help = "octavo --help";
  for (const CLI::App* sub : app.get_subcommands()) help = "octavo " + sub->get_name() + " --help";
  std::string text = error.what();
  while (!text.empty() && (text.back() == '\n' || text.back() == '.')) text.pop_back();
  if (const std::size_t at = text.find(": At Most 1 required"); at != std::string::npos) {
    text = text.substr(0, at) + " is given more than once";
  }
  return text + "; see " + help;
}

int run(int argc, char** argv) {
  Context context;
  std::vector<std::string> arguments;
  context.command_line = "octavo";
  for (int i = 1; i < argc; ++i) {
    arguments.emplace_back(argv[i]);
    context.command_line += " " + arguments.back();
  }
  arguments = spread_settings(arguments);

  CLI::App app("8-bit attention with a stated error.", "octavo");
  app.set_version_flag("--version", std::string("octavo ") + version());
  add_demo(app, context);
  add_attend(app, context);
  add_compare(app, context);
  add_recipes(app, context);
  add_info(app, context);
  add_bench(app, context);
  app.require_subcommand(0, 1);
  app.footer(
      "Examples:\n"
      "  octavo demo\n"
      "  octavo attend qkv.safetensors --recipe sage2++-8+8 -o out.safetensors\n"
      "  octavo recipes sage2++-8+8\n"
      "\n"
      "Exit codes: 0 done, 2 wrong usage or argument, 3 not supported here, 4 a file cannot be read or\n"
      "written, 1 anything else.");
  try {
    check_subcommand(app, arguments);
    check_equals_signs(arguments);
    app.parse(
        std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 takes them from the back
    check_values(app);
    if (!context.action) throw Failure(kExitUsage, "a subcommand is missing; octavo --help lists them");
    require(cpu::forced_tier_status());  // an override that cannot be honoured is an error, whatever the
                                         // subcommand
    context.action();
    finish_standard_output();
    return 0;
  } catch (const CLI::Success& done) {  // --help and --version
    app.exit(done);
    try {
      finish_standard_output();
    } catch (const Failure& failure) {
      return report(failure.code(), failure.what());
    }
    return 0;
  } catch (const CLI::ParseError& error) {
    return report(kExitUsage, usage_message(app, error));
  } catch (const Failure& failure) {
    return report(failure.code(), failure.what());
  }
}

}  // namespace
}  // namespace octavo::tool

int main(int argc, char** argv) {
  using octavo::tool::report;
  octavo::io::remove_temporaries_on_signal();
  try {
    return octavo::tool::run(argc, argv);
  } catch (const std::bad_alloc&) {
    return report(octavo::tool::kExitOther, "out of memory; use fewer or shorter inputs");
  } catch (const std::exception& error) {
    return report(octavo::tool::kExitOther, std::string("internal error: ") + error.what());
  }
}
