/* The C interface of Octavo: opaque handles, integer status codes, one sentence for every error.
 *
 *   o = softmax(scale * q k^T + bias, over visible keys) v      per query head; head h reads key head h / (Hq
 * / Hkv)
 *
 * Shapes (HND): q, out [B, Hq, Lq, D]; k, v [B, Hkv, Lk, D]; lse f32 [B, Hq, Lq]. NHD: [B, L, H, D]. Packed
 * (THD): [tokens, H, D] with cu_seqlens, lse [Hq, tokens]. q, k and v share one dtype: f32, f16 or bf16.
 * D is 1 to 256.
 *
 * Every function that can fail returns an octavo_status; octavo_last_error() then says what was wrong. No
 * function lets a C++ exception out, none modifies its inputs, and all may be called from several threads at
 * once as long as no two change the same handle. A function that makes a handle leaves NULL in it when it
 * fails; every `_free` takes NULL.
 *
 * ABI: stable within a major version. Structs are laid out as written here; octavo_options starts with its
 * own size, so later versions can add fields.
 */
#ifndef OCTAVO_OCTAVO_H
#define OCTAVO_OCTAVO_H

#include <stddef.h>
#include <stdint.h>

#include "octavo/export.hpp" /* macros only */

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status ---- */

typedef int32_t octavo_status;
enum {
  OCTAVO_OK = 0,
  OCTAVO_INVALID_ARGUMENT = 1, /* the call is wrong: shapes, strides, values, names, NULL, non-finite data */
  OCTAVO_UNSUPPORTED = 2,      /* the call is right, but nothing here can run it */
  OCTAVO_IO_ERROR = 3,
  OCTAVO_OUT_OF_MEMORY = 4, /* an allocation failed, or a caller's buffer is too small */
  OCTAVO_INTERNAL = 5       /* a defect of Octavo */
};

/* Semantic version, "0.1.0". */
OCTAVO_API const char* octavo_version(void);
/* "ok", "invalid argument", ... */
OCTAVO_API const char* octavo_status_name(octavo_status status);
/* What went wrong in the last failed call on this thread: one sentence that names the argument, its value and
 * what is supported. "" if none failed yet. Valid until the next failed call on this thread. */
OCTAVO_API const char* octavo_last_error(void);

/* ---- Tensors ---- */

/* octavo_tensor.dtype */
enum {
  OCTAVO_F32 = 0,
  OCTAVO_F16 = 1,
  OCTAVO_BF16 = 2,
  OCTAVO_E4M3 = 3,
  OCTAVO_I8 = 4,
  OCTAVO_U8 = 5,
  OCTAVO_I32 = 6,
  OCTAVO_I64 = 7,
  OCTAVO_BOOL = 8 /* one byte, 0 or 1 */
};
/* octavo_tensor.device_kind */
enum { OCTAVO_CPU = 0, OCTAVO_CUDA = 1 };

/* A view of the caller's memory, on the CPU or on CUDA device `device_index`. Strides count elements and may
 * be any value, 0 and negative ones too. */
typedef struct octavo_tensor {
  void* data; /* not written through where a function takes an input */
  int32_t dtype;
  int32_t rank; /* 1 to 4 */
  int64_t shape[4];
  int64_t strides[4];
  int32_t device_kind;
  int32_t device_index;
} octavo_tensor;

/* Fills `tensor` with a contiguous (row-major) view of memory on the CPU; `shape` has `rank` entries. */
OCTAVO_API octavo_status octavo_tensor_init(octavo_tensor* tensor, const void* data, int32_t dtype,
                                            int32_t rank, const int64_t* shape);

/* ---- Recipes ---- */

/* How q, k, v and the weights are quantized and summed: a named preset whose fields can be changed. */
typedef struct octavo_recipe octavo_recipe;

typedef struct octavo_preset {
  const char* name;
  const char* summary;
  const char* source; /* "" where none is named */
} octavo_preset;

/* The presets there are; strings live as long as the library is loaded. */
OCTAVO_API size_t octavo_preset_count(void);
OCTAVO_API octavo_status octavo_preset_info(size_t index, octavo_preset* preset);

/* "auto" is a preset too: it picks one for the device when a plan is made, and has no fields of its own. */
OCTAVO_API octavo_status octavo_recipe_create(const char* preset, octavo_recipe** recipe);
/* Sets one field from text ("p_range", "224"). */
OCTAVO_API octavo_status octavo_recipe_set(octavo_recipe* recipe, const char* field, const char* value);
/* Writes a field's value, or the preset's name for field "name", as text with its final 0. `length` (may be
 * NULL) gets the characters before that 0, so a call with text = NULL and size = 0 asks how long it is. */
OCTAVO_API octavo_status octavo_recipe_get(const octavo_recipe* recipe, const char* field, char* text,
                                           size_t size, size_t* length);
/* Do the fields fit together, can no accumulator overflow? head_dim <= 0 leaves out the bounds that depend on
 * it. Plans check this too. */
OCTAVO_API octavo_status octavo_recipe_check(const octavo_recipe* recipe, int64_t head_dim);
OCTAVO_API void octavo_recipe_free(octavo_recipe* recipe);

/* ---- Options ---- */

/* octavo_options.layout */
enum { OCTAVO_HND = 0, OCTAVO_NHD = 1, OCTAVO_THD = 2 };
/* octavo_options.causal */
enum {
  OCTAVO_CAUSAL_NONE = 0,
  OCTAVO_CAUSAL_TOP_LEFT = 1,    /* query i sees keys j <= i */
  OCTAVO_CAUSAL_BOTTOM_RIGHT = 2 /* query i sees keys j <= i + n - Lq, n the valid keys */
};

/* Everything about a call that is not q, k, v or the recipe. A tensor left NULL is not given; those given
 * must stay alive as long as the plan made with them. mask, bias and q_absmax are on q's device; lengths and
 * offsets may be on the host too, and are copied there if they are not. */
typedef struct octavo_options {
  size_t struct_size; /* set by octavo_options_init */
  int32_t layout;
  int32_t causal;
  int64_t window_left; /* keys seen before and after a query's own position, inclusive; -1 is no limit */
  int64_t window_right;
  int32_t has_scale; /* 0: scale = 1 / sqrt(D) */
  float scale;
  const octavo_tensor* kv_lengths;   /* i32 or i64 [B]: valid keys of each batch entry */
  const octavo_tensor* cu_seqlens_q; /* i32 or i64 [sequences + 1], layout THD only */
  const octavo_tensor* cu_seqlens_k;
  const octavo_tensor* mask;     /* bool, broadcastable to [B, Hq, Lq, Lk], true = visible */
  const octavo_tensor* bias;     /* f32, f16 or bf16, as mask; added to scaled scores */
  const octavo_tensor* q_absmax; /* f32 [Hq] or [B, Hq]: the query scale, queries beyond it clamp */
  const char* kernel;            /* forces a kernel by name; NULL picks the fastest */
  int32_t check_finite; /* refuse NaN and Inf in valid data: 1 yes (on a GPU this waits for the stream),
                           0 no, -1 (default) on the CPU only */
  int32_t threads;      /* CPU threads, 0 = as many as the process may use */
  /* In how many parts a GPU walks the keys side by side: 0 the kernel decides, 1 one part, n that many. Parts
   * have their own maxima, so weights round differently; with a number other than 0 the parts do not depend
   * on how many batch entries, heads or queries are computed together. A CPU takes 0 and 1. */
  int32_t key_splits;
  int32_t reserved; /* 0 */
} octavo_options;

/* Writes the defaults; call it as octavo_options_init(&options, sizeof options). */
OCTAVO_API octavo_status octavo_options_init(octavo_options* options, size_t struct_size);

/* ---- Attention in one call ---- */

/* out: shape of q, dtype of q or f32, any strides without overlap; it must not overlap q, k or v. lse and
 * options may be NULL. stream: a cudaStream_t, NULL for the default stream and on the CPU; work is added to
 * it, never waited for, unless lengths are on the GPU or check_finite is 1. */
OCTAVO_API octavo_status octavo_attention(const octavo_tensor* q, const octavo_tensor* k,
                                          const octavo_tensor* v, const octavo_tensor* out,
                                          const octavo_tensor* lse, const octavo_recipe* recipe,
                                          const octavo_options* options, void* stream);

/* ---- The three steps, for callers that keep quantized K and V ---- */

typedef struct octavo_plan octavo_plan;
typedef struct octavo_quantized_kv octavo_quantized_kv;
typedef struct octavo_quantized_q octavo_quantized_q;

/* Checks everything and picks a kernel. Reads lengths and offsets, never the elements of q, k or v. Lengths
 * on a GPU are read in the order of its default stream. */
OCTAVO_API octavo_status octavo_plan_create(const octavo_tensor* q, const octavo_tensor* k,
                                            const octavo_tensor* v, const octavo_recipe* recipe,
                                            const octavo_options* options, octavo_plan** plan);
OCTAVO_API void octavo_plan_free(octavo_plan* plan);
/* Name of the kernel, and one sentence that says what was picked and why; valid as long as the plan. */
OCTAVO_API const char* octavo_plan_kernel(const octavo_plan* plan);
OCTAVO_API const char* octavo_plan_reason(const octavo_plan* plan);
/* A field of the effective recipe (`auto` replaced, fields left to the kernel filled in), as
 * octavo_recipe_get. */
OCTAVO_API octavo_status octavo_plan_recipe_get(const octavo_plan* plan, const char* field, char* text,
                                                size_t size, size_t* length);
/* Bytes that the buffers below need. */
OCTAVO_API octavo_status octavo_plan_bytes(const octavo_plan* plan, size_t* kv_bytes, size_t* q_bytes,
                                           size_t* workspace_bytes);

/* An empty handle that the first quantize call gives its memory. */
OCTAVO_API octavo_status octavo_quantized_kv_create(octavo_quantized_kv** kv);
OCTAVO_API octavo_status octavo_quantized_q_create(octavo_quantized_q** qq);
/* A handle over the caller's memory, aligned to 64 bytes (on a GPU: device memory, 256), that must outlive
 * it. */
OCTAVO_API octavo_status octavo_quantized_kv_wrap(void* memory, size_t bytes, octavo_quantized_kv** kv);
OCTAVO_API octavo_status octavo_quantized_q_wrap(void* memory, size_t bytes, octavo_quantized_q** qq);
/* The same buffer seen as its key heads [first, first + count): shares the memory, has its own handle. */
OCTAVO_API octavo_status octavo_quantized_kv_heads(const octavo_quantized_kv* kv, int64_t first,
                                                   int64_t count, octavo_quantized_kv** part);
OCTAVO_API void octavo_quantized_kv_free(octavo_quantized_kv* kv);
OCTAVO_API void octavo_quantized_q_free(octavo_quantized_q* qq);

OCTAVO_API octavo_status octavo_plan_quantize_kv(const octavo_plan* plan, const octavo_tensor* k,
                                                 const octavo_tensor* v, octavo_quantized_kv* kv,
                                                 void* stream);
/* Needs kv for the key mean that the LSE gets back. */
OCTAVO_API octavo_status octavo_plan_quantize_q(const octavo_plan* plan, const octavo_tensor* q,
                                                const octavo_quantized_kv* kv, octavo_quantized_q* qq,
                                                void* stream);
/* workspace: workspace_bytes of memory aligned as the buffers are, or NULL (and 0) to have it allocated
 * inside. */
OCTAVO_API octavo_status octavo_plan_attend(const octavo_plan* plan, const octavo_quantized_q* qq,
                                            const octavo_quantized_kv* kv, const octavo_tensor* out,
                                            const octavo_tensor* lse, void* workspace, size_t workspace_size,
                                            void* stream);

/* The three steps in one. memory: octavo_plan_run_bytes of scratch, aligned as the buffers are, or NULL (and
 * 0) to have it allocated inside. */
OCTAVO_API octavo_status octavo_plan_run_bytes(const octavo_plan* plan, size_t* bytes);
OCTAVO_API octavo_status octavo_plan_run(const octavo_plan* plan, const octavo_tensor* q,
                                         const octavo_tensor* k, const octavo_tensor* v,
                                         const octavo_tensor* out, const octavo_tensor* lse, void* memory,
                                         size_t bytes, void* stream);

/* ---- Kernels ---- */

typedef struct octavo_kernel {
  const char* name;    /* "cpu.avx2.cpu8" */
  const char* backend; /* "reference", "cpu", "cuda" */
  const char* tier;    /* "scalar", "avx2", ... */
  const char* file;    /* where its source is */
  const char* summary; /* which recipes and head dims it runs */
  int32_t available;   /* 1 if it can run on this machine */
} octavo_kernel;

/* The kernels there are; strings live as long as the library is loaded. */
OCTAVO_API size_t octavo_kernel_count(void);
OCTAVO_API octavo_status octavo_kernel_info(size_t index, octavo_kernel* kernel);

#ifdef __cplusplus
}
#endif

#endif /* OCTAVO_OCTAVO_H */
