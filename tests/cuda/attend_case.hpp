// Attention problems for the GPU kernels: the same random tensors on host and device, whatever their layout,
// strides and lengths; poisoned outputs and buffers between guard bands; and the references that sampled rows
// are held against.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/heads_view.hpp"
#include "core/rows.hpp"
#include "cuda/device.hpp"
#include "octavo/octavo.hpp"
#include "reference/rows.hpp"

namespace octavo::test {

inline constexpr Device kGpu{Device::Kind::cuda, 0};

/// A preset of each kernel family.
inline constexpr const char* kFamilies[] = {"half",   "sage2-8+8", "sage2++-8+8", "sage-8+16", "fp8-head",
                                            "turbo8", "turbo",     "turbo16",     "turbo.wide"};

/// How q, k and v lie in memory.
enum class Storage {
  contiguous,
  one_buffer,    ///< slices of one [B, N, Hq + 2 Hkv, D] tensor; needs as many keys as queries
  padded_rows,   ///< three elements between rows: no row is aligned
  every_second,  ///< of the channels
  shared_keys,   ///< k and v have stride 0 over the batch
};
/// Shape of a mask or bias.
enum class Extra { none, full, rows, keys, heads };

struct AttendShape {
  std::int64_t batch = 1, q_heads = 2, kv_heads = 2, q_len = 64, kv_len = 64, head_dim = 64;
  DType dtype = DType::f16;
  Layout layout = Layout::hnd;
  Storage storage = Storage::contiguous;
  Causal causal = Causal::none;
  Window window{};
  std::vector<std::int64_t> lengths{};  ///< kv_lengths of a dense layout; padding holds NaN and Inf
  std::vector<std::int64_t> q_lens{};   ///< layout thd: of each sequence; batch, q_len, kv_len follow
  std::vector<std::int64_t> k_lens{};
  std::optional<float> scale{};
  Extra mask = Extra::none;
  Extra bias = Extra::none;
  DType bias_dtype = DType::f32;
  bool absmax = false;
  bool lse = true;
  bool f32_out = true;    ///< else q's dtype
  bool gaps_out = false;  ///< rows of the output have gaps of one element: nothing is aligned
  int key_splits = 1;
  float q_size = 1.0F;
  float k_mean = 0.5F;  ///< of channel c: (c mod 7 - 3) times this
  float v_mean = 0.0F;
  unsigned seed = 1;
};
std::string to_text(const AttendShape& s);

/// Host memory and its copy on the device, both with a margin that a stray read meets as NaN.
struct TwinBuffer {
  static constexpr std::size_t kLead = 1024;
  std::vector<std::byte> host;
  std::unique_ptr<DeviceBytes> device;

  explicit TwinBuffer(std::size_t bytes) : host(bytes + 2 * kLead, std::byte{0xFF}) {}
  void send() { device = std::make_unique<DeviceBytes>(host); }
  [[nodiscard]] std::byte* at(bool on_device) { return (on_device ? device->data() : host.data()) + kLead; }
};

/// Memory that a call writes, between guard bands; NaN at first, or, with `scratch` and OCTAVO_TEST_RAW set,
/// never written before, for compute-sanitizer's initcheck.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t bytes, bool scratch = false);
  ~GuardedBytes();
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(memory_) + kBand; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] std::vector<std::byte> read() const { return read(0, bytes_); }
  [[nodiscard]] bool intact() const;

 private:
  static constexpr std::size_t kBand = 1024;
  [[nodiscard]] std::vector<std::byte> read(std::ptrdiff_t from, std::size_t count) const;
  void* memory_ = nullptr;
  std::size_t bytes_;
};

/// What came out, [B, Hq, Lq, D] and [B, Hq, Lq]; packed [Hq, tokens, D] and [Hq, tokens].
struct AttendResult {
  std::vector<float> o;
  std::vector<float> lse;
};

class AttendCase {
 public:
  explicit AttendCase(AttendShape s);

  [[nodiscard]] const AttendShape& shape() const { return shape_; }
  /// Values of the host's tensors may be changed before send() or between a run and the next send().
  [[nodiscard]] MutableTensorView q() { return view(q_, false); }
  [[nodiscard]] MutableTensorView k() { return view(k_, false); }
  [[nodiscard]] MutableTensorView v() { return view(v_, false); }
  [[nodiscard]] MutableTensorView mask() { return view(mask_, false); }
  [[nodiscard]] MutableTensorView bias() { return view(bias_, false); }
  [[nodiscard]] MutableTensorView device(char which);
  [[nodiscard]] const std::vector<std::byte>& host_bytes(char which) { return q_k_v(which).buffer->host; }
  void set_key_splits(int n) { shape_.key_splits = n; }
  /// Copies everything to the device and checks both problems.
  void send();
  [[nodiscard]] const Problem& problem(bool on_device) const { return on_device ? device_ : host_; }
  [[nodiscard]] Plan make_plan(const Recipe& recipe) const;

  /// The three steps with wrapped buffers, run() with the caller's memory, or run() that allocates it.
  enum class Way { steps, given, allocated };
  /// Everything between guard bands; inputs are looked at afterwards.
  [[nodiscard]] AttendResult run(const Plan& plan, Way way = Way::steps);

  /// Rows of each sequence for the references: the ends, rows beside tile borders, then random ones, until
  /// `budget` (query, key) pairs are used up.
  [[nodiscard]] reference::RowLists sample_rows(std::int64_t budget) const;
  [[nodiscard]] AttendResult emulate(const Recipe& effective, const reference::RowLists& rows);
  [[nodiscard]] AttendResult exact(const reference::RowLists& rows);
  /// Largest |q| |k - kbar| |scale|: no logit is larger, but for the bias.
  [[nodiscard]] double largest_logit() const;
  /// Calls f(index into o without channels, sequence, row) for every listed row and head.
  template <class F>
  void each_row(const reference::RowLists& rows, F f) const {
    for (const Sequence& s : host_.sequences) {
      const auto& list = rows.empty() ? all_ : rows[static_cast<std::size_t>(s.index)];
      const std::int64_t count = rows.empty() ? s.q_len : static_cast<std::int64_t>(list.size());
      for (std::int64_t h = 0; h < host_.q_heads; ++h) {
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t row = rows.empty() ? i : list[static_cast<std::size_t>(i)];
          f(line(s, h, row), s, h, row);
        }
      }
    }
  }
  /// Index of a row in lse, and, times head_dim, in o.
  [[nodiscard]] std::int64_t line(const Sequence& s, std::int64_t head, std::int64_t row) const {
    return host_.packed() ? head * host_.q_len + s.q_begin + row
                          : (s.batch * host_.q_heads + head) * host_.q_len + row;
  }
  /// Keys that the row may see by lengths, causal mask and window.
  [[nodiscard]] std::int64_t visible(const Sequence& s, std::int64_t row) const {
    const KeyRange r = visible_keys(host_, s, row);
    return r.end > r.begin ? r.end - r.begin : 0;
  }

 private:
  struct Operand {
    std::shared_ptr<TwinBuffer> buffer;
    std::size_t offset = 0;  ///< bytes
    MutableTensorView view;
  };
  struct Output;

  Operand& q_k_v(char which) { return which == 'q' ? q_ : which == 'k' ? k_ : v_; }
  [[nodiscard]] static MutableTensorView view(Operand& o, bool on_device);
  [[nodiscard]] Operand place(std::int64_t heads, std::int64_t tokens, std::int64_t head_in_buffer,
                              bool keys);
  void fill(Operand& o, std::int64_t heads, std::int64_t tokens, float size, float channel_mean, float mean,
            float offset);
  void fill_padding();
  [[nodiscard]] Operand extra(Extra kind, bool bias);
  [[nodiscard]] AttentionOptions options(bool on_device);
  [[nodiscard]] MutableTensorView host_out(std::vector<float>& o) const;
  [[nodiscard]] MutableTensorView host_lse(std::vector<float>& lse) const;
  void call(const Plan& plan, Way way, const MutableTensorView& out, const MutableTensorView& lse);
  void check_inputs();

  AttendShape shape_;
  std::mt19937 random_;
  std::shared_ptr<TwinBuffer> shared_;  ///< of Storage::one_buffer
  Operand q_, k_, v_, mask_, bias_, absmax_;
  std::vector<std::int32_t> lengths_, cu_q_, cu_k_;
  Problem host_, device_;
  std::vector<std::int64_t> all_;
};

/// Changes every element of a contiguous [1, H, N, D] tensor: f(value, head, token, channel).
template <class F>
void change(const MutableTensorView& t, F f) {
  std::int64_t i = 0;
  for (std::int64_t h = 0; h < t.shape[1]; ++h) {
    for (std::int64_t n = 0; n < t.shape[2]; ++n) {
      for (std::int64_t d = 0; d < t.shape[3]; ++d, ++i)
        write_element(t.data, t.dtype, i, f(read_element(t.data, t.dtype, i), h, n, d));
    }
  }
}

/// Every preset that runs on Hopper.
const std::vector<std::string>& gpu_presets();
/// A preset; with ".wide" behind it in tiles of 96 keys, which at head dims up to 64 is the instance of 256
/// rows, with ".forward" in forward order.
Recipe gpu_recipe(const std::string& name);
inline bool needs_absmax(const std::string& name) { return name == "fp8-icl" || name == "turbo-icl"; }
inline bool scales_queries(const Recipe& r) { return r.q_group != Granularity::none; }

}  // namespace octavo::test
