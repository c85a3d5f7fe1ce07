"""Where a call runs: stream, memory, and the plans that are kept for the next call like it.

CUDA work goes to torch's current stream and uses memory of torch's caching allocator, which is ordered by
that stream and belongs to the graph while one is captured. CUDA tensors of other libraries come through
DLPack, on the legacy default stream, with memory that the library allocates itself.
"""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from . import _octavo

_ALIGNMENT = 1024  # of quantized buffers, for tensor-map hardware; torch gives 512


class Place:
    """The CPU, or a CUDA device without torch: the default stream, memory allocated inside."""

    stream = 0

    def memory(self, nbytes: int) -> tuple[tuple[int, int], Any]:
        """(address, bytes) and what owns them, to be kept as long as the memory is used."""
        return (0, 0), None

    def quantized_kv(self, nbytes: int) -> _octavo.QuantizedKv:
        (address, size), owner = self.memory(nbytes)
        return _octavo.QuantizedKv() if address == 0 else _octavo.QuantizedKv(address, size, owner)

    def uses(self, other: Place, owner: Any) -> None:
        """This place's stream reads memory that was made at `other`."""


class _TorchPlace(Place):
    def __init__(self, torch: Any, index: int) -> None:
        self.stream = torch.cuda.current_stream(index).cuda_stream
        self._torch = torch
        self._index = index

    def memory(self, nbytes: int) -> tuple[tuple[int, int], Any]:
        torch = self._torch
        block = torch.empty(nbytes + _ALIGNMENT, dtype=torch.uint8, device=torch.device("cuda", self._index))
        address = block.data_ptr()
        return (address + -address % _ALIGNMENT, nbytes), block

    def uses(self, other: Place, owner: Any) -> None:
        if owner is not None and self.stream != other.stream:
            owner.record_stream(self._torch.cuda.current_stream(self._index))


_PLAIN = Place()


def place_of(q: Any, cuda_index: int) -> Place:
    if cuda_index >= 0:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(q, torch.Tensor):
            return _TorchPlace(torch, cuda_index)
    return _PLAIN


class Plans:
    """The plans of recent calls. A plan depends on shapes, dtypes, options and the recipe, not on addresses
    or strides of q, k and v. Calls with tensors among the options, whose addresses it holds, are not kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[Hashable, _octavo.Plan] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], _octavo.Plan]) -> _octavo.Plan:
        try:
            plan = self._kept.get(key)
        except TypeError:  # something unhashable among the arguments: whether it is right is make's business
            return make()
        if plan is None:
            plan = self._kept[key] = make()
            while len(self._kept) > self._limit:
                try:
                    self._kept.popitem(last=False)
                except KeyError:  # another thread was quicker
                    break
        else:
            with contextlib.suppress(KeyError):  # another thread dropped it; it is ours all the same
                self._kept.move_to_end(key)
        return plan
