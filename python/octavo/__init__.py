"""Octavo: 8-bit attention with a stated error, on numpy arrays and DLPack tensors.

import octavo
o = octavo.attention(q, k, v, causal="top_left")        # q, k, v: [B, H, L, D]
o = octavo.sageattn(q, k, v, is_causal=True)            # the same call as sageattn and torch's SDPA
kv = octavo.quantize_kv(k, v); o = kv.attend(q)         # K and V quantized once
"""

import sys as _sys

from ._attention import QuantizedKV, attention, quantize_kv
from ._octavo import version as _version
from ._recipe import Recipe, recipe
from ._recipe import presets as recipes
from ._report import Comparison, ErrorMeasures, compare, info
from ._sage import sageattn, sageattn_varlen

__version__ = _version()

if "torch" in _sys.modules:
    from . import torch as torch

__all__ = [
    "Comparison",
    "ErrorMeasures",
    "QuantizedKV",
    "Recipe",
    "__version__",
    "attention",
    "compare",
    "info",
    "quantize_kv",
    "recipe",
    "recipes",
    "sageattn",
    "sageattn_varlen",
]
