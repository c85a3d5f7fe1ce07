"""Quantized attention in numpy: shows that the limits can be met, and with faults that they catch something.

INT8, INT4 or FP8 scores, FP8 values: key mean removed, Q scale per 32 rows, K per 64 keys (fp8: per head), V
per channel, weights times 448 in e4m3 against a running maximum, f32 sums. Written for the suite alone;
nothing here is shared with the library, so that the two cannot be wrong together."""

import math
from dataclasses import replace

import numpy as np

from .formats import round_e4m3, round_to
from .problem import CaseError, Problem, strided

_RANGE = {"int8": 127.0, "int4": 7.0, "fp8": 448.0}
_KEYS, _ROWS = 64, 32  # keys and query rows that share a scale
_TINY = np.float32(1e-30)  # floor of a scale, so that an all-zero block divides nothing by 0
_F32 = np.float32


def check_arguments(p: Problem) -> None:
    """The argument rules that a callee has to enforce before it touches memory."""

    def need(condition, message, kind="invalid_argument"):
        if not condition:
            raise CaseError(kind, message)

    need(p.layout in ("HND", "NHD", "THD"), "unknown layout")
    need(p.causal in ("none", "top_left", "bottom_right"), "unknown causal")
    need(not set(p.options) - {"accumulator", "smooth_k"}, "unknown keyword")
    need(p.options.get("accumulator", "fp32") in ("fp32", "fp16"), "unknown accumulator")
    rank = 3 if p.layout == "THD" else 4
    need(p.q.ndim == p.k.ndim == p.v.ndim == rank, f"q, k, v need {rank} dimensions")
    need(len(set(p.dtypes)) == 1, "q, k, v differ in type")
    need(p.dtypes[0] in ("f16", "bf16"), "only f16 and bf16", "unsupported")
    hq, hkv = p.q.shape[p.head_axis()], p.k.shape[p.head_axis()]
    need(hkv > 0 and hq % hkv == 0, "query heads are no multiple of key heads")
    need(p.k.shape[:-1] == p.v.shape[:-1], "k and v differ in shape")
    need(p.q.shape[-1] == p.k.shape[-1], "q and k differ in head_dim")
    need(p.q.shape[-1] > 0, "head_dim is 0")
    need(p.q.shape[-1] <= 256 and p.v.shape[-1] <= 256, "head_dim over 256", "unsupported")
    need(p.sm_scale is None or math.isfinite(p.sm_scale), "sm_scale is not finite")
    if p.layout == "THD":
        for name, cu, total, longest in (
            ("q", p.cu_q, p.q.shape[0], p.max_q),
            ("k", p.cu_k, p.k.shape[0], p.max_k),
        ):
            need(cu is not None and cu.ndim == 1 and len(cu) >= 1, f"cu_seqlens_{name} missing")
            rises = cu[0] == 0 and cu[-1] == total and (np.diff(cu) >= 0).all()
            need(rises, f"cu_seqlens_{name} not from 0 up to the token count")
            need(
                longest is None or len(cu) == 1 or np.diff(cu).max() <= longest,
                f"max_seqlen_{name} too small",
            )
        need(len(p.cu_q) == len(p.cu_k), "cu_seqlens differ in length")
        return
    b, lq, lk = p.q.shape[0], p.hnd(p.q).shape[2], p.hnd(p.k).shape[2]
    need(b == p.k.shape[0], "batch sizes differ")
    if p.kv_lens is not None:
        need(p.kv_lens.shape == (b,), "kv_lens has the wrong length")
        need((p.kv_lens >= 0).all() and (p.kv_lens <= lk).all(), "kv_lens out of range")
    for m in (p.mask, p.bias):
        if m is not None:
            fits = m.ndim == 4 and all(x in (1, n) for x, n in zip(m.shape, (b, hq, lq, lk), strict=True))
            need(fits, "mask does not broadcast to [B,Hq,Lq,Lk]")


class Model:
    def __init__(self, mode: str, faults=frozenset()):
        self.mode, self.faults, self._runs = mode, faults, 0

    def __call__(self, p: Problem, thorough: bool = False) -> tuple[np.ndarray, np.ndarray, dict]:
        if not self._has("no_argument_checks"):
            check_arguments(p)
        if p.q_absmax is not None and self.mode != "fp8":
            raise CaseError("unsupported", "a given query scale needs fp8 scores")
        if self._has("ignores_strides") and p.views:
            p = _read_as_contiguous(p)
        if self._has("modifies_k") and p.k.size:
            p.k -= p.k.mean()
        self.p, self.view, self.scale = p, self._visibility(p), self._scale(p)
        self.shared_mean = self.shared_k = self.shared_v = None
        if self._has("mean_over_all_tokens") and p.layout == "THD" and p.k.size:
            self.shared_mean = p.k.astype(_F32).mean(axis=0)
        if self._has("scale_per_tensor_k") and p.k.size:
            self.shared_k = self._amax(p.k.astype(_F32), None)
        if self._has("v_scale_per_tensor") and p.v.size:
            self.shared_v = self._amax(p.v.astype(_F32), None)
        with np.errstate(all="ignore"):
            parts = [self._sequence(b, q, *self._keys_in_memory(b, k, v)) for b, q, k, v in p.sequences()]
            o, lse = p.place([o for o, _ in parts], [lse for _, lse in parts])
        if self._has("noisy") and o.size:
            self._runs += 1
            o = np.array(o)
            o.flat[0] = o.flat[0] * (1 + 1e-3 * self._runs)
        return o.astype(_F32), lse, {}

    def _has(self, fault: str) -> bool:
        return fault in self.faults

    def _visibility(self, p: Problem) -> Problem:
        if self._has("causal_top_left") and p.causal == "bottom_right":
            p = replace(p, causal="top_left")
        if self._has("window_left_only"):
            p = replace(p, window=(p.window[0], -1))
        return replace(p, mask=None) if self._has("mask_ignored") else p

    def _scale(self, p: Problem) -> float:
        d = p.q.shape[-1]
        if self._has("scale_ignored"):
            return 1.0 / math.sqrt(d)
        if self._has("scale_of_padded_dim") and p.sm_scale is None:
            return 1.0 / math.sqrt(64 if d <= 64 else 128 if d <= 128 else 256)
        return p.scale()

    def _keys_in_memory(self, b: int, k, v):
        """The keys and values of a sequence; only faults change them."""
        p, n = self.p, k.shape[1]
        if p.layout == "THD":
            if self._has("wrong_kv_offset"):
                rows = slice(start := min(int(p.cu_q[b]), max(0, p.k.shape[0] - n)), start + n)
                k, v = p.k[rows].transpose(1, 0, 2), p.v[rows].transpose(1, 0, 2)
        elif p.kv_lens is not None and self._has("kv_lens_ignored"):
            k, v = p.hnd(p.k)[b], p.hnd(p.v)[b]
        elif p.kv_lens is not None and self._has("int32_kv_start"):
            tokens = [p.hnd(x).transpose(1, 0, 2, 3) for x in (p.k, p.v)]
            k, v = (x.reshape(x.shape[0], -1, x.shape[3])[:, b * n : b * n + n] for x in tokens)
        return k, v

    def _sequence(self, b: int, q, k, v) -> tuple[np.ndarray, np.ndarray]:
        hq, q_len, _ = q.shape
        hkv, n, dv = v.shape
        o, lse = np.zeros((hq, q_len, dv), _F32), np.full((hq, q_len), -np.inf)
        for g in range(hkv if n and q_len else 0):
            heads = [h for h in range(hq) if (h % hkv if self._has("gqa_modulo") else h // (hq // hkv)) == g]
            o[heads], lse[heads] = self._head(b, g, heads, q[heads], k[g].astype(_F32), v[g].astype(_F32))
        some_keys = self.p.kv_lens is not None and self.p.kv_lens.max() > 0
        if n == 0 and (self._has("empty_row_nan") or (self._has("empty_batch_nan") and some_keys)):
            o[:] = np.nan
        if self._has("last_rows_unwritten") and q_len % 64:
            o[:, q_len - q_len % 64 :] = np.nan
        return o, lse

    def _head(self, b: int, g: int, heads: list[int], q, k, v):
        """One key head with its query heads: o [heads, rows, dv] and lse [heads, rows]."""
        q_len, n = q.shape[1], k.shape[0]
        rows = np.arange(q_len)
        see, bias = self.view.visible(b, rows, q_len, n), self.view.bias_part(b, rows, q_len, n)
        if self.view.mask is not None and see.shape[0] == 1:
            # Keys that no row sees must not reach means, scales or products.
            dead = ~see[0].any(axis=0)[:, None]
            k, v = np.where(dead, 0, k), np.where(dead, 0, v)
        if self._has("v_through_f16"):
            v = v.astype(np.float16).astype(_F32)
        kq, ks, mean = self._quantize_keys(b, g, k)
        vq, va = self._quantize_values(b, g, v)
        qi, qs, raw, clamped = self._quantize_queries(heads, q)
        see = see[heads] if see.shape[0] > 1 else see
        if bias is not None:
            bias = bias[heads] if bias.shape[0] > 1 else bias
        acc, m, den, top_p = self._walk(qi, qs, kq, ks, vq, see, bias)

        got, some = acc / den * (va / _F32(448.0 * top_p)), den > 0
        if self._has("sentinel_5e4"):
            got = np.where(some, got, 0)
        elif self._has("empty_row_mean"):
            got = np.where(some, got, v.mean(axis=0))
        elif not self._has("empty_row_nan") and not self._has("first_tile_nan"):
            got = np.where(some | np.isnan(den), got, 0)
        seen = (some | np.isnan(den))[..., 0]
        lse = np.where(seen, (m + np.log(den))[..., 0].astype(np.float64), -np.inf)
        lse = self._finish_lse(lse, raw if self._has("lse_not_clamped") else clamped, mean)
        dtype = self.p.dtypes[0] if self.p.dtypes[0] in ("f16", "bf16") else "bf16"
        return round_to(dtype, got), lse

    def _finish_lse(self, lse, q, mean):
        """Gives back what removing the key mean took."""
        if not self._has("lse_no_mean"):
            if self._has("bf16_lse_mean"):
                lse = lse + round_to("bf16", round_to("bf16", q @ mean) * self.scale).astype(np.float64)
            else:
                lse = lse + (q.astype(np.float64) * mean.astype(np.float64)).sum(axis=-1) * self.scale
        if self._has("lse_log2"):
            lse = lse / math.log(2)
        return lse + math.log(448) if self._has("lse_offset") else lse

    # ---- quantization ----

    def _amax(self, x, axis):
        top = np.abs(x).max(axis=axis, keepdims=True) if x.size else np.zeros(1, _F32)
        if self._has("no_amax_floor"):
            return top
        return np.maximum(top, _F32(1e-7) if self._has("amax_floor_1e7") else _TINY)

    def _grid(self, x, delta):
        if self.mode == "fp8":
            return round_e4m3(x / delta)
        return np.clip(np.rint(x / delta), -_RANGE[self.mode], _RANGE[self.mode])

    def _quantize_keys(self, b: int, g: int, k):
        """Codes [n, d], scales [n, 1] and the mean [d]."""
        n = k.shape[0]
        padded = self._has("padding_in_mean") and self.p.layout != "THD"
        whole = self.p.hnd(self.p.k)[b, g].astype(_F32) if padded else k
        mean = whole.mean(axis=0) if self.shared_mean is None else self.shared_mean[g]
        if self._has("no_smoothing"):
            mean = np.zeros_like(mean)
        k = k - mean
        scales, codes = np.empty((n, 1), _F32), np.empty_like(k)
        for block in [slice(0, n)] if self.mode == "fp8" else _blocks(n, _KEYS):
            covered = k[block]
            if self._has("padding_in_mean"):
                covered = (whole - mean)[block.start : block.start + _KEYS]
            top = self._amax(covered, None) if self.shared_k is None else self.shared_k.reshape(1, 1)
            if self._has("nan_spreads") and np.isnan(self.p.k).any():
                top = top * np.nan
            scales[block] = top / _RANGE[self.mode]
            codes[block] = self._grid(k[block], top / _RANGE[self.mode])
        return codes, scales, mean

    def _quantize_values(self, b: int, g: int, v):
        """Values on the e4m3 grid [n, dv] and the amax of each channel."""
        n = v.shape[0]
        top = self._amax(v, 0) if self.shared_v is None else self.shared_v.reshape(1, 1)
        codes = round_e4m3(v / (top / 448.0))
        if self._has("tail_v_garbage") and n % _KEYS:
            behind = _values_behind(self.p, b, g, n, -n % _KEYS)
            codes = codes * np.where(np.isfinite(behind).all(axis=0), 1.0, np.nan)
        return codes, top

    def _quantize_queries(self, heads: list[int], q):
        """Codes and scales; the queries as they came and after clamping."""
        q_len, p = q.shape[1], self.p
        raw = clamped = q.astype(_F32)
        given = p.q_absmax is not None and self.mode == "fp8"
        if p.q_absmax is not None:
            cap = p.q_absmax[heads].astype(_F32)[:, None, None]
            clamped = np.clip(raw, -cap, cap)
        scales, codes = np.empty((len(heads), q_len, 1), _F32), np.empty_like(clamped)
        for i, h in enumerate(heads):
            for rows in _blocks(q_len, q_len if self.mode == "fp8" else _ROWS):
                top = self._amax(clamped[i, rows], None)
                if given and self._has("query_scale_from_batch"):
                    top = self._amax(raw[i], None)
                elif given:
                    top = np.full((1, 1), max(float(p.q_absmax[h]), float(_TINY)), _F32)
                scales[i, rows] = top / _RANGE[self.mode]
                codes[i, rows] = self._grid(clamped[i, rows], top / _RANGE[self.mode])
        return codes, scales, raw, clamped

    # ---- softmax and the second product ----

    def _walk(self, q, qs, k, ks, v, see, bias):
        """Sum of weights times values, running maximum, sum of weights, and what a weight of 1 became."""
        shape = (*q.shape[:2], 1)
        m = np.full(shape, -np.inf, _F32)
        if self._has("sentinel_5e4"):
            m[:] = _F32(-5e4 * abs(self.scale))
        acc, den = np.zeros((*q.shape[:2], v.shape[1]), _F32), np.zeros(shape, _F32)
        top_p = 256.0 if self._has("p_saturates") else 448.0
        for block in _blocks(k.shape[0], _KEYS):
            s = (q.astype(np.float64) @ k[block].T.astype(np.float64)).astype(_F32)
            s = s * (qs * ks[block].T) * _F32(self.scale)
            if bias is not None:
                s = s + bias[..., block].astype(_F32)
            s = self._hide(s, see[..., block], block.stop == k.shape[0])
            m_new = np.maximum(m, s.max(axis=2, keepdims=True))
            if self._has("p_saturates"):  # keep the old maximum while it is at most 8 octaves late
                m_new = np.where(np.isfinite(m) & (m_new - m < 8 * math.log(2)), m, m_new)
            base = m_new if self._has("first_tile_nan") else np.where(np.isneginf(m_new), _F32(0), m_new)
            alpha, prob = np.exp(m - base), np.exp(s - base)
            acc = acc * alpha + self._product(round_e4m3(prob * _F32(top_p)), v[block])
            if self._has("acc_13bit"):
                mantissa, exponent = np.frexp(acc)
                acc = np.ldexp(np.trunc(mantissa * 8192) / 8192, exponent).astype(_F32)
            den = den * alpha + prob.sum(axis=2, keepdims=True)
            m = m_new
        return acc, m, den, top_p

    def _hide(self, s, see, last: bool):
        """Hidden keys to -inf. The faults use a finite score, which the padding of the last tile gets too."""
        if self._has("mask_1e4"):
            score, pad = _F32(-1e4), 1 if self.p.kv_lens is not None and last else 0
        elif self._has("mask_before_scale"):
            score, pad = _F32(-5e6 * self.scale), -s.shape[2] % _KEYS if last else 0
        else:
            return np.where(see, s, _F32(-np.inf))
        return np.concatenate([np.where(see, s, score), np.full((*s.shape[:2], pad), score, _F32)], axis=2)

    def _product(self, weights, values):
        padding = np.zeros((weights.shape[2] - values.shape[0], values.shape[1]), _F32)
        values = np.concatenate([values, padding])
        if self._has("acc_fp16"):
            return (weights @ values).astype(np.float16).astype(_F32)
        return (weights.astype(np.float64) @ values.astype(np.float64)).astype(_F32)


def _blocks(n: int, size: int) -> list[slice]:
    return [slice(i, min(n, i + size)) for i in range(0, n, max(size, 1))]


def _read_as_contiguous(p: Problem) -> Problem:
    """What a reader that ignores strides takes for q, k and v."""
    dense = {}
    for name, (base, shape, _, offset) in p.views.items():
        count = min(int(np.prod(shape)), p.bases[base].size - offset)
        dense[name] = np.resize(strided(p.bases[base], (count,), (1,), offset).copy(), shape)
    return replace(p, **dense)


def _values_behind(p: Problem, b: int, g: int, n: int, rows: int) -> np.ndarray:
    """The V rows that lie behind the last valid key in memory."""
    if p.layout == "THD":
        return p.v[p.cu_k[b + 1] : p.cu_k[b + 1] + rows, g].astype(_F32)
    if p.kv_lens is not None:
        return p.hnd(p.v)[b, g, n : n + rows]
    if "v" not in p.views:
        return np.zeros((0, p.v.shape[-1]), _F32)
    base, _, st, offset = p.views["v"]
    sb, sh, sn = (st[0], st[2], st[1]) if p.layout == "NHD" else st[:3]
    first = offset + b * sb + g * sh
    at = first + (n + np.arange(rows))[:, None] * sn + np.arange(p.v.shape[-1])[None] * st[3]
    return p.bases[base][at[(at < p.bases[base].size).all(axis=1)]]
