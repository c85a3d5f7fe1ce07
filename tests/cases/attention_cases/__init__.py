"""Adversarial cases for quantized attention, each from a failure that somebody met in public.

  python -m attention_cases --library LIB      recipes x kernels over all cases; exit code 1 on a missed limit
      --device cuda:0                          every recipe on a GPU's kernels, the big cases too (PyTorch)
  python -m attention_cases --list             the cases
  python -m attention_cases.selfcheck          a numpy model must pass, and fail with any of its faults

Only numpy is needed: the library is called through its C interface (ctypes), so the suite runs before
any other part of the project. A case builds a Problem; evaluate() runs it and compares with attention in
float64.

Rules that the expected values follow:
  1  LSE is the natural logarithm of the sum over visible keys of exp(sm_scale q.k [+ bias]): [B,Hq,Lq],
     packed [Hq,tokens].
  2  A row without a visible key: o = 0 exactly, lse = -inf.
  3  The default sm_scale is 1/sqrt(head_dim) of the real head_dim, padded or not.
  4  causal top_left: key <= query. bottom_right: key <= query + kv_len - q_len with the lengths of that
     batch entry.
  5  window (left, right) is inclusive on both sides, -1 is no limit.
  6  What lies behind kv_lens, in gaps between rows or behind a tensor is never part of a result, NaN and Inf
     included.
  7  NaN or Inf in valid data stays inside its batch entry and key head.
  8  q_absmax: the query scale is q_absmax over the format's range, queries are clamped to +-q_absmax.
  9  A refused call touches no output.

References are owner/repository#number of a public thread (PR# for pull requests), or name what was read in
public source; the pattern of the inputs comes from there, nothing else.
"""

import os

# Many small products: threads of the BLAS would only get in each other's way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
