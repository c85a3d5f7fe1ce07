// octavo recipes: the presets, and every field of one.
#include <fmt/format.h>

#include <memory>

#include "commands.hpp"
#include "failure.hpp"
#include "octavo/recipe.hpp"
#include "output.hpp"

namespace octavo::tool {
namespace {

struct RecipesOptions {
  std::string name;
  bool json = false;
};

const Preset& preset_of(const std::string& name) {
  for (const Preset& preset : presets()) {
    if (preset.name == name) return preset;
  }
  throw Failure(kExitUsage, recipe(name).status().message());
}

/// `auto` is a name for a choice, not a set of fields.
bool has_fields(const Preset& preset) { return preset.name != "auto"; }

Json json_of(const Preset& preset) {
  Json json = {{"name", preset.name}, {"summary", preset.summary}, {"source", preset.source}};
  if (!has_fields(preset)) return json;
  const Recipe r = require(recipe(preset.name));
  json["budget"] = describe_budget(r);
  json["fields"] = Json::array();
  for (const RecipeField& f : fields(r)) {
    json["fields"].push_back({{"name", f.name}, {"value", f.value}, {"values", f.values}, {"help", f.help}});
  }
  return json;
}

std::string list_text() {
  std::string text =
      "Recipes. `octavo recipes NAME` shows the fields of one, `--set FIELD=VALUE` changes them.\n\n";
  std::size_t width = 0;
  for (const Preset& preset : presets()) width = std::max(width, preset.name.size());
  for (const Preset& preset : presets()) {
    const std::string source = preset.source.empty() ? "" : " (" + preset.source + ")";
    text += fmt::format("{:<{}}  ", preset.name, width) + wrapped(preset.summary + source, width + 2);
  }
  return text;
}

std::string detail_text(const Preset& preset) {
  std::string text = labelled("recipe", preset.name) + labelled("what", preset.summary);
  if (!preset.source.empty()) text += labelled("source", preset.source);
  if (!has_fields(preset)) return text;
  const Recipe r = require(recipe(preset.name));
  text += labelled("budget", describe_budget(r)) + "\n";
  std::size_t name = 0;
  std::size_t value = 0;
  for (const RecipeField& f : fields(r)) {
    name = std::max(name, f.name.size());
    value = std::max(value, f.value.size());
  }
  for (const RecipeField& f : fields(r)) {
    const std::string head = fmt::format("{:<{}}  {:<{}}  ", f.name, name, f.value, value);
    text += head + wrapped(fmt::format("{} [{}]", f.help, f.values), head.size());
  }
  return text;
}

void run(const RecipesOptions& o) {
  if (o.name.empty()) {
    if (!o.json) return print(list_text());
    Json all = Json::array();
    for (const Preset& preset : presets()) all.push_back(json_of(preset));
    return write_json("-", {{"octavo_recipes", all}});
  }
  const Preset& preset = preset_of(o.name);
  if (o.json) return write_json("-", json_of(preset));
  print(detail_text(preset));
}

}  // namespace

void add_recipes(CLI::App& app, Context& context) {
  CLI::App* sub = app.add_subcommand("recipes", "list the presets, or every field of one");
  const auto o = std::make_shared<RecipesOptions>();
  sub->add_option("NAME", o->name, "preset to show in full")->type_name("");
  sub->add_flag("--json", o->json, "JSON on standard output");
  sub->footer("Examples:\n  octavo recipes\n  octavo recipes sage2++-8+8");
  sub->callback([o, &context] { context.action = [o] { run(*o); }; });
}

}  // namespace octavo::tool
