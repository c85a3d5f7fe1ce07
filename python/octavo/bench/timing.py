"""Batches of launches in CUDA graphs, timed by events; the clock at which they ran."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _octavo

_BATCH_MS = 1.0  # long against the microseconds that events and a graph's start cost
_MOST_LAUNCHES = 200


@dataclass
class Times:
    """Milliseconds of one launch, one entry for each turn."""

    ms: list[float] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.ms)

    @property
    def median(self) -> float:
        return sorted(self.ms)[len(self.ms) // 2]

    def as_dict(self) -> dict[str, float] | None:
        return {"min": min(self.ms), "median": self.median} if self.ms else None


class Clocks:
    """SM clock and power. NVML's are readings of a moment; `spin` counts cycles in a kernel of its own."""

    def __init__(self) -> None:
        self.gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._nvml = self._device = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._device = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{self.gpu.uuid}".encode())
            self._nvml = pynvml
        except Exception as missing:
            self.problem = f"{type(missing).__name__}: {missing}"

    def read(self) -> tuple[float, float] | None:
        """(MHz, W) by NVML."""
        if self._nvml is None:
            return None
        clock = self._nvml.nvmlDeviceGetClockInfo(self._device, self._nvml.NVML_CLOCK_SM)
        return float(clock), self._nvml.nvmlDeviceGetPowerUsage(self._device) / 1e3

    def spin(self) -> float | None:
        """MHz right after what the current stream has run."""
        try:
            return _octavo.sm_clock_hz(torch.cuda.current_stream().cuda_stream) / 1e6
        except NotImplementedError:
            return None

    def describe(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "sm_clock_mhz": "median over the turns, counted by a kernel right after each batch",
            "nvml_sm_clock_mhz": "median of NVML's readings while batches ran",
        }
        if self._nvml is None:
            return found | {"nvml": f"not available: {self.problem}"}
        nvml, device = self._nvml, self._device
        found["max_sm_mhz"] = nvml.nvmlDeviceGetMaxClockInfo(device, nvml.NVML_CLOCK_SM)
        found["power_limit_w"] = nvml.nvmlDeviceGetEnforcedPowerLimit(device) / 1e3
        return found

    def driver(self) -> str | None:
        if self._nvml is None:
            return None
        version = self._nvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else version


class Batch:
    """As many launches of `call` as take a millisecond, in a graph if the call can be captured."""

    def __init__(self, call: Callable[[], Any], *, graph: bool = True) -> None:
        self._call = call
        self._graph = None
        call()
        torch.cuda.synchronize()
        self.launches = 3
        one = self.run()
        self.launches = min(max(math.ceil(_BATCH_MS / one), 1), _MOST_LAUNCHES)
        self.estimate = one * self.launches
        self.why_not_captured = ""
        if graph:
            try:
                self._capture()
            except Exception as refusal:
                torch.cuda.synchronize()
                self.why_not_captured = f"{type(refusal).__name__}: {str(refusal).splitlines()[0]}"

    def _capture(self) -> None:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            self._call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(self.launches):
                self._call()
        graph.replay()
        torch.cuda.synchronize()
        self._graph = graph

    def run(self, meanwhile: Callable[[], Any] = lambda: None) -> float:
        """Milliseconds of one launch. `meanwhile` is called on the host while the batch runs."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        if self._graph is not None:
            self._graph.replay()
        else:
            for _ in range(self.launches):
                self._call()
        end.record()
        meanwhile()
        end.synchronize()
        return begin.elapsed_time(end) / self.launches
