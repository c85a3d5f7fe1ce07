"""Runs one case: the call itself, its limits, and the checks that the case asks for.

A callee is call(problem, thorough) -> (o, lse, info), or raises CaseError. thorough is True for the case
itself, not for the variants that the checks make of it; then info maps checks that only the callee can see
(unwritten output, threads, ...) to True or False."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .case import Case
from .formats import round_to
from .limits import TOLERANCES, head_errors, lse_excess
from .problem import CaseError, Problem, contiguous, without_views
from .reference import Reference, attend64, merge_states

REPORTED = ("all_written", "inputs_unmodified", "guard_bands", "threads", "contiguous_output")
ALWAYS = ("all_written", "inputs_unmodified", "guard_bands", "threads")

Callee = Callable[[Problem, bool], tuple[np.ndarray, np.ndarray, dict]]


class Finding(NamedTuple):
    check: str
    ok: bool | None  # None: nobody looked
    detail: str = ""


def failed(findings: list[Finding]) -> list[Finding]:
    return [f for f in findings if f.ok is False and not f.check.startswith("?")]


class Prepared:
    """A case with what all recipes and kernels share: its inputs, the variants of them, the references."""

    def __init__(self, case: Case):
        self.case = case
        self.build()

    def build(self) -> None:
        self.problem = self.case.build()
        self._variants: dict[str, Problem] = {}
        self._references: dict[str, Reference] = {}
        self._before = self._bytes()

    @property
    def reference(self) -> Reference:
        return self.reference_of("the case itself", self.problem)

    def variant(self, name: str, make: Callable[[], Problem]) -> Problem:
        if name not in self._variants:
            self._variants[name] = make()
        return self._variants[name]

    def reference_of(self, name: str, problem: Problem) -> Reference:
        if name not in self._references:
            self._references[name] = attend64(problem)
        return self._references[name]

    def unmodified(self) -> bool:
        """Are the inputs still what the case built?"""
        return self._bytes() == self._before

    def _bytes(self) -> list[bytes]:
        return [getattr(self.problem, n).tobytes() for n in "qkv"]


@dataclass
class Trial:
    """One run of a case with its output."""

    prepared: Prepared
    call: Callee
    class_limits: tuple[float, ...]  # (rel, row, lse, lse_reach)
    o: np.ndarray
    lse: np.ndarray
    info: dict
    strays: list[Finding] = field(default_factory=list)  # what the callee reports of variants

    @property
    def case(self) -> Case:
        return self.prepared.case

    @property
    def p(self) -> Problem:
        return self.prepared.problem

    @property
    def ref(self) -> Reference:
        return self.prepared.reference

    def limits(self, factor: float = 1.0) -> tuple[float, ...]:
        return tuple(factor * x for x in self.class_limits)

    def value(
        self, ref: Reference, o, lse, factor: float = 1.0, what: str = "value", p: Problem | None = None
    ):
        """Findings of the class limits, and of rows without a visible key."""
        p = p or self.p
        rel_max, row_max, lse_abs, lse_reach = self.limits(factor)
        if o.shape != ref.o.shape:
            return [Finding(what, False, f"shape {o.shape}, expected {ref.o.shape}")]
        rel, row = head_errors(p, ref, o)
        within = rel <= rel_max and row <= row_max
        found = [Finding(what, within, f"rel {rel:.4g} <= {rel_max:.4g}, row {row:.4g} <= {row_max:.4g}")]
        sound = np.isfinite(p.per_head(ref.o)).all(axis=(-2, -1))  # heads without NaN or Inf of their own
        holes = int((~np.isfinite(p.per_head(o)[sound])).sum())
        found.append(Finding(what + ":finite", holes == 0, f"{holes} elements are NaN or Inf"))
        error, over = lse_excess(ref, lse, lse_abs, lse_reach)
        found.append(
            Finding(what + ":lse", over <= 0, f"lse error {error:.4g}, over the limit by {over:.4g}")
        )
        empty = np.isneginf(ref.lse)
        if empty.any():
            zero = not np.abs(p.per_head(o)[empty]).any() and np.isneginf(np.asarray(lse)[empty]).all()
            found.append(Finding(what + ":zero_rows", bool(zero), f"{int(empty.sum())} rows without a key"))
        return found

    def run(self, name: str, make: Callable[[], Problem]):
        """Runs a variant of the problem; its inputs are kept for the next recipe."""
        o, lse, info = self.call(self.prepared.variant(name, make), False)
        self.strays += [Finding(f"{check} in {name}", False) for check, ok in info.items() if ok is False]
        return o, lse, info

    def bits(self, name: str, make: Callable[[], Problem], pick=lambda o: o) -> list[Finding]:
        """Does a variant give the same bits as the picked part of the output?"""
        try:
            o, _, _ = self.run(name, make)
        except CaseError as e:
            return [Finding(name, False, f"variant refused: {e}")]
        want, got = (np.ascontiguousarray(x, np.float32) for x in (pick(self.o), o))
        if want.shape != got.shape:
            return [Finding(name, False, f"shape {got.shape}, expected {want.shape}")]
        differ = int((want.view(np.uint32) != got.view(np.uint32)).sum())
        return [Finding(name, differ == 0, f"{differ} of {want.size} elements differ" if differ else "")]


def evaluate(
    prepared: Prepared, call: Callee, mode: str, limits=None, without: frozenset[str] = frozenset()
) -> list[Finding]:
    """The findings of one case; `limits` take the place of its class's, checks `without` are left out."""
    case = prepared.case
    try:
        o, lse, info = call(prepared.problem, True)
    except CaseError as e:
        wanted = case.expect != "value" and e.kind in case.error.split("|")
        found = [Finding("error", wanted, f"refused: {e.kind}: {e}")]
        if e.untouched is not None:
            found.append(Finding("untouched_on_error", e.untouched, "the refused call wrote its output"))
        return found
    if case.expect == "error":
        return [Finding("error", False, f"accepted, expected {case.error}")]
    found = []
    unmodified = prepared.unmodified()
    if not unmodified:
        found.append(Finding("inputs_unmodified", False, "input arrays changed"))
        prepared.build()
    trial = Trial(prepared, call, limits or TOLERANCES[case.tol][mode], o, lse, info)
    found += trial.value(trial.ref, o, lse)
    for check in dict.fromkeys(case.checks + ALWAYS):
        name, _, arg = check.lstrip("?").partition(":")
        if name in without:
            continue
        if name in REPORTED:
            if all(f.check != name for f in found):
                found.append(Finding(name, info.get(name), info.get(name + ":detail", "")))
        elif name != "untouched_on_error":
            soft = "?" if check.startswith("?") else ""
            found += [f._replace(check=soft + f.check) for f in _CHECKS[name](trial, arg)]
    if not unmodified:  # the variants have been changed too
        prepared.build()
    return found + trial.strays


# ---- the checks; their meaning is in case.CHECKS ----


def _zero_channels(t: Trial, _) -> list[Finding]:
    zero = ~(t.p.v.reshape(-1, t.p.v.shape[-1]) != 0).any(axis=0)
    return [Finding("zero_channels", bool(zero.any() and not t.o[..., zero].any()))]


def _channels(t: Trial, _) -> list[Finding]:
    limit = 2 * t.limits()[0]
    ref, got = (np.asarray(x, np.float64).reshape(-1, t.ref.o.shape[-1]) for x in (t.ref.o, t.o))
    error = np.linalg.norm(got - ref, axis=0) / np.maximum(np.linalg.norm(ref, axis=0), 1e-300)
    worst = int(error.argmax())
    return [
        Finding(
            "channels", bool(error[worst] <= limit), f"channel {worst}: {error[worst]:.4g} <= {limit:.4g}"
        )
    ]


def _same_contiguous(t: Trial, _) -> list[Finding]:
    return t.bits("same_contiguous", lambda: contiguous(t.p))


def _same_repeat_kv(t: Trial, _) -> list[Finding]:
    axis, p = t.p.head_axis(), t.p
    group = p.q.shape[axis] // p.k.shape[axis]
    again = {n: np.repeat(getattr(p, n), group, axis) for n in "kv"}
    return t.bits("same_repeat_kv", lambda: replace(contiguous(p), **again))


def _same_layout(t: Trial, _) -> list[Finding]:
    def swapped(x):
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3))

    def other():
        layout = "NHD" if t.p.layout == "HND" else "HND"
        return without_views(t.p, layout=layout, **{n: swapped(getattr(t.p, n)) for n in "qkv"})

    return t.bits("same_layout", other, swapped)


def _same_batch_alone(t: Trial, _) -> list[Finding]:
    p, total, found = t.p, t.p.q.shape[0], []
    for b in sorted({0, 1, total // 2, total - 1} & set(range(total))):
        one = slice(b, b + 1)

        def alone(one=one):
            cut = {n: getattr(p, n)[one] for n in "qkv"}
            for n in ("kv_lens", "mask", "bias"):
                x = getattr(p, n)
                cut[n] = x[one] if x is not None and x.shape[0] == total else x
            return replace(contiguous(p), **cut)

        found += t.bits(f"same_batch_alone[{b}]", alone, lambda o, one=one: o[one])
    return found


def _same_seq_alone(t: Trial, _) -> list[Finding]:
    p, found = t.p, []
    for b in range(len(p.cu_q) - 1):
        qs, ks = slice(p.cu_q[b], p.cu_q[b + 1]), slice(p.cu_k[b], p.cu_k[b + 1])

        def alone(qs=qs, ks=ks):
            ends = {"cu_q": np.int32([0, qs.stop - qs.start]), "cu_k": np.int32([0, ks.stop - ks.start])}
            return replace(p, q=p.q[qs], k=p.k[ks], v=p.v[ks], **ends)

        found += t.bits(f"same_seq_alone[{b}]", alone, lambda o, qs=qs: o[qs])
    return found


def _same_padding(t: Trial, _) -> list[Finding]:
    p, found = t.p, []
    for fill in (0.0, 1e4, np.nan):

        def filled(fill=fill):
            k, v = np.array(p.hnd(p.k)), np.array(p.hnd(p.v))
            for b, n in enumerate(p.kv_lens):
                k[b, :, n:], v[b, :, n:] = fill, fill
            return without_views(p, k=np.ascontiguousarray(p.hnd(k)), v=np.ascontiguousarray(p.hnd(v)))

        found += t.bits(f"same_padding[{fill}]", filled)
    return found


def _repeat(t: Trial, arg: str) -> list[Finding]:
    for _ in range(int(arg or 20) - 1):
        found = t.bits("repeat", lambda: t.p)
        if not found[0].ok:
            break
    return found


def _merge(t: Trial, arg: str) -> list[Finding]:
    p, axis = t.p, t.p.token_axis()
    cuts = np.cumsum([0] + [int(x) for x in arg.split(",")])
    parts = []
    for a, z in pairwise(cuts):

        def part(a=a, z=z):
            k, v = (np.take(x, range(a, min(z, x.shape[axis])), axis=axis) for x in (p.k, p.v))
            return without_views(p, k=k, v=v, mask=None if p.mask is None else p.mask[..., a:z])

        o, lse, _ = t.run(f"merge[{a}:{z}]", part)
        parts.append((p.per_head(o), lse))
    o, lse = merge_states(parts)
    return t.value(t.ref, p.hnd(o), lse, 1.25, f"merge[{len(cuts) - 1}]")


def _pow2_v(t: Trial, _) -> list[Finding]:
    try:
        o, _, _ = t.run("pow2_v", lambda: without_views(t.p, v=t.p.v * 8))
    except CaseError as e:
        return [Finding("pow2_v", False, f"variant refused: {e}")]
    return [Finding("pow2_v", bool((o == t.o * np.float32(8)).all()))]


def _pow2_qk(t: Trial, _) -> list[Finding]:
    return t.bits("pow2_qk", lambda: without_views(t.p, q=t.p.q * 4, sm_scale=t.p.scale() / 4))


def _key_order(t: Trial, _) -> list[Finding]:
    p, axis = t.p, t.p.token_axis()

    def turned():
        flip = {n: np.ascontiguousarray(np.flip(getattr(p, n), axis)) for n in "kv"}
        if p.mask is not None:
            flip["mask"] = np.ascontiguousarray(np.flip(p.mask, 3))
        return without_views(p, **flip)

    o, lse, _ = t.run("key_order", turned)
    return t.value(t.ref, o, lse, what="key_order")


def _k_shift(t: Trial, arg: str) -> list[Finding]:
    p, dtype, name = t.p, t.p.dtypes[1], f"k_shift[{arg}]"

    def shifted():
        c = round_to(dtype, np.linspace(-1, 1, p.k.shape[-1]) * float(arg or 4))
        return without_views(p, k=round_to(dtype, p.k + c))

    o, lse, _ = t.run(name, shifted)
    variant = t.prepared.variant(name, shifted)
    return t.value(t.prepared.reference_of(name, variant), o, lse, 1.25, "k_shift", variant)


def _row_subsets(t: Trial, _) -> list[Finding]:
    axis, found = t.p.token_axis(), []
    for size in (1, 7, 64):
        first = (slice(None),) * axis + (slice(0, size),)
        found += t.bits(
            f"row_subsets[{size}]",
            lambda first=first: without_views(t.p, q=np.ascontiguousarray(t.p.q[first])),
            lambda o, first=first: o[first],
        )
    return found


def _nan_visible(t: Trial, _) -> list[Finding]:
    bad = ~np.isfinite(t.ref.o)
    return [Finding("nan_visible", bool((~np.isfinite(t.o[bad])).any()))]


def _causal_as_mask(t: Trial, _) -> list[Finding]:
    p = t.p
    rows, n, b = p.hnd(p.q).shape[2], p.hnd(p.k).shape[2], p.q.shape[0]

    def masked():
        lens = [n] * b if p.kv_lens is None else [int(x) for x in p.kv_lens]
        m = np.zeros((b, 1, rows, n), bool)
        for i, keys in enumerate(lens):
            m[i, 0, :, :keys] = p.visible(i, np.arange(rows), rows, keys)[0]
        return replace(p, causal="none", window=(-1, -1), mask=m)

    try:
        o, lse, _ = t.run("causal_as_mask", masked)
    except CaseError as e:
        return [Finding("causal_as_mask", e.kind == "unsupported", str(e))]
    return t.value(t.ref, o, lse, what="causal_as_mask")


_CHECKS = {
    "zero_channels": _zero_channels,
    "channels": _channels,
    "same_contiguous": _same_contiguous,
    "same_repeat_kv": _same_repeat_kv,
    "same_layout": _same_layout,
    "same_batch_alone": _same_batch_alone,
    "same_seq_alone": _same_seq_alone,
    "same_padding": _same_padding,
    "repeat": _repeat,
    "merge": _merge,
    "pow2_v": _pow2_v,
    "pow2_qk": _pow2_qk,
    "key_order": _key_order,
    "k_shift": _k_shift,
    "row_subsets": _row_subsets,
    "nan_visible": _nan_visible,
    "causal_as_mask": _causal_as_mask,
}
