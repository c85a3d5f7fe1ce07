"""torch.ops.octavo.attention: octavo.attention as a torch operator, which torch.compile keeps in its graph.

Importing this module registers it; `import octavo` does so too if torch is there already, as does the first
call with a torch tensor. Under torch.compile, octavo.attention and octavo.sageattn then become this operator,
without graph breaks, on CPU and CUDA tensors. Forward only: the functions refuse tensors that require grad,
the operator a backward through it.
"""

import sys
from collections.abc import Mapping
from typing import Any

import torch

from . import _attention
from ._recipe import Recipe


@torch.library.custom_op("octavo::attention", mutates_args=(), device_types=("cpu", "cuda"))
def attention_op(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    recipe: str = "auto",
    overrides: str = "",
    layout: str = "hnd",
    causal: str = "none",
    window_left: int = -1,
    window_right: int = -1,
    scale: float | None = None,
    kv_lengths: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    q_absmax: torch.Tensor | None = None,
    threads: int = 0,
    check_finite: bool | None = None,
    kernel: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, lse) of octavo.attention; `overrides` is text: "smooth_k=false,p_range=224"."""
    return _attention.attention(
        q,
        k,
        v,
        recipe=recipe,
        overrides=dict(text.split("=", 1) for text in overrides.split(",") if text),
        layout=layout,
        causal=causal,
        window=(window_left, window_right),
        scale=scale,
        kv_lengths=kv_lengths,
        mask=mask,
        bias=bias,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        q_absmax=q_absmax,
        return_lse=True,
        threads=threads,
        check_finite=check_finite,
        kernel=kernel,
    )


@attention_op.register_fake
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any, layout: str = "hnd", **named: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    layout = options[2] if len(options) > 2 else layout
    n = q.shape
    axes = {"hnd": (0, 1, 2), "nhd": (0, 2, 1), "thd": (1, 0)}[layout]
    return q.new_empty(n), q.new_empty([n[axis] for axis in axes], dtype=torch.float32)


def compiling() -> bool:
    """Is torch.compile tracing the caller?"""
    return torch.compiler.is_compiling()


def is_bool(mask: torch.Tensor) -> bool:
    return mask.dtype == torch.bool


def _text(fields: Mapping[str, Any]) -> str:
    """An operator takes no dict. Every word of a recipe is lower case, true and false too."""
    return ",".join(f"{name}={str(value).lower()}" for name, value in fields.items())


def compiled(
    q: Any, k: Any, v: Any, *, recipe: Any, overrides: Any, out: Any, return_lse: bool, **options: Any
) -> Any:
    """The call that octavo.attention makes while torch.compile traces it."""
    fields: dict[str, Any] = {}
    if isinstance(recipe, Recipe):
        fields, recipe = recipe._overrides(), recipe.name
    if overrides is not None:
        fields = {**fields, **overrides}
    options["window_left"], options["window_right"] = options.pop("window")
    options["threads"] = options["threads"] or 0
    o, lse = attention_op(q, k, v, recipe, _text(fields), **options)
    if out is not None:
        o = out.copy_(o)
    return (o, lse) if return_lse else o


_attention.torch_hook = sys.modules[__name__]
