"""octavo.sageattn in every form that callers of sageattn and of torch's SDPA use."""

import functools
import inspect

import numpy as np
import pytest

import octavo
from reference import TOLERANCE, attention, lse_tolerance, qkv, random, relative_l1

Q, K, V = qkv(q_len=70)
MASK = np.random.default_rng(1).random((2, 1, 70, 70)) < 0.8
BIAS = random((4, 70, 70), 2)
PLAIN = octavo.sageattn(Q, K, V)
CAUSAL = octavo.sageattn(Q, K, V, is_causal=True)
MASKED = octavo.sageattn(Q, K, V, attn_mask=MASK)


def test_is_the_recipe_it_says():
    assert np.array_equal(PLAIN, octavo.attention(Q, K, V, recipe="sage2++-8+8"))
    assert np.array_equal(CAUSAL, octavo.attention(Q, K, V, recipe="sage2++-8+8", causal="top_left"))
    assert np.array_equal(MASKED, octavo.attention(Q, K, V, recipe="sage2++-8+8", mask=MASK))
    for o, options in ((PLAIN, {}), (CAUSAL, {"causal": "top_left"}), (MASKED, {"mask": MASK})):
        assert relative_l1(o, attention(Q, K, V, **options)[0]) < TOLERANCE["sage"]


def test_layouts_and_lse():
    nhd = [x.swapaxes(1, 2) for x in (Q, K, V)]
    o, lse = octavo.sageattn(Q, K, V, "HND", False, None, True)
    o_nhd, lse_nhd = octavo.sageattn(*nhd, tensor_layout="NHD", return_lse=True)
    assert np.array_equal(o, PLAIN) and np.array_equal(o_nhd.swapaxes(1, 2), o)
    assert lse.shape == lse_nhd.shape == (2, 4, 70) and lse.dtype == np.float32
    assert np.array_equal(lse, lse_nhd)
    assert np.abs(lse - attention(Q, K, V)[1]).max() < lse_tolerance("sage", 40)
    assert o_nhd.flags.c_contiguous


def test_keyword_forms():
    sage, same = octavo.sageattn, np.array_equal
    # diffusers, SGLang, vLLM-Omni; ComfyUI; yunchang; LightX2V
    nhd = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (Q, K, V)]
    q, k, v = nhd
    o = sage(q=q, k=k, v=v, tensor_layout="NHD", is_causal=False, sm_scale=None, return_lse=False)
    assert same(o.swapaxes(1, 2), PLAIN)
    assert "attn_mask" in inspect.signature(sage).parameters
    o = sage(Q, K, V, is_causal=False, tensor_layout="HND", sm_scale=40**-0.5, smooth_k=True, attn_mask=MASK)
    assert same(o, MASKED)
    assert same(functools.partial(sage, pv_accum_dtype="fp32+fp16")(Q, K, V), PLAIN)


def test_as_torch_sdpa():
    sage, same = octavo.sageattn, np.array_equal
    assert same(
        sage(Q, K, V, attn_mask=None, dropout_p=0.0, is_causal=True, scale=None, enable_gqa=True), CAUSAL
    )
    assert same(sage(Q, K, V, None), PLAIN)
    assert same(sage(Q, K, V, MASK), MASKED)
    assert same(sage(Q, K, V, MASK, 0.0, False), MASKED)
    assert same(sage(Q, K, V, None, 0.0, True), CAUSAL)
    assert same(sage(Q, K, V, None, 0, True), CAUSAL)
    assert same(sage(Q, K, V, None, is_causal=True), CAUSAL)
    assert same(sage(Q, K, V, MASK, dropout_p=0.0, is_causal=False, scale=40**-0.5), MASKED)
    with pytest.raises(NotImplementedError, match=r"dropout_p is 0\.1"):
        sage(Q, K, V, None, 0.1, False)
    with pytest.raises(ValueError, match="twice"):
        sage(Q, K, V, MASK, attn_mask=MASK)


def test_float_masks_are_added():
    o = octavo.sageattn(Q, K, V, attn_mask=BIAS)
    assert np.array_equal(o, octavo.attention(Q, K, V, recipe="sage2++-8+8", bias=BIAS))
    hiding = np.where(MASK, 0.0, -np.inf).astype(np.float32)
    assert np.array_equal(octavo.sageattn(Q, K, V, hiding), MASKED)


def test_the_monkeypatch():
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    original = functional.scaled_dot_product_attention
    q, k, v = (torch.from_numpy(x) for x in (Q, K, V))
    encoder = torch.nn.MultiheadAttention(80, 2, batch_first=True).eval()
    x = torch.randn(2, 33, 80, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want = encoder(x, x, x, need_weights=False)[0]
        try:
            functional.scaled_dot_product_attention = octavo.sageattn
            o = functional.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=torch.from_numpy(MASK),
                dropout_p=0.0,
                is_causal=False,
                scale=None,
                enable_gqa=True,
            )
            # torch's own module calls with six positional arguments
            patched = encoder(x, x, x, need_weights=False)[0]
        finally:
            functional.scaled_dot_product_attention = original
    assert np.array_equal(o.numpy(), MASKED)
    assert (patched - want).abs().sum() / want.abs().sum() < 0.1


@pytest.mark.parametrize("gran", [None, "per_thread", "per_warp"])
@pytest.mark.parametrize(
    "accum, preset, fields",
    [
        (None, "sage2++-8+8", {}),
        ("fp32+fp16", "sage2++-8+8", {}),
        ("fp32+fp32", "sage2-8+8", {}),
        ("fp32", "sage2-8+8", {"pv_accumulator": "f32", "pv_buffer": 0}),
    ],
)
@pytest.mark.parametrize("smooth_k", [True, False])
def test_variants(gran, accum, preset, fields, smooth_k):
    o = octavo.sageattn(Q, K, V, qk_quant_gran=gran, pv_accum_dtype=accum, smooth_k=smooth_k)
    groups = {} if gran is None else {"q_group": gran, "k_group": gran}
    recipe = octavo.recipe(preset, smooth_k=smooth_k, **fields, **groups)
    assert np.array_equal(o, octavo.attention(Q, K, V, recipe=recipe))
    assert relative_l1(o, attention(Q, K, V)[0]) < TOLERANCE["sage"]


def test_refusals():
    sage = octavo.sageattn
    for options, error, words in (
        ({"tensor_layout": "hnd"}, ValueError, ["tensor_layout", "'hnd'", "'HND' or 'NHD'"]),
        ({"pv_accum_dtype": "fp16"}, ValueError, ["pv_accum_dtype", "'fp16'", "'fp32+fp32'"]),
        ({"qk_quant_gran": "per_block"}, ValueError, ["qk_quant_gran", "'per_thread' or 'per_warp'"]),
        ({"is_causal": True, "attn_mask": MASK}, ValueError, ["is_causal", "attn_mask"]),
        ({"scale": 0.1, "sm_scale": 0.1}, ValueError, ["scale", "sm_scale"]),
        ({"dropout_p": 0.5}, NotImplementedError, ["dropout_p", "0.5"]),
        ({"enable_gqa": False}, ValueError, ["4", "2", "enable_gqa"]),
        ({"smooth_k": 1}, ValueError, ["smooth_k", "1"]),
        ({"is_causal": "yes"}, ValueError, ["is_causal", "'yes'"]),
        ({"attn_mask": MASK[..., 1:]}, ValueError, ["mask", "69", "70"]),
        ({"attn_mask": np.ones((70, 70), np.int32)}, ValueError, ["attn_mask", "int32", "bool"]),
        ({"attn_mask": "causal"}, TypeError, ["attn_mask", "str"]),
        ({"quantization_backend": "triton"}, TypeError, ["quantization_backend"]),
        ({"smooth_v": True}, TypeError, ["smooth_v"]),
    ):
        with pytest.raises(error) as caught:
            sage(Q, K, V, **options)
        assert all(word in str(caught.value) for word in words), str(caught.value)
    sage(Q, Q, Q, enable_gqa=False)


@pytest.mark.parametrize("causal", [False, True])
def test_varlen(causal):
    lens_q, lens_k = [0, 5, 30], [3, 0, 41]
    cu_q, cu_k = (np.cumsum([0, *lens]).astype(np.int32) for lens in (lens_q, lens_k))
    q, k, v = random((35, 4, 64)), random((44, 2, 64), 1) + 3.0, random((44, 2, 64), 2)
    o = octavo.sageattn_varlen(q, k, v, cu_q, cu_k, 30, 41, causal)
    assert o.shape == q.shape and not o[:5].any()  # the second sequence has no keys
    alone = octavo.sageattn(*(x.swapaxes(0, 1)[None] for x in (q[5:], k[3:], v[3:])), is_causal=causal)
    assert np.array_equal(o[5:].swapaxes(0, 1), alone[0])  # its own mean key, whatever else is in the pack
    assert np.array_equal(o, octavo.sageattn_varlen(q, k, v, list(cu_q), cu_k, 99, 100, causal, 0.125, True))


def test_varlen_refusals():
    q, k = random((8, 2, 16)), random((8, 2, 16), 1)
    with pytest.raises(ValueError, match=r"max_seqlen_q is 4.*5"):
        octavo.sageattn_varlen(q, k, k, [0, 5, 8], [0, 5, 8], 4, 5)
    with pytest.raises(ValueError, match=r"max_seqlen_k is 4.*5"):
        octavo.sageattn_varlen(q, k, k, [0, 5, 8], [0, 5, 8], 5, 4)
    with pytest.raises(ValueError, match=r"cu_seqlens_k.*7"):
        octavo.sageattn_varlen(q, k, k, [0, 5, 8], [0, 5, 7], 5, 5)
    with pytest.raises(ValueError, match="cu_seqlens_q"):
        octavo.sageattn_varlen(q, k, k, [0, 6, 5, 8], [0, 5, 6, 8], 8, 8)
    with pytest.raises(TypeError, match="return_lse"):
        octavo.sageattn_varlen(q, k, k, [0, 8], [0, 8], 8, 8, return_lse=True)
