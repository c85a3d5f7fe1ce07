"""Buffers that show a stray access: input copies to compare with, bands around outputs."""

from collections.abc import Sequence

import numpy as np

from .capi import DTYPES, Tensor
from .device import Cuda, Host
from .formats import from_bits


class Input:
    """An input array in a device's memory, and a copy of its bytes."""

    def __init__(self, array: np.ndarray, device: Host | Cuda):
        array = np.ascontiguousarray(array)
        self.memory, self._device = device.memory(array.nbytes), device
        self.memory.bytes[:] = array.reshape(-1).view(np.uint8)
        self._before = self.memory.bytes.copy()
        self.memory.push()
        self._strides = [s // array.itemsize for s in array.strides]
        self._shape, self._itemsize = array.shape, array.itemsize

    def unmodified(self) -> bool:
        self.memory.pull()
        return np.array_equal(self.memory.bytes, self._before)

    def tensor(self, dtype: str, shape=None, strides=None, offset: int = 0) -> Tensor:
        """The array itself, or a view of it; strides and offset count elements."""
        shape, strides = (self._shape, self._strides) if shape is None else (shape, strides)
        return make_tensor(self.memory.address + offset * self._itemsize, dtype, shape, strides, self._device)


# What outputs hold before a call, as bits: NaN, and 1e30 (f16, which ends before that: 6e4).
PREFILLS = {
    "f32": (0xFFFFFFFF, int(np.float32(1e30).view(np.uint32))),
    "bf16": (0xFFFF, int(np.float32(1e30).view(np.uint32)) >> 16),
    "f16": (0xFFFF, int(np.float16(6e4).view(np.uint16))),
}


class Output:
    """An output with bands before, behind and, when it is strided, between its elements. Call fetch() before
    looking at it."""

    BAND = 256  # bytes: four cache lines catch a whole vector written too far

    def __init__(
        self,
        shape: Sequence[int],
        dtype: str,
        device: Host | Cuda,
        prefill: int = 0,
        is_strided: bool = False,
    ):
        item, rank = np.dtype(np.uint32 if dtype == "f32" else np.uint16), len(shape)
        # Strided: the axes before the last in reverse order, and rows with a gap of three elements.
        order = [*reversed(range(rank - 1)), rank - 1] if is_strided else list(range(rank))
        dims = [shape[a] for a in order]
        pitch = [*dims[:-1], dims[-1] + (3 if is_strided else 0)]
        size = int(np.prod(pitch))
        self._memory = device.memory(size * item.itemsize + 2 * self.BAND)
        self._memory.bytes[:] = 0xA5
        band = self.BAND // item.itemsize
        everything = self._memory.bytes.view(item)
        self.bits = self._body(everything[band : band + size], dims, pitch, order)
        self.prefill = PREFILLS[dtype][prefill]
        self.bits[...] = self.prefill
        self._before = everything.copy()
        self._memory.push()
        outside = np.ones(everything.size, bool)
        self._body(outside[band : band + size], dims, pitch, order)[...] = False
        self._everything, self._outside, self._dtype = everything, outside, dtype
        strides = [s // item.itemsize for s in self.bits.strides]
        self.tensor = make_tensor(self._memory.address + self.BAND, dtype, shape, strides, device)

    @staticmethod
    def _body(flat: np.ndarray, dims, pitch, order) -> np.ndarray:
        """The elements of the output within its memory, in the index order of its shape."""
        return flat.reshape(pitch)[..., : dims[-1]].transpose(np.argsort(order))

    def fetch(self) -> None:
        self._memory.pull()

    def values(self) -> np.ndarray:
        return from_bits(self._dtype, self.bits)

    def untouched(self) -> bool:
        return np.array_equal(self._everything, self._before)

    def outside_untouched(self) -> bool:
        return np.array_equal(self._everything[self._outside], self._before[self._outside])


def make_tensor(
    address: int, dtype: str, shape: Sequence[int], strides: Sequence[int], device: Host | Cuda
) -> Tensor:
    tensor = Tensor(
        data=address,
        dtype=DTYPES[dtype],
        rank=len(shape),
        device_kind=device.kind,
        device_index=device.index,
    )
    tensor.shape[: len(shape)] = list(shape)
    tensor.strides[: len(shape)] = list(strides)
    return tensor
