"""K and V quantized once: equal to the one call, reusable, viewable by head."""

import threading

import numpy as np
import pytest

import octavo
from reference import qkv, random


@pytest.mark.parametrize("recipe", ["auto", "sage2++-8+8", "int8-icl", "exact"])
@pytest.mark.parametrize("layout", ["hnd", "nhd"])
def test_equals_the_one_call(recipe, layout):
    q, k, v = qkv()
    if layout == "nhd":
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    kv = octavo.quantize_kv(k, v, recipe=recipe, layout=layout)
    for options in (
        {},
        {"causal": "bottom_right"},
        {"scale": 0.2, "window": (9, 2)},
        {"mask": np.arange(70) % 4 > 0},
    ):
        want, want_lse = octavo.attention(q, k, v, recipe=recipe, layout=layout, return_lse=True, **options)
        o, lse = kv.attend(q, return_lse=True, **options)
        assert np.array_equal(o, want) and np.array_equal(lse, want_lse)


def test_several_queries_of_any_length_and_the_train_rows_scale():
    q, k, v = qkv(q_len=50, kv_len=50)
    train, test = q[:, :, :40], q[:, :, 40:]
    kv = octavo.quantize_kv(k, v, recipe="fp8-icl")
    absmax = np.abs(train).max(axis=(2, 3))
    for rows in (train, test, test[:, :, :1]):
        want = octavo.attention(rows, k, v, recipe="fp8-icl", q_absmax=absmax)
        assert np.array_equal(kv.attend(rows, q_absmax=absmax), want)
    assert np.array_equal(kv.attend(train), kv.attend(train, q_absmax=absmax))


def test_k_and_v_are_not_needed_afterwards():
    q, k, v = qkv()
    lengths = np.array([70, 30])
    kv = octavo.quantize_kv(k, v, kv_lengths=lengths, recipe="cpu8")
    want = octavo.attention(q, k, v, kv_lengths=lengths, recipe="cpu8")
    k[:], v[:], lengths[:] = np.nan, np.nan, 1
    assert np.array_equal(kv.attend(q), want)


def test_heads_are_views():
    q, k, v = qkv(q_heads=6, kv_heads=3)
    kv = octavo.quantize_kv(k, v, recipe="int8-icl")
    part = kv.heads(1, 2)
    assert part.shape == (2, 2, 70, 40) and part.nbytes == kv.nbytes
    want = octavo.attention(q[:, 2:], k[:, 1:], v[:, 1:], recipe="int8-icl")
    assert np.array_equal(part.attend(q[:, 2:]), want)
    one = part.heads(1, 1)
    assert np.array_equal(one.attend(q), octavo.attention(q, k[:, 2:], v[:, 2:], recipe="int8-icl"))
    for wrong in ((0, 4), (3, 1), (-1, 1), (0, 0), (0.5, 1)):
        with pytest.raises(ValueError, match="heads"):
            kv.heads(*wrong)
    nhd = octavo.quantize_kv(k.swapaxes(1, 2), v.swapaxes(1, 2), layout="nhd", recipe="int8-icl").heads(1, 2)
    assert np.array_equal(nhd.attend(q[:, 2:].swapaxes(1, 2)).swapaxes(1, 2), want)


def test_packed():
    cu_q, cu_k = [0, 3, 3, 10], [0, 7, 12, 20]
    q, k, v = random((10, 4, 40)), random((20, 2, 40), 1), random((20, 2, 40), 2)
    kv = octavo.quantize_kv(k, v, layout="thd", cu_seqlens_k=cu_k)
    want = octavo.attention(q, k, v, layout="thd", cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    assert np.array_equal(kv.attend(q, cu_seqlens_q=cu_q), want)
    with pytest.raises(ValueError, match="cu_seqlens_q"):
        kv.attend(q)


def test_what_it_says_of_itself():
    _, k, v = qkv()
    kv = octavo.quantize_kv(k, v)
    assert kv.recipe.name == "cpu8" and kv.kernel in kv.reason and kv.kernel in repr(kv)
    assert (kv.shape, kv.dtype, kv.layout) == ((2, 2, 70, 40), "float32", "hnd") and kv.nbytes > 0


def test_refusals():
    q, k, v = qkv()
    kv = octavo.quantize_kv(k, v)
    with pytest.raises(ValueError, match="q has"):
        kv.attend(q[:, :3])
    with pytest.raises(ValueError, match="dtype"):
        kv.attend(q.astype(np.float16))
    with pytest.raises(ValueError, match="head_dim"):
        kv.attend(q[..., :8])
    with pytest.raises(ValueError, match="recipe"):
        octavo.quantize_kv(k, v, recipe="nothing")
    with pytest.raises(ValueError, match="kv_lengths"):
        octavo.quantize_kv(k, v, kv_lengths=[1, 71])
    with pytest.raises(ValueError, match="shape"):
        octavo.quantize_kv(k, v[:, :, 1:])
    k[0, 0, 0, 0] = np.inf
    with pytest.raises(ValueError, match="k"):
        octavo.quantize_kv(k, v)


def test_one_cache_serves_several_threads():
    q, k, v = qkv(q_len=200, kv_len=300)
    kv = octavo.quantize_kv(k, v)
    queries = [q + np.float32(0.1 * i) for i in range(4)]
    want = [kv.attend(x) for x in queries]
    got = [None] * len(queries)

    def work(i):
        for _ in range(5):
            got[i] = kv.attend(queries[i], threads=1)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(queries))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))
