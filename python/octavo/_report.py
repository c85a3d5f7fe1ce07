"""What is here (`info`) and how far two outputs are apart (`compare`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import _octavo
from ._arguments import LAYOUTS, one_of
from ._tensor import borrow


@dataclass(frozen=True)
class ErrorMeasures:
    """How far o is from its reference r."""

    relative_l1: float  #: sum |o - r| / sum |r|
    relative_l2: float  #: sqrt(sum (o - r)^2 / sum r^2)
    cossim: float  #: <o, r> / (|o| |r|)
    rmse: float  #: sqrt(mean (o - r)^2)
    max_abs: float  #: max |o - r|


@dataclass(frozen=True)
class Comparison(ErrorMeasures):
    """The measures over whole tensors, and those of each head."""

    heads: tuple[ErrorMeasures, ...]  #: per (batch entry, head), batch outermost; packed: per head
    worst_head: int  #: index into heads of the largest relative_l1


def compare(a: Any, b: Any, *, layout: str = "hnd") -> Comparison:
    """Error measures of output `a` against reference `b`, tensors of one shape in that layout; their kinds
    and dtypes may differ. ValueError: shapes that differ or do not fit the layout."""
    out, reference = borrow("a", a), borrow("b", b)
    every, heads, worst = _octavo.compare(out, reference, one_of("layout", layout, LAYOUTS))
    return Comparison(*every, heads=tuple(ErrorMeasures(*head) for head in heads), worst_head=worst)


def info() -> dict[str, Any]:
    """Version, CPU threads used by default, and the kernels of this build: name, backend, tier, file,
    summary, and whether each can run on this machine."""
    names = ("name", "backend", "tier", "file", "summary", "available")
    return {
        "version": _octavo.version(),
        "threads": _octavo.default_threads(),
        "kernels": [dict(zip(names, kernel, strict=True)) for kernel in _octavo.kernels()],
    }
