"""The extension module (private: the package's own modules are its only callers)."""

from collections.abc import Callable, Sequence
from typing import Any, overload

_Allocate = Callable[[int], tuple[int, Any]]

class Tensor:
    @staticmethod
    def from_address(
        address: int,
        dtype: str,
        shape: Sequence[int],
        strides: Sequence[int],
        owner: Any,
        cuda_index: int = -1,
    ) -> Tensor: ...
    @property
    def cuda_index(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def address(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...

def from_dlpack(array: Any) -> Tensor: ...
def from_dlpack_writable(array: Any) -> Tensor: ...
def allocate(dtype: str, shape: list[int]) -> Any: ...

class Recipe:
    @staticmethod
    def preset(name: str) -> Recipe: ...
    @property
    def name(self) -> str: ...
    def with_field(self, field: str, value: str) -> Recipe: ...
    def fields(self) -> list[tuple[str, str, str, str]]: ...
    def check(self, head_dim: int) -> None: ...
    def budget(self) -> str: ...
    def equals(self, other: Recipe) -> bool: ...

def presets() -> list[tuple[str, str, str]]: ...

class Options: ...

def make_options(
    layout: int,
    causal: int,
    window: tuple[int, int],
    scale: float | None,
    kv_lengths: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    q_absmax: Tensor | None,
    check_finite: bool | None,
    threads: int,
    key_splits: int = 0,
) -> Options: ...

class QuantizedKv:
    @overload
    def __init__(self) -> None: ...
    @overload
    def __init__(self, address: int, bytes: int, owner: Any) -> None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def owner(self) -> Any: ...
    def heads(self, first: int, count: int) -> QuantizedKv: ...

class QuantizedQ: ...

class Plan:
    """Memory is (address, bytes); (0, 0) is allocated inside. `allocate` is asked for bytes of scratch
    memory, if any are needed, and gives (address, owner), address 0 for memory allocated inside. Streams are
    CUDA's, as numbers."""

    @property
    def kernel(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def recipe(self) -> Recipe: ...
    @property
    def kv_bytes(self) -> int: ...
    @property
    def q_bytes(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...
    def reads_directly(self, q: Tensor, k: Tensor, v: Tensor) -> bool: ...
    def quantize_kv(self, k: Tensor, v: Tensor, kv: QuantizedKv, stream: int) -> None: ...
    def quantize_q(self, q: Tensor, kv: QuantizedKv, memory: tuple[int, int], stream: int) -> QuantizedQ: ...
    def attend(
        self,
        qq: QuantizedQ,
        kv: QuantizedKv,
        out: Tensor,
        lse: Tensor | None,
        workspace: tuple[int, int],
        stream: int,
    ) -> None: ...
    def run_q(
        self,
        q: Tensor,
        kv: QuantizedKv,
        out: Tensor,
        lse: Tensor | None,
        allocate: _Allocate,
        stream: int,
    ) -> None: ...
    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor | None,
        allocate: _Allocate,
        stream: int,
    ) -> None: ...
    def run_at(
        self,
        q: int,
        q_strides: tuple[int, ...],
        k: int,
        k_strides: tuple[int, ...],
        v: int,
        v_strides: tuple[int, ...],
        out: int,
        out_strides: tuple[int, ...],
        wide: bool,
        lse: int,
        allocate: _Allocate,
        stream: int,
        /,
    ) -> None:
        """`run` on addresses of tensors of the shapes, dtypes and device that the plan was made for; `wide`:
        out is float32; lse is contiguous, 0 for none."""

def make_plan(
    q: Tensor, k: Tensor, v: Tensor, recipe: Recipe, options: Options, kernel: str, stream: int
) -> Plan: ...
def compare(
    out: Tensor, reference: Tensor, layout: int
) -> tuple[tuple[float, float, float, float, float], list[tuple[float, float, float, float, float]], int]: ...
def kernels() -> list[tuple[str, str, str, str, str, bool]]: ...
def sm_clock_hz(stream: int) -> float: ...
def default_threads() -> int: ...
def version() -> str: ...
