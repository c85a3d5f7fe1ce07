// Reading the inputs of an attention call from a file.
#include "inputs.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "arguments.hpp"
#include "core/text.hpp"
#include "failure.hpp"
#include "io/text.hpp"

namespace octavo::tool {
namespace {

constexpr std::size_t kMostNames = 12;  // a model's file may hold hundreds of tensors; an error is one line

std::string shown(const std::string& path) { return io::printable(path, 200); }

std::string tensor_names(const io::SafetensorsFile& file) {
  std::string names;
  const auto& tensors = file.tensors();
  for (std::size_t i = 0; i < std::min(tensors.size(), kMostNames); ++i) {
    names += (i == 0 ? "" : ", ") + io::printable(tensors[i].name);
  }
  if (tensors.size() > kMostNames) names += fmt::format(" and {} more", tensors.size() - kMostNames);
  return names.empty() ? "none" : names;
}

/// An optional tensor: empty when the file has none.
TensorView optional_tensor(Inputs& inputs, const std::string& name) {
  const io::FileTensor* found = inputs.file.find(name);
  if (found == nullptr) return {};
  TensorView view = require(found->view(), fmt::format("{}: tensor {}: ", shown(inputs.path), name));
  inputs.extras.push_back(name + " " + describe(view));
  return view;
}

void note_unused(Inputs& inputs) {
  constexpr const char* kKnown[] = {"q",    "k",    "v",       "kv_lengths", "cu_seqlens_q", "cu_seqlens_k",
                                    "mask", "bias", "q_absmax"};
  for (const io::FileTensor& tensor : inputs.file.tensors()) {
    if (std::find(std::begin(kKnown), std::end(kKnown), tensor.name) == std::end(kKnown)) {
      inputs.unused.push_back(io::printable(tensor.name));
    }
  }
}

}  // namespace

std::string describe(const TensorView& tensor) {
  return fmt::format("{} {}", to_string(tensor.dtype), shape_text(tensor));
}

io::SafetensorsFile open_file(const std::string& path) { return require(io::SafetensorsFile::open(path)); }

TensorView tensor_of(const io::SafetensorsFile& file, const std::string& path, const std::string& name,
                     const std::string& needed) {
  const io::FileTensor* found = file.find(name);
  if (found == nullptr) {
    throw Failure(kExitUsage, fmt::format("{}: there is no tensor '{}'; {}; the file has: {}", shown(path),
                                          io::printable(name), needed, tensor_names(file)));
  }
  return require(found->view(), fmt::format("{}: tensor {}: ", shown(path), io::printable(name)));
}

std::optional<Layout> layout_of(const io::SafetensorsFile& file, const std::string& path) {
  const auto found = file.metadata().find("layout");
  if (found == file.metadata().end()) return std::nullopt;
  return parse_layout("metadata layout of " + shown(path), found->second);
}

std::optional<Causal> causal_of(const io::SafetensorsFile& file, const std::string& path) {
  const auto found = file.metadata().find("causal");
  if (found == file.metadata().end()) return std::nullopt;
  return parse_causal("metadata causal of " + shown(path), found->second);
}

Inputs load_inputs(const std::string& path, const InputChoices& choices) {
  Inputs in;
  in.file = open_file(path);
  in.path = path;
  const std::string needed = "q, k and v are needed";
  in.q = tensor_of(in.file, path, "q", needed);
  in.k = tensor_of(in.file, path, "k", needed);
  in.v = tensor_of(in.file, path, "v", needed);

  AttentionOptions options = choices.options;
  // Metadata that an option overrides is not looked at: a wrong word there must not stop who knows better.
  if (choices.layout) {
    options.layout = *choices.layout;
    in.layout_from = "option";
  } else if (const std::optional<Layout> layout = layout_of(in.file, path)) {
    options.layout = *layout;
    in.layout_from = "file metadata";
  } else {
    options.layout = in.q.rank == 3 ? Layout::thd : Layout::hnd;
    in.layout_from = "shape of q";
  }
  if (choices.causal) {
    options.causal = *choices.causal;
    in.causal_from = "option";
  } else if (const std::optional<Causal> causal = causal_of(in.file, path)) {
    options.causal = *causal;
    in.causal_from = "file metadata";
  } else {
    in.causal_from = "default";
  }
  options.kv_lengths = optional_tensor(in, "kv_lengths");
  options.cu_seqlens_q = optional_tensor(in, "cu_seqlens_q");
  options.cu_seqlens_k = optional_tensor(in, "cu_seqlens_k");
  options.mask = optional_tensor(in, "mask");
  if (options.mask.dtype == DType::u8) options.mask.dtype = DType::boolean;  // not zero is visible, for both
  options.bias = optional_tensor(in, "bias");
  options.q_absmax = optional_tensor(in, "q_absmax");
  in.problem = require(make_problem(in.q, in.k, in.v, options), shown(path) + ": ");
  note_unused(in);
  return in;
}

}  // namespace octavo::tool
