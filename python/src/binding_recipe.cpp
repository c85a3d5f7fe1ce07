// Recipes, presets and their fields.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "binding.hpp"

namespace nb = nanobind;

namespace octavo::python {

void bind_recipe(nb::module_& m) {
  nb::class_<Recipe>(m, "Recipe")
      .def_static("preset", [](const std::string& name) { return value_or_raise(recipe(name)); })
      .def_prop_ro("name", [](const Recipe& r) { return r.name; })
      .def("with_field",
           [](const Recipe& r, const std::string& field, const std::string& value) {
             Recipe changed = r;
             raise_unless_ok(set_field(changed, field, value));
             return changed;
           })
      .def("fields",
           [](const Recipe& r) {
             std::vector<std::tuple<std::string, std::string, std::string, std::string>> list;
             for (const RecipeField& f : fields(r)) list.emplace_back(f.name, f.value, f.values, f.help);
             return list;
           })
      .def("check", [](const Recipe& r, std::int64_t head_dim) { raise_unless_ok(check(r, head_dim)); })
      .def("budget", [](const Recipe& r) { return describe_budget(r); })
      .def("equals", [](const Recipe& a, const Recipe& b) { return a == b; });
  m.def("presets", [] {
    std::vector<std::tuple<std::string, std::string, std::string>> list;
    for (const Preset& p : presets()) list.emplace_back(p.name, p.summary, p.source);
    return list;
  });
}

}  // namespace octavo::python
