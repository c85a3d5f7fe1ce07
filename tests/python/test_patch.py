"""octavo.integrations.torch: torch's own function replaced, every option honoured, every fallback loud."""

import warnings

import pytest

from reference import TOLERANCE, qkv

torch = pytest.importorskip("torch")

from octavo.integrations.torch import patch, statistics, unpatch  # noqa: E402

functional = torch.nn.functional
ORIGINAL = functional.scaled_dot_product_attention
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(autouse=True)
def restored():
    yield
    unpatch()
    assert functional.scaled_dot_product_attention is ORIGINAL


def tensors(device="cpu", dtype=torch.float32, **shape):
    return [torch.from_numpy(x).to(device, dtype) for x in qkv(dim=64, **shape)]


def relative_l1(got, want):
    return ((got.double() - want.double()).abs().sum() / want.double().abs().sum()).item()


MASK = torch.rand(2, 1, 37, 70, generator=torch.Generator().manual_seed(0)) < 0.8
OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "mask": {"attn_mask": MASK},
    "bias": {"attn_mask": torch.randn(4, 37, 70, generator=torch.Generator().manual_seed(1))},
    "scale": {"scale": 0.3},
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_means_what_it_means_in_torch(options, device):
    q, k, v = tensors(device)
    options = {n: x.to(device) if isinstance(x, torch.Tensor) else x for n, x in options.items()}
    want = ORIGINAL(q.double(), k.double(), v.double(), enable_gqa=True, **as_double(options))
    with patch(recipe="sage2++-8+8"), warnings.catch_warnings():
        warnings.simplefilter("error")
        got = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
    assert got.dtype == q.dtype and got.device == q.device and got.is_contiguous()
    assert relative_l1(got, want) < TOLERANCE["sage"]
    assert statistics().taken == 1 and not statistics().fell_back


def as_double(options):
    return {
        n: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for n, x in options.items()
    }


def test_positional_arguments_and_tensors_without_a_batch():
    q, k, v = tensors(q_heads=2)
    with patch():
        got = functional.scaled_dot_product_attention(q, k, v, MASK, 0.0, False)
        single = functional.scaled_dot_product_attention(q[0], k[0], v[0], MASK[0], 0.0, False)
    assert statistics().taken == 2
    assert relative_l1(got, ORIGINAL(q, k, v, MASK)) < TOLERANCE["cpu8"]
    assert torch.equal(single, got[0])


def fallbacks():
    q, k, v = tensors(q_heads=2)
    yield "dropout_p > 0", (q, k, v), {"dropout_p": 0.5}
    yield "requires grad", (q.clone().requires_grad_(), k, v), {}
    yield "dtype torch.float64", (q.double(), k.double(), v.double()), {}
    yield "head_dim of its own", (q, k, v[..., :32]), {}
    yield "head_dim 300", [torch.ones(1, 1, 3, 300)] * 3, {}
    yield "5 dimensions", (q[None], k[None], v[None]), {}
    yield "attn_mask with is_causal", (q, k, v), {"attn_mask": MASK, "is_causal": True}
    yield "batch sizes", (q, k[:1], v[:1]), {}


@pytest.mark.parametrize(
    "reason, tensors, options", list(fallbacks()), ids=lambda x: x if isinstance(x, str) else ""
)
def test_falls_back_loudly_and_once(reason, tensors, options):
    with patch():
        with pytest.warns(RuntimeWarning, match=reason):
            torch.manual_seed(0)
            got = functional.scaled_dot_product_attention(*tensors, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            functional.scaled_dot_product_attention(*tensors, **options)
    torch.manual_seed(0)
    assert torch.equal(got, ORIGINAL(*tensors, **options))
    counted = statistics()
    assert counted.taken == 0 and len(counted.fell_back) == 1
    assert reason in next(iter(counted.fell_back)) and set(counted.fell_back.values()) == {2}


def test_wrong_calls_fail_as_in_torch():
    q, k, v = tensors()  # 4 and 2 heads
    with patch(), pytest.warns(RuntimeWarning, match="enable_gqa"), pytest.raises(RuntimeError):
        functional.scaled_dot_product_attention(q, k, v)
    with pytest.raises(ValueError, match="sage3"):
        patch(recipe="sage3")
    assert functional.scaled_dot_product_attention is ORIGINAL


def test_rows_without_keys_are_zero():
    q, k, v = tensors(q_heads=2)
    mask = MASK.clone()
    mask[:, :, 5] = False
    with patch():
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert (out[:, :, 5] == 0).all() and out.isfinite().all()


def test_patches_nest():
    q, k, v = tensors(q_heads=2)
    patch(recipe="exact")
    exact = functional.scaled_dot_product_attention(q, k, v)
    with patch(recipe="cpu8"):
        rounded = functional.scaled_dot_product_attention(q, k, v)
    assert torch.equal(functional.scaled_dot_product_attention(q, k, v), exact)
    assert not torch.equal(exact, rounded)
    unpatch()
    assert functional.scaled_dot_product_attention is ORIGINAL
    assert statistics().taken == 3


@pytest.mark.parametrize("device", DEVICES)
def test_under_torch_compile(device):
    q, k, v = tensors(device, torch.bfloat16, q_heads=2)

    def function(q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True) + 1

    with patch(recipe="sage2++-8+8"):
        want = function(q, k, v)
        torch.compiler.reset()
        assert torch.equal(torch.compile(function, fullgraph=True, backend="aot_eager")(q, k, v), want)


def test_patches_end_in_any_order():
    function = torch.nn.functional
    torchs = function.scaled_dot_product_attention
    first, second = patch(), patch(recipe="half")
    first.__exit__(None, None, None)
    assert function.scaled_dot_product_attention is not torchs  # the second is still there
    second.__exit__(None, None, None)
    assert function.scaled_dot_product_attention is torchs
    with first:
        assert function.scaled_dot_product_attention is not torchs
    assert function.scaled_dot_product_attention is torchs


def test_wrong_calls_fail_as_torch_does():
    q = torch.randn(1, 2, 5, 16)
    k = torch.randn(1, 2, 7, 16)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    for mask in (torch.ones(5, 8, dtype=torch.bool), torch.ones(0, 7, dtype=torch.bool), [[True] * 7] * 5):
        with pytest.raises((RuntimeError, TypeError)) as torchs:
            sdpa(q, k, k, attn_mask=mask)
        with patch(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(torchs.type):
                torch.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=mask)


def test_nan_goes_through():
    q = torch.randn(1, 2, 5, 16)
    q[0, 1, 3, 2] = float("nan")
    with patch():
        o = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert o[0, 1].isnan().any() and not o[0, 0].isnan().any()
