// The least a C++ program does with an installed Octavo: one head, two keys, an answer known by hand.
#include <cmath>
#include <iostream>
#include <octavo/octavo.hpp>
#include <vector>

int main() {
  const std::vector<float> q(2, 0.0F);  // equal logits: the output is the mean of the values
  const std::vector<float> k{1.0F, 2.0F, -1.0F, 0.5F};
  const std::vector<float> v{1.0F, 10.0F, 3.0F, 20.0F};
  std::vector<float> o(2);
  std::vector<float> lse(1);
  const auto f32 = octavo::DType::f32;
  const octavo::TensorView q_view(q.data(), f32, {1, 1, 1, 2});
  const octavo::TensorView k_view(k.data(), f32, {1, 1, 2, 2});
  const octavo::TensorView v_view(v.data(), f32, {1, 1, 2, 2});
  const octavo::MutableTensorView o_view(o.data(), f32, {1, 1, 1, 2});
  const octavo::MutableTensorView lse_view(lse.data(), f32, {1, 1, 1});
  const octavo::Result<octavo::Recipe> recipe = octavo::recipe("exact");
  if (!recipe.ok()) {
    std::cerr << recipe.status().message() << '\n';
    return 1;
  }
  const octavo::Status status =
      octavo::attention(q_view, k_view, v_view, o_view, lse_view, *recipe, {}, {.kernel = "reference.exact"});
  if (!status.ok()) {
    std::cerr << status.message() << '\n';
    return 1;
  }
  std::cout << "octavo " << octavo::version() << ": o = " << o[0] << ' ' << o[1] << ", lse = " << lse[0]
            << '\n';
  const bool right = std::abs(o[0] - 2.0F) < 1e-6F && std::abs(o[1] - 15.0F) < 1e-5F &&
                     std::abs(lse[0] - std::log(2.0F)) < 1e-6F;
  return right ? 0 : 1;
}
