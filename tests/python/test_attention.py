"""octavo.attention on numpy arrays against float64 softmax: shapes, layouts, masks, dtypes, strides."""

import numpy as np
import pytest

import octavo
from reference import BFLOAT16, ROUNDING, TOLERANCE, attention, lse_tolerance, qkv, random, relative_l1

NO_BFLOAT16 = pytest.mark.skipif(BFLOAT16 is None, reason="ml_dtypes is not installed")
DTYPES = [np.float32, np.float16, pytest.param(BFLOAT16, marks=NO_BFLOAT16)]
EXACT = {"recipe": "exact", "kernel": "reference.exact"}

SHAPES = [
    # batch, q_heads, kv_heads, q_len, kv_len, dim
    (1, 1, 1, 1, 1, 1),
    (2, 4, 2, 37, 70, 40),
    (1, 6, 1, 5, 129, 64),
    (3, 2, 2, 65, 65, 128),
    (1, 2, 1, 33, 40, 256),
    (2, 3, 3, 1, 200, 72),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("causal", ["none", "top_left", "bottom_right"])
def test_shapes(shape, causal):
    q, k, v = qkv(*shape)
    want, want_lse = attention(q, k, v, causal=causal)
    o, lse = octavo.attention(q, k, v, causal=causal, return_lse=True, **EXACT)
    assert o.dtype == np.float32 and o.flags.c_contiguous and lse.dtype == np.float32
    assert relative_l1(o, want) < TOLERANCE["exact"]
    np.testing.assert_allclose(lse, want_lse, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("recipe", ["auto", "cpu8", "sage2++-8+8", "sage2-8+8", "int8-icl"])
@pytest.mark.parametrize("causal", ["none", "top_left"])
def test_recipes(recipe, causal):
    q, k, v = qkv(q_len=130, kv_len=130, dim=64)
    want, want_lse = attention(q, k, v, causal=causal)
    o, lse = octavo.attention(q, k, v, recipe=recipe, causal=causal, return_lse=True)
    assert relative_l1(o, want) < TOLERANCE["cpu8" if recipe in ("auto", "cpu8") else "sage"]
    assert np.abs(lse - want_lse).max() < lse_tolerance(recipe, 64)


KEYS_MASK = np.arange(70)[None, None, None, :] % 3 != 0
MASKS = {
    "window": {"window": (5, 3)},
    "left window, causal": {"window": (9, -1), "causal": "bottom_right"},
    "top-left window": {"window": (2, 0), "causal": "top_left"},
    "lengths": {"kv_lengths": np.array([70, 13], np.int32)},
    "a batch entry without keys": {"kv_lengths": np.array([0, 7])},
    "lengths as a list, causal": {"kv_lengths": [70, 21], "causal": "bottom_right"},
    "mask of keys": {"mask": KEYS_MASK},
    "full mask with hidden rows": {"mask": np.random.default_rng(5).random((2, 4, 37, 70)) < 0.03},
    "mask [Lq, Lk]": {"mask": np.tril(np.ones((37, 70), bool))},
    "bias per head": {"bias": random((1, 4, 1, 70), 7)},
    "full bias, float16": {"bias": random((2, 4, 37, 70), 8, np.float16)},
    "bias that hides": {"bias": np.where(KEYS_MASK, 0.0, -np.inf).astype(np.float32)},
    "mask and bias": {"mask": KEYS_MASK, "bias": random((70,), 9)},
    "scale 0": {"scale": 0.0},
    "negative scale": {"scale": -0.3},
}


@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("recipe", ["exact", "cpu8"])
def test_masks(options, recipe):
    q, k, v = qkv()
    want, want_lse = attention(q, k, v, **options)
    o, lse = octavo.attention(q, k, v, recipe=recipe, return_lse=True, **options)
    assert relative_l1(o, want) < TOLERANCE[recipe]
    hidden = np.isneginf(want_lse)
    assert np.array_equal(np.isneginf(lse), hidden)
    assert not np.asarray(o)[hidden].any()
    tolerance = lse_tolerance(recipe, 40, options.get("scale"))
    assert np.abs(lse[~hidden] - want_lse[~hidden]).max() <= tolerance + 1e-5


def test_padding_never_changes_the_output():
    q, k, v = qkv()
    lengths = [70, 21]
    o, lse = octavo.attention(q, k, v, kv_lengths=lengths, return_lse=True)
    k[1, :, 21:] = np.nan
    v[1, :, 21:] = np.inf
    again, lse_again = octavo.attention(q, k, v, kv_lengths=lengths, return_lse=True)
    assert np.array_equal(o, again) and np.array_equal(lse, lse_again)


@pytest.mark.parametrize("recipe", ["exact", "cpu8"])
def test_layouts_agree(recipe):
    q, k, v = qkv()
    o, lse = octavo.attention(q, k, v, recipe=recipe, return_lse=True, causal="bottom_right")
    nhd = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    o_nhd, lse_nhd = octavo.attention(
        *nhd, recipe=recipe, layout="nhd", return_lse=True, causal="bottom_right"
    )
    assert o_nhd.shape == nhd[0].shape and o_nhd.flags.c_contiguous
    assert np.array_equal(o_nhd.swapaxes(1, 2), o) and np.array_equal(lse_nhd, lse)


@pytest.mark.parametrize("recipe", ["exact", "cpu8"])
@pytest.mark.parametrize(
    "lens_q, lens_k",
    [([5, 7], [9, 4]), ([0, 0, 33], [0, 1, 45]), ([3, 0, 2], [4, 6, 0]), ([8], [8])],
)
def test_packed_sequences(recipe, lens_q, lens_k):
    q, k, v = random((sum(lens_q), 4, 40)), random((sum(lens_k), 2, 40), 1), random((sum(lens_k), 2, 40), 2)
    cu_q, cu_k = (np.cumsum([0, *lens]).astype(np.int32) for lens in (lens_q, lens_k))
    o, lse = octavo.attention(
        q, k, v, recipe=recipe, layout="thd", cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, return_lse=True,
        causal="bottom_right",
    )  # fmt: skip
    assert o.shape == q.shape and lse.shape == (4, sum(lens_q))
    for s in range(len(lens_q)):
        rows, keys = slice(cu_q[s], cu_q[s + 1]), slice(cu_k[s], cu_k[s + 1])
        one = [x.swapaxes(0, 1)[None] for x in (q[rows], k[keys], v[keys])]
        if one[0].shape[2] == 0:
            continue
        want, want_lse = attention(*one, causal="bottom_right")
        error = np.abs(o[rows].swapaxes(0, 1) - want[0]).sum()
        assert error <= TOLERANCE[recipe] * 1.5 * np.abs(want).sum()  # short rows average less
        tolerance = lse_tolerance(recipe, 40)
        np.testing.assert_allclose(lse[:, rows], want_lse[0], rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("recipe", ["exact", "cpu8"])
def test_dtypes(dtype, recipe):
    q, k, v = qkv(dtype=dtype)
    want, _ = attention(q, k, v)
    o = octavo.attention(q, k, v, recipe=recipe)
    assert o.dtype == dtype
    assert relative_l1(o, want) < TOLERANCE[recipe] + ROUNDING[o.dtype.name]
    wide = np.empty(q.shape, np.float32)
    assert octavo.attention(q, k, v, recipe=recipe, out=wide) is wide
    assert relative_l1(wide, want) < TOLERANCE[recipe]


def test_any_strides_without_copies():
    q, k, v = qkv()
    want = octavo.attention(q, k, v)
    packed = np.zeros((2, 70, 3, 4, 40), np.float32)  # [B, L, qkv, H, D] as a projection leaves it
    packed[:, :37, 0] = q.swapaxes(1, 2)
    packed[:, :, 1, :2] = k.swapaxes(1, 2)
    packed[:, :, 2, 2:] = v.swapaxes(1, 2)
    views = packed[:, :37, 0], packed[:, :, 1, :2], packed[:, :, 2, 2:]
    assert np.array_equal(octavo.attention(*(x.swapaxes(1, 2) for x in views)), want)
    assert np.array_equal(octavo.attention(*views, layout="nhd").swapaxes(1, 2), want)
    backwards = [np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1] for x in (q, k, v)]
    assert np.array_equal(octavo.attention(*backwards), want)
    fortran = [np.asfortranarray(x) for x in (q, k, v)]
    assert np.array_equal(octavo.attention(*fortran), want)
    q_one = np.broadcast_to(q[:1], q.shape)  # stride 0
    assert np.array_equal(octavo.attention(q_one, k, v), octavo.attention(q_one.copy(), k, v))


def test_out_is_written_in_place_with_any_strides():
    q, k, v = qkv()
    want = octavo.attention(q, k, v)
    room = np.full((2, 37, 4, 80), 7.0, np.float32)
    out = room[..., ::2].swapaxes(1, 2)
    o, lse = octavo.attention(q, k, v, out=out, return_lse=True)
    assert o is out and lse.shape == (2, 4, 37)
    assert np.array_equal(out, want) and (room[..., 1::2] == 7.0).all()


def test_inputs_are_not_modified():
    arrays = {
        **dict(zip("qkv", qkv(), strict=True)),
        "mask": np.random.default_rng(3).random((2, 4, 37, 70)) < 0.8,
        "bias": random((2, 1, 37, 70), 4),
        "kv_lengths": np.array([70, 33]),
    }
    before = {name: x.copy() for name, x in arrays.items()}
    for x in arrays.values():
        x.flags.writeable = False  # read-only inputs are welcome too
    for recipe in octavo.recipes():
        octavo.attention(**arrays, recipe=recipe)
    assert all(np.array_equal(x, before[name]) for name, x in arrays.items())


def test_threads_do_not_change_results():
    q, k, v = qkv(q_len=300, kv_len=333)
    for recipe in ("cpu8", "sage2++-8+8"):
        one = octavo.attention(q, k, v, recipe=recipe, threads=1)
        for threads in (2, 3, None):
            assert np.array_equal(octavo.attention(q, k, v, recipe=recipe, threads=threads), one)


def test_results_merge_by_lse():
    q, k, v = qkv(q_len=20, kv_len=128, dim=64)
    want, _ = attention(q, k, v)
    parts = [
        octavo.attention(q, k[:, :, s], v[:, :, s], return_lse=True) for s in (slice(0, 50), slice(50, 128))
    ]
    lse = np.stack([part[1] for part in parts])[..., None]
    weights = np.exp(lse - np.logaddexp.reduce(lse))
    merged = sum(w * part[0] for w, part in zip(weights, parts, strict=True))
    assert relative_l1(merged, want) < TOLERANCE["cpu8"]


def test_no_rows_and_no_keys():
    q, k, v = qkv()
    assert octavo.attention(q[:, :, :0], k, v).shape == (2, 4, 0, 40)
    o, lse = octavo.attention(q, k[:, :, :0], v[:, :, :0], return_lse=True)
    assert not o.any() and np.isneginf(lse).all()
    assert octavo.attention(q[:0], k[:0], v[:0]).shape == (0, 4, 37, 40)


def test_q_absmax_is_the_query_scale():
    q, k, v = qkv()
    absmax = np.abs(q).max(axis=(2, 3))
    one = octavo.attention(q[:, :, :1].copy(), k, v, recipe="fp8-icl", q_absmax=absmax)
    both = octavo.attention(q, k, v, recipe="fp8-icl", q_absmax=absmax)
    assert np.array_equal(one, both[:, :, :1])  # a row's result does not depend on the rows beside it
    assert np.array_equal(
        octavo.attention(q, k, v, recipe="fp8-icl", q_absmax=absmax[0]),
        octavo.attention(q, k, v, recipe="fp8-icl", q_absmax=np.stack([absmax[0]] * 2)),
    )


def test_check_finite():
    q, k, v = qkv()
    q[1, 2, 3, 4] = np.nan
    with pytest.raises(ValueError, match="q"):
        octavo.attention(q, k, v)
    o = octavo.attention(q, k, v, check_finite=False, **EXACT)
    assert np.isfinite(o[0]).all()  # other batch entries are not touched


def test_compare():
    q, k, v = qkv()
    want, _ = attention(q, k, v)
    o = octavo.attention(q, k, v)
    c = octavo.compare(o, want.astype(np.float32))
    assert c.relative_l1 == pytest.approx(relative_l1(o, want), rel=1e-3)
    assert c.max_abs == pytest.approx(np.abs(o - want).max(), rel=1e-3)
    assert len(c.heads) == 8 and c.heads[c.worst_head].relative_l1 == max(h.relative_l1 for h in c.heads)
    assert octavo.compare(o, o).relative_l1 == 0.0 and octavo.compare(o, o).cossim == pytest.approx(1.0)
    with pytest.raises(ValueError, match="shape"):
        octavo.compare(o, o[:, :, 1:])
