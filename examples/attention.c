/* Attention from C: one call, then the three steps, which keep quantized K and V for the next call.
 *
 * Build against an installed Octavo:  cc -std=c11 attention.c $(pkg-config --cflags --libs octavo)
 * (a prefix of your own: with -Wl,-rpath,PREFIX/lib, or LD_LIBRARY_PATH)
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "octavo/octavo.h"

enum { kHeads = 4, kTokens = 512, kDim = 64, kSize = kHeads * kTokens * kDim };

/* Every Octavo call returns a status; the sentence that goes with it says what to do. */
static void must(octavo_status status) {
  if (status == OCTAVO_OK) return;
  fprintf(stderr, "octavo: %s: %s\n", octavo_status_name(status), octavo_last_error());
  exit(1);
}

static float* random_tensor(unsigned seed) {
  float* x = malloc(kSize * sizeof *x);
  int i;
  if (x == NULL) exit(1);
  for (i = 0; i < kSize; ++i) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
  return x;
}

int main(void) {
  const int64_t shape[4] = {1, kHeads, kTokens, kDim}; /* [batch, heads, tokens, head_dim] */
  float *q = random_tensor(1), *k = random_tensor(2), *v = random_tensor(3);
  float *o = random_tensor(4), *again = random_tensor(5);
  octavo_tensor q_view, k_view, v_view, o_view, again_view;
  octavo_recipe* recipe = NULL;
  octavo_options options;
  octavo_plan* plan = NULL;
  octavo_quantized_kv* kv = NULL;
  octavo_quantized_q* qq = NULL;
  double difference = 0.0;
  int i;

  must(octavo_tensor_init(&q_view, q, OCTAVO_F32, 4, shape));
  must(octavo_tensor_init(&k_view, k, OCTAVO_F32, 4, shape));
  must(octavo_tensor_init(&v_view, v, OCTAVO_F32, 4, shape));
  must(octavo_tensor_init(&o_view, o, OCTAVO_F32, 4, shape));
  must(octavo_tensor_init(&again_view, again, OCTAVO_F32, 4, shape));
  must(octavo_recipe_create("auto", &recipe));
  must(octavo_options_init(&options, sizeof options));
  options.causal = OCTAVO_CAUSAL_TOP_LEFT;

  /* One call. */
  must(octavo_attention(&q_view, &k_view, &v_view, &o_view, NULL, recipe, &options, NULL));

  /* The same in three steps; kv can serve any number of calls with the same keys. */
  must(octavo_plan_create(&q_view, &k_view, &v_view, recipe, &options, &plan));
  printf("octavo %s: %s\n", octavo_version(), octavo_plan_reason(plan));
  must(octavo_quantized_kv_create(&kv));
  must(octavo_quantized_q_create(&qq));
  must(octavo_plan_quantize_kv(plan, &k_view, &v_view, kv, NULL));
  must(octavo_plan_quantize_q(plan, &q_view, kv, qq, NULL));
  must(octavo_plan_attend(plan, qq, kv, &again_view, NULL, NULL, 0, NULL));

  for (i = 0; i < kSize; ++i) {
    const double d = (double)o[i] - (double)again[i];
    if (!(d <= difference && -d <= difference)) difference = d < 0.0 ? -d : d; /* a NaN shows too */
  }
  printf("o[0] = %g, largest difference between the two ways: %g\n", (double)o[0], difference);

  octavo_quantized_q_free(qq);
  octavo_quantized_kv_free(kv);
  octavo_plan_free(plan);
  octavo_recipe_free(recipe);
  free(q);
  free(k);
  free(v);
  free(o);
  free(again);
  return difference == 0.0 ? 0 : 1;
}
