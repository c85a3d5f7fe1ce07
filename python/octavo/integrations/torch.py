"""torch.nn.functional.scaled_dot_product_attention, replaced by Octavo for a whole program::

    from octavo.integrations.torch import patch, statistics, unpatch

    patch(recipe="sage2++-8+8")         # or: with patch(): ...
    images = pipeline(prompt)
    print(statistics())                 # Statistics(taken=1400, fell_back={"dropout_p > 0": 2})
    unpatch()

What Octavo cannot run goes to torch's own function, with one warning for each reason and counted in
`statistics()`. attn_mask (bool: True = visible; floats are added to scaled scores), is_causal (top-left, as
in torch), scale and enable_gqa mean what they mean in torch, but for rows that see no key: they are 0 here,
where some of torch's backends give NaN.

Code that took the function before (`from torch.nn.functional import scaled_dot_product_attention`) keeps
torch's, and so do torch's C++ layers, such as the fast path of nn.TransformerEncoder.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from .. import _octavo
from .._attention import attention
from .._recipe import Recipe, Value
from .._recipe import recipe as make_recipe
from .._tensor import device_name

_FLOATS = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_original = torch.nn.functional.scaled_dot_product_attention
_lock = threading.Lock()
_taken = 0
_fell_back: dict[str, int] = {}


@dataclass(frozen=True)
class Statistics:
    """Calls since the last `patch` from an unpatched state; those in torch.compile's graphs are not seen."""

    taken: int  #: calls that Octavo ran
    fell_back: Mapping[str, int]  #: reason -> calls that torch ran


def statistics() -> Statistics:
    with _lock:
        return Statistics(_taken, dict(_fell_back))


@dataclass(frozen=True)
class _Chosen:
    """A recipe in words, which torch.compile can look into."""

    name: str
    overrides: dict[str, Value]


class Patch:
    """What `patch` returns: a context manager that puts back what was there before, in whatever order several
    end."""

    def __init__(self, replacement: Any) -> None:
        self._replacement = replacement
        self._active = False
        replacement.octavo_patch = self

    def _install(self) -> None:
        self._before = torch.nn.functional.scaled_dot_product_attention
        self._active = True
        torch.nn.functional.scaled_dot_product_attention = self._replacement

    def __enter__(self) -> Patch:
        if not self._active:  # used a second time
            self._install()
        return self

    def __exit__(self, *_: object) -> None:
        self._active = False
        function = torch.nn.functional.scaled_dot_product_attention
        while (patch := getattr(function, "octavo_patch", None)) is not None and not patch._active:
            function = patch._before
        torch.nn.functional.scaled_dot_product_attention = function


def patch(recipe: str | Recipe = "auto", overrides: Mapping[str, Value] | None = None) -> Patch:
    """Replaces torch's function by `recipe` until `unpatch`, or to the end of a `with` block. Another patch
    replaces the recipe. ValueError: a recipe or field that is not possible."""
    chosen = make_recipe(recipe, **(overrides or {}))
    if torch.nn.functional.scaled_dot_product_attention is _original:
        _reset()
    made = Patch(_replacement(_Chosen(chosen.name, chosen._overrides())))
    made._install()
    return made


def unpatch() -> None:
    """Puts torch's own function back. Does nothing if it is there."""
    torch.nn.functional.scaled_dot_product_attention = _original


def _reset() -> None:
    global _taken
    with _lock:
        _taken = 0
        _fell_back.clear()


def _replacement(recipe: _Chosen) -> Any:
    def scaled_dot_product_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        reason = _refusal(recipe, query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        if reason is None:
            try:
                out = _call(recipe, query, key, value, attn_mask, is_causal, scale)
            except (NotImplementedError, ValueError) as error:  # of a wrong call torch says what is wrong
                reason = str(error)
            else:
                _count(None)
                return out
        _count(reason)
        return _original(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )

    return scaled_dot_product_attention


def _call(
    recipe: _Chosen,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    mask = attn_mask if attn_mask is not None and attn_mask.dtype == torch.bool else None
    bias = attn_mask if mask is None else None
    batchless = query.dim() == 3
    if batchless:
        query, key, value = query[None], key[None], value[None]
    causal = "top_left" if is_causal else "none"
    # NaN goes through, as in torch.
    options = {"causal": causal, "scale": scale, "mask": mask, "bias": bias, "check_finite": False}
    out = attention(query, key, value, recipe=recipe.name, overrides=recipe.overrides, **options)
    return out[0] if batchless else out


def _refusal(
    recipe: _Chosen,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> str | None:
    """Why this call is torch's; None: it is ours. Wrong calls are torch's too: the errors stay the same."""
    tensors = (query, key, value) if attn_mask is None else (query, key, value, attn_mask)
    if not all(isinstance(x, torch.Tensor) for x in tensors):
        return "an argument is no tensor"
    if dropout_p != 0.0:
        return "dropout_p > 0"
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return "a tensor requires grad"
    if query.dim() not in (3, 4) or key.dim() != query.dim() or value.dim() != query.dim():
        return f"query has {query.dim()} dimensions; 4 (or 3) are supported"
    if query.dtype not in _FLOATS or key.dtype != query.dtype or value.dtype != query.dtype:
        return f"dtype {query.dtype}"
    if any(x.device != query.device for x in tensors):
        return "tensors on several devices"
    if query.shape[-1] != key.shape[-1] or value.shape[-1] != query.shape[-1]:
        return "value has a head_dim of its own"
    if query.dim() == 4 and query.shape[0] != key.shape[0]:
        return "query and key have different batch sizes"
    if key.shape[:-1] != value.shape[:-1]:
        return "key and value have different shapes"
    heads, key_heads = query.shape[-3], key.shape[-3]
    if heads != key_heads and (not enable_gqa or key_heads == 0 or heads % key_heads != 0):
        return "query and key have different numbers of heads without enable_gqa"
    if attn_mask is not None:
        if is_causal:
            return "attn_mask with is_causal"
        if attn_mask.dtype != torch.bool and attn_mask.dtype not in _FLOATS:
            return f"attn_mask of dtype {attn_mask.dtype}"
        if not 2 <= attn_mask.dim() <= 4:
            return f"attn_mask has {attn_mask.dim()} dimensions; 2 to 4 are supported"
        if attn_mask.layout != torch.strided:
            return f"attn_mask of layout {attn_mask.layout}"
    index = query.device.index if query.is_cuda else -1
    if index < 0 and not query.is_cpu:
        return f"device {query.device.type}"
    return _unsupported(
        recipe.name, tuple(recipe.overrides.items()), query.shape[-1], _FLOATS[query.dtype], index
    )


@torch.compiler.assume_constant_result
def _unsupported(name: str, overrides: tuple, head_dim: int, dtype: str, cuda_index: int) -> str | None:
    return _ask(name, overrides, head_dim, dtype, cuda_index)


@lru_cache(maxsize=256)
def _ask(name: str, overrides: tuple, head_dim: int, dtype: str, cuda_index: int) -> str | None:
    """Octavo's own word on a recipe, head_dim and dtype here, asked with a problem of one key."""
    shape = (1, 1, 1, head_dim)
    tensor = _octavo.Tensor.from_address(256, dtype, shape, shape, None, cuda_index)  # nothing is read there
    absent = [None] * 6
    options = _octavo.make_options(0, 0, (-1, -1), None, *absent, check_finite=None, threads=1)
    recipe = make_recipe(name, **dict(overrides))._handle
    try:
        _octavo.make_plan(tensor, tensor, tensor, recipe, options, "", 0)
    except (NotImplementedError, ValueError) as error:
        return f"head_dim {head_dim}, {dtype}, on {device_name(cuda_index)}: {error}"
    return None


def _count(reason: str | None) -> None:
    global _taken
    if torch.compiler.is_compiling():
        return
    with _lock:
        if reason is None:
            _taken += 1
            return
        _fell_back[reason] = _fell_back.get(reason, 0) + 1
        first = _fell_back[reason] == 1
    if first:
        text = f"octavo: torch runs a scaled_dot_product_attention that Octavo does not: {reason}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
