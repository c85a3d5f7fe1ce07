"""Attention in float64, written as the definition, and the merging of results over disjoint keys."""

from dataclasses import dataclass

import numpy as np

from .problem import Problem


@dataclass
class Reference:
    o: np.ndarray  # float64, layout of q
    lse: np.ndarray  # natural log; -inf where no key is visible
    reach: np.ndarray  # largest |score| each row sees, shape of lse
    v_rms: np.ndarray  # rms of the values each row's head owns, shape of lse


def attend64(p: Problem, rows_at_once: int = 512) -> Reference:
    outs, lses, reaches, sizes = [], [], [], []
    for b, q, k, v in p.sequences():
        hq, q_len, _ = q.shape
        hkv, n, dv = v.shape
        q64, k64, v64 = q.astype(np.float64), k.astype(np.float64), v.astype(np.float64)
        if p.q_absmax is not None:
            cap = p.q_absmax.astype(np.float64)[:, None, None]
            q64 = np.clip(q64, -cap, cap)
        o, lse = np.zeros((hq, q_len, dv)), np.full((hq, q_len), -np.inf)
        reach, rms = np.zeros((hq, q_len)), np.zeros((hq, q_len))
        for start in range(0, q_len if n else 0, rows_at_once):
            rows = np.arange(start, min(q_len, start + rows_at_once))
            see = p.visible(b, rows, q_len, n)
            bias = p.bias_part(b, rows, q_len, n)
            for h in range(hq):
                g = h // (hq // hkv)
                with np.errstate(invalid="ignore", over="ignore"):
                    s = q64[h, rows] @ k64[g].T * p.scale()
                if bias is not None:
                    s = s + bias[h if bias.shape[0] > 1 else 0]
                o[h, rows], lse[h, rows], reach[h, rows] = _softmax(
                    s, see[h if see.shape[0] > 1 else 0], v64[g]
                )
        if n:
            finite = np.where(np.isfinite(v64), v64, 0.0)
            rms = np.repeat(np.sqrt(np.mean(finite**2, axis=(1, 2))), hq // hkv)[:, None] * np.ones(
                (1, q_len)
            )
        for results, one in ((outs, o), (lses, lse), (reaches, reach), (sizes, rms)):
            results.append(one)
    o, lse = p.place(outs, lses)
    return Reference(o, lse, p.place(outs, reaches)[1], p.place(outs, sizes)[1])


def _softmax(s: np.ndarray, see: np.ndarray, v: np.ndarray):
    """Output, LSE and largest |score| of rows with scores s [rows, n], of which `see` are visible."""
    with np.errstate(invalid="ignore", over="ignore"):
        s = np.where(see, s, -np.inf)
        m = s.max(axis=1, keepdims=True)
        m0 = np.where(np.isneginf(m), 0.0, m)
        e = np.exp(s - m0)
        total = e.sum(axis=1, keepdims=True)
        some = total[:, 0] != 0  # a row of NaN counts as seen
        safe = np.where(total == 0, 1.0, total)
        v = np.where(see.any(axis=0)[:, None], v, 0.0)
        o = np.where(some[:, None], e @ v / safe, 0.0)
        lse = np.where(some, (m0 + np.log(safe))[:, 0], -np.inf)
        reach = np.where(some, np.abs(np.where(see & np.isfinite(s), s, 0.0)).max(axis=1), 0.0)
    return o, lse, reach


def merge_states(parts: list) -> tuple[np.ndarray, np.ndarray]:
    """Merges [(o, lse), ...]; o has the index order of lse plus a channel axis. Empty states are neutral."""
    lses = np.stack([np.asarray(lse, np.float64) for _, lse in parts])
    top = lses.max(axis=0)
    base = np.where(np.isneginf(top), 0.0, top)
    weights = np.exp(lses - base)
    total = weights.sum(axis=0)
    some = total > 0
    with np.errstate(invalid="ignore"):
        o = sum(
            np.where(w[..., None] > 0, np.asarray(o, np.float64), 0.0) * w[..., None]
            for w, (o, _) in zip(weights, parts, strict=True)
        )
    return o / np.where(some, total, 1.0)[..., None], np.where(
        some, base + np.log(np.where(some, total, 1.0)), -np.inf
    )
