"""Where a call runs: stream, memory, and the plans that are kept for the next call like it.

CUDA work goes to torch's current stream and uses memory of torch's caching allocator, which is ordered by
that stream and belongs to the graph while one is captured. CUDA tensors of other libraries come through
DLPack, on the legacy default stream, with memory that the library allocates itself.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from . import _octavo


class Place:
    """The CPU, or a CUDA device without torch: the default stream, memory allocated inside."""

    stream = 0

    def allocate(self, nbytes: int) -> tuple[int, Any]:
        """Scratch memory: its address, 0 for "inside", and what owns it as long as it is used."""
        return 0, None

    def quantized_kv(self, nbytes: int) -> _octavo.QuantizedKv:
        address, owner = self.allocate(nbytes)
        return _octavo.QuantizedKv() if address == 0 else _octavo.QuantizedKv(address, nbytes, owner)

    def uses(self, other: Place, owner: Any) -> None:
        """This place's stream reads memory that was made at `other`."""


@functools.cache
def stream_reader(torch: Any) -> Callable[[int], int]:
    """Torch's current stream of a device, as a number: quickly where torch has a way."""
    quick = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return quick or (lambda index: torch.cuda.current_stream(index).cuda_stream)


class _TorchPlace(Place):
    def __init__(self, torch: Any, index: int) -> None:
        self.stream = stream_reader(torch)(index)
        self._torch = torch
        self._index = index

    def allocate(self, nbytes: int) -> tuple[int, Any]:
        torch = self._torch
        block = torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cuda", self._index))
        return block.data_ptr(), block

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


_T = TypeVar("_T")


class Recent(Generic[_T]):
    """What the last `limit` different calls left for the next call like them: plans. A plan depends on
    shapes, dtypes, options and the recipe, not on addresses or strides of q, k and v. Calls with tensors
    among the options, whose addresses it holds, are not kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[Hashable, _T] = {}

    def find(self, key: Hashable) -> _T | None:
        try:
            return self._kept.get(key)
        except TypeError:  # something unhashable among the arguments: such calls are not kept
            return None

    def keep(self, key: Hashable, value: _T) -> None:
        # The oldest goes first, used or not: a call on a GPU has no time to move its entry to the end.
        with contextlib.suppress(
            TypeError, KeyError, StopIteration, RuntimeError
        ):  # or another thread was quicker
            self._kept[key] = value
            while len(self._kept) > self._limit:
                del self._kept[next(iter(self._kept))]

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        value = self.find(key)
        if value is None:
            value = make()
            self.keep(key, value)
        return value
