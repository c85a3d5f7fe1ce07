"""What is timed: one face for Octavo's recipes and torch's attention. The other peers are in peers.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import octavo

from .. import _octavo
from .._arguments import LAYOUTS, options
from .._cuda import place_of
from .._tensor import borrow
from .problems import Problem


class LeftOut(Exception):
    """This contender does not run this problem here, and why."""


class Contender:
    """One way to compute attention, with operands of its own."""

    name = ""
    note = ""  #: what a reader of the figures has to know
    kv_bytes_per_element = 2.0

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def load(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Takes 16-bit [B, H, L, D] inputs; a later set goes to the same memory."""
        if not hasattr(self, "inputs"):
            self.inputs = [x.clone() for x in (q, k, v)]
        for mine, x in zip(self.inputs, (q, k, v), strict=True):
            mine.copy_(x)

    def kernel(self) -> Any:
        """Attention alone."""
        raise NotImplementedError

    whole: Callable[[], Any] | None = None  #: from the 16-bit inputs; None where the peer has no such call

    def output(self, made: Any) -> torch.Tensor:
        """[B, H, L, D] of what `kernel` returned."""
        return made


class Recipe(Contender):
    """An Octavo recipe."""

    def __init__(self, problem: Problem, recipe: str) -> None:
        super().__init__(problem)
        self.name = f"octavo:{recipe}"
        self._options = {"recipe": recipe, "causal": "top_left" if problem.causal else "none"}

    def load(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        super().load(q, k, v)
        tq, tk, tv = (borrow(name, x) for name, x in zip("qkv", self.inputs, strict=True))
        place = place_of(q, tq.cuda_index)
        if not hasattr(self, "_plan"):
            given = options(layout=LAYOUTS["hnd"], causal=self._options["causal"], cuda_index=tq.cuda_index)
            recipe = octavo.recipe(self._options["recipe"])._handle
            try:
                self._plan = _octavo.make_plan(tq, tk, tv, recipe, given, "", place.stream)
            except NotImplementedError as refusal:
                raise LeftOut(str(refusal)) from refusal
            self.out = torch.empty_like(q)
            self.note = f"{self._plan.kernel}, {self._plan.recipe.name}"
            self._direct = self._plan.reads_directly(tq, tk, tv)
            if self._direct:  # nothing is quantized: the kernel is the call
                self.kernel = self.whole
                self.note += ", q, k and v as they are"
            else:
                self._kv = place.quantized_kv(self._plan.kv_bytes)
                sizes = self._plan.q_bytes, self._plan.workspace_bytes
                self._memory = [(place.allocate(nbytes), nbytes) for nbytes in sizes]
                self._out = borrow("out", self.out, writable=True)
                self.kv_bytes_per_element = self._plan.kv_bytes / max(self.problem.kv_elements, 1)
        if not self._direct:
            self._plan.quantize_kv(tk, tv, self._kv, place.stream)
            self._qq = self._plan.quantize_q(tq, self._kv, self._block(0), place.stream)

    def _block(self, i: int) -> tuple[int, int]:
        (address, _owner), nbytes = self._memory[i]
        return address, nbytes

    def kernel(self) -> torch.Tensor:
        stream = torch.cuda.current_stream().cuda_stream
        self._plan.attend(self._qq, self._kv, self._out, None, self._block(1), stream)
        return self.out

    def whole(self) -> torch.Tensor:
        return octavo.attention(*self.inputs, **self._options, out=self.out)


class TorchSdpa(Contender):
    """torch's own function, held to one of its backends."""

    def __init__(self, problem: Problem, backend: str) -> None:
        super().__init__(problem)
        from torch.nn.attention import SDPBackend

        self._backend = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[backend]
        self.name = f"torch:{backend}"

    def kernel(self) -> torch.Tensor:
        from torch.nn.attention import sdpa_kernel

        gqa = self.problem.q_heads != self.problem.kv_heads
        with sdpa_kernel(self._backend):
            return torch.nn.functional.scaled_dot_product_attention(
                *self.inputs, is_causal=self.problem.causal, enable_gqa=gqa
            )

    whole = kernel


def exact_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, seed: int) -> tuple:
    """(heads, rows, output in float64 [heads, rows, D]) of up to 16 heads and 256 query rows in each."""
    batch, heads, length, dim = q.shape
    group = heads // k.shape[1]
    picked = torch.linspace(0, batch * heads - 1, min(16, batch * heads)).round().long().tolist()
    shuffled = torch.randperm(length, generator=torch.Generator().manual_seed(seed))[:254]
    rows = torch.cat([shuffled, torch.tensor([0, length - 1])]).unique().to(q.device)
    found = []
    for head in picked:
        b, h = divmod(head, heads)
        keys, values = k[b, h // group].double(), v[b, h // group].double()
        scores = q[b, h, rows].double() @ keys.T * dim**-0.5
        if causal:
            hidden = torch.arange(keys.shape[0], device=q.device)[None] > rows[:, None]
            scores.masked_fill_(hidden, float("-inf"))
        found.append(scores.softmax(-1) @ values)
    return picked, rows, torch.stack(found)


def relative_l1(out: torch.Tensor, exact: tuple) -> float:
    picked, rows, want = exact
    got = torch.stack([out[divmod(head, out.shape[1])][rows].double() for head in picked])
    return ((got - want).abs().sum() / want.abs().sum()).item()
