"""Number formats: rounding float32 arrays to the 16-bit and e4m3 grids, and the 16-bit patterns
themselves."""

import numpy as np


def round_to(dtype: str, x) -> np.ndarray:
    """Rounds float values to the grid of 'f16', 'bf16' or 'f32' (nearest even); the result stays float32."""
    x = np.asarray(x, dtype=np.float32)
    if dtype == "f32":
        return x
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == "f16":
            return x.astype(np.float16).astype(np.float32)
        if dtype == "bf16":
            bits = np.ascontiguousarray(x).view(np.uint32).astype(np.uint64)
            up = ((bits >> 16) & 1) + 0x7FFF
            out = (((bits + up) >> 16) << 16).astype(np.uint32).view(np.float32).copy()
            out[np.isnan(x)] = np.nan
            return out.reshape(x.shape)
    raise ValueError(dtype)


def to_bits(dtype: str, x: np.ndarray) -> np.ndarray:
    """The 16-bit patterns (uint16) of float32 values that already lie on the grid of 'f16' or 'bf16'."""
    x = np.ascontiguousarray(x, dtype=np.float32)
    if dtype == "f16":
        with np.errstate(invalid="ignore"):
            return x.astype(np.float16).view(np.uint16)
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def from_bits(dtype: str, bits: np.ndarray) -> np.ndarray:
    """The opposite of to_bits(); 'f32' takes uint32."""
    bits = np.ascontiguousarray(bits)
    if dtype == "f32":
        return bits.view(np.float32)
    if dtype == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def round_e4m3(x) -> np.ndarray:
    """Nearest e4m3fn value, saturating at 448 (subnormal step 2^-9)."""
    x = np.asarray(x, dtype=np.float32)
    a = np.minimum(np.abs(x), np.float32(448.0))
    _, e = np.frexp(np.maximum(a, np.float32(2.0**-6)))
    step = np.ldexp(np.float32(1.0), e - 4)
    return np.copysign(np.rint(a / step) * step, x)
