"""torch tensors on the CPU: bfloat16, views, outputs of the same kind, and what is refused."""

import numpy as np
import pytest

import octavo
from octavo._tensor import has_cuda
from reference import ROUNDING, TOLERANCE, attention, lse_tolerance, qkv, relative_l1

torch = pytest.importorskip("torch")

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def tensors(dtype=torch.float32, **shape):
    return [torch.from_numpy(x).to(dtype) for x in qkv(**shape)]


def as_numpy(t):
    return t.detach().to(torch.float64).numpy()


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("recipe", ["exact", "cpu8"])
def test_dtypes(name, recipe):
    q, k, v = tensors(DTYPES[name])
    want, want_lse = attention(*map(as_numpy, (q, k, v)))
    o, lse = octavo.attention(q, k, v, recipe=recipe, return_lse=True)
    assert isinstance(o, torch.Tensor) and o.dtype == q.dtype and o.shape == q.shape and o.is_contiguous()
    assert isinstance(lse, torch.Tensor) and lse.dtype == torch.float32
    assert relative_l1(as_numpy(o), want) < TOLERANCE[recipe] + ROUNDING[name]
    assert np.abs(as_numpy(lse) - want_lse).max() < lse_tolerance(recipe, 40)
    wide = torch.empty(q.shape)
    assert octavo.attention(q, k, v, recipe=recipe, out=wide) is wide
    assert relative_l1(as_numpy(wide), want) < TOLERANCE[recipe]


def test_equals_numpy():
    q, k, v = tensors()
    want = octavo.attention(*(x.numpy() for x in (q, k, v)))
    assert np.array_equal(octavo.attention(q, k, v).numpy(), want)
    assert isinstance(octavo.attention(q.numpy(), k, v), np.ndarray)  # kinds mix; the output is of q's


def test_views_of_a_packed_projection():
    packed = torch.randn(2, 70, 3, 4, 40, generator=torch.Generator().manual_seed(0)).bfloat16()
    q, k, v = packed.unbind(2)
    views = [x.transpose(1, 2) for x in (q, k, v)]
    assert not views[0].is_contiguous()
    want = octavo.attention(*(x.contiguous() for x in views), causal="top_left")
    assert torch.equal(octavo.attention(*views, causal="top_left"), want)
    assert torch.equal(octavo.attention(q, k, v, layout="nhd", causal="top_left").transpose(1, 2), want)
    offset = [x[:, 1:, 3:60:2, 4:] for x in views]
    assert torch.equal(octavo.attention(*offset), octavo.attention(*(x.contiguous() for x in offset)))
    expanded = k.transpose(1, 2)[:, :1].expand(2, 4, 70, 40)
    assert torch.equal(
        octavo.attention(views[0], expanded, expanded),
        octavo.attention(views[0], expanded[:, :1], expanded[:, :1]),
    )


def test_inputs_are_not_modified_and_everything_is_accepted():
    q, k, v = tensors(torch.bfloat16)
    mask = torch.rand(2, 1, 37, 70, generator=torch.Generator().manual_seed(1)) < 0.7
    bias = torch.randn(4, 1, 70, generator=torch.Generator().manual_seed(2)).bfloat16()
    lengths = torch.tensor([70, 33], dtype=torch.int32)
    before = [x.clone() for x in (q, k, v, mask, bias, lengths)]
    o = octavo.attention(q, k, v, mask=mask, bias=bias, kv_lengths=lengths)
    assert all(torch.equal(a, b) for a, b in zip(before, (q, k, v, mask, bias, lengths), strict=True))
    want, _ = attention(
        *map(as_numpy, (q, k, v)), mask=mask.numpy(), bias=as_numpy(bias), kv_lengths=lengths.tolist()
    )
    assert relative_l1(as_numpy(o), want) < TOLERANCE["cpu8"] + ROUNDING["bfloat16"]


def test_gradients_are_refused_loudly():
    q, k, v = tensors()
    for name in "qkv":
        given = {"q": q, "k": k, "v": v, name: {"q": q, "k": k, "v": v}[name].clone().requires_grad_()}
        with pytest.raises(NotImplementedError, match=f"{name} requires grad"):
            octavo.attention(**given)
        with pytest.raises(NotImplementedError, match=f"{name} requires grad"):
            octavo.sageattn(**given)
        with torch.no_grad():  # nothing is recorded, so nothing is lost
            assert torch.equal(octavo.attention(**given), octavo.attention(q, k, v))


def test_other_devices_are_refused():
    q, k, v = tensors()
    with pytest.raises((NotImplementedError, ValueError), match="q"):
        octavo.attention(q.to("meta"), k, v)
    if not has_cuda() and torch.cuda.is_available():
        with pytest.raises(NotImplementedError, match=r"q is on a CUDA device.*no CUDA.*CPU"):
            octavo.attention(q.cuda(), k, v)

    class Elsewhere:
        def __init__(self, kind):
            self.kind = kind

        def __dlpack__(self, **_):
            raise AssertionError("must not be asked")

        def __dlpack_device__(self):
            return self.kind, 0

    with pytest.raises(NotImplementedError, match=r"k is on a ROCm device.*CPU"):
        octavo.attention(q, Elsewhere(10), v)
    if not has_cuda():
        with pytest.raises(NotImplementedError, match=r"k is on a CUDA device.*no CUDA.*CPU"):
            octavo.attention(q, Elsewhere(2), v)


def test_wrong_dtypes():
    q, k, v = tensors()
    with pytest.raises(NotImplementedError, match="q has dtype float64"):
        octavo.attention(q.double(), k, v)
    with pytest.raises(NotImplementedError, match="q has dtype int8"):
        octavo.attention(q.to(torch.int8), k, v)
    with pytest.raises(ValueError, match="mask has dtype uint8"):
        octavo.attention(q, k, v, mask=torch.ones(70, dtype=torch.uint8))
    with pytest.raises(ValueError, match="k has dtype"):
        octavo.attention(q, k.bfloat16(), v)
    with pytest.raises(ValueError, match=r"\(1, 2, 4, 37, 40\).*at most 4"):
        octavo.attention(q[None], k, v)
    with pytest.raises(ValueError, match="out has dtype bfloat16"):
        octavo.attention(q, k, v, out=torch.empty(q.shape, dtype=torch.bfloat16))


def test_against_torch_itself():
    q, k, v = tensors(q_heads=2, q_len=70)
    for causal in (False, True):
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        o = octavo.attention(q, k, v, recipe="exact", causal="top_left" if causal else "none")
        torch.testing.assert_close(o, want, rtol=1e-5, atol=1e-6)


def test_quantized_kv():
    q, k, v = tensors(torch.bfloat16)
    kv = octavo.quantize_kv(k, v)
    assert kv.dtype == "bfloat16"
    assert torch.equal(kv.attend(q), octavo.attention(q, k, v))


def test_an_array_of_another_kind():
    class Array:  # as far as the Array API and DLPack go, and no further
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

        def __array_namespace__(self):
            class Namespace:
                @staticmethod
                def from_dlpack(x):
                    return Array(torch.from_dlpack(x))

            return Namespace

    for dtype in DTYPES.values():
        q, k, v = tensors(dtype)
        o, lse = octavo.attention(Array(q), Array(k), Array(v), return_lse=True)
        assert isinstance(o, Array) and isinstance(lse, Array)
        assert torch.equal(o.tensor, octavo.attention(q, k, v))


@pytest.fixture
def short(monkeypatch):
    """The short way of repeated CUDA calls, for CPU tensors; counts who takes it."""
    import octavo.torch as hook

    taken = []
    run = hook.CheckedCall.run

    def counted(*arguments):
        taken.append(arguments)
        return run(*arguments)

    monkeypatch.setattr(hook, "_is_plain", lambda x: type(x) is torch.Tensor and not x.is_neg())
    monkeypatch.setattr(hook, "_current_stream", lambda index: 0)
    monkeypatch.setattr(hook.CheckedCall, "run", counted)
    monkeypatch.setattr(octavo._attention, "_checked", octavo._cuda.Recent(limit=256))
    return taken


@pytest.mark.parametrize("layout", ["hnd", "nhd"])
@pytest.mark.parametrize("recipe", ["exact", "sage2-8+8"])
def test_repeated_calls_equal_the_first(short, recipe, layout):
    first, second = (tensors(torch.bfloat16, seed=seed) for seed in (0, 9))
    if layout == "nhd":
        first, second = ([x.transpose(1, 2) for x in inputs] for inputs in (first, second))
    options = {"recipe": recipe, "layout": layout, "causal": "bottom_right", "scale": 0.2}
    octavo.attention(*first, **options)
    assert not short
    want, lse = octavo.attention(*second, return_lse=True, **options)
    assert len(short) == 1
    del short[:]
    octavo._attention._checked = octavo._cuda.Recent(limit=256)
    full, full_lse = octavo.attention(*second, return_lse=True, **options)
    assert not short and torch.equal(full, want) and torch.equal(full_lse, lse)
    assert want.is_contiguous() and lse.is_contiguous()
    spread = [torch.stack([x, x], -1)[..., 0] for x in second]
    wide = torch.full(want.shape, float("nan"))
    assert octavo.attention(*spread, out=wide, **options) is wide
    transposed = torch.full_like(want.mT.contiguous(), float("nan")).mT
    octavo.attention(*spread, out=transposed, **options)
    assert len(short) == 2
    assert torch.equal(wide.bfloat16(), want) and torch.equal(transposed, want)


def test_the_short_way_refuses_what_the_long_one_does(short):
    q, k, v = tensors()
    octavo.attention(q, k, v)
    with pytest.raises(NotImplementedError, match="k requires grad"):
        octavo.attention(q, k.clone().requires_grad_(), v)
    with pytest.raises(ValueError, match="out has shape"):
        octavo.attention(q, k, v, out=torch.empty(3))
    with pytest.raises(ValueError, match="out has dtype"):
        octavo.attention(q, k, v, out=torch.empty(q.shape, dtype=torch.float16))
    with pytest.raises(ValueError, match="out is the memory of q"):
        octavo.attention(q, k, v, out=q)
    with pytest.raises(ValueError, match="return_lse is 1"):
        octavo.attention(q, k, v, return_lse=1)
    with pytest.raises(ValueError, match="scale"):
        octavo.attention(q, k, v, scale=float("inf"))
    with pytest.raises(ValueError, match="k has shape"):
        octavo.attention(q, k[:, :, 1:], v)
    with pytest.raises(NotImplementedError, match="key_splits is 2"):
        octavo.attention(q, k, v, key_splits=2)
    with pytest.raises(ValueError, match="colour"):
        octavo.attention(q, k, v, overrides={"colour": 1})
    assert not short
    mask = torch.zeros(q.shape[2], k.shape[2], dtype=torch.bool)
    assert not octavo.attention(q, k, v, mask=mask).any()  # tensors among the options: nothing is kept
    octavo.attention(q, k, v, window=[3, 3])  # not hashable
    assert not short
    empty = torch.empty(2, 4, 0, 40)
    for _ in range(2):
        o, lse = octavo.attention(empty, k, v, return_lse=True)
        assert o.shape == empty.shape and lse.shape == (2, 4, 0)
    assert len(short) == 1


def test_key_splits_of_one_part():
    q, k, v = tensors()
    want = octavo.attention(q, k, v)
    assert torch.equal(octavo.attention(q, k, v, key_splits=1), want)
    assert torch.equal(octavo.quantize_kv(k, v).attend(q, key_splits=1), want)
    assert torch.equal(torch.ops.octavo.attention(q, k, v, key_splits=1)[0], want)
