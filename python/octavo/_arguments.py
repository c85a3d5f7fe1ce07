"""Arguments of a call: words, numbers and optional tensors become Options, or an error that names them."""

from __future__ import annotations

import operator
from typing import Any

from . import _octavo
from ._tensor import FLOATS, borrow, borrow_integers, check_device

LAYOUTS = {"hnd": 0, "nhd": 1, "thd": 2}
CAUSAL = {"none": 0, "top_left": 1, "bottom_right": 2}
_INT32_MAX = 2**31 - 1
_MAX_KEY_SPLITS = 1024  # as AttentionOptions has it


def one_of(name: str, value: Any, choices: dict[str, Any]) -> Any:
    """The meaning of a word, or a ValueError that lists the words there are."""
    if isinstance(value, str) and value in choices:
        return choices[value]
    words = [repr(word) for word in choices]
    raise ValueError(f"{name} is {value!r}; it must be {', '.join(words[:-1])} or {words[-1]}")


def whole(name: str, value: Any, least: int = 0, most: int = _INT32_MAX) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}; it must be a whole number") from None
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}; it must be between {least} and {most}")
    return number


def real(name: str, value: Any) -> float:
    try:
        if isinstance(value, bool | str | bytes):  # float() would take them: a flag in the wrong place, say
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {value!r}; it must be a finite number") from None


def flag(name: str, value: Any) -> bool:
    if value is True or value is False or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise ValueError(f"{name} is {value!r}; it must be True or False")


def _window(value: Any) -> tuple[int, int]:
    try:
        left, right = (operator.index(side) for side in value)
    except (TypeError, ValueError):
        raise ValueError(
            f"window is {value!r}; it must be two whole numbers (left, right), -1 for no limit"
        ) from None
    limit = 2**62  # far beyond any sequence, far below what overflows
    if not (-1 <= left <= limit and -1 <= right <= limit):
        raise ValueError(f"window is ({left}, {right}); each side is -1 (no limit) or between 0 and 2^62")
    return left, right


def options(
    *,
    layout: int,
    causal: Any = "none",
    window: Any = (-1, -1),
    scale: Any = None,
    kv_lengths: Any = None,
    mask: Any = None,
    bias: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    q_absmax: Any = None,
    check_finite: Any = None,
    threads: Any = None,
    key_splits: Any = 0,
    cuda_index: int = -1,
) -> _octavo.Options:
    """Tensors must be on the device of q, `cuda_index`; lengths and offsets may be in main memory."""

    def integers(name: str, x: Any) -> _octavo.Tensor | None:
        if x is None or isinstance(x, _octavo.Tensor):
            return x
        tensor = borrow_integers(name, x)
        check_device(name, tensor, cuda_index, or_cpu=True)
        return tensor

    def tensor(name: str, x: Any, dtypes: tuple[str, ...]) -> _octavo.Tensor | None:
        if x is None:
            return None
        borrowed = borrow(name, x, dtypes)
        check_device(name, borrowed, cuda_index)
        return borrowed

    return _octavo.make_options(
        layout=layout,
        causal=one_of("causal", causal, CAUSAL),
        window=_window(window),
        scale=None if scale is None else real("scale", scale),
        kv_lengths=integers("kv_lengths", kv_lengths),
        cu_seqlens_q=integers("cu_seqlens_q", cu_seqlens_q),
        cu_seqlens_k=integers("cu_seqlens_k", cu_seqlens_k),
        mask=tensor("mask", mask, ("bool",)),
        bias=tensor("bias", bias, FLOATS),
        q_absmax=tensor("q_absmax", q_absmax, ("float32",)),
        check_finite=None if check_finite is None else flag("check_finite", check_finite),
        threads=0 if threads is None else whole("threads", threads),
        key_splits=whole("key_splits", key_splits, most=_MAX_KEY_SPLITS),
    )


def kernel_name(kernel: Any) -> str:
    if kernel is None or isinstance(kernel, str):
        return kernel or ""
    raise ValueError(f"kernel is {kernel!r}; it must be a name from octavo.info()['kernels'], or None")
