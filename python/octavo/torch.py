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

from . import _attention, _octavo
from ._cuda import stream_reader
from ._recipe import Recipe

_current_stream = stream_reader(torch)


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
    key_splits: int = 0,
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
        key_splits=key_splits,
        check_finite=check_finite,
        kernel=kernel,
    )


@attention_op.register_fake
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *options: Any, layout: str = "hnd", **named: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    layout = options[2] if len(options) > 2 else layout
    return q.new_empty(q.shape), q.new_empty(_lse_shape(q.shape, layout), dtype=torch.float32)


def _lse_shape(q_shape: torch.Size, layout: str) -> list[int]:
    axes = {"hnd": (0, 1, 2), "nhd": (0, 2, 1), "thd": (1, 0)}[layout]
    return [q_shape[axis] for axis in axes]


compiling = torch.compiler.is_compiling  #: is torch.compile tracing the caller?


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


def _is_plain(x: Any) -> bool:
    """A strided CUDA tensor of no subclass, of which nothing but the address has to be known."""
    return type(x) is torch.Tensor and x.is_cuda and x.layout is torch.strided and not x.is_neg()


def tensors_key(q: Any, k: Any, v: Any) -> tuple | None:
    """Everything about plain CUDA tensors but their addresses and strides; None for others, and for those of
    which gradients are wanted."""
    if not (_is_plain(q) and _is_plain(k) and _is_plain(v)):
        return None
    if (q.requires_grad or k.requires_grad or v.requires_grad) and torch.is_grad_enabled():
        return None
    return q.shape, q.dtype, q.device, k.shape, k.dtype, k.device, v.shape, v.dtype, v.device


class CheckedCall:
    """A call that has passed every check, for those that differ from it in addresses and strides alone."""

    __slots__ = ("_device", "_index", "_lse_shape", "_plan")

    def __init__(self, plan: _octavo.Plan, q: torch.Tensor, layout: str) -> None:
        self._plan = plan
        self._device = q.device
        self._index = q.device.index
        self._lse_shape = _lse_shape(q.shape, layout)

    def fits(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: Any, return_lse: Any) -> bool:
        """False: `out` or `return_lse` want a closer look."""
        if return_lse is not False and return_lse is not True:
            return False
        if out is None:
            return True
        return (
            _is_plain(out)
            and out.shape == q.shape
            and (out.dtype is q.dtype or out.dtype is torch.float32)
            and out.device == self._device
            and not out.requires_grad
            and out.data_ptr() not in (q.data_ptr(), k.data_ptr(), v.data_ptr())
        )

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: Any, return_lse: bool) -> Any:
        if out is None:
            out = torch.empty_like(q, memory_format=torch.contiguous_format)
        lse = None
        if return_lse:
            lse = torch.empty(self._lse_shape, dtype=torch.float32, device=self._device)
        self._plan.run_at(
            q.data_ptr(),
            q.stride(),
            k.data_ptr(),
            k.stride(),
            v.data_ptr(),
            v.stride(),
            out.data_ptr(),
            out.stride(),
            out.dtype is torch.float32,
            0 if lse is None else lse.data_ptr(),
            self._allocate,
            _current_stream(self._index),
        )
        return out if lse is None else (out, lse)

    def _allocate(self, nbytes: int) -> tuple[int, torch.Tensor]:
        block = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        return block.data_ptr(), block


_attention.torch_hook = sys.modules[__name__]
