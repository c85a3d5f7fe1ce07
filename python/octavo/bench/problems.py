"""The problems that are timed, as named sets."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Problem:
    batch: int
    q_heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    causal: bool = False  #: top-left, so only with q_len = kv_len, where every peer means the same by it

    def __post_init__(self) -> None:
        if self.causal and self.q_len != self.kv_len:
            raise ValueError(f"causal with {self.q_len} queries and {self.kv_len} keys differs between peers")

    @property
    def flop(self) -> float:
        """2 products of 2 operations; half of the square if causal, as everybody counts."""
        pairs = self.q_len * self.kv_len * (0.5 if self.causal else 1.0)
        return 4.0 * self.batch * self.q_heads * pairs * self.head_dim

    @property
    def few_queries(self) -> bool:
        """Reading K and V is the work, not the products."""
        return self.q_len * (self.q_heads // self.kv_heads) <= 128

    @property
    def kv_elements(self) -> int:
        return 2 * self.batch * self.kv_heads * self.kv_len * self.head_dim

    def as_dict(self) -> dict:
        return asdict(self)

    def __str__(self) -> str:
        heads = f"H{self.q_heads}" + (f"/{self.kv_heads}" if self.kv_heads != self.q_heads else "")
        tokens = f"N {self.q_len:,}" if self.q_len == self.kv_len else f"Lq {self.q_len:,} Lk {self.kv_len:,}"
        return f"d {self.head_dim} B{self.batch} {heads} {tokens} {'causal' if self.causal else 'full'}"


def _square(
    batch: int, heads: int, tokens: int, dim: int, causal: bool = False, kv_heads: int = 0
) -> Problem:
    return Problem(batch, heads, kv_heads or heads, tokens, tokens, dim, causal)


_K = 1024
_LENGTHS = [n * _K for n in (1, 2, 4, 8, 16, 32, 64, 128)]
_BOTH = (False, True)

SETS: dict[str, list[Problem]] = {
    "b1h8": [_square(1, 8, n, d, c) for d in (64, 128) for c in _BOTH for n in _LENGTHS],
    "b2h16": [_square(2, 16, n, d, c) for d in (64, 128) for c in _BOTH for n in _LENGTHS[:-1]],
    "gqa": [
        _square(batch, heads, n * _K, d, c, kv_heads)
        for batch, heads, kv_heads, d in ((1, 32, 8, 128), (2, 16, 2, 64))
        for c in _BOTH
        for n in (4, 16)
    ],
    "video": [_square(1, 40, 32760, 128)],
    "cross": [Problem(1, 40, 40, 32760, 257, 128), Problem(1, 8, 8, 32760, 257, 64)],
    "decode": [
        Problem(1, 32, 8, 1, 64 * _K, 128),
        Problem(8, 32, 8, 1, 64 * _K, 128),
        Problem(1, 8, 8, 1, 64 * _K, 64),
    ],
    "key": [
        *(_square(1, 8, 64 * _K, 64, c) for c in _BOTH),
        *(_square(2, 16, 16 * _K, 128, c) for c in _BOTH),
        *(_square(1, 8, n * _K, 64) for n in (1, 4, 8, 16)),
        *(_square(2, 16, n * _K, 128) for n in (4, 8)),
        _square(1, 8, 16 * _K, 64, True),
        Problem(1, 40, 40, 32760, 257, 128),
        Problem(1, 32, 8, 1, 64 * _K, 128),
    ],
}


def chosen(names: list[str]) -> list[Problem]:
    """The problems of these sets ("all" is every set), each once. ValueError: no such set."""
    problems: dict[Problem, None] = {}
    for name in list(SETS) if "all" in names else names:
        if name not in SETS:
            raise ValueError(f"no set of shapes is called {name!r}; there are {', '.join(SETS)} and all")
        problems |= dict.fromkeys(SETS[name])
    return list(problems)
