"""Inputs: seeded tensors, changes to them, and views of larger buffers."""

import zlib
from dataclasses import replace

import numpy as np

from .formats import round_to
from .problem import Problem, with_views


def seeded(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def dense(name, b, hq, hkv, lq, lk, d, dtype="f16", layout="HND", dv=None, shape=None, **kw) -> Problem:
    """N(0,1) inputs; shape(rng, q, k, v) may change the [B,H,N,D] arrays before they are rounded to dtype."""
    r = seeded(name)
    q = r.standard_normal((b, hq, lq, d), np.float32)
    k = r.standard_normal((b, hkv, lk, d), np.float32)
    v = r.standard_normal((b, hkv, lk, dv or d), np.float32)
    if shape is not None:
        q, k, v = shape(r, q, k, v)
    q, k, v = (round_to(dtype, x) for x in (q, k, v))
    if layout == "NHD":
        q, k, v = (np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k, v))
    return Problem(q, k, v, layout, (dtype,) * 3, **kw)


def packed(name, lens_q, lens_k, hq, hkv, d, dtype="f16", shape=None, **kw) -> Problem:
    """Packed sequences of N(0,1) inputs; shape(rng, q, k, v, cu_q, cu_k) as in dense()."""
    r = seeded(name)
    q = r.standard_normal((sum(lens_q), hq, d), np.float32)
    k = r.standard_normal((sum(lens_k), hkv, d), np.float32)
    v = r.standard_normal((sum(lens_k), hkv, d), np.float32)
    cu_q, cu_k = (np.concatenate([[0], np.cumsum(lens)]).astype(np.int32) for lens in (lens_q, lens_k))
    if shape is not None:
        q, k, v = shape(r, q, k, v, cu_q, cu_k)
    q, k, v = (round_to(dtype, x) for x in (q, k, v))
    kw.setdefault("max_q", int(max(lens_q, default=0)))
    kw.setdefault("max_k", int(max(lens_k, default=0)))
    return Problem(q, k, v, "THD", (dtype,) * 3, cu_q=cu_q, cu_k=cu_k, **kw)


def poisoned_tail(p: Problem, rows: int = 200) -> Problem:
    """K and V become views of longer buffers whose rows behind the last key hold NaN (K) and Inf (V)."""
    axis = 1 if p.layout == "NHD" else 2
    bases, views = {}, {}
    for name, fill in (("k", np.nan), ("v", np.inf)):
        x = getattr(p, name)
        shape = list(x.shape)
        shape[axis] += rows
        full = np.full(shape, fill, np.float32)
        full[tuple(slice(0, s) for s in x.shape)] = x
        bases[name + "_base"] = full.ravel()
        views[name] = (name + "_base", x.shape, tuple(s // 4 for s in full.strides), 0)
    return with_views(p, bases, views)


def one_buffer(p: Problem) -> Problem:
    """q, k, v as views of one packed buffer [B,N,3,H,D]."""
    t = [p.hnd(x).transpose(0, 2, 1, 3) for x in (p.q, p.k, p.v)]
    b, n, h, d = t[0].shape
    pitch = 3 * h * d
    if p.layout == "NHD":
        shape, strides = (b, n, h, d), (n * pitch, pitch, d, 1)
    else:
        shape, strides = (b, h, n, d), (n * pitch, d, pitch, 1)
    views = {name: ("qkv_base", shape, strides, i * h * d) for i, name in enumerate("qkv")}
    return with_views(p, {"qkv_base": np.stack(t, axis=2).ravel()}, views)


def padded_rows(p: Problem, row: int, offset: int = 0) -> Problem:
    """Contiguous but for a row pitch of `row` elements and a start offset; gaps hold NaN."""
    bases, views = {}, {}
    for name in "qkv":
        x = getattr(p, name)
        flat = x.reshape(-1, x.shape[-1])
        full = np.full((flat.shape[0], row), np.nan, np.float32)
        full[:, : x.shape[-1]] = flat
        st = [row]
        for s in reversed(x.shape[1:-1]):
            st.append(st[-1] * s)
        bases[name + "_base"] = np.concatenate([np.full(offset, np.nan, np.float32), full.ravel()])
        views[name] = (name + "_base", x.shape, (*reversed(st), 1), offset)
    return with_views(p, bases, views)


def with_kv_lens(p: Problem, lens, k_fill=np.nan, v_fill=np.nan) -> Problem:
    """Valid keys of each batch entry; the padding behind them holds k_fill and v_fill."""
    lens = np.int32(lens)
    k, v = p.hnd(p.k), p.hnd(p.v)
    for b, n in enumerate(lens):
        k[b, :, n:], v[b, :, n:] = k_fill, v_fill
    return replace(p, kv_lens=lens)


def only(**change):
    """shape function that replaces whole tensors: only(v=lambda r, x: ...)."""

    def apply(r, q, k, v):
        got = {"q": q, "k": k, "v": v}
        for name, f in change.items():
            got[name] = f(r, got[name])
        return got["q"], got["k"], got["v"]

    return apply


def scaled_channels(channels, gain):
    def f(r, x):
        x = x.copy()
        x[..., channels] *= np.float32(gain)
        return x

    return f


def constant(value):
    return lambda r, x: np.full_like(x, value)


def set_channels(x, values):
    x = x.copy()
    for c, value in values.items():
        x[..., c] = value
    return x
