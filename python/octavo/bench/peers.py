"""Peers from other packages, each left out with its reason where it is not installed or refuses a problem."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from .contenders import Contender, LeftOut, Recipe, TorchSdpa
from .problems import Problem

_E4M3_MAX = 448.0


def _imported(name: str) -> Any:
    try:
        return __import__(name)
    except Exception as missing:  # a broken wheel raises what it likes
        raise LeftOut(f"import {name}: {type(missing).__name__}: {missing}") from missing


class FlashAttention3(Contender):
    """flash_attn_interface, in 16 bits or FP8; FP8 operands have one scale for a batch entry and key head."""

    def __init__(self, problem: Problem, kind: str) -> None:
        super().__init__(problem)
        self.name = f"fa3:{kind}"
        self._kind = kind
        self._call = _imported("flash_attn_interface").flash_attn_func
        known = inspect.signature(self._call).parameters
        self._options: dict[str, Any] = {"causal": problem.causal}
        if problem.few_queries and "num_splits" in known:
            self._options["num_splits"] = 0  # its heuristic; 1, the default, leaves most of the GPU idle
        if kind == "fp8":
            missing = {"q_descale", "k_descale", "v_descale"} - set(known)
            if missing:
                raise LeftOut(f"flash_attn_func takes no {', '.join(sorted(missing))}")
            self.kv_bytes_per_element = 1.0
            self.note = "operands quantized beforehand, one scale for a batch entry and key head"
        else:
            self.whole = self.kernel

    def load(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        inputs = [x.transpose(1, 2).contiguous() for x in (q, k, v)]  # [B, L, H, D]
        if self._kind == "bf16":
            inputs = [x.bfloat16() for x in inputs]
        if self._kind == "fp8":
            heads = self.problem.kv_heads
            for i, name in enumerate(("q_descale", "k_descale", "v_descale")):
                x = inputs[i].float()
                batch, length, _, dim = x.shape
                grouped = x.view(batch, length, heads, -1, dim)
                scale = grouped.abs().amax((1, 3, 4)).clamp_min(1e-20) / _E4M3_MAX  # [B, Hkv]
                inputs[i] = (grouped / scale[:, None, :, None, None]).to(torch.float8_e4m3fn).view(x.shape)
                self._options[name] = scale
        if not hasattr(self, "inputs"):
            self.inputs, self._scales = inputs, {n: s for n, s in self._options.items() if "descale" in n}
        for mine, x in zip(self.inputs, inputs, strict=True):
            mine.view(torch.uint8).copy_(x.view(torch.uint8))
        for name, scale in self._scales.items():  # captured graphs read these very tensors
            scale.copy_(self._options[name])
            self._options[name] = scale

    def kernel(self) -> torch.Tensor:
        made = self._call(*self.inputs, **self._options)
        return made[0] if isinstance(made, tuple) else made

    def output(self, made: torch.Tensor) -> torch.Tensor:
        return made.transpose(1, 2)


class CudnnFp8(Contender):
    """cuDNN's FP8 attention through its frontend: one scale for a tensor, and on Hopper an FP8 output."""

    name = "cudnn:fp8"
    note = (
        "operands quantized beforehand, one scale for a tensor; the output is e4m3, which its error includes"
    )
    kv_bytes_per_element = 1.0

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._cudnn = _imported("cudnn")

    def load(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        amax = [x.abs().amax().float() for x in (q, k, v)]
        scaled = [
            (x.float() * (_E4M3_MAX / a)).to(torch.float8_e4m3fn)
            for x, a in zip((q, k, v), amax, strict=True)
        ]
        gqa = self.problem.q_heads != self.problem.kv_heads
        sdpa = torch.nn.functional.scaled_dot_product_attention
        largest = sdpa(q, k, v, is_causal=self.problem.causal, enable_gqa=gqa).abs().amax().float()
        scales = [*(a / _E4M3_MAX for a in amax), 1.0 / _E4M3_MAX, _E4M3_MAX, _E4M3_MAX / largest]
        if not hasattr(self, "inputs"):
            self.inputs = scaled
            self._out = torch.empty_like(scaled[0])
            self._scales = [torch.ones(1, 1, 1, 1, device=q.device) for _ in scales]
        for mine, x in zip(self.inputs, scaled, strict=True):
            mine.view(torch.uint8).copy_(x.view(torch.uint8))
        for mine, x in zip(self._scales, scales, strict=True):
            mine.fill_(x)
        if not hasattr(self, "_graph"):
            try:
                self._build()
            except Exception as refusal:
                raise LeftOut(f"{type(refusal).__name__}: {refusal}") from refusal

    def _build(self) -> None:
        cudnn, kinds = self._cudnn, self._cudnn.data_type
        self._handle = cudnn.create_handle()
        graph = cudnn.pygraph(
            io_data_type=kinds.FP8_E4M3,
            intermediate_data_type=kinds.FLOAT,
            compute_data_type=kinds.FLOAT,
            handle=self._handle,
        )
        inputs = [
            graph.tensor(name=n, dim=list(x.shape), stride=list(x.stride()), data_type=kinds.FP8_E4M3)
            for n, x in zip("qkv", self.inputs, strict=True)
        ]
        names = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
        scales = [
            graph.tensor(name=n, dim=[1, 1, 1, 1], stride=[1, 1, 1, 1], data_type=kinds.FLOAT) for n in names
        ]
        out, _, amax_s, amax_o = graph.sdpa_fp8(
            **dict(zip("qkv", inputs, strict=True)),
            **dict(zip(names, scales, strict=True)),
            attn_scale=self.problem.head_dim**-0.5,
            use_causal_mask=self.problem.causal,
            generate_stats=False,
            name="sdpa",
        )
        out.set_output(True).set_dim(list(self._out.shape)).set_stride(list(self._out.stride()))
        out.set_data_type(kinds.FP8_E4M3)
        for amax in (amax_s, amax_o):
            amax.set_output(False).set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1]).set_data_type(kinds.FLOAT)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        self._workspace = torch.empty(graph.get_workspace_size() + 1, device="cuda", dtype=torch.uint8)
        self._pack = {
            **dict(zip(inputs, self.inputs, strict=True)),
            **dict(zip(scales, self._scales, strict=True)),
            out: self._out,
        }
        self._graph = graph

    def kernel(self) -> torch.Tensor:
        self._cudnn.set_stream(handle=self._handle, stream=torch.cuda.current_stream().cuda_stream)
        self._graph.execute(self._pack, self._workspace, handle=self._handle)
        return self._out

    def output(self, made: torch.Tensor) -> torch.Tensor:
        return made.float() / self._scales[-1]


class SageAttention(Contender):
    """The whole call: quantization is part of it."""

    name = "sageattention"
    note = "its kernel is not called alone: ms is the whole call"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._call = _imported("sageattention").sageattn

    def kernel(self) -> torch.Tensor:
        return self._call(*self.inputs, tensor_layout="HND", is_causal=self.problem.causal)

    whole = kernel


PEERS = {
    "torch:flash": lambda p: TorchSdpa(p, "flash"),
    "torch:cudnn": lambda p: TorchSdpa(p, "cudnn"),
    "fa3:f16": lambda p: FlashAttention3(p, "f16"),
    "fa3:bf16": lambda p: FlashAttention3(p, "bf16"),
    "fa3:fp8": lambda p: FlashAttention3(p, "fp8"),
    "cudnn:fp8": CudnnFp8,
    "sageattention": SageAttention,
}


def make(name: str, problem: Problem) -> Contender:
    """ "octavo:RECIPE" or one of PEERS. LeftOut: not here."""
    if name.startswith("octavo:"):
        return Recipe(problem, name.removeprefix("octavo:"))
    return PEERS[name](problem)
