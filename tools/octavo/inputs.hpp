// A safetensors file with q, k, v and what goes with them, as a checked problem.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/safetensors.hpp"
#include "octavo/attention.hpp"

namespace octavo::tool {

/// What the command line says; it overrides what the file says.
struct InputChoices {
  std::optional<Layout> layout;
  std::optional<Causal> causal;
  AttentionOptions options{};  ///< window, scale, threads
};

struct Inputs {
  io::SafetensorsFile file;  ///< keeps the views alive
  std::string path;
  TensorView q, k, v;
  Problem problem;
  std::string layout_from;          ///< "option", "file metadata", "shape of q"
  std::string causal_from;          ///< "option", "file metadata", "default"
  std::vector<std::string> extras;  ///< optional tensors that were used, in words: "kv_lengths i32 [2]"
  std::vector<std::string> unused;  ///< names of tensors that mean nothing here
};

/// Errors name the file, and list what it holds when a tensor is missing.
Inputs load_inputs(const std::string& path, const InputChoices& choices);

/// Opens a file; errors say what is wrong with it.
io::SafetensorsFile open_file(const std::string& path);
/// The tensor of that name, or a Failure that lists those there are.
TensorView tensor_of(const io::SafetensorsFile& file, const std::string& path, const std::string& name,
                     const std::string& needed);
/// Metadata `layout` or `causal` of a file, if it has it.
std::optional<Layout> layout_of(const io::SafetensorsFile& file, const std::string& path);
std::optional<Causal> causal_of(const io::SafetensorsFile& file, const std::string& path);

/// "f16 [1, 9, 2048, 64]"
std::string describe(const TensorView& tensor);

}  // namespace octavo::tool
