"""Every refusal: its type, and a message that names the argument, its value and what is supported."""

import inspect

import numpy as np
import pytest

import octavo
from reference import qkv, random

Q, K, V = qkv()


def changed(**options):
    return {"q": Q, "k": K, "v": V, **options}


UNALIGNED = np.frombuffer(bytes(Q.nbytes + 1), np.uint8)[1:].view(np.float32).reshape(Q.shape)
READ_ONLY = np.zeros(Q.shape, np.float32)
READ_ONLY.flags.writeable = False
REPEATED = np.lib.stride_tricks.as_strided(np.zeros(40, np.float32), Q.shape, (0, 0, 0, 4))
WIDE = random((1, 1, 2, 257))

VALUE_ERRORS = {
    "recipe": (changed(recipe="sage3"), ["recipe", "sage3", "sage2++-8+8"]),
    "recipe type": (changed(recipe=3), ["recipe", "3", "cpu8"]),
    "override field": (changed(overrides={"colour": 1}), ["colour", "p_range"]),
    "override value": (changed(overrides={"smooth_k": "maybe"}), ["smooth_k", "maybe", "true|false"]),
    "override object": (changed(recipe="exact", overrides={"smooth_k": None}), ["smooth_k", "None"]),
    "overrides type": (changed(overrides="smooth_k=false"), ["overrides", "dict"]),
    "budget": (changed(recipe="sage2++-8+8", overrides={"v_range": 448.0}), ["65504"]),
    "layout": (changed(layout="bhld"), ["layout", "'bhld'", "'hnd', 'nhd' or 'thd'"]),
    "causal": (changed(causal=True), ["causal", "True", "'top_left'"]),
    "causal word": (changed(causal="upper"), ["causal", "'upper'", "'bottom_right'"]),
    "window": (changed(window=(-2, 0)), ["window", "(-2, 0)", "-1"]),
    "window length": (changed(window=(1, 2, 3)), ["window", "(1, 2, 3)"]),
    "window type": (changed(window=4), ["window", "4"]),
    "window of floats": (changed(window=(1.5, 2)), ["window", "1.5"]),
    "scale": (changed(scale=float("nan")), ["scale", "nan", "finite"]),
    "scale beyond float32": (changed(scale=1e300), ["scale", "finite"]),
    "scale type": (changed(scale="big"), ["scale", "'big'"]),
    "threads": (changed(threads=-1), ["threads", "-1"]),
    "threads type": (changed(threads=1.5), ["threads", "1.5"]),
    "key_splits": (changed(key_splits=-1), ["key_splits", "-1", "0 and 1024"]),
    "too many key_splits": (changed(key_splits=1025), ["key_splits", "1025", "0 and 1024"]),
    "key_splits type": (changed(key_splits=1.5), ["key_splits", "1.5", "whole number"]),
    "key_splits None": (changed(key_splits=None), ["key_splits", "None", "whole number"]),
    "return_lse": (changed(return_lse="yes"), ["return_lse", "'yes'"]),
    "check_finite": (changed(check_finite="no"), ["check_finite", "'no'"]),
    "kernel": (changed(kernel="gpu.magic"), ["kernel", "gpu.magic"]),
    "kernel type": (changed(kernel=1), ["kernel", "1"]),
    "rank of q": (changed(q=Q[0]), ["q", "[4, 37, 40]", "[B, H, L, D]"]),
    "five dimensions": (changed(q=Q[None]), ["q", "(1, 2, 4, 37, 40)"]),
    "head dims": (changed(k=K[..., :39]), ["k", "39", "40"]),
    "heads": (changed(q=Q[:, :3]), ["q", "3", "2"]),
    "batch": (changed(k=K[:1], v=V[:1]), ["batch", "2", "1"]),
    "k and v": (changed(v=V[:, :, 1:]), ["k", "v", "69"]),
    "dtypes": (changed(k=K.astype(np.float16)), ["k", "f16", "f32"]),
    "byte order": (changed(q=Q.astype(">f4")), ["q", ">f4"]),
    "alignment": (changed(q=UNALIGNED), ["q", "aligned"]),
    "out shape": (changed(out=np.empty((2, 4, 37, 39), np.float32)), ["out", "39", "40"]),
    "out dtype": (changed(out=np.empty(Q.shape, np.float16)), ["out", "float16", "float32"]),
    "out read-only": (changed(out=READ_ONLY), ["out", "read-only"]),
    "out repeats": (changed(out=REPEATED), ["out", "overlap"]),
    "out is q": (changed(out=Q), ["out", "q", "overlap"]),
    "mask dtype": (changed(mask=np.ones(70, np.float32)), ["mask", "float32", "bool"]),
    "mask shape": (changed(mask=np.ones(71, bool)), ["mask", "71", "70"]),
    "bias shape": (changed(bias=np.ones((3, 1, 70), np.float32)), ["bias", "[3, 1, 70]", "70"]),
    "kv_lengths value": (changed(kv_lengths=[1, 71]), ["kv_lengths[1]", "71", "70"]),
    "kv_lengths shape": (changed(kv_lengths=[1, 2, 3]), ["kv_lengths", "3"]),
    "kv_lengths dtype": (changed(kv_lengths=np.array([1.0, 2.0])), ["kv_lengths", "float64", "int64"]),
    "kv_lengths floats": (changed(kv_lengths=[1.5, 2]), ["kv_lengths", "1.5"]),
    "kv_lengths type": (changed(kv_lengths=object()), ["kv_lengths"]),
    "offsets in hnd": (changed(cu_seqlens_q=[0, 1]), ["cu_seqlens_q", "hnd"]),
    "offsets missing": (changed(layout="thd", q=Q[0], k=Q[0], v=Q[0]), ["cu_seqlens_q", "missing"]),
    "q_absmax shape": (changed(q_absmax=np.ones(3, np.float32)), ["q_absmax", "3", "4"]),
    "q_absmax value": (changed(q_absmax=np.zeros(4, np.float32)), ["q_absmax", "0"]),
    "q_absmax dtype": (changed(q_absmax=np.ones(4)), ["q_absmax", "float64", "float32"]),
    "q_absmax without scales": (
        changed(q_absmax=np.ones(4, np.float32), recipe="exact"),
        ["q_absmax", "exact"],
    ),
}


@pytest.mark.parametrize("options, words", VALUE_ERRORS.values(), ids=VALUE_ERRORS.keys())
def test_wrong_values(options, words):
    with pytest.raises(ValueError) as caught:
        octavo.attention(**options)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, f"{word!r} is missing in: {message}"


NOT_IMPLEMENTED = {
    "dtype": (changed(q=Q.astype(np.float64)), ["q", "float64", "float16"]),
    "head_dim": ({"q": WIDE, "k": WIDE, "v": WIDE}, ["257", "256"]),
    "head_dim of v": (changed(v=V[..., :39]), ["v", "39", "40"]),
    "mask with packed": (
        {
            "q": Q[0],
            "k": Q[0],
            "v": Q[0],
            "layout": "thd",
            "cu_seqlens_q": [0, 4],
            "cu_seqlens_k": [0, 4],
            "mask": np.ones(4, bool),
        },
        ["mask", "thd"],
    ),
    "key_splits": (changed(key_splits=2), ["key_splits", "2", "CPU", "0 and 1"]),
    "kernel that does not run it": (
        changed(recipe="sage2++-8+8", kernel="reference.exact"),
        ["reference.exact"],
    ),
}


@pytest.mark.parametrize("options, words", NOT_IMPLEMENTED.values(), ids=NOT_IMPLEMENTED.keys())
def test_what_is_not_supported(options, words):
    with pytest.raises(NotImplementedError) as caught:
        octavo.attention(**options)
    for word in words:
        assert word in str(caught.value), f"{word!r} is missing in: {caught.value}"


@pytest.mark.parametrize("name", ["q", "k", "v", "out", "mask", "bias", "q_absmax"])
def test_things_that_are_no_tensor(name):
    with pytest.raises(TypeError, match=f"{name} is a list"):
        octavo.attention(**changed(**{name: [[1.0]]}))


def test_masked_arrays_are_refused():
    with pytest.raises(TypeError, match="mask"):
        octavo.attention(np.ma.masked_array(Q), K, V)


def test_unknown_keywords():
    for function in (octavo.attention, octavo.sageattn, octavo.quantize_kv):
        with pytest.raises(TypeError, match="dropout"):
            function(*((K, V) if function is octavo.quantize_kv else (Q, K, V)), dropout=0.0)


def test_options_are_keywords():
    with pytest.raises(TypeError):
        octavo.attention(Q, K, V, "cpu8")


def test_a_failed_call_writes_nothing():
    out = np.full(Q.shape, 7.0, np.float32)
    for options in (changed(scale=float("inf")), changed(kernel="gpu.magic"), changed(kv_lengths=[1, 99])):
        with pytest.raises(ValueError):
            octavo.attention(**options, out=out)
    assert (out == 7.0).all()


def test_the_signature_is_the_documented_one():
    assert list(inspect.signature(octavo.attention).parameters) == [
        "q", "k", "v", "recipe", "overrides", "layout", "causal", "window", "scale", "kv_lengths", "mask",
        "bias", "cu_seqlens_q", "cu_seqlens_k", "q_absmax", "return_lse", "out", "threads", "key_splits",
        "check_finite", "kernel",
    ]  # fmt: skip
