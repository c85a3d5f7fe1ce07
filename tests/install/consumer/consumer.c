/* The least a C program does with an installed Octavo: one head, two keys, an answer known by hand. */
#include <math.h>
#include <octavo/octavo.h>
#include <stdio.h>

int main(void) {
  const float q[2] = {0.0f, 0.0f}; /* equal logits: the output is the mean of the values */
  const float k[4] = {1.0f, 2.0f, -1.0f, 0.5f};
  const float v[4] = {1.0f, 10.0f, 3.0f, 20.0f};
  float o[2] = {0.0f, 0.0f};
  const int64_t q_shape[4] = {1, 1, 1, 2};
  const int64_t k_shape[4] = {1, 1, 2, 2};
  octavo_tensor q_view, k_view, v_view, o_view;
  octavo_recipe* recipe = NULL;
  octavo_options options;

  if (octavo_tensor_init(&q_view, q, OCTAVO_F32, 4, q_shape) != OCTAVO_OK ||
      octavo_tensor_init(&k_view, k, OCTAVO_F32, 4, k_shape) != OCTAVO_OK ||
      octavo_tensor_init(&v_view, v, OCTAVO_F32, 4, k_shape) != OCTAVO_OK ||
      octavo_tensor_init(&o_view, o, OCTAVO_F32, 4, q_shape) != OCTAVO_OK ||
      octavo_recipe_create("exact", &recipe) != OCTAVO_OK ||
      octavo_options_init(&options, sizeof options) != OCTAVO_OK) {
    fprintf(stderr, "%s\n", octavo_last_error());
    return 1;
  }
  options.kernel = "reference.exact";
  if (octavo_attention(&q_view, &k_view, &v_view, &o_view, NULL, recipe, &options, NULL) != OCTAVO_OK) {
    fprintf(stderr, "%s\n", octavo_last_error());
    return 1;
  }
  octavo_recipe_free(recipe);
  printf("octavo %s: o = %g %g\n", octavo_version(), o[0], o[1]);
  return fabsf(o[0] - 2.0f) < 1e-6f && fabsf(o[1] - 15.0f) < 1e-5f ? 0 : 1;
}
