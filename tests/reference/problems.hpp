// Small random attention problems, a triple loop that answers them in f64 straight from the definition, and
// error measures.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo::testing {

/// Everything of a call, owned. Dense (HND) unless cu_q is filled.
struct Case {
  std::string name;
  std::int64_t batch = 1;
  std::int64_t q_heads = 2;
  std::int64_t kv_heads = 2;
  std::int64_t q_len = 96;
  std::int64_t k_len = 96;
  std::int64_t channels = 32;
  Causal causal = Causal::none;
  Window window{};
  float scale = 0.0F;  ///< used when has_scale
  bool has_scale = false;
  std::vector<std::int32_t> kv_lengths{};
  std::vector<std::int32_t> cu_q{};
  std::vector<std::int32_t> cu_k{};
  double hidden_by_mask = 0.0;  ///< share of pairs; 0 = no mask
  bool with_bias = false;
  unsigned seed = 1;

  std::vector<float> q{};
  std::vector<float> k{};
  std::vector<float> v{};
  std::vector<std::uint8_t> mask{};
  std::vector<float> bias{};

  [[nodiscard]] bool packed() const { return !cu_q.empty(); }
  /// Fills q, k, v (N(0,1), k and v with a mean, so that smoothing has something to do), mask and bias.
  void fill();
  [[nodiscard]] AttentionOptions options() const;
  [[nodiscard]] TensorView q_view() const;
  [[nodiscard]] TensorView k_view() const;
  [[nodiscard]] TensorView v_view() const;
};

struct Answer {
  Status status{};
  std::vector<float> o{};
  std::vector<float> lse{};
};

/// Every way a row can see keys: one case each, filled.
std::vector<Case> visibility_cases();

/// f64 triple loop, no blocking, no running maximum.
Answer triple_loop(const Case& c);
/// attention() through the named kernel; out starts as NaN.
Answer run(const Case& c, const Recipe& recipe, const std::string& kernel, const AttentionOptions& options);
Answer run(const Case& c, const Recipe& recipe, const std::string& kernel);

Recipe preset(const std::string& name);
/// `exact` with fields changed: unrounded operands, everything else as asked.
Recipe unrounded(const std::function<void(Recipe&)>& change);

double relative_l1(const std::vector<float>& a, const std::vector<float>& reference);
double relative_l2(const std::vector<float>& a, const std::vector<float>& reference);
double cossim(const std::vector<float>& a, const std::vector<float>& reference);
/// Largest |a - b|; equal infinities count as 0, anything else not finite as infinity.
double max_difference(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace octavo::testing
