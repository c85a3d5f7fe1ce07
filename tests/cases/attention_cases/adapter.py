"""A Problem through the C interface, on a CPU or a GPU: inputs in 16 bits with their strides and gaps,
guarded outputs, three thread counts."""

import ctypes

import numpy as np

from .capi import CAUSAL, LAYOUTS, Library
from .device import Cuda, Host
from .formats import to_bits
from .memory import Input, Output
from .problem import CaseError, Problem

# A keyword of a case that is no field of the call goes to the recipe, which knows its fields or refuses.
_RECIPE_FIELDS = {"accumulator": "pv_accumulator"}
_THREADS = (1, 2, 3)


class Inputs:
    """A problem's tensors in the library's types. Strided tensors stay views of their buffers. Lengths and
    offsets are on the host; `beside_q` are the same on q's device."""

    def __init__(self, p: Problem, device: Host | Cuda):
        self._held: dict[str, Input] = {}
        self._device = device
        self.q, self.k, self.v = (self._operand(p, n, t) for n, t in zip("qkv", p.dtypes, strict=True))
        lengths = {"kv_lengths": p.kv_lens, "cu_seqlens_q": p.cu_q, "cu_seqlens_k": p.cu_k}
        self.beside_q = {n: self._optional(n + " beside q", x, np.int32, "i32") for n, x in lengths.items()}
        self._device = Host()
        self.kv_lengths, self.cu_seqlens_q, self.cu_seqlens_k = (
            self._optional(n, x, np.int32, "i32") for n, x in lengths.items()
        )
        self._device = device
        self.mask = self._optional("mask", p.mask, np.bool_, "bool")
        self.bias = self._optional("bias", p.bias, np.float32, "f32")
        self.q_absmax = self._optional("q_absmax", p.q_absmax, np.float32, "f32")

    def unmodified(self) -> bool:
        return all(x.unmodified() for x in self._held.values())

    def _operand(self, p: Problem, name: str, dtype: str):
        if name not in p.views:
            return self._hold(name, to_bits(dtype, getattr(p, name))).tensor(dtype)
        base, shape, strides, offset = p.views[name]
        held = self._held.get(base) or self._hold(base, to_bits(dtype, p.bases[base]))
        return held.tensor(dtype, shape, strides, offset)

    def _optional(self, name: str, array, kind, dtype: str):
        return None if array is None else self._hold(name, np.asarray(array, kind)).tensor(dtype)

    def _hold(self, name: str, array: np.ndarray) -> Input:
        self._held[name] = Input(array, self._device)
        return self._held[name]


class Adapter:
    """A callee for evaluate(): one recipe on one kernel (None: the one that the library picks).

    check_finite = False computes with NaN and Inf in valid data; key_splits is the option of that name."""

    def __init__(
        self,
        library: Library,
        preset: str,
        kernel: str | None,
        check_finite: bool = True,
        device: Host | Cuda | None = None,
        key_splits: int = 0,
    ):
        self.library, self.preset, self.kernel, self.check_finite = library, preset, kernel, check_finite
        self.device, self.key_splits = device or Host(), key_splits

    def __call__(self, p: Problem, thorough: bool):
        inputs = p.cache.get("inputs")
        if inputs is None:
            inputs = p.cache["inputs"] = Inputs(p, self.device)
        o, lse = self._run(p, inputs)
        info = {"inputs_unmodified": inputs.unmodified(), "guard_bands": _guarded(o, lse)}
        if not info["inputs_unmodified"]:
            del p.cache["inputs"]
        if thorough:
            self._look_closer(p, inputs, o, lse, info)
        return o.values(), lse.values(), info

    def _look_closer(self, p: Problem, inputs: Inputs, o: Output, lse: Output, info: dict) -> None:
        """More runs: other thread counts, another prefill, a strided output and lengths beside q."""
        others = [self._run(p, inputs, threads, prefill=i % 2) for i, threads in enumerate(_THREADS[1:], 1)]
        strided = self._run(p, inputs, is_strided=True)
        unwritten = sum(
            int(((a.bits == a.prefill) & (b.bits == b.prefill)).sum())
            for a, b in zip((o, lse), others[0], strict=True)
        )
        info["all_written"] = unwritten == 0
        info["all_written:detail"] = f"{unwritten} elements keep what was there before the call"
        same = [all(np.array_equal(a.bits, b.bits) for a, b in zip((o, lse), x, strict=True)) for x in others]
        info["threads"] = all(same)
        info["threads:detail"] = (
            f"threads {[t for t, s in zip(_THREADS[1:], same, strict=True) if not s]} differ from 1"
        )
        info["guard_bands"] &= all(_guarded(*x) for x in others)
        info["contiguous_output"] = np.array_equal(strided[0].bits, o.bits) and _guarded(*strided)
        info["inputs_unmodified"] &= inputs.unmodified()

    def _run(
        self, p: Problem, inputs: Inputs, threads=1, prefill=0, is_strided=False
    ) -> tuple[Output, Output]:
        rows = p.q.shape[0] if p.layout == "THD" else p.hnd(p.q).shape[2]
        lse_shape = (p.query_heads(), rows) if p.layout == "THD" else (p.q.shape[0], p.query_heads(), rows)
        o = Output(p.q.shape, p.dtypes[0], self.device, prefill, is_strided)
        lse = Output(lse_shape, "f32", self.device, prefill)
        options = self._options(p, inputs, threads, inputs.beside_q if is_strided else {})
        try:
            fields = self.fields(p, inputs)
            with self.library.recipe(self.preset, fields) as recipe:
                self.library.attention(inputs.q, inputs.k, inputs.v, o.tensor, lse.tensor, recipe, options)
        except CaseError as e:
            o.fetch()
            lse.fetch()
            e.untouched = o.untouched() and lse.untouched()
            raise
        o.fetch()
        lse.fetch()
        return o, lse

    def fields(self, p: Problem, inputs: Inputs) -> dict:
        """Recipe fields to set on the preset."""
        return {_RECIPE_FIELDS.get(name, name): value for name, value in p.options.items()}

    def effective(self, p: Problem) -> dict[str, str]:
        """The fields of the recipe that runs, kernel and shape taken into account; the preset's where the
        problem is refused."""
        inputs = p.cache.get("inputs") or p.cache.setdefault("inputs", Inputs(p, self.device))
        with self.library.recipe(self.preset, {}) as recipe:
            try:
                options = self._options(p, inputs, 1)
                return self.library.plan(inputs.q, inputs.k, inputs.v, recipe, options)[1]
            except CaseError:
                return self.library.recipe_fields(self.preset)

    def _options(self, p: Problem, inputs: Inputs, threads: int, lengths: dict | None = None):
        options = self.library.options()
        options.layout, options.causal = LAYOUTS[p.layout], CAUSAL[p.causal]
        options.window_left, options.window_right = p.window
        options.has_scale, options.scale = p.sm_scale is not None, p.sm_scale or 0.0
        for name in ("kv_lengths", "cu_seqlens_q", "cu_seqlens_k", "mask", "bias", "q_absmax"):
            tensor = (lengths or {}).get(name) or getattr(inputs, name)
            if tensor is not None:
                setattr(options, name, ctypes.pointer(tensor))
        options.kernel = self.kernel.encode() if self.kernel else None
        options.check_finite, options.threads = self.check_finite, threads
        options.key_splits = self.key_splits
        return options


class Emulator(Adapter):
    """reference.emulate on the effective recipe of the kernel that the library would pick (16-bit formats,
    key tile), so that its errors are those of the recipe, not of another one."""

    def __init__(self, library: Library, preset: str, check_finite: bool = True):
        super().__init__(library, preset, "reference.emulate", check_finite)

    def fields(self, p: Problem, inputs: Inputs) -> dict:
        plain, fields = self.library.recipe_fields(self.preset), self.effective(p)
        return {n: fields[n] for n in plain if fields[n] != plain[n]} | super().fields(p, inputs)

    def effective(self, p: Problem) -> dict[str, str]:
        known = p.cache.setdefault("effective", {})
        if self.preset not in known:
            known[self.preset] = Adapter(self.library, self.preset, None, self.check_finite).effective(p)
        return known[self.preset]


def _guarded(*outputs: Output) -> bool:
    return all(x.outside_untouched() for x in outputs)
