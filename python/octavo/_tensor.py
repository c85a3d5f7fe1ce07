"""Tensors in and out: numpy, torch and DLPack ones are read where they are, results are of q's kind."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

import numpy as np

from . import _octavo

FLOATS = ("float32", "float16", "bfloat16")
INTEGERS = ("int32", "int64")
_CPU_DEVICES = (1, 3)  # DLPack: kDLCPU and kDLCUDAHost, pinned memory that the CPU reads like any other
_CUDA_DEVICE = 2
_GPU_DEVICES = {2: "a CUDA", 10: "a ROCm", 8: "a Metal", 13: "a CUDA managed-memory", 14: "a oneAPI"}


def borrow(name: str, x: Any, dtypes: tuple[str, ...] = FLOATS, *, writable: bool = False) -> _octavo.Tensor:
    """A view of `x`'s memory. `dtypes` are those that fit the argument `name`; see the errors below."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        tensor = _from_torch(name, x, torch, writable)
    elif isinstance(x, np.ndarray):
        tensor = _from_numpy(name, x, writable)
    elif hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        tensor = _from_dlpack(name, x, writable)
    else:
        raise TypeError(
            f"{name} is a {type(x).__name__}; it must be a numpy array or a DLPack tensor (torch, jax, ...)"
        )
    if tensor.dtype not in dtypes:
        supported = (
            f"{', '.join(dtypes[:-1])} and {dtypes[-1]} are supported"
            if len(dtypes) > 1
            else f"it must be {dtypes[0]}"
        )
        # A float64 q is a sensible wish that nothing here fulfils; a float mask is a mistake.
        error = NotImplementedError if dtypes == FLOATS else ValueError
        raise error(f"{name} has dtype {tensor.dtype}; {supported}")
    return tensor


def borrow_integers(name: str, x: Any) -> _octavo.Tensor:
    """Lengths and offsets: a tensor as it is, or a sequence of whole numbers, copied."""
    if not hasattr(x, "__dlpack__"):
        try:
            array = np.asarray(x)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{name} is {x!r}; it must be a tensor or a sequence of whole numbers"
            ) from error
        if array.ndim != 1 or (array.size > 0 and array.dtype.kind not in "iu"):
            raise ValueError(f"{name} is {x!r}; it must be a tensor or a sequence of whole numbers")
        x = array.astype(np.int64)
    return borrow(name, x, INTEGERS)


def host_integers(name: str, x: Any) -> np.ndarray:
    """A copy of lengths or offsets in main memory. A CUDA tensor's copy waits for the stream."""
    borrowed = borrow_integers(name, x)
    if len(borrowed.shape) != 1:
        raise ValueError(f"{name} has shape {borrowed.shape}; it must have one dimension")
    values = x.tolist() if borrowed.cuda_index >= 0 else x  # one copy, not one for each number
    return np.array([int(n) for n in values], np.int64)


def _from_numpy(name: str, x: np.ndarray, writable: bool) -> _octavo.Tensor:
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array, whose mask would be lost; pass its data, and the mask as `mask`"
        )
    if x.ndim > 4:
        raise ValueError(f"{name} has shape {x.shape}; at most 4 dimensions are supported")
    if not x.dtype.isnative:
        raise ValueError(
            f"{name} has dtype {x.dtype.str} in foreign byte order; the machine's own is supported"
        )
    if not x.flags.aligned or any(step % x.itemsize for step in x.strides):
        raise ValueError(f"{name} is not aligned to its {x.itemsize}-byte elements; pass an aligned array")
    if writable and not x.flags.writeable:
        raise ValueError(f"{name} is read-only; it must be writable")
    # numpy gives arrays without elements stride 0, which would read as elements that overlap.
    strides = [step // x.itemsize for step in x.strides] if x.size else [1] * x.ndim
    address = x.__array_interface__["data"][0]
    return _octavo.Tensor.from_address(address, x.dtype.name, list(x.shape), strides, x)


@functools.cache
def _torch_dtypes() -> dict[Any, str]:
    torch = sys.modules["torch"]
    return {
        getattr(torch, name): name
        for name in (*FLOATS, *INTEGERS, "bool", "float64", "int8", "uint8", "int16")
    }


def _from_torch(name: str, x: Any, torch: Any, writable: bool) -> _octavo.Tensor:
    """Without DLPack: a call on a GPU takes microseconds, and what DLPack adds is a wait between streams."""
    if "octavo.torch" not in sys.modules:
        importlib.import_module("octavo.torch")  # torch came after octavo: register the operator now
    if x.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(
            f"{name} requires grad; Octavo is forward only: call it under torch.no_grad(), "
            f"or pass {name}.detach()"
        )
    dtype = _torch_dtypes().get(x.dtype)
    if x.is_cuda:
        _refuse_without_cuda(name, _CUDA_DEVICE)
        index = x.device.index
    else:
        index = -1
    plain = x.layout is torch.strided and not x.is_neg()
    if dtype is None or not plain or not (x.is_cuda or x.is_cpu):
        return _from_dlpack(name, x.detach(), writable)  # which names what is wrong with it
    if x.dim() > 4:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; at most 4 dimensions are supported")
    return _octavo.Tensor.from_address(x.data_ptr(), dtype, x.shape, x.stride(), x, index)


@functools.cache
def has_cuda() -> bool:
    """Was this build of Octavo made with CUDA kernels?"""
    return any(backend == "cuda" for _, backend, *_ in _octavo.kernels())


def _refuse_without_cuda(name: str, kind: int) -> None:
    if kind == _CUDA_DEVICE and has_cuda():
        return
    where = _GPU_DEVICES.get(kind, f"another (DLPack type {kind})")
    here = "runs on the CPU and on CUDA devices" if has_cuda() else "has no CUDA and runs on the CPU"
    raise NotImplementedError(
        f"{name} is on {where} device; this build of Octavo {here}: move {name} to the CPU"
    )


def _from_dlpack(name: str, x: Any, writable: bool) -> _octavo.Tensor:
    if getattr(x, "requires_grad", False):
        raise NotImplementedError(f"{name} requires grad; Octavo is forward only: pass it detached")
    try:
        kind, _ = x.__dlpack_device__()
    except Exception as error:  # each library has its own for tensors without memory
        raise ValueError(f"{name} cannot be read through DLPack: {error}") from error
    if int(kind) not in _CPU_DEVICES:
        _refuse_without_cuda(name, int(kind))
    try:
        return _octavo.from_dlpack_writable(x) if writable else _octavo.from_dlpack(x)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        detail = "it is not writable, or has no plain memory" if isinstance(error, TypeError) else error
        raise ValueError(f"{name} cannot be read through DLPack: {detail}") from error


def device_name(cuda_index: int) -> str:
    return "the CPU" if cuda_index < 0 else f"cuda:{cuda_index}"


def check_device(
    name: str, tensor: _octavo.Tensor, cuda_index: int, *, or_cpu: bool = False, reference: str = "q"
) -> None:
    """ValueError unless `tensor` is on the device of `reference` (`or_cpu`: or in main memory)."""
    found = tensor.cuda_index
    if found != cuda_index and not (or_cpu and found < 0):
        raise ValueError(
            f"{name} is on {device_name(found)} and {reference} on {device_name(cuda_index)}; "
            "tensors of one call must be on one device"
        )


class Result:
    """Memory for an output of the same kind (numpy, torch, other) and on the same device as `like`; `value`
    is what callers get."""

    def __init__(self, like: Any, shape: tuple[int, ...], dtype: str, cuda_index: int = -1) -> None:
        self._finish = None
        torch = sys.modules.get("torch")
        if isinstance(like, np.ndarray):
            made = np.empty(shape, like.dtype if like.dtype.name == dtype else np.dtype(dtype))
        elif torch is not None and isinstance(like, torch.Tensor):
            made = torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
        elif cuda_index >= 0 and type(like).__module__.partition(".")[0] == "cupy":
            cupy = sys.modules["cupy"]
            with cupy.cuda.Device(cuda_index):
                made = cupy.empty(shape, like.dtype if str(like.dtype) == dtype else dtype)
        elif cuda_index < 0 and hasattr(like, "__array_namespace__"):
            made = _octavo.allocate(dtype, list(shape))
            self._finish = like.__array_namespace__().from_dlpack
        else:
            raise NotImplementedError(
                f"q is a {type(like).__module__}.{type(like).__name__} on {device_name(cuda_index)}, "
                "of which Octavo cannot make one: pass the output as `out`"
            )
        self._made = made
        self.tensor = borrow("out", made, writable=True)

    @property
    def value(self) -> Any:
        return self._made if self._finish is None else self._finish(self._made)
