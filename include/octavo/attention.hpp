// Attention in one call, or in its three public steps: plan, quantize, attend.
//
//   o = softmax(scale * q k^T + bias, over visible keys) v        per query head; query head h reads key head
//   h / (Hq / Hkv)
//
// Shapes (HND): q [B, Hq, Lq, D], k and v [B, Hkv, Lk, D], o as q, lse f32 [B, Hq, Lq]. NHD: [B, L, H, D].
// Packed (THD): [tokens, H, D] with cu_seqlens, lse [Hq, tokens]. dtypes of q, k, v: one of f32, f16, bf16.
// Head dims 1 to 256. No call modifies its inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octavo/export.hpp"
#include "octavo/quantize.hpp"
#include "octavo/recipe.hpp"
#include "octavo/status.hpp"
#include "octavo/tensor.hpp"

namespace octavo {

enum class Causal : std::uint8_t {
  none,
  top_left,      ///< query i sees keys j <= i
  bottom_right,  ///< query i sees keys j <= i + n - Lq, n the valid keys of that sequence
};

/// Keys a query sees around its own position, both ends inclusive; -1 is no limit. Anchored like `top_left`
/// when causal is top_left, else like `bottom_right`.
struct Window {
  std::int64_t left = -1;
  std::int64_t right = -1;
  bool operator==(const Window&) const = default;
};

/// Everything about a call that is not q, k, v or the recipe. A view that is left empty is "not given".
struct AttentionOptions {
  Layout layout = Layout::hnd;
  Causal causal = Causal::none;
  Window window{};
  std::optional<float> scale{};  ///< default 1 / sqrt(D); any finite value, 0 and negative ones too
  // Lengths and offsets are on the host, or beside q on a GPU: then they are copied, which waits for the
  // stream and is refused while that stream is being captured.
  TensorView kv_lengths{};    ///< i32 or i64 [B], 0 .. Lk: valid keys of each batch entry
  TensorView cu_seqlens_q{};  ///< i32 or i64 [S + 1], packed layout only
  TensorView cu_seqlens_k{};  ///< i32 or i64 [S + 1]
  // On q's device:
  TensorView mask{};  ///< boolean, broadcastable to [B, Hq, Lq, Lk], true = visible
  TensorView
      bias{};  ///< f32, f16 or bf16, broadcastable to [B, Hq, Lq, Lk], added to scaled scores; -inf hides
  TensorView q_absmax{};  ///< f32 [Hq] or [B, Hq] (packed: [S, Hq]), finite and above 0 (not checked on a
                          ///< GPU): query scale given by the caller, queries beyond it clamp
  /// Refuse NaN and Inf in valid data as invalid_argument. Default: true on the CPU. On a GPU false: the
  /// answer stays on the device and no call waits for it; true makes quantization wait for the stream, and is
  /// refused while that is being captured.
  std::optional<bool> check_finite{};
  int threads = 0;  ///< CPU threads; 0 = as many as the process may use. Results do not depend on it.
  /// In how many parts (0 to 1024) a GPU walks the keys side by side, to be busy with few queries; their
  /// outputs are merged by LSE. 0: the kernel decides from batch, heads and lengths; 1: one part; n > 1: n
  /// parts of equal size, rounded up to whole key tiles, of Lk (packed: of each sequence's own keys), so
  /// there may be fewer. Each part has its own maximum, so weights round differently. With a number other
  /// than 0 the parts do not depend on how many batch entries, heads or queries are computed together: set 1
  /// where results must not (the -icl recipes). CPU kernels have one part and refuse more.
  int key_splits = 0;
};

/// One sequence of the batch: where its rows and keys are. Dense layouts have begin = 0, packed ones batch =
/// 0.
struct Sequence {
  std::int64_t batch = 0;
  std::int64_t q_begin = 0;
  std::int64_t q_len = 0;
  std::int64_t k_begin = 0;
  std::int64_t k_len = 0;  ///< valid keys
  std::int64_t index = 0;  ///< in problem.sequences
};

/// A call's shapes and options after every check has passed.
struct Problem {
  AttentionOptions options{};
  DType dtype = DType::f32;
  Device device{};
  bool check_finite = true;
  std::int64_t batch = 0;  ///< batch entries, or packed sequences
  std::int64_t q_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t q_len = 0;   ///< rows of a batch entry; packed: all tokens
  std::int64_t kv_len = 0;  ///< keys of a batch entry, padding included; packed: all tokens
  std::int64_t head_dim = 0;
  float scale = 0.0F;
  std::vector<Sequence> sequences{};

  [[nodiscard]] bool packed() const { return options.layout == Layout::thd; }
  [[nodiscard]] std::int64_t group() const { return kv_heads == 0 ? 0 : q_heads / kv_heads; }
};

/// Checks shapes, dtypes, strides, lengths, mask and scale. Reads lengths and offsets, never q, k or v.
/// Lengths on a GPU are read in the order of `stream` (a cudaStream_t; null is the default stream).
OCTAVO_API Result<Problem> make_problem(const TensorView& q, const TensorView& k, const TensorView& v,
                                        const AttentionOptions& options = {}, void* stream = nullptr);

struct Kernel;  // an entry of the kernel table, src/core/kernel.hpp

struct PlanOptions {
  std::string
      kernel{};  ///< force a kernel by name ("reference.emulate", "cpu.avx2.cpu8"); empty picks the fastest
};

/// What was picked for a problem and a recipe. Cheap to copy, immutable, usable from several threads at once.
class OCTAVO_API Plan {
 public:
  [[nodiscard]] const Problem& problem() const { return *problem_; }
  /// The effective recipe: fields left to the kernel are filled in, `auto` is replaced.
  [[nodiscard]] const Recipe& recipe() const { return recipe_; }
  [[nodiscard]] std::string kernel_name() const;
  /// One sentence: what was picked and why.
  [[nodiscard]] const std::string& reason() const { return reason_; }
  [[nodiscard]] std::size_t kv_bytes() const;         ///< of a QuantizedKv's buffer
  [[nodiscard]] std::size_t q_bytes() const;          ///< of a QuantizedQ's buffer
  [[nodiscard]] std::size_t workspace_bytes() const;  ///< that attend() needs
  [[nodiscard]] std::size_t run_bytes() const;        ///< that run() needs: all of the above

  // On a GPU every step only adds work to `stream` (a cudaStream_t; null is the default stream), and may be
  // captured in a graph. Memory that is allocated inside belongs to the stream, which must outlive it.

  /// k, v -> kv. An empty `kv` is allocated, a wrapped one must be large enough.
  Status quantize_kv(const TensorView& k, const TensorView& v, QuantizedKv& kv, void* stream = nullptr) const;
  /// q -> qq. Needs kv for the key mean that the LSE gets back.
  Status quantize_q(const TensorView& q, const QuantizedKv& kv, QuantizedQ& qq, void* stream = nullptr) const;
  /// qq, kv -> out (f32 or q's dtype; shape of q, any strides) and lse (empty: not wanted). A null workspace
  /// is allocated inside.
  Status attend(const QuantizedQ& qq, const QuantizedKv& kv, const MutableTensorView& out,
                const MutableTensorView& lse = {}, void* workspace = nullptr, std::size_t workspace_size = 0,
                void* stream = nullptr) const;
  /// The three steps in one; a 16-bit kernel may read q, k and v as they are and leave the first two out.
  /// `memory`: run_bytes() of scratch, aligned as a buffer is, which work on `stream` uses until it is done;
  /// null is allocated inside.
  Status run(const TensorView& q, const TensorView& k, const TensorView& v, const MutableTensorView& out,
             const MutableTensorView& lse, void* memory, std::size_t bytes, void* stream = nullptr) const;
  Status run(const TensorView& q, const TensorView& k, const TensorView& v, const MutableTensorView& out,
             const MutableTensorView& lse = {}, void* stream = nullptr) const {
    return run(q, k, v, out, lse, nullptr, 0, stream);
  }

 private:
  friend OCTAVO_API Result<Plan> plan(const Problem&, const Recipe&, const PlanOptions&);
  [[nodiscard]] Status check_kv(const QuantizedKv& kv) const;
  std::shared_ptr<const Problem> problem_;
  Recipe recipe_;
  const Kernel* kernel_ = nullptr;
  std::string reason_;
  // Worked out once, because a call has microseconds.
  std::shared_ptr<const QuantizedKey> kv_key_;
  std::shared_ptr<const QuantizedKey> q_key_;
  std::size_t kv_bytes_ = 0;
  std::size_t q_bytes_ = 0;
};

/// Picks a kernel of the table, or refuses with one sentence that says what is supported here.
OCTAVO_API Result<Plan> plan(const Problem& problem, const Recipe& recipe, const PlanOptions& options = {});

/// make_problem, plan and the three steps in one call. Nothing is written when the status is an error of the
/// arguments.
OCTAVO_API Status attention(const TensorView& q, const TensorView& k, const TensorView& v,
                            const MutableTensorView& out, const MutableTensorView& lse, const Recipe& recipe,
                            const AttentionOptions& options = {}, const PlanOptions& plan_options = {},
                            void* stream = nullptr);

/// A row of the kernel table, for `octavo info`.
struct KernelInfo {
  std::string name;        ///< "cpu.avx512.cpu8"
  std::string backend;     ///< "reference", "cpu", "cuda"
  std::string tier;        ///< "scalar", "avx2", "avx512", "amx", "sm90a", ...
  std::string file;        ///< where its source is
  std::string summary;     ///< which recipes and head dims it runs
  bool available = false;  ///< on this machine
};
OCTAVO_API std::vector<KernelInfo> kernels();

/// Semantic version of the library, "0.1.0".
OCTAVO_API const char* version();

}  // namespace octavo
