// The kernel table: everything that can run a recipe, in one list that plan, `octavo info`, tests and
// benchmarks read.
//
// To add a kernel: write its file, give it a function that returns its Kernel, add one line to kernels.inc.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "octavo/attention.hpp"

namespace octavo {

/// What a kernel gets: checked, complete, never null. Nothing below plan() checks arguments again.
struct KernelCall {
  const Problem& problem;
  const Recipe& recipe;    ///< effective
  void* stream = nullptr;  ///< cudaStream_t; the problem's device is current
  int threads = 1;         ///< CPU threads to use, >= 1
};

/// A quantized K and V as attend() sees it: heads [first_head, first_head + problem.kv_heads) of a buffer
/// made for `heads` heads.
struct KvBuffer {
  const std::byte* data = nullptr;
  std::int64_t heads = 0;
  std::int64_t first_head = 0;
};

struct Kernel {
  std::string_view name;     ///< "cpu.avx2.cpu8": backend.tier.what
  std::string_view backend;  ///< "reference", "cpu", "cuda"
  std::string_view tier;     ///< "scalar", "avx2", ...
  std::string_view file;     ///< "src/cpu/..."
  std::string_view summary;  ///< which recipes and head dims
  int rank = 0;  ///< among kernels that accept a problem, plan takes the highest; 0 is never picked unless
                 ///< asked for by name

  /// On this machine. Not asked of kernels for another device than the call's.
  bool (*available)() = nullptr;
  /// ok, or a sentence that says what of this recipe or problem the kernel does not run and what it does.
  Status (*accepts)(const Problem&, const Recipe&) = nullptr;
  /// The recipe with the fields left to the kernel filled in.
  Recipe (*effective)(const Problem&, Recipe) = nullptr;
  std::size_t (*kv_bytes)(const Problem&, const Recipe&) = nullptr;
  std::size_t (*q_bytes)(const Problem&, const Recipe&) = nullptr;
  std::size_t (*workspace_bytes)(const Problem&, const Recipe&, int threads) = nullptr;

  /// Fills `kv` (kv_bytes, 64-byte aligned; on a GPU device memory, 256-byte aligned). With
  /// problem.check_finite, NaN or Inf in valid k or v is an invalid_argument.
  Status (*quantize_kv)(const KernelCall&, const TensorView& k, const TensorView& v, std::byte* kv) = nullptr;
  Status (*quantize_q)(const KernelCall&, const TensorView& q, const KvBuffer& kv, std::byte* qq) = nullptr;
  /// Writes every element of out, and of lse unless it is empty.
  Status (*attend)(const KernelCall&, const std::byte* qq, const KvBuffer& kv, const MutableTensorView& out,
                   const MutableTensorView& lse, std::byte* workspace) = nullptr;

  /// Optional: quantize_kv and quantize_q in one, for calls that keep nothing; the same bytes.
  Status (*quantize_all)(const KernelCall&, const TensorView& q, const TensorView& k, const TensorView& v,
                         std::byte* kv, std::byte* qq) = nullptr;

  /// Optional: q, k, v -> out, lse without quantized copies. Taken in place of the three steps by calls that
  /// keep nothing, where `direct_accepts` (strides and alignment, too) says so.
  bool (*direct_accepts)(const Problem&, const Recipe&, const TensorView& q, const TensorView& k,
                         const TensorView& v) = nullptr;
  std::size_t (*direct_workspace_bytes)(const Problem&, const Recipe&) = nullptr;
  Status (*attend_direct)(const KernelCall&, const TensorView& q, const TensorView& k, const TensorView& v,
                          const MutableTensorView& out, const MutableTensorView& lse,
                          std::byte* workspace) = nullptr;

  /// The quantized K and V are laid out by key_tile: plans with another one cannot share them.
  bool tiled_keys = true;
};

std::span<const Kernel* const> kernel_table();

}  // namespace octavo
