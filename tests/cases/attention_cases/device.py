"""Where a case's tensors are: main memory with a page behind each that cannot be touched, or a GPU's, through
the CUDA driver (ctypes), which is there wherever a GPU is."""

import ctypes as c
import mmap
from functools import cache

import numpy as np

_PAGE = mmap.PAGESIZE
_LINE = 64  # buffers start on a cache line, so that a case's own offsets decide what is aligned
_NAN = 0xFF  # as bytes: NaN in f16, bf16 and f32


class HostMemory:
    """`size` bytes that end, up to a cache line of NaN, where a read or write ends the process."""

    def __init__(self, size: int):
        libc = c.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = (c.c_void_p, c.c_size_t, c.c_int)
        lines = -(-size // _LINE) * _LINE
        pages = -(-max(lines, 1) // _PAGE)
        self._map = mmap.mmap(-1, (pages + 1) * _PAGE)
        everything = np.frombuffer(self._map, np.uint8)
        if libc.mprotect(everything.ctypes.data + pages * _PAGE, _PAGE, 0) != 0:  # 0: PROT_NONE
            raise OSError(c.get_errno(), "mprotect")
        everything = everything[: pages * _PAGE]
        everything[:] = _NAN
        start = pages * _PAGE - lines
        self.bytes = everything[start : start + size]
        self.address = everything.ctypes.data + start

    def push(self) -> None:
        """Makes what was written to `bytes` visible to the library."""

    def pull(self) -> None:
        """Makes what the library wrote visible in `bytes`."""


class Host:
    kind, index = 0, 0

    def memory(self, size: int) -> HostMemory:
        return HostMemory(size)


class NoDevice(Exception):
    pass


class Cuda:
    """One GPU, its primary context current in this process: what the CUDA runtime uses, too."""

    kind = 1

    def __init__(self, index: int):
        self.index = index
        try:
            self._lib = c.CDLL("libcuda.so.1")
        except OSError as e:
            raise NoDevice(f"there is no CUDA driver ({e})") from e
        device, context = c.c_int(), c.c_void_p()
        try:
            self.call("cuInit", 0)
            self.call("cuDeviceGet", c.byref(device), index)
            self.call("cuDevicePrimaryCtxRetain", c.byref(context), device)
            self.call("cuCtxSetCurrent", context)
        except RuntimeError as e:
            raise NoDevice(f"cuda:{index} cannot be used ({e})") from e

    def call(self, name: str, *arguments) -> None:
        status = getattr(self._lib, name)(*arguments)
        if status != 0:
            text = c.c_char_p()
            self._lib.cuGetErrorName(status, c.byref(text))
            raise RuntimeError(f"{name} failed: {(text.value or b'?').decode()}")

    def memory(self, size: int) -> "CudaMemory":
        return CudaMemory(self, size)


class CudaMemory:
    """`size` bytes between bands of NaN, with a copy in main memory. Copies wait for the default stream."""

    BAND = 1024

    def __init__(self, device: Cuda, size: int):
        self._device, self._size = device, size
        self._base = c.c_uint64()
        device.call("cuMemAlloc_v2", c.byref(self._base), c.c_size_t(size + 2 * self.BAND))
        device.call("cuMemsetD8_v2", self._base, c.c_ubyte(_NAN), c.c_size_t(size + 2 * self.BAND))
        self.address = self._base.value + self.BAND
        self.bytes = np.full(size, _NAN, np.uint8)

    def push(self) -> None:
        if self._size:
            self._device.call("cuMemcpyHtoD_v2", c.c_uint64(self.address), *self._host())

    def pull(self) -> None:
        if self._size:
            to, length = self._host()
            self._device.call("cuMemcpyDtoH_v2", to, c.c_uint64(self.address), length)

    def _host(self):
        return c.c_void_p(self.bytes.ctypes.data), c.c_size_t(self._size)

    def __del__(self):
        if self._base.value:
            self._device._lib.cuMemFree_v2(self._base)


@cache
def device_of(name: str) -> Host | Cuda:
    """By name: cpu, cuda or cuda:N."""
    if name == "cpu":
        return Host()
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index or "0").isdigit():
        raise ValueError(f"device is {name!r}; it must be cpu or cuda:N")
    return Cuda(int(index or 0))
