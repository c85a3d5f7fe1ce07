"""One attention problem: inputs, options, and who sees which key."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np


class CaseError(Exception):
    """What a callee raises for a refused call. kind is 'invalid_argument' or 'unsupported'; untouched
    says whether the output buffers were left as they were (None: not looked at)."""

    def __init__(self, kind: str, message: str, untouched: bool | None = None):
        super().__init__(message)
        self.kind = kind
        self.untouched = untouched


@dataclass
class Problem:
    """q, k, v are float32 arrays whose values already lie on the grid of their 16-bit type.

    layout   HND [B,H,N,D], NHD [B,N,H,D] or THD [tokens,H,D] with cu_seqlens
    causal   none, top_left (key <= query) or bottom_right (key <= query + kv_len - q_len, per batch entry)
    window   (left, right), both inclusive, -1 = no limit, anchored bottom_right unless causal is 'top_left'
    kv_lens  valid keys per batch entry; whatever lies behind them is padding
    mask     bool, broadcastable to [B,Hq,Lq,Lk], True = visible
    bias     float, broadcastable likewise, added to the scaled scores
    q_absmax per query head: the query scale is q_absmax / range, queries are clamped to +-q_absmax
    options  anything else that goes to the call by name
    views    name -> (base name, shape, strides, offset) in elements, for tensors that are not contiguous
    cache    what a callee wants to keep with this problem, such as its inputs in 16 bits
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    layout: str = "HND"
    dtypes: tuple[str, str, str] = ("f16", "f16", "f16")
    causal: str = "none"
    window: tuple[int, int] = (-1, -1)
    sm_scale: float | None = None
    kv_lens: np.ndarray | None = None
    mask: np.ndarray | None = None
    bias: np.ndarray | None = None
    cu_q: np.ndarray | None = None
    cu_k: np.ndarray | None = None
    max_q: int | None = None
    max_k: int | None = None
    q_absmax: np.ndarray | None = None
    options: dict = field(default_factory=dict)
    bases: dict = field(default_factory=dict)
    views: dict = field(default_factory=dict)
    cache: dict = field(default_factory=dict, init=False, repr=False, compare=False)

    def scale(self) -> float:
        return self.sm_scale if self.sm_scale is not None else 1.0 / math.sqrt(max(1, self.q.shape[-1]))

    def hnd(self, x: np.ndarray) -> np.ndarray:
        return x.transpose(0, 2, 1, 3) if self.layout == "NHD" else x

    def token_axis(self) -> int:
        return {"HND": 2, "NHD": 1, "THD": 0}[self.layout]

    def head_axis(self) -> int:
        return 2 if self.layout == "NHD" else 1

    def query_heads(self) -> int:
        return self.q.shape[self.head_axis()]

    def sequences(self) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """Yields (b, q [Hq,Lq,D], k [Hkv,n,D], v [Hkv,n,Dv]) with the padding keys cut off."""
        if self.layout == "THD":
            for b in range(len(self.cu_q) - 1):
                qs, ks = slice(self.cu_q[b], self.cu_q[b + 1]), slice(self.cu_k[b], self.cu_k[b + 1])
                yield b, *(x.transpose(1, 0, 2) for x in (self.q[qs], self.k[ks], self.v[ks]))
            return
        q, k, v = self.hnd(self.q), self.hnd(self.k), self.hnd(self.v)
        for b in range(q.shape[0]):
            n = k.shape[2] if self.kv_lens is None else int(self.kv_lens[b])
            yield b, q[b], k[b, :, :n], v[b, :, :n]

    def visible(self, b: int, rows: np.ndarray, q_len: int, n: int) -> np.ndarray:
        """bool [1 or Hq, len(rows), n]."""
        i, j = rows[:, None], np.arange(n)[None, :]
        shift = 0 if self.causal == "top_left" else n - q_len
        see = np.ones((len(rows), n), dtype=bool)
        if self.causal != "none":
            see &= j <= i + shift
        if self.window[0] >= 0:
            see &= j >= i + shift - self.window[0]
        if self.window[1] >= 0:
            see &= j <= i + shift + self.window[1]
        see = see[None]
        return see if self.mask is None else see & self._part(self.mask, b, rows, q_len, n)

    def bias_part(self, b: int, rows: np.ndarray, q_len: int, n: int) -> np.ndarray | None:
        return None if self.bias is None else self._part(self.bias, b, rows, q_len, n)

    @staticmethod
    def _part(m, b, rows, q_len, n):
        m = m[min(b, m.shape[0] - 1)]
        m = m[:, rows] if m.shape[1] == q_len and q_len != 1 else m[:, :1]
        return m[:, :, :n] if m.shape[2] != 1 else m

    def place(self, outs: list, lses: list) -> tuple[np.ndarray, np.ndarray]:
        """Puts per-sequence [Hq,Lq,*] results back into the layout; LSE is [B,Hq,Lq], THD: [Hq,tokens]."""
        hq, dv = self.query_heads(), self.v.shape[-1]
        if self.layout == "THD":
            o = np.concatenate([x.transpose(1, 0, 2) for x in outs] or [np.zeros((0, hq, dv))])
            return o, np.concatenate(lses or [np.zeros((hq, 0))], axis=1)
        n = self.hnd(self.q).shape[2]
        o = np.stack(outs) if outs else np.zeros((0, hq, n, dv))
        lse = np.stack(lses) if lses else np.zeros((0, hq, n))
        return self.hnd(o), lse

    def per_head(self, o: np.ndarray) -> np.ndarray:
        """Brings an output to the index order of the LSE: [B,Hq,Lq,D] or [Hq,tokens,D]."""
        return o.transpose(1, 0, 2) if self.layout == "THD" else self.hnd(o)


def strided(base: np.ndarray, shape, strides, offset=0) -> np.ndarray:
    return np.lib.stride_tricks.as_strided(base[offset:], shape, [s * base.itemsize for s in strides])


def with_views(p: Problem, bases: dict, views: dict) -> Problem:
    """Replaces q/k/v by views over 1-D base buffers; views: name -> (base, shape, strides, offset)."""
    got = {n: strided(bases[b], shape, strides, offset) for n, (b, shape, strides, offset) in views.items()}
    return replace(p, bases=bases, views=views, **got)


def without_views(p: Problem, **changes) -> Problem:
    """Changes a problem whose new q, k and v are plain arrays."""
    return replace(p, bases={}, views={}, **changes)


def contiguous(p: Problem) -> Problem:
    return without_views(p, **{n: np.ascontiguousarray(getattr(p, n)) for n in "qkv"})
