// Attention from C++: one call, then the three steps, which keep quantized K and V for the next call; and how
// far the 8-bit result is from the exact one.
//
// Build against an installed Octavo: find_package(octavo REQUIRED), target_link_libraries(...
// octavo::octavo).
#include <cstdlib>
#include <iostream>
#include <octavo/octavo.hpp>
#include <random>
#include <vector>

namespace {

constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kDim = 64;

// Nothing throws: a Status says what was wrong with which argument.
void must(const octavo::Status& status) {
  if (status.ok()) return;
  std::cerr << "octavo: " << octavo::to_string(status.code()) << ": " << status.message() << '\n';
  std::exit(1);
}

template <class T>
T must(octavo::Result<T> result) {
  must(result.status());
  return std::move(*result);
}

std::vector<float> random_tensor(unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(kHeads * kTokens * kDim);
  for (float& value : x) value = normal(engine);
  return x;
}

}  // namespace

int main() {
  const std::vector<float> q = random_tensor(1);
  const std::vector<float> k = random_tensor(2);
  const std::vector<float> v = random_tensor(3);
  std::vector<float> o(q.size());
  std::vector<float> again(q.size());
  std::vector<float> exact(q.size());
  // A view is pointer, dtype, [batch, heads, tokens, head_dim], and strides where it is not contiguous.
  const auto in = [](const std::vector<float>& x) {
    return octavo::TensorView(x.data(), octavo::DType::f32, {1, kHeads, kTokens, kDim});
  };
  const auto out = [](std::vector<float>& x) {
    return octavo::MutableTensorView(x.data(), octavo::DType::f32, {1, kHeads, kTokens, kDim});
  };
  const octavo::AttentionOptions options{.causal = octavo::Causal::top_left};

  // One call.
  const octavo::Recipe recipe = must(octavo::recipe("auto"));
  must(octavo::attention(in(q), in(k), in(v), out(o), {}, recipe, options));

  // The same in three steps; kv can serve any number of calls with the same keys.
  const octavo::Problem problem = must(octavo::make_problem(in(q), in(k), in(v), options));
  const octavo::Plan plan = must(octavo::plan(problem, recipe));
  std::cout << "octavo " << octavo::version() << ": " << plan.reason() << '\n';
  octavo::QuantizedKv kv;
  octavo::QuantizedQ qq;
  must(plan.quantize_kv(in(k), in(v), kv));
  must(plan.quantize_q(in(q), kv, qq));
  must(plan.attend(qq, kv, out(again)));

  must(octavo::attention(in(q), in(k), in(v), out(exact), {}, must(octavo::recipe("exact")), options,
                         {.kernel = "reference.exact"}));
  const octavo::Comparison error = must(octavo::compare(in(o), in(exact)));
  std::cout << "relative L1 against the exact result: " << error.all.relative_l1 << ", cossim "
            << error.all.cossim << "; K and V take " << kv.bytes() << " bytes instead of "
            << (k.size() + v.size()) * sizeof(float) << '\n';
  return o == again ? 0 : 1;
}
