"""octavo.attention, and octavo.quantize_kv for callers that keep quantized K and V."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from . import _octavo
from ._arguments import LAYOUTS, flag, kernel_name, one_of, options
from ._cuda import Place, Recent, place_of
from ._recipe import Recipe, Value, recipe_key, settle
from ._tensor import FLOATS, Result, borrow, borrow_integers, check_device, device_name, host_integers

torch_hook: Any = None  # octavo.torch, once it is there: torch.compile, and calls like one that was checked
_plans: Recent[_octavo.Plan] = Recent(limit=256)
_checked: Recent[Any] = Recent(limit=256)


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    recipe: str | Recipe = "auto",
    overrides: Mapping[str, Value] | None = None,
    layout: str = "hnd",
    causal: str = "none",
    window: tuple[int, int] = (-1, -1),
    scale: float | None = None,
    kv_lengths: Any = None,
    mask: Any = None,
    bias: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    q_absmax: Any = None,
    return_lse: bool = False,
    out: Any = None,
    threads: int | None = None,
    key_splits: int = 0,
    check_finite: bool | None = None,
    kernel: str | None = None,
) -> Any:
    """softmax(scale * q k^T + bias, over visible keys) v, in 8 bits where the recipe says so.

    Tensors are numpy arrays (float32, float16, ml_dtypes.bfloat16) or DLPack tensors on the CPU (torch, jax,
    ...), or torch or CuPy tensors on one CUDA device; of one dtype, with any strides. No input is modified.

    On a CUDA device the call returns at once: the work is done on torch's current stream, with memory of
    torch's allocator, and can be captured in a CUDA graph (CuPy: on the legacy default stream).

    q, k, v: [B, H, L, D] (layout "hnd"), [B, L, H, D] ("nhd"), or packed [tokens, H, D] ("thd", with
        cu_seqlens_q and cu_seqlens_k). Hq is a multiple of Hkv; query head h reads key head h // (Hq // Hkv).
        D is 1 to 256.
    recipe, overrides: a preset's name or a Recipe, and fields to change for this call.
    causal: "none"; "top_left": query i sees keys j <= i; "bottom_right": j <= i + n - Lq, n the valid keys.
    window: (left, right) keys around a query's own position, inclusive, -1 for no limit.
    scale: default 1 / sqrt(D); any finite number.
    kv_lengths: whole numbers [B], the valid keys of each batch entry. The host needs them: those on
        a CUDA device cost a copy that waits for the stream, which a graph capture refuses; cu_seqlens alike.
    mask: bool, broadcastable to [B, Hq, Lq, Lk], True = visible. bias: floats, likewise, added to scaled
        scores.
    cu_seqlens_q, cu_seqlens_k: whole numbers [sequences + 1], from 0 to the number of tokens.
    q_absmax: float32 [Hq] or [B, Hq]: the query scale, for recipes that have one; queries beyond it clamp.
    out: written in place and returned; q's shape, q's dtype or float32; it must not overlap q, k or v.
    threads: CPU threads; None is as many as the process may use. Results do not depend on it.
    key_splits: in how many parts (0 to 1024) a GPU walks the keys side by side, to be busy with few queries;
        their outputs are merged by lse. 0: decided from batch, heads and lengths; 1: one part; n: parts of
        equal size in whole key tiles, n at most. Weights round differently in other parts: a number other
        than 0 makes the results of a query independent of how many batch entries and queries are computed
        with it. CPUs have one part and refuse more.
    check_finite: refuse NaN and infinity in valid data; default True on the CPU, and False on CUDA, where it
        waits for the device. kernel: force one of octavo.info()["kernels"].

    Returns o (q's kind, shape and dtype, contiguous), or (o, lse) with lse float32 [B, Hq, Lq] (packed [Hq,
    tokens]), the natural log of the softmax's denominator. A query that sees no key has o = 0 and lse = -inf.

    ValueError: a wrong shape, dtype, device, name or number. NotImplementedError: a right request that is not
    supported here (another D for v, gradients, CUDA tensors without a CUDA build). TypeError: something that
    is no tensor, or an unknown keyword.
    """
    hook = torch_hook
    if hook is not None and hook.compiling():
        return hook.compiled(
            q,
            k,
            v,
            recipe=recipe,
            overrides=overrides,
            out=out,
            return_lse=return_lse,
            layout=layout,
            causal=causal,
            window=window,
            scale=scale,
            kv_lengths=kv_lengths,
            mask=mask,
            bias=bias,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            q_absmax=q_absmax,
            threads=threads,
            key_splits=key_splits,
            check_finite=check_finite,
            kernel=kernel,
        )
    # A call on a GPU takes microseconds: one that differs from a checked one in addresses and strides alone
    # is not checked again.
    held = not (kv_lengths is mask is bias is cu_seqlens_q is cu_seqlens_k is q_absmax is None)
    tensors_key = hook.tensors_key(q, k, v) if hook is not None and not held else None
    key = None
    if tensors_key is not None:
        words = (layout, causal, window, scale, type(scale), threads, key_splits, check_finite, kernel)
        key = (tensors_key, words, recipe_key(recipe, overrides))
        checked = _checked.find(key)
        if checked is not None and checked.fits(q, k, v, out, return_lse):
            return checked.run(q, k, v, out, return_lse)
    layout_code = one_of("layout", layout, LAYOUTS)
    tensors = borrow("q", q), borrow("k", k), borrow("v", v)
    index = tensors[0].cuda_index
    check_device("k", tensors[1], index)
    check_device("v", tensors[2], index)
    place = place_of(q, index)

    make = functools.partial(
        _make_plan,
        tensors,
        recipe,
        overrides,
        kernel,
        place.stream,
        layout=layout_code,
        causal=causal,
        window=window,
        scale=scale,
        kv_lengths=kv_lengths,
        mask=mask,
        bias=bias,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        q_absmax=q_absmax,
        check_finite=check_finite,
        threads=threads,
        key_splits=key_splits,
        cuda_index=index,
    )
    if index < 0 or held:
        plan = make()
    else:
        shapes = (q.shape, q.dtype, k.shape, k.dtype, v.shape, v.dtype)
        words = (layout, causal, window, scale, type(scale), threads, key_splits, check_finite, kernel)
        plan = _plans.get((index, shapes, words, recipe_key(recipe, overrides)), make)
    outputs = _Outputs(q, tensors, layout_code, out, return_lse)
    plan.run(*tensors, *outputs.tensors, place.allocate, place.stream)
    if key is not None:
        _checked.keep(key, hook.CheckedCall(plan, q, layout))
    return outputs.value


def _make_plan(
    tensors: tuple, recipe: Any, overrides: Any, kernel: Any, stream: int, **words: Any
) -> _octavo.Plan:
    """Checks everything but the tensors' memory."""
    given = options(**words)
    forced = kernel_name(kernel)
    settled = settle(
        recipe,
        overrides,
        lambda auto: _octavo.make_plan(*tensors, auto, given, "", stream).recipe.name,
    )
    return _octavo.make_plan(*tensors, settled, given, forced, stream)


class _Outputs:
    """Where o and lse go: checked or made before any work is done."""

    def __init__(self, q: Any, tensors: tuple, layout: int, out: Any, return_lse: bool) -> None:
        query = tensors[0]
        self._given = out
        index = query.cuda_index
        if out is None:
            self._made = Result(q, query.shape, query.dtype, index)
            self._out = self._made.tensor
        else:
            self._out = borrow("out", out, FLOATS, writable=True)
            check_device("out", self._out, index)
            if self._out.shape != query.shape:
                raise ValueError(f"out has shape {self._out.shape}; it must be {query.shape} as q")
            if self._out.dtype not in (query.dtype, "float32"):
                raise ValueError(
                    f"out has dtype {self._out.dtype}; it must be {query.dtype} as q, or float32"
                )
            for name, tensor in zip("qkv", tensors, strict=False):
                if tensor.address == self._out.address and 0 not in query.shape:
                    raise ValueError(f"out is the memory of {name}; it must not overlap q, k or v")
        self._lse = None
        if flag("return_lse", return_lse):
            n = query.shape
            shape = {0: n[:3], 1: (n[0], n[2], n[1]), 2: (n[1], n[0])}[layout]
            self._lse = Result(q, shape, "float32", index)

    @property
    def tensors(self) -> tuple[_octavo.Tensor, _octavo.Tensor | None]:
        return self._out, None if self._lse is None else self._lse.tensor

    @property
    def value(self) -> Any:
        o = self._made.value if self._given is None else self._given
        return o if self._lse is None else (o, self._lse.value)


class QuantizedKV:
    """K and V quantized once, for any number of `attend` calls: a KV cache, or a table's train rows that both
    the train and the test rows look at. Made by `octavo.quantize_kv`; usable from several threads at once. A
    CUDA stream other than the one it was made on must have waited for that one, as for any tensor."""

    def __init__(
        self,
        quantized: _octavo.QuantizedKv,
        plan: _octavo.Plan,
        keys: _octavo.Tensor,
        layout: str,
        lengths: dict,
        place: Place,
    ) -> None:
        self._quantized = quantized
        self._plan = plan
        self._keys = keys
        self._layout = layout
        self._lengths = lengths
        self._place = place
        self._plans: Recent[_octavo.Plan] = Recent(limit=32)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the k it was made from, in its layout."""
        return self._keys.shape

    @property
    def dtype(self) -> str:
        """Of the k it was made from, which q must have: "float32", "float16" or "bfloat16"."""
        return self._keys.dtype

    @property
    def layout(self) -> str:
        return self._layout

    @property
    def recipe(self) -> Recipe:
        """What was run: `auto` replaced, fields left to the kernel filled in."""
        return Recipe._wrap(self._plan.recipe)

    @property
    def kernel(self) -> str:
        return self._plan.kernel

    @property
    def reason(self) -> str:
        """One sentence: what was picked and why."""
        return self._plan.reason

    @property
    def nbytes(self) -> int:
        """Bytes of the quantized buffer, which views made by `heads` share."""
        return self._quantized.nbytes

    def heads(self, first: int, count: int) -> QuantizedKV:
        """The same buffer seen as its key heads [first, first + count). ValueError: no such heads."""
        try:
            part = self._quantized.heads(first, count)
        except TypeError:
            raise ValueError(f"heads({first!r}, {count!r}): both must be whole numbers") from None
        shape = list(self.shape)
        shape[2 if self._layout == "nhd" else 1] = count
        keys = _stand_in(part, shape, self.dtype, self._keys.cuda_index)
        return QuantizedKV(part, self._plan, keys, self._layout, self._lengths, self._place)

    def attend(
        self,
        q: Any,
        *,
        causal: str = "none",
        window: tuple[int, int] = (-1, -1),
        scale: float | None = None,
        mask: Any = None,
        bias: Any = None,
        cu_seqlens_q: Any = None,
        q_absmax: Any = None,
        return_lse: bool = False,
        out: Any = None,
        threads: int | None = None,
        key_splits: int = 0,
        check_finite: bool | None = None,
    ) -> Any:
        """Attention of q over these keys: arguments, result and errors as of `octavo.attention`."""
        query = borrow("q", q)
        keys, index = self._keys, query.cuda_index
        if index != keys.cuda_index:
            raise ValueError(
                f"q is on {device_name(index)} and the quantized k and v on {device_name(keys.cuda_index)}; "
                "tensors of one call must be on one device"
            )
        place = place_of(q, index)

        def make() -> _octavo.Plan:
            given = options(
                layout=LAYOUTS[self._layout],
                causal=causal,
                window=window,
                scale=scale,
                mask=mask,
                bias=bias,
                cu_seqlens_q=cu_seqlens_q,
                q_absmax=q_absmax,
                check_finite=check_finite,
                threads=threads,
                key_splits=key_splits,
                cuda_index=index,
                **self._lengths,
            )
            return _octavo.make_plan(
                query, keys, keys, self._plan.recipe, given, self._plan.kernel, place.stream
            )

        if index < 0 or not (mask is bias is cu_seqlens_q is q_absmax is None):
            plan = make()
        else:
            words = (causal, window, scale, type(scale), threads, key_splits, check_finite)
            plan = self._plans.get((q.shape, q.dtype, words), make)
        outputs = _Outputs(q, (query,), LAYOUTS[self._layout], out, return_lse)
        place.uses(self._place, self._quantized.owner)
        plan.run_q(query, self._quantized, *outputs.tensors, place.allocate, place.stream)
        return outputs.value

    def __repr__(self) -> str:
        return (
            f"<octavo.QuantizedKV {list(self.shape)} {self._layout} {self.dtype}, "
            f"recipe {self.recipe.name}, "
            f"kernel {self.kernel}, {self.nbytes} bytes>"
        )


def quantize_kv(
    k: Any,
    v: Any,
    *,
    recipe: str | Recipe = "auto",
    overrides: Mapping[str, Value] | None = None,
    layout: str = "hnd",
    kv_lengths: Any = None,
    cu_seqlens_k: Any = None,
    threads: int | None = None,
    check_finite: bool | None = None,
    kernel: str | None = None,
) -> QuantizedKV:
    """Quantizes k and v once, for several calls with different queries::

        kv = octavo.quantize_kv(k, v, recipe="int8-icl")
        train = kv.attend(q_train)
        test = kv.attend(q_test, q_absmax=abs(q_train).max(axis=(2, 3)))    # recipes with a scale per head
        one = kv.heads(0, 1).attend(q_multi_query)

    Arguments and errors as of `octavo.attention`. k and v are not needed afterwards.
    """
    layout_code = one_of("layout", layout, LAYOUTS)
    keys, values = borrow("k", k), borrow("v", v)
    index = keys.cuda_index
    check_device("v", values, index, reference="k")
    place = place_of(k, index)
    # Owned copies: a later change of the caller's lengths must not change what this object means.
    lengths = {}
    for name, x in (("kv_lengths", kv_lengths), ("cu_seqlens_k", cu_seqlens_k)):
        if x is not None:
            lengths[name] = borrow_integers(name, host_integers(name, x))
    # A plan needs queries; the shape of k serves, and nothing reads them here.
    plan = _make_plan(
        (keys, keys, values),
        recipe,
        overrides,
        kernel,
        place.stream,
        layout=layout_code,
        check_finite=check_finite,
        threads=threads,
        cuda_index=index,
        **_self_attention(lengths),
    )
    quantized = place.quantized_kv(plan.kv_bytes)
    plan.quantize_kv(keys, values, quantized, place.stream)
    stand_in = _stand_in(quantized, keys.shape, keys.dtype, index)
    return QuantizedKV(quantized, plan, stand_in, layout, lengths, place)


def _stand_in(
    quantized: _octavo.QuantizedKv, shape: Sequence[int], dtype: str, cuda_index: int
) -> _octavo.Tensor:
    """The checks of a call want k and v; of these only shape and dtype are left, nothing reads further."""
    strides = [0] * len(shape)
    return _octavo.Tensor.from_address(quantized.address, dtype, list(shape), strides, quantized, cuda_index)


def _self_attention(lengths: dict) -> dict:
    cu_seqlens = lengths.get("cu_seqlens_k")
    return lengths if cu_seqlens is None else {**lengths, "cu_seqlens_q": cu_seqlens}
