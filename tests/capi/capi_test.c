/* The C interface, used from C11: right answers, every status, and no way to crash it with NULL. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "octavo/octavo.h"

static int failures = 0;
static int checks = 0;

#define CHECK(condition) check((condition) != 0, #condition, __LINE__)
static void check(int ok, const char* what, int line) {
  ++checks;
  if (ok) return;
  ++failures;
  fprintf(stderr, "capi_test.c:%d: not true: %s (last error: %s)\n", line, what, octavo_last_error());
}

/* The status is the one expected, and the sentence holds every word given. */
#define REFUSED(call, expected, word) refused((call), (expected), (word), #call, __LINE__)
static void refused(octavo_status status, octavo_status expected, const char* word, const char* call,
                    int line) {
  ++checks;
  if (status == expected && strstr(octavo_last_error(), word) != NULL) return;
  ++failures;
  fprintf(stderr, "capi_test.c:%d: %s gave %s (\"%s\"), expected %s with \"%s\"\n", line, call,
          octavo_status_name(status), octavo_last_error(), octavo_status_name(expected), word);
}

enum { kBatch = 2, kQHeads = 4, kKvHeads = 2, kRows = 33, kKeys = 70, kDim = 24 };
enum { kQSize = kBatch * kQHeads * kRows * kDim, kKSize = kBatch * kKvHeads * kKeys * kDim };

typedef struct {
  float q[kQSize], k[kKSize], v[kKSize], o[kQSize], want[kQSize];
  float lse[kBatch * kQHeads * kRows], want_lse[kBatch * kQHeads * kRows];
  octavo_tensor q_view, k_view, v_view, o_view, lse_view;
} problem;

static unsigned random_state = 1;
static float random_float(void) { /* about N(0, 1): the sum of 12 uniform numbers has variance 1 */
  float sum = -6.0f;
  int i;
  for (i = 0; i < 12; ++i) {
    random_state = random_state * 1664525u + 1013904223u;
    sum += (float)(random_state >> 8) / 16777216.0f;
  }
  return sum;
}

/* Softmax in double, written as the definition. */
static void reference(problem* p, int causal_top_left) {
  int b, h, i, j, d;
  for (b = 0; b < kBatch; ++b)
    for (h = 0; h < kQHeads; ++h)
      for (i = 0; i < kRows; ++i) {
        const float* q = p->q + ((b * kQHeads + h) * kRows + i) * kDim;
        const int kv = (b * kKvHeads + h / (kQHeads / kKvHeads)) * kKeys * kDim;
        double score[kKeys], sum = 0.0, most = -INFINITY, o[kDim] = {0.0};
        const int keys = causal_top_left ? i + 1 : kKeys;
        for (j = 0; j < keys; ++j) {
          score[j] = 0.0;
          for (d = 0; d < kDim; ++d) score[j] += (double)q[d] * (double)p->k[kv + j * kDim + d];
          score[j] /= sqrt((double)kDim);
          if (score[j] > most) most = score[j];
        }
        for (j = 0; j < keys; ++j) {
          const double w = exp(score[j] - most);
          sum += w;
          for (d = 0; d < kDim; ++d) o[d] += w * (double)p->v[kv + j * kDim + d];
        }
        for (d = 0; d < kDim; ++d) p->want[((b * kQHeads + h) * kRows + i) * kDim + d] = (float)(o[d] / sum);
        p->want_lse[(b * kQHeads + h) * kRows + i] = (float)(most + log(sum));
      }
}

static double relative_l1(const float* got, const float* want, int n) {
  double error = 0.0, size = 0.0;
  int i;
  for (i = 0; i < n; ++i) {
    error += fabs((double)got[i] - (double)want[i]);
    size += fabs((double)want[i]);
  }
  return error / size; /* NaN fails every comparison below */
}

static problem* make_problem(void) {
  const int64_t q_shape[4] = {kBatch, kQHeads, kRows, kDim};
  const int64_t k_shape[4] = {kBatch, kKvHeads, kKeys, kDim};
  problem* p = calloc(1, sizeof *p);
  int i;
  if (p == NULL) abort();
  for (i = 0; i < kQSize; ++i) p->q[i] = random_float();
  for (i = 0; i < kKSize; ++i) p->k[i] = random_float();
  for (i = 0; i < kKSize; ++i) p->v[i] = random_float();
  CHECK(octavo_tensor_init(&p->q_view, p->q, OCTAVO_F32, 4, q_shape) == OCTAVO_OK);
  CHECK(octavo_tensor_init(&p->k_view, p->k, OCTAVO_F32, 4, k_shape) == OCTAVO_OK);
  CHECK(octavo_tensor_init(&p->v_view, p->v, OCTAVO_F32, 4, k_shape) == OCTAVO_OK);
  CHECK(octavo_tensor_init(&p->o_view, p->o, OCTAVO_F32, 4, q_shape) == OCTAVO_OK);
  CHECK(octavo_tensor_init(&p->lse_view, p->lse, OCTAVO_F32, 3, q_shape) == OCTAVO_OK);
  reference(p, 0);
  return p;
}

/* f32 products and sums of the exact recipe: rounding of the output only. */
static const double kExactTolerance = 1e-6;
/* The recipe cpu8 on N(0,1): 0.016 relative L1 (0.03 with room for the few keys here). */
static const double kCpu8Tolerance = 0.03;

static void test_version_and_lists(void) {
  size_t i;
  octavo_preset preset;
  octavo_kernel kernel;
  int found = 0;
  CHECK(strlen(octavo_version()) >= 5);
  CHECK(strcmp(octavo_status_name(OCTAVO_OK), "ok") == 0);
  CHECK(strcmp(octavo_status_name(1234), "unknown status") == 0);
  CHECK(strcmp(octavo_last_error(), "") == 0); /* nothing has failed yet */
  CHECK(octavo_preset_count() >= 10);
  for (i = 0; i < octavo_preset_count(); ++i) {
    CHECK(octavo_preset_info(i, &preset) == OCTAVO_OK);
    CHECK(preset.name[0] != '\0' && preset.summary[0] != '\0' && preset.source != NULL);
    found += strcmp(preset.name, "sage2++-8+8") == 0;
  }
  CHECK(found == 1);
  REFUSED(octavo_preset_info(i, &preset), OCTAVO_INVALID_ARGUMENT, "index");
  REFUSED(octavo_preset_info(0, NULL), OCTAVO_INVALID_ARGUMENT, "preset");
  found = 0;
  for (i = 0; i < octavo_kernel_count(); ++i) {
    CHECK(octavo_kernel_info(i, &kernel) == OCTAVO_OK);
    CHECK(kernel.backend[0] != '\0' && kernel.file[0] != '\0' && kernel.summary[0] != '\0');
    if (strcmp(kernel.name, "reference.exact") == 0) found += kernel.available;
  }
  CHECK(found == 1);
  REFUSED(octavo_kernel_info(i, &kernel), OCTAVO_INVALID_ARGUMENT, "index");
  REFUSED(octavo_kernel_info(0, NULL), OCTAVO_INVALID_ARGUMENT, "kernel");
}

static void test_tensor(void) {
  const int64_t shape[4] = {2, 3, 5, 7};
  const int64_t negative[2] = {2, -1};
  const int64_t huge[3] = {INT64_MAX / 2, 4, 1};
  octavo_tensor t;
  float x;
  CHECK(octavo_tensor_init(&t, &x, OCTAVO_BF16, 4, shape) == OCTAVO_OK);
  CHECK(t.strides[0] == 105 && t.strides[1] == 35 && t.strides[2] == 7 && t.strides[3] == 1);
  REFUSED(octavo_tensor_init(NULL, &x, OCTAVO_F32, 4, shape), OCTAVO_INVALID_ARGUMENT, "tensor");
  REFUSED(octavo_tensor_init(&t, &x, OCTAVO_F32, 4, NULL), OCTAVO_INVALID_ARGUMENT, "shape");
  REFUSED(octavo_tensor_init(&t, &x, 99, 4, shape), OCTAVO_INVALID_ARGUMENT, "dtype is 99");
  REFUSED(octavo_tensor_init(&t, &x, OCTAVO_F32, 5, shape), OCTAVO_INVALID_ARGUMENT, "rank is 5");
  REFUSED(octavo_tensor_init(&t, &x, OCTAVO_F32, 2, negative), OCTAVO_INVALID_ARGUMENT, "shape[1] is -1");
  REFUSED(octavo_tensor_init(&t, &x, OCTAVO_F32, 3, huge), OCTAVO_INVALID_ARGUMENT, "shape[0]");
}

static void test_recipe(void) {
  octavo_recipe* r = NULL;
  char text[64];
  size_t length = 0;
  REFUSED(octavo_recipe_create("sage9", &r), OCTAVO_INVALID_ARGUMENT, "sage2-8+8");
  CHECK(r == NULL);
  REFUSED(octavo_recipe_create(NULL, &r), OCTAVO_INVALID_ARGUMENT, "preset");
  REFUSED(octavo_recipe_create("exact", NULL), OCTAVO_INVALID_ARGUMENT, "recipe");

  CHECK(octavo_recipe_create("sage2++-8+8", &r) == OCTAVO_OK);
  CHECK(octavo_recipe_get(r, "p_range", text, sizeof text, &length) == OCTAVO_OK);
  CHECK(strcmp(text, "224") == 0 && length == 3);
  CHECK(octavo_recipe_get(r, "name", text, sizeof text, NULL) == OCTAVO_OK &&
        strcmp(text, "sage2++-8+8") == 0);
  CHECK(octavo_recipe_get(r, "qk_format", NULL, 0, &length) == OCTAVO_OK && length == strlen("int8"));
  REFUSED(octavo_recipe_get(r, "qk_format", text, 4, &length), OCTAVO_OUT_OF_MEMORY, "needs 5");
  REFUSED(octavo_recipe_get(r, "nonsense", text, sizeof text, NULL), OCTAVO_INVALID_ARGUMENT, "nonsense");
  REFUSED(octavo_recipe_get(r, NULL, text, sizeof text, NULL), OCTAVO_INVALID_ARGUMENT, "field");
  REFUSED(octavo_recipe_get(NULL, "name", text, sizeof text, NULL), OCTAVO_INVALID_ARGUMENT, "recipe");
  REFUSED(octavo_recipe_get(r, "name", NULL, 8, NULL), OCTAVO_INVALID_ARGUMENT, "text");

  CHECK(octavo_recipe_check(r, 128) == OCTAVO_OK);
  CHECK(octavo_recipe_set(r, "v_range", "448") == OCTAVO_OK); /* 32 * 2 * 224 * 448 does not fit in f16 */
  REFUSED(octavo_recipe_check(r, 128), OCTAVO_INVALID_ARGUMENT, "65504");
  REFUSED(octavo_recipe_check(NULL, 128), OCTAVO_INVALID_ARGUMENT, "recipe");
  REFUSED(octavo_recipe_set(r, "v_range", "many"), OCTAVO_INVALID_ARGUMENT, "many");
  REFUSED(octavo_recipe_set(r, "colour", "red"), OCTAVO_INVALID_ARGUMENT, "colour");
  REFUSED(octavo_recipe_set(r, NULL, "1"), OCTAVO_INVALID_ARGUMENT, "field");
  REFUSED(octavo_recipe_set(r, "v_range", NULL), OCTAVO_INVALID_ARGUMENT, "value");
  REFUSED(octavo_recipe_set(NULL, "v_range", "1"), OCTAVO_INVALID_ARGUMENT, "recipe");
  octavo_recipe_free(r);
  CHECK(octavo_recipe_create("auto", &r) == OCTAVO_OK);
  REFUSED(octavo_recipe_set(r, "smooth_k", "false"), OCTAVO_INVALID_ARGUMENT, "auto");
  octavo_recipe_free(r);
  octavo_recipe_free(NULL);
}

static void test_attention(void) {
  problem* p = make_problem();
  problem* before = malloc(sizeof *before);
  octavo_recipe *exact = NULL, *automatic = NULL;
  octavo_options options;
  if (before == NULL) abort();
  *before = *p;
  CHECK(octavo_recipe_create("exact", &exact) == OCTAVO_OK);
  CHECK(octavo_recipe_create("auto", &automatic) == OCTAVO_OK);
  CHECK(octavo_options_init(&options, sizeof options) == OCTAVO_OK);
  options.kernel = "reference.exact";

  CHECK(octavo_attention(&p->q_view, &p->k_view, &p->v_view, &p->o_view, &p->lse_view, exact, &options,
                         NULL) == OCTAVO_OK);
  CHECK(relative_l1(p->o, p->want, kQSize) < kExactTolerance);
  CHECK(relative_l1(p->lse, p->want_lse, kBatch * kQHeads * kRows) < kExactTolerance);
  CHECK(memcmp(p->q, before->q, sizeof p->q) == 0 && memcmp(p->k, before->k, sizeof p->k) == 0 &&
        memcmp(p->v, before->v, sizeof p->v) == 0);

  options.kernel = NULL; /* no lse, the fastest kernel, all defaults */
  memset(p->o, 0xff, sizeof p->o);
  CHECK(octavo_attention(&p->q_view, &p->k_view, &p->v_view, &p->o_view, NULL, automatic, NULL, NULL) ==
        OCTAVO_OK);
  CHECK(relative_l1(p->o, p->want, kQSize) < kCpu8Tolerance);

  options.causal = OCTAVO_CAUSAL_TOP_LEFT;
  options.threads = 1;
  reference(p, 1);
  CHECK(octavo_attention(&p->q_view, &p->k_view, &p->v_view, &p->o_view, &p->lse_view, automatic, &options,
                         NULL) == OCTAVO_OK);
  CHECK(relative_l1(p->o, p->want, kQSize) < kCpu8Tolerance);
  octavo_recipe_free(exact);
  octavo_recipe_free(automatic);
  free(before);
  free(p);
}

static void test_refusals(void) {
  problem* p = make_problem();
  octavo_recipe* r = NULL;
  octavo_options options, broken;
  struct {
    octavo_options base;
    int64_t later_field;
  } newer;
  octavo_tensor wrong;
  const octavo_tensor *q = &p->q_view, *k = &p->k_view, *v = &p->v_view, *o = &p->o_view;
  CHECK(octavo_recipe_create("exact", &r) == OCTAVO_OK);
  CHECK(octavo_options_init(&options, sizeof options) == OCTAVO_OK);
  options.kernel = "reference.exact";
  REFUSED(octavo_attention(NULL, k, v, o, NULL, r, &options, NULL), OCTAVO_INVALID_ARGUMENT, "q is NULL");
  REFUSED(octavo_attention(q, NULL, v, o, NULL, r, &options, NULL), OCTAVO_INVALID_ARGUMENT, "k is NULL");
  REFUSED(octavo_attention(q, k, NULL, o, NULL, r, &options, NULL), OCTAVO_INVALID_ARGUMENT, "v is NULL");
  REFUSED(octavo_attention(q, k, v, NULL, NULL, r, &options, NULL), OCTAVO_INVALID_ARGUMENT, "out is NULL");
  REFUSED(octavo_attention(q, k, v, o, NULL, NULL, &options, NULL), OCTAVO_INVALID_ARGUMENT,
          "recipe is NULL");
  REFUSED(octavo_options_init(NULL, sizeof options), OCTAVO_INVALID_ARGUMENT, "options");
  REFUSED(octavo_options_init(&broken, 8), OCTAVO_INVALID_ARGUMENT, "struct_size");

  wrong = p->q_view;
  wrong.data = NULL;
  REFUSED(octavo_attention(&wrong, k, v, o, NULL, r, &options, NULL), OCTAVO_INVALID_ARGUMENT, "q is a null");
  wrong = p->k_view;
  wrong.shape[3] = kDim - 1;
  REFUSED(octavo_attention(q, &wrong, v, o, NULL, r, &options, NULL), OCTAVO_INVALID_ARGUMENT, "head_dim");
  REFUSED(octavo_attention(q, k, &wrong, o, NULL, r, &options, NULL), OCTAVO_UNSUPPORTED, "head_dim");
  wrong = p->k_view;
  wrong.rank = 0;
  REFUSED(octavo_attention(q, &wrong, v, o, NULL, r, &options, NULL), OCTAVO_INVALID_ARGUMENT, "k.rank is 0");
  wrong = p->q_view;
  wrong.dtype = OCTAVO_I8;
  REFUSED(octavo_attention(&wrong, k, v, o, NULL, r, &options, NULL), OCTAVO_UNSUPPORTED, "i8");
  wrong.dtype = -1;
  REFUSED(octavo_attention(&wrong, k, v, o, NULL, r, &options, NULL), OCTAVO_INVALID_ARGUMENT,
          "q.dtype is -1");
  wrong = p->q_view;
  wrong.device_kind = 7;
  REFUSED(octavo_attention(&wrong, k, v, o, NULL, r, &options, NULL), OCTAVO_INVALID_ARGUMENT,
          "device_kind is 7");
  wrong = p->k_view;
  wrong.device_kind = OCTAVO_CUDA;
  REFUSED(octavo_attention(q, &wrong, v, o, NULL, r, &options, NULL), OCTAVO_INVALID_ARGUMENT,
          "k is on cuda:0");
  CHECK(options.check_finite == -1); /* by the device */

  broken = options;
  broken.struct_size = 4;
  REFUSED(octavo_attention(q, k, v, o, NULL, r, &broken, NULL), OCTAVO_INVALID_ARGUMENT, "struct_size is 4");
  broken = options;
  broken.layout = 3;
  REFUSED(octavo_attention(q, k, v, o, NULL, r, &broken, NULL), OCTAVO_INVALID_ARGUMENT, "layout is 3");
  broken = options;
  broken.causal = -1;
  REFUSED(octavo_attention(q, k, v, o, NULL, r, &broken, NULL), OCTAVO_INVALID_ARGUMENT, "causal is -1");
  broken = options;
  broken.kernel = "gpu.quantum";
  REFUSED(octavo_attention(q, k, v, o, NULL, r, &broken, NULL), OCTAVO_INVALID_ARGUMENT, "gpu.quantum");
  broken = options;
  broken.has_scale = 1;
  broken.scale = NAN;
  REFUSED(octavo_attention(q, k, v, o, NULL, r, &broken, NULL), OCTAVO_INVALID_ARGUMENT, "scale");
  broken = options;
  broken.key_splits = 2;
  REFUSED(octavo_attention(q, k, v, o, NULL, r, &broken, NULL), OCTAVO_UNSUPPORTED, "key_splits is 2");
  broken = options;
  broken.reserved = 1;
  REFUSED(octavo_attention(q, k, v, o, NULL, r, &broken, NULL), OCTAVO_INVALID_ARGUMENT, "reserved is 1");
  broken = options;
  broken.mask = &p->q_view;
  REFUSED(octavo_attention(q, k, v, o, NULL, r, &broken, NULL), OCTAVO_INVALID_ARGUMENT, "mask");

  /* A caller built for a later version: fields left at 0 are "not given", others cannot be honoured. */
  CHECK(octavo_options_init(&newer.base, sizeof newer) == OCTAVO_OK);
  newer.base.kernel = "reference.exact";
  CHECK(octavo_attention(q, k, v, o, NULL, r, &newer.base, NULL) == OCTAVO_OK);
  newer.later_field = 1;
  REFUSED(octavo_attention(q, k, v, o, NULL, r, &newer.base, NULL), OCTAVO_UNSUPPORTED, "struct_size");

  p->k[3] = INFINITY;
  REFUSED(octavo_attention(q, k, v, o, NULL, r, &options, NULL), OCTAVO_INVALID_ARGUMENT, "k");
  octavo_recipe_free(r);
  free(p);
}

static void test_plan(void) {
  problem* p = make_problem();
  octavo_recipe* r = NULL;
  octavo_plan* plan = NULL;
  octavo_quantized_kv *kv = NULL, *own = NULL, *part = NULL;
  octavo_quantized_q *qq = NULL, *own_q = NULL;
  size_t kv_bytes = 0, q_bytes = 0, workspace_bytes = 0;
  char text[64];
  void *memory, *q_memory, *workspace;
  const octavo_tensor *q = &p->q_view, *k = &p->k_view, *v = &p->v_view, *o = &p->o_view;
  CHECK(octavo_recipe_create("auto", &r) == OCTAVO_OK);
  REFUSED(octavo_plan_create(q, k, v, r, NULL, NULL), OCTAVO_INVALID_ARGUMENT, "plan");
  REFUSED(octavo_plan_create(q, k, v, NULL, NULL, &plan), OCTAVO_INVALID_ARGUMENT, "recipe");
  REFUSED(octavo_plan_create(NULL, k, v, r, NULL, &plan), OCTAVO_INVALID_ARGUMENT, "q is NULL");
  CHECK(plan == NULL);
  CHECK(octavo_plan_create(q, k, v, r, NULL, &plan) == OCTAVO_OK);
  CHECK(octavo_plan_kernel(plan)[0] != '\0');
  CHECK(strstr(octavo_plan_reason(plan), octavo_plan_kernel(plan)) != NULL);
  CHECK(octavo_plan_recipe_get(plan, "name", text, sizeof text, NULL) == OCTAVO_OK &&
        strcmp(text, "cpu8") == 0);
  REFUSED(octavo_plan_recipe_get(NULL, "name", text, sizeof text, NULL), OCTAVO_INVALID_ARGUMENT, "plan");
  CHECK(octavo_plan_kernel(NULL)[0] == '\0' && octavo_plan_reason(NULL)[0] == '\0');
  CHECK(octavo_plan_bytes(plan, &kv_bytes, &q_bytes, &workspace_bytes) == OCTAVO_OK);
  CHECK(octavo_plan_bytes(plan, NULL, NULL, NULL) == OCTAVO_OK);
  REFUSED(octavo_plan_bytes(NULL, &kv_bytes, NULL, NULL), OCTAVO_INVALID_ARGUMENT, "plan");

  /* Buffers of the caller. */
  memory = aligned_alloc(64, (kv_bytes + 127) / 64 * 64);
  q_memory = aligned_alloc(64, (q_bytes + 127) / 64 * 64);
  workspace = aligned_alloc(64, (workspace_bytes + 127) / 64 * 64);
  CHECK(octavo_quantized_kv_wrap(memory, kv_bytes, &kv) == OCTAVO_OK);
  CHECK(octavo_quantized_q_wrap(q_memory, q_bytes, &qq) == OCTAVO_OK);
  REFUSED(octavo_plan_quantize_q(plan, q, kv, qq, NULL), OCTAVO_INVALID_ARGUMENT, "kv"); /* still empty */
  CHECK(octavo_plan_quantize_kv(plan, k, v, kv, NULL) == OCTAVO_OK);
  REFUSED(octavo_plan_attend(plan, qq, kv, o, NULL, NULL, 0, NULL), OCTAVO_INVALID_ARGUMENT, "qq");
  CHECK(octavo_plan_quantize_q(plan, q, kv, qq, NULL) == OCTAVO_OK);
  CHECK(octavo_plan_attend(plan, qq, kv, o, &p->lse_view, workspace, workspace_bytes, NULL) == OCTAVO_OK);
  CHECK(relative_l1(p->o, p->want, kQSize) < kCpu8Tolerance);
  CHECK(relative_l1(p->lse, p->want_lse, kBatch * kQHeads * kRows) < 2e-2);

  /* Buffers of Octavo, and the steps equal the call. */
  CHECK(octavo_quantized_kv_create(&own) == OCTAVO_OK);
  CHECK(octavo_quantized_q_create(&own_q) == OCTAVO_OK);
  CHECK(octavo_plan_quantize_kv(plan, k, v, own, NULL) == OCTAVO_OK);
  CHECK(octavo_plan_quantize_q(plan, q, own, own_q, NULL) == OCTAVO_OK);
  memcpy(p->want, p->o, sizeof p->o);
  memset(p->o, 0, sizeof p->o);
  CHECK(octavo_plan_attend(plan, own_q, own, o, NULL, NULL, 0, NULL) == OCTAVO_OK);
  CHECK(memcmp(p->want, p->o, sizeof p->o) == 0);
  memset(p->o, 0, sizeof p->o);
  CHECK(octavo_attention(q, k, v, o, NULL, r, NULL, NULL) == OCTAVO_OK);
  CHECK(memcmp(p->want, p->o, sizeof p->o) == 0);

  {
    size_t run_bytes = 0;
    void* all;
    CHECK(octavo_plan_run_bytes(plan, &run_bytes) == OCTAVO_OK);
    CHECK(run_bytes >= kv_bytes + q_bytes + workspace_bytes);
    all = aligned_alloc(64, (run_bytes + 63) / 64 * 64);
    memset(p->o, 0, sizeof p->o);
    CHECK(octavo_plan_run(plan, q, k, v, o, NULL, all, run_bytes, NULL) == OCTAVO_OK);
    CHECK(memcmp(p->want, p->o, sizeof p->o) == 0);
    memset(p->o, 0, sizeof p->o);
    CHECK(octavo_plan_run(plan, q, k, v, o, &p->lse_view, NULL, 0, NULL) == OCTAVO_OK);
    CHECK(memcmp(p->want, p->o, sizeof p->o) == 0);
    REFUSED(octavo_plan_run(plan, q, k, v, o, NULL, all, run_bytes - 1, NULL), OCTAVO_OUT_OF_MEMORY, "needs");
    REFUSED(octavo_plan_run(plan, q, k, v, o, NULL, NULL, 8, NULL), OCTAVO_INVALID_ARGUMENT, "memory");
    REFUSED(octavo_plan_run(NULL, q, k, v, o, NULL, NULL, 0, NULL), OCTAVO_INVALID_ARGUMENT, "plan");
    REFUSED(octavo_plan_run(plan, q, NULL, v, o, NULL, NULL, 0, NULL), OCTAVO_INVALID_ARGUMENT, "k is NULL");
    REFUSED(octavo_plan_run(plan, q, k, v, NULL, NULL, NULL, 0, NULL), OCTAVO_INVALID_ARGUMENT,
            "out is NULL");
    REFUSED(octavo_plan_run_bytes(plan, NULL), OCTAVO_INVALID_ARGUMENT, "bytes");
    REFUSED(octavo_plan_run_bytes(NULL, &run_bytes), OCTAVO_INVALID_ARGUMENT, "plan");
    free(all);
  }

  /* One head of what was quantized, its memory shared. */
  REFUSED(octavo_quantized_kv_heads(own, 1, kKvHeads, &part), OCTAVO_INVALID_ARGUMENT, "heads");
  CHECK(part == NULL);
  CHECK(octavo_quantized_kv_heads(own, 1, 1, &part) == OCTAVO_OK);
  octavo_quantized_kv_free(own);
  {
    octavo_plan* one = NULL;
    octavo_quantized_q* one_q = NULL;
    octavo_tensor q1 = p->q_view, k1 = p->k_view, o1 = p->o_view;
    const float* want1 = p->want + 2 * kRows * kDim; /* query heads 2 and 3 read key head 1 */
    q1.data = p->q + 2 * kRows * kDim;
    q1.shape[1] = 2;
    k1.data = p->k + kKeys * kDim;
    k1.shape[1] = 1;
    o1.shape[1] = 2;
    CHECK(octavo_plan_create(&q1, &k1, &k1, r, NULL, &one) == OCTAVO_OK);
    CHECK(octavo_quantized_q_create(&one_q) == OCTAVO_OK);
    CHECK(octavo_plan_quantize_q(one, &q1, part, one_q, NULL) == OCTAVO_OK);
    memset(p->o, 0, sizeof p->o);
    CHECK(octavo_plan_attend(one, one_q, part, &o1, NULL, NULL, 0, NULL) == OCTAVO_OK);
    CHECK(memcmp(p->o, want1, sizeof(float) * 2 * kRows * kDim) == 0);
    octavo_quantized_q_free(one_q);
    octavo_plan_free(one);
  }

  /* Refusals. */
  REFUSED(octavo_plan_quantize_kv(NULL, k, v, kv, NULL), OCTAVO_INVALID_ARGUMENT, "plan");
  REFUSED(octavo_plan_quantize_kv(plan, NULL, v, kv, NULL), OCTAVO_INVALID_ARGUMENT, "k is NULL");
  REFUSED(octavo_plan_quantize_kv(plan, k, NULL, kv, NULL), OCTAVO_INVALID_ARGUMENT, "v is NULL");
  REFUSED(octavo_plan_quantize_kv(plan, k, v, NULL, NULL), OCTAVO_INVALID_ARGUMENT, "kv is NULL");
  REFUSED(octavo_plan_quantize_q(NULL, q, kv, qq, NULL), OCTAVO_INVALID_ARGUMENT, "plan");
  REFUSED(octavo_plan_quantize_q(plan, NULL, kv, qq, NULL), OCTAVO_INVALID_ARGUMENT, "q is NULL");
  REFUSED(octavo_plan_quantize_q(plan, q, NULL, qq, NULL), OCTAVO_INVALID_ARGUMENT, "kv is NULL");
  REFUSED(octavo_plan_quantize_q(plan, q, kv, NULL, NULL), OCTAVO_INVALID_ARGUMENT, "qq is NULL");
  REFUSED(octavo_plan_attend(NULL, qq, kv, o, NULL, NULL, 0, NULL), OCTAVO_INVALID_ARGUMENT, "plan");
  REFUSED(octavo_plan_attend(plan, NULL, kv, o, NULL, NULL, 0, NULL), OCTAVO_INVALID_ARGUMENT, "qq is NULL");
  REFUSED(octavo_plan_attend(plan, qq, NULL, o, NULL, NULL, 0, NULL), OCTAVO_INVALID_ARGUMENT, "kv is NULL");
  REFUSED(octavo_plan_attend(plan, qq, kv, NULL, NULL, NULL, 0, NULL), OCTAVO_INVALID_ARGUMENT,
          "out is NULL");
  REFUSED(octavo_plan_attend(plan, qq, kv, o, NULL, NULL, 9, NULL), OCTAVO_INVALID_ARGUMENT, "workspace");
  REFUSED(octavo_quantized_kv_create(NULL), OCTAVO_INVALID_ARGUMENT, "kv");
  REFUSED(octavo_quantized_q_create(NULL), OCTAVO_INVALID_ARGUMENT, "qq");
  REFUSED(octavo_quantized_kv_heads(NULL, 0, 1, &own), OCTAVO_INVALID_ARGUMENT, "kv");
  REFUSED(octavo_quantized_kv_heads(kv, 0, 1, NULL), OCTAVO_INVALID_ARGUMENT, "part");
  {
    octavo_quantized_kv* small = NULL;
    REFUSED(octavo_quantized_kv_wrap(NULL, 64, &small), OCTAVO_INVALID_ARGUMENT, "memory");
    REFUSED(octavo_quantized_kv_wrap(memory, 64, NULL), OCTAVO_INVALID_ARGUMENT, "kv");
    CHECK(octavo_quantized_kv_wrap(memory, 64, &small) == OCTAVO_OK);
    REFUSED(octavo_plan_quantize_kv(plan, k, v, small, NULL), OCTAVO_OUT_OF_MEMORY, "64 bytes");
    octavo_quantized_kv_free(small);
    CHECK(octavo_quantized_kv_wrap((char*)memory + 1, kv_bytes, &small) == OCTAVO_OK);
    REFUSED(octavo_plan_quantize_kv(plan, k, v, small, NULL), OCTAVO_INVALID_ARGUMENT, "aligned");
    octavo_quantized_kv_free(small);
  }
  octavo_quantized_kv_free(part);
  octavo_quantized_kv_free(kv);
  octavo_quantized_q_free(qq);
  octavo_quantized_q_free(own_q);
  octavo_quantized_kv_free(NULL);
  octavo_quantized_q_free(NULL);
  octavo_plan_free(plan);
  octavo_plan_free(NULL);
  octavo_recipe_free(r);
  free(memory);
  free(q_memory);
  free(workspace);
  free(p);
}

static void* fail_elsewhere(void* seen) {
  octavo_recipe* r = NULL;
  *(int*)seen = octavo_last_error()[0] != '\0'; /* the other thread's error must not show here */
  octavo_recipe_create("of-the-other-thread", &r);
  return NULL;
}

static void test_errors_belong_to_threads(void) {
  octavo_recipe* r = NULL;
  pthread_t other;
  int seen = 1;
  REFUSED(octavo_recipe_create("of-this-thread", &r), OCTAVO_INVALID_ARGUMENT, "of-this-thread");
  CHECK(pthread_create(&other, NULL, fail_elsewhere, &seen) == 0);
  CHECK(pthread_join(other, NULL) == 0);
  CHECK(seen == 0);
  CHECK(strstr(octavo_last_error(), "of-this-thread") != NULL);
}

int main(void) {
  test_version_and_lists();
  test_tensor();
  test_recipe();
  test_attention();
  test_refusals();
  test_plan();
  test_errors_belong_to_threads();
  printf("%d checks, %d failed\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
