// octavo compare: error measures between the outputs in two files, over all and per head.
#include <fmt/format.h>

#include <memory>

#include "accuracy.hpp"
#include "arguments.hpp"
#include "commands.hpp"
#include "core/text.hpp"
#include "failure.hpp"
#include "inputs.hpp"
#include "io/text.hpp"
#include "machine.hpp"
#include "output.hpp"

namespace octavo::tool {
namespace {

struct CompareOptions {
  std::string a;
  std::string b;
  std::string layout;
  std::string tensor = "o";
  bool per_head = false;
  bool json = false;
};

struct Compared {
  TensorView a, b;
  Layout layout = Layout::hnd;
  std::string layout_from;
  Comparison comparison;
  std::optional<LseError> lse;

  [[nodiscard]] std::string name(std::size_t head) const {
    if (layout == Layout::thd) return fmt::format("head {}", head);
    const auto heads = static_cast<std::size_t>(layout == Layout::nhd ? a.shape[2] : a.shape[1]);
    return a.shape[0] <= 1 ? fmt::format("head {}", head)
                           : fmt::format("batch {} head {}", head / heads, head % heads);
  }
};

/// The option, else what the files say (and agree on), else what the rank suggests.
void choose_layout(Compared& c, const CompareOptions& o, const io::SafetensorsFile& a,
                   const io::SafetensorsFile& b) {
  if (!o.layout.empty()) {
    c.layout = parse_layout("--layout", o.layout);
    c.layout_from = "option";
    return;
  }
  const std::optional<Layout> of_a = layout_of(a, o.a);
  const std::optional<Layout> of_b = layout_of(b, o.b);
  if (of_a && of_b && *of_a != *of_b) {
    throw Failure(kExitUsage, fmt::format("{} has layout {} and {} has {}; say which with --layout",
                                          io::printable(o.a, 200), to_string(*of_a), io::printable(o.b, 200),
                                          to_string(*of_b)));
  }
  if (of_a || of_b) {
    c.layout = of_a.value_or(of_b.value_or(Layout::hnd));
    c.layout_from = "file metadata";
  } else {
    c.layout = c.a.rank == 3 ? Layout::thd : Layout::hnd;
    c.layout_from = "shape";
  }
}

/// LSE of both files, when they hold outputs of attend.
void compare_lse_of(Compared& c, const io::SafetensorsFile& a, const io::SafetensorsFile& b) {
  const io::FileTensor* lse_a = a.find("lse");
  const io::FileTensor* lse_b = b.find("lse");
  if (lse_a == nullptr || lse_b == nullptr || lse_a->dtype != DType::f32 || lse_b->dtype != DType::f32 ||
      lse_a->shape != lse_b->shape)
    return;
  c.lse = compare_lse(require(lse_a->view()), require(lse_b->view()));
}

std::string text_of(const Compared& c, const CompareOptions& o) {
  const ErrorMeasures& m = c.comparison.all;
  std::string text = labelled(
      "a", fmt::format("{}: {} {}", io::printable(o.a, 200), io::printable(o.tensor), describe(c.a)));
  text += labelled("b", fmt::format("{}: {} {}, the reference", io::printable(o.b, 200),
                                    io::printable(o.tensor), describe(c.b)));
  text += labelled("layout", fmt::format("{} ({})", to_string(c.layout), c.layout_from));
  text +=
      labelled("error", fmt::format("relative L1 {}%, relative L2 {}%, cossim {}, RMSE {}, largest {}",
                                    format_percent(m.relative_l1), format_percent(m.relative_l2),
                                    format_cossim(m.cossim), format_small(m.rmse), format_small(m.max_abs)));
  if (!c.comparison.heads.empty()) {
    const auto worst = static_cast<std::size_t>(c.comparison.worst_head);
    text += labelled("worst head", fmt::format("{}: relative L1 {}%", c.name(worst),
                                               format_percent(c.comparison.heads[worst].relative_l1)));
  }
  if (c.lse) {
    text += labelled(
        "LSE error",
        fmt::format("largest {}, mean {}", format_small(c.lse->max_abs), format_small(c.lse->mean_abs)) +
            (c.lse->one_sided > 0
                 ? fmt::format("; {} rows infinite or NaN on one side only", c.lse->one_sided)
                 : ""));
  }
  if (!o.per_head) return text;
  Table table({"head", "rel. L1 %", "rel. L2 %", "cossim", "RMSE", "largest"}, "<>>>>>");
  for (std::size_t i = 0; i < c.comparison.heads.size(); ++i) {
    const ErrorMeasures& h = c.comparison.heads[i];
    table.add({c.name(i), format_percent(h.relative_l1), format_percent(h.relative_l2),
               format_cossim(h.cossim), format_small(h.rmse), format_small(h.max_abs)});
  }
  return text + "\n" + table.text();
}

Json json_of(const Compared& c, const CompareOptions& o, const std::string& command_line) {
  Json json = report_head("compare", command_line);
  json["a"] = o.a;
  json["b"] = o.b;
  json["tensor"] = o.tensor;
  json["shape"] = Json::array();
  for (int d = 0; d < c.a.rank; ++d) json["shape"].push_back(c.a.shape[static_cast<std::size_t>(d)]);
  json["layout"] = to_string(c.layout);
  json["layout_from"] = c.layout_from;
  json["error"] = to_json(c.comparison.all);
  json["worst_head"] = c.comparison.worst_head;
  json["lse"] = c.lse ? to_json(*c.lse) : Json(nullptr);
  json["heads"] = Json::array();
  for (std::size_t i = 0; i < c.comparison.heads.size(); ++i) {
    Json head = {{"name", c.name(i)}};
    head.update(to_json(c.comparison.heads[i]));
    json["heads"].push_back(head);
  }
  return json;
}

void run(const CompareOptions& o, const std::string& command_line) {
  const io::SafetensorsFile a = open_file(o.a);
  const io::SafetensorsFile b = open_file(o.b);
  const std::string needed = "name another with --tensor";
  Compared c{
      tensor_of(a, o.a, o.tensor, needed), tensor_of(b, o.b, o.tensor, needed), Layout::hnd, {}, {}, {}};
  choose_layout(c, o, a, b);
  c.comparison = require(compare(c.a, c.b, c.layout), fmt::format("tensor {}: ", io::printable(o.tensor)));
  if (o.tensor == "o") compare_lse_of(c, a, b);
  if (o.json) {
    write_json("-", json_of(c, o, command_line));
  } else {
    print(text_of(c, o));
  }
}

}  // namespace

void add_compare(CLI::App& app, Context& context) {
  CLI::App* sub = app.add_subcommand("compare", "error measures between the outputs in two files");
  const auto o = std::make_shared<CompareOptions>();
  sub->add_option("A", o->a, "safetensors file with the output to judge")->required()->type_name("");
  sub->add_option("B", o->b, "safetensors file with the reference")->required()->type_name("");
  sub->add_option("--layout", o->layout, "hnd, nhd or thd (default: the files', else by rank)")
      ->type_name("WORD");
  sub->add_option("--tensor", o->tensor, "tensor to compare (default o; with it, lse too)")
      ->type_name("NAME");
  sub->add_flag("--per-head", o->per_head, "a table of all heads");
  sub->add_flag("--json", o->json, "JSON on standard output, heads included");
  sub->footer("Example:\n  octavo compare out-cpu8.safetensors out-exact.safetensors --per-head");
  sub->callback([o, &context] { context.action = [o, &context] { run(*o, context.command_line); }; });
}

}  // namespace octavo::tool
