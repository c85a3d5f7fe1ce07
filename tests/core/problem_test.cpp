// Every wrong call is refused with a sentence that names the argument and its value.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <limits>

#include "core/heads_view.hpp"
#include "octavo/attention.hpp"

namespace octavo {
namespace {

struct Call {
  std::array<float, 4096> memory{};
  std::array<std::int32_t, 8> integers{};
  TensorView q, k, v;
  AttentionOptions options;

  Call() {
    q = TensorView(memory.data(), DType::f32, {2, 4, 3, 8});
    k = TensorView(memory.data(), DType::f32, {2, 2, 5, 8});
    v = k;
  }
  [[nodiscard]] Status status() const { return make_problem(q, k, v, options).status(); }
  TensorView ints(std::initializer_list<std::int32_t> values) {
    std::copy(values.begin(), values.end(), integers.begin());
    return TensorView(integers.data(), DType::i32, {static_cast<std::int64_t>(values.size())});
  }
  void pack() {
    options.layout = Layout::thd;
    q = TensorView(memory.data(), DType::f32, {6, 4, 8});
    k = v = TensorView(memory.data(), DType::f32, {5, 2, 8});
  }
};

struct Refusal {
  const char* name;
  StatusCode code;
  const char* part;  // of the message
  std::function<void(Call&)> spoil;
};

const std::vector<Refusal>& refusals() {
  constexpr auto kInvalid = StatusCode::invalid_argument;
  constexpr auto kUnsupported = StatusCode::unsupported;
  static std::array<std::int32_t, 3> other_k{0, 2, 5};
  static const std::vector<Refusal> list{
      {"rank", kInvalid, "q has shape [2, 4, 3]",
       [](Call& c) {
         c.q = TensorView(c.memory.data(), DType::f32, {2, 4, 3});
       }},
      {"null", kInvalid, "k is a null pointer", [](Call& c) { c.k.data = nullptr; }},
      {"dtype", kUnsupported, "q has dtype i8", [](Call& c) { c.q.dtype = DType::i8; }},
      {"mixed dtypes", kInvalid, "v has dtype f16", [](Call& c) { c.v.dtype = DType::f16; }},
      {"head dims", kInvalid, "k has head_dim 7", [](Call& c) { c.k.shape[3] = 7; }},
      {"value head dim", kUnsupported, "v has head_dim 7", [](Call& c) { c.v.shape[3] = 7; }},
      {"head dim 0", kInvalid, "head_dim 0", [](Call& c) { c.q.shape[3] = c.k.shape[3] = c.v.shape[3] = 0; }},
      {"head dim 257", kUnsupported, "head_dim 257",
       [](Call& c) { c.q.shape[3] = c.k.shape[3] = c.v.shape[3] = 257; }},
      {"k and v", kInvalid, "v has [2, 2, 4, 8]", [](Call& c) { c.v.shape[2] = 4; }},
      {"groups", kInvalid, "q has 4 heads and k has 3", [](Call& c) { c.k.shape[1] = c.v.shape[1] = 3; }},
      {"no key heads", kInvalid, "k has 0", [](Call& c) { c.k.shape[1] = c.v.shape[1] = 0; }},
      {"batch", kInvalid, "batch 2", [](Call& c) { c.k.shape[0] = c.v.shape[0] = 1; }},
      {"negative shape", kInvalid, "dimensions must be >= 0", [](Call& c) { c.q.shape[2] = -1; }},
      {"overflowing shape", kInvalid, "2^63",
       [](Call& c) { c.q.shape[2] = c.q.shape[0] = std::int64_t{1} << 40; }},
      {"overflowing strides", kInvalid, "2^63",
       [](Call& c) { c.q.strides[2] = std::numeric_limits<std::int64_t>::max() / 2; }},
      {"scale", kInvalid, "scale is nan",
       [](Call& c) { c.options.scale = std::numeric_limits<float>::quiet_NaN(); }},
      {"threads", kInvalid, "threads is -1", [](Call& c) { c.options.threads = -1; }},
      {"window", kInvalid, "window is (-2, 0)",
       [](Call& c) {
         c.options.window = {-2, 0};
       }},
      {"lengths size", kInvalid, "kv_lengths has shape [3]",
       [](Call& c) {
         c.options.kv_lengths = c.ints({1, 2, 3});
       }},
      {"lengths range", kInvalid, "kv_lengths[1] = 6",
       [](Call& c) {
         c.options.kv_lengths = c.ints({1, 6});
       }},
      {"lengths negative", kInvalid, "kv_lengths[0] = -1",
       [](Call& c) {
         c.options.kv_lengths = c.ints({-1, 5});
       }},
      {"lengths dtype", kInvalid, "kv_lengths has dtype f32",
       [](Call& c) { c.options.kv_lengths = TensorView(c.memory.data(), DType::f32, {2}); }},
      {"offsets with dense", kInvalid, "layout thd",
       [](Call& c) {
         c.options.cu_seqlens_q = c.ints({0, 3});
       }},
      {"mask shape", kInvalid, "mask has shape [2, 3, 3, 5]",
       [](Call& c) {
         c.options.mask = TensorView(c.memory.data(), DType::boolean, {2, 3, 3, 5});
       }},
      {"mask dtype", kInvalid, "mask has dtype f32",
       [](Call& c) {
         c.options.mask = TensorView(c.memory.data(), DType::f32, {3, 5});
       }},
      {"bias dtype", kInvalid, "bias has dtype bool",
       [](Call& c) {
         c.options.bias = TensorView(c.memory.data(), DType::boolean, {3, 5});
       }},
      {"absmax shape", kInvalid, "q_absmax has shape [3]",
       [](Call& c) { c.options.q_absmax = TensorView(c.memory.data(), DType::f32, {3}); }},
      {"absmax value", kInvalid, "q_absmax of head 0 is 0",
       [](Call& c) { c.options.q_absmax = TensorView(c.memory.data(), DType::f32, {4}); }},
      {"packed without offsets", kInvalid, "cu_seqlens_q is missing", [](Call& c) { c.pack(); }},
      {"packed first", kInvalid, "cu_seqlens_q[0] = 1",
       [](Call& c) {
         c.pack();
         c.options.cu_seqlens_q = c.ints({1, 6});
       }},
      {"packed last", kInvalid, "ends at 5",
       [](Call& c) {
         c.pack();
         c.options.cu_seqlens_q = c.ints({0, 5});
       }},
      {"packed order", kInvalid, "must not decrease",
       [](Call& c) {
         c.pack();
         c.options.cu_seqlens_q = c.ints({0, 4, 3, 6});
       }},
      {"packed counts", kInvalid, "must agree",
       [](Call& c) {
         c.pack();
         c.options.cu_seqlens_q = c.ints({0, 6});
         c.options.cu_seqlens_k = TensorView(other_k.data(), DType::i32, {3});
       }},
      {"negative key splits", kInvalid, "key_splits is -1", [](Call& c) { c.options.key_splits = -1; }},
      {"too many key splits", kInvalid, "1 to 1024", [](Call& c) { c.options.key_splits = 1025; }},
      {"key splits on a CPU", kUnsupported, "CPU kernels do not split",
       [](Call& c) { c.options.key_splits = 2; }},
      {"packed mask", kUnsupported, "mask is not supported with layout thd",
       [](Call& c) {
         c.pack();
         c.options.cu_seqlens_q = c.ints({0, 3, 6});
         c.options.cu_seqlens_k = TensorView(other_k.data(), DType::i32, {3});
         c.options.mask = TensorView(c.memory.data(), DType::boolean, {1, 1});
       }},
  };
  return list;
}

TEST(Problem, WrongCallsAreRefusedByName) {
  for (const Refusal& r : refusals()) {
    Call call;
    ASSERT_TRUE(call.status().ok()) << call.status().message();
    r.spoil(call);
    const Status s = call.status();
    EXPECT_EQ(s.code(), r.code) << r.name << ": " << s.message();
    EXPECT_NE(s.message().find(r.part), std::string::npos) << r.name << ": " << s.message();
    EXPECT_EQ(s.message().find('\n'), std::string::npos) << r.name;
  }
}

TEST(Problem, VisibilityFollowsTheDefinitions) {
  // Every (row, key) against the sentences of docs/numerics.md, huge windows included.
  for (const Causal causal : {Causal::none, Causal::top_left, Causal::bottom_right}) {
    for (const Window window :
         {Window{-1, -1}, Window{0, 0}, Window{2, -1}, Window{-1, 1}, Window{3, 2},
          Window{std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::max()}}) {
      for (const auto& [q_len, n] : {std::pair<std::int64_t, std::int64_t>{5, 5}, {3, 8}, {8, 3}, {4, 0}}) {
        Problem p;
        p.options.causal = causal;
        p.options.window = window;
        const Sequence s{0, 0, q_len, 0, n};
        for (std::int64_t i = 0; i < q_len; ++i) {
          const KeyRange range = visible_keys(p, s, i);
          for (std::int64_t j = 0; j < n; ++j) {
            const std::int64_t at = i + (causal == Causal::top_left ? 0 : n - q_len);
            const bool visible = (causal == Causal::none || j <= at) &&
                                 (window.left < 0 || at - j <= window.left) &&
                                 (window.right < 0 || j - at <= window.right);
            EXPECT_EQ(visible, j >= range.begin && j < range.end)
                << static_cast<int>(causal) << " window " << window.left << "," << window.right << " row "
                << i << " key " << j << " of " << n;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace octavo
