"""CUDA tensors through every function: right results, streams, graphs, threads, and what is refused."""

import threading

import numpy as np
import pytest

import octavo
from reference import ROUNDING, attention, lse_tolerance, qkv, relative_l1

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.cuda

# Relative L1 on N(0,1), short rows: docs/numerics.md, and room for what does not average out.
TOLERANCE = {
    "half": 0.003,
    "sage2-8+8": 0.05,
    "sage2++-8+8": 0.05,
    "turbo8": 0.055,
    "turbo16": 0.055,
    "turbo": 0.075,
}
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
MASK = np.random.default_rng(1).random((2, 1, 200, 333)) < 0.8
BIAS = np.random.default_rng(2).standard_normal((4, 1, 333)).astype(np.float32)


def tensors(dtype="float16", **shape):
    shape = {"q_len": 200, "kv_len": 333, "dim": 64, **shape}
    return [torch.from_numpy(x).to("cuda", DTYPES[dtype]) for x in qkv(**shape)]


def as_numpy(t):
    return t.detach().double().cpu().numpy()


def run(recipe, inputs, **options):
    """octavo.attention, or a skip where this GPU or build has no kernel for the recipe."""
    try:
        return octavo.attention(*inputs, recipe=recipe, **options)
    except NotImplementedError as refusal:
        pytest.skip(str(refusal))


def check(recipe, inputs, dtype="float16", **options):
    before = [x.clone() for x in inputs]
    o, lse = run(recipe, inputs, return_lse=True, **options)
    assert all(torch.equal(a, b) for a, b in zip(before, inputs, strict=True)), "an input was modified"
    assert o.is_cuda and lse.is_cuda and o.dtype == inputs[0].dtype and lse.dtype == torch.float32
    layout = options.pop("layout", "hnd")
    swap = (lambda x: x.transpose(1, 2)) if layout == "nhd" else (lambda x: x)
    options = {n: as_numpy(x) if isinstance(x, torch.Tensor) else x for n, x in options.items()}
    if "mask" in options:
        options["mask"] = options["mask"] > 0
    options.pop("key_splits", None)  # the exact result has no parts
    want, want_lse = attention(*(as_numpy(swap(x)) for x in inputs), **options)
    assert o.is_contiguous() and o.shape == inputs[0].shape
    assert relative_l1(as_numpy(swap(o)), want) < TOLERANCE[recipe] + ROUNDING[dtype]
    bound = lse_tolerance("sage", inputs[0].shape[-1]) + (0.1 if recipe.startswith("turbo") else 0.0)
    assert np.abs(as_numpy(lse) - want_lse).max() < bound


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("recipe", TOLERANCE)
def test_recipes_and_dtypes(recipe, dtype):
    check(recipe, tensors(dtype), dtype)


OPTIONS = {
    "causal": {"causal": "top_left"},
    "bottom right": {"causal": "bottom_right"},
    "window": {"causal": "bottom_right", "window": (50, 0)},
    "scale": {"scale": -0.2},
    "mask": {"mask": MASK},
    "bias": {"bias": BIAS},
    "lengths": {"kv_lengths": [333, 70]},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("recipe", ["sage2-8+8", "turbo8"])
def test_options(recipe, options):
    options = {n: torch.from_numpy(x).cuda() if isinstance(x, np.ndarray) else x for n, x in options.items()}
    check(recipe, tensors(), **options)


@pytest.mark.parametrize("heads", [(4, 4), (8, 2), (8, 1)])
@pytest.mark.parametrize("dim", [40, 64, 128])
def test_heads_and_head_dims(heads, dim):
    check("sage2-8+8", tensors(q_heads=heads[0], kv_heads=heads[1], dim=dim))


def test_layouts_and_views():
    q, k, v = tensors()
    nhd = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    check("sage2-8+8", nhd, layout="nhd")
    want = run("sage2-8+8", (q, k, v))
    assert torch.equal(run("sage2-8+8", [x.transpose(1, 2) for x in nhd]), want)
    packed = torch.randn(2, 130, 3, 4, 64, device="cuda", dtype=torch.bfloat16)
    views = [x.transpose(1, 2) for x in packed.unbind(2)]
    assert torch.equal(
        run("sage2-8+8", views, causal="top_left"),
        run("sage2-8+8", [x.contiguous() for x in views], causal="top_left"),
    )


def test_out_and_lse():
    inputs = tensors()
    want, lse = run("sage2-8+8", inputs, return_lse=True)
    out = torch.full_like(want, float("nan"))
    assert run("sage2-8+8", inputs, out=out) is out and torch.equal(out, want)
    wide = torch.full(want.shape, float("nan"), device="cuda")
    got, again = run("sage2-8+8", inputs, out=wide, return_lse=True)
    assert got is wide and torch.equal(again, lse)
    assert (wide.half() - want).abs().max() <= want.abs().max() * 2.0**-10


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_lengths_and_offsets_on_either_side(where):
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in tensors(kv_heads=4))
    cu_q = torch.tensor([0, 70, 70, 200], dtype=torch.int32, device=where)
    cu_k = torch.tensor([0, 100, 180, 333], dtype=torch.int32, device=where)
    o = run("sage2-8+8", (q, k, v), layout="thd", cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    for a, b, c, d in ((0, 70, 0, 100), (70, 200, 180, 333)):
        one = [x.transpose(0, 1)[None] for x in (q[a:b], k[c:d], v[c:d])]
        want, _ = attention(*map(as_numpy, one))
        assert relative_l1(as_numpy(o[a:b].transpose(0, 1)[None]), want) < TOLERANCE["sage2-8+8"]
    varlen = octavo.sageattn_varlen(q, k, v, cu_q, cu_k, 130, 153)
    assert varlen.is_cuda and varlen.shape == q.shape
    lengths = torch.tensor([333, 70], device=where)
    check("sage2-8+8", tensors(), kv_lengths=lengths.tolist())
    assert torch.equal(
        run("sage2-8+8", tensors(), kv_lengths=lengths), run("sage2-8+8", tensors(), kv_lengths=[333, 70])
    )


@pytest.mark.parametrize("recipe", ["sage2-8+8", "turbo8", "half"])
def test_key_splits(recipe):
    inputs = tensors(q_heads=8, kv_heads=4, q_len=70, kv_len=1900)
    for splits in (1, 2, 5, 1024):
        check(recipe, inputs, key_splits=splits)
    q, k, v = inputs
    for splits in (1, 3):  # a fixed number: what else is computed changes nothing
        want, lse = run(recipe, inputs, key_splits=splits, return_lse=True)
        alone, lse_alone = run(recipe, [x[1:] for x in inputs], key_splits=splits, return_lse=True)
        assert torch.equal(alone, want[1:]) and torch.equal(lse_alone, lse[1:])
        kept = octavo.quantize_kv(k, v, recipe=recipe).attend(q, key_splits=splits)
        if recipe != "half":  # whose calls read k and v as they are
            assert torch.equal(kept, want)
        assert relative_l1(as_numpy(kept), as_numpy(want)) < 0.002
    with pytest.raises(ValueError, match="key_splits is 1025"):
        run(recipe, inputs, key_splits=1025)


@pytest.mark.parametrize("recipe", ["half", "sage2-8+8"])
@pytest.mark.parametrize("layout", ["hnd", "nhd"])
def test_repeated_calls_equal_the_first(recipe, layout, monkeypatch):
    """The first call of its kind is checked in full, later ones take the short way."""
    inputs = tensors()
    if layout == "nhd":
        inputs = [x.transpose(1, 2).contiguous() for x in inputs]
    spread = [torch.stack([x, x], -1)[..., 0] for x in inputs]
    aligned = [torch.cat([x, x], -1)[..., : x.shape[-1]] for x in inputs]
    like = run(recipe, inputs, layout=layout)

    def outputs():
        return [None, torch.empty_like(like, dtype=torch.float32), torch.empty_like(like.mT.contiguous()).mT]

    def every_call(before):
        made = []
        for given in (inputs, spread, aligned):
            for out in outputs():
                before()
                if out is not None:
                    out.fill_(float("nan"))
                options = {"layout": layout, "causal": "bottom_right", "scale": 0.2, "return_lse": True}
                made += octavo.attention(*given, recipe=recipe, out=out, **options)
        return made

    def forget():
        monkeypatch.setattr(octavo._attention, "_checked", octavo._cuda.Recent(limit=256))

    want = every_call(forget)
    assert all(torch.equal(a, b) for a, b in zip(every_call(lambda: None), want, strict=True))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_takes_no_memory_for_copies(dtype):
    inputs = tensors(dtype, q_len=2048, kv_len=2048, q_heads=8, kv_heads=8, dim=128)
    out = torch.empty_like(inputs[0])
    run("half", inputs, out=out, key_splits=1)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    octavo.attention(*inputs, recipe="half", out=out, key_splits=1)
    assert torch.cuda.max_memory_allocated() - before < inputs[1].nbytes


def test_quantized_once():
    q, k, v = tensors()
    kv = octavo.quantize_kv(k, v, recipe="sage2-8+8")
    want = octavo.attention(q, k, v, recipe="sage2-8+8")
    assert torch.equal(kv.attend(q), want) and torch.equal(kv.attend(q), want)
    part = kv.heads(1, 1)
    assert torch.equal(part.attend(q[:, 2:]), want[:, 2:])
    with pytest.raises(ValueError, match=r"q is on the CPU and the quantized k and v on cuda:0"):
        kv.attend(q.cpu())


def test_one_device_for_all():
    q, k, v = tensors()
    for name in "qkv":
        given = {"q": q, "k": k, "v": v} | {name: {"q": q, "k": k, "v": v}[name].cpu()}
        with pytest.raises(ValueError, match=r"is on .* and q on .*one device"):
            octavo.attention(**given)
    for name, x in (("mask", MASK), ("bias", BIAS), ("out", np.zeros(q.shape, np.float32))):
        with pytest.raises(ValueError, match=f"{name} is on the CPU and q on cuda:0"):
            octavo.attention(q, k, v, **{name: x})
    with pytest.raises(NotImplementedError, match="k requires grad"):
        octavo.attention(q, k.clone().requires_grad_(), v)


def test_check_finite_waits_and_refuses():
    q, k, v = tensors()
    k[0, 0, 3, 5] = float("nan")
    with pytest.raises(ValueError, match="k"):
        octavo.attention(q, k, v, recipe="sage2-8+8", check_finite=True)
    o = octavo.attention(q, k, v, recipe="sage2-8+8")  # the NaN stays in its batch entry and key head
    assert o[1].isfinite().all() and o[0, 2:].isfinite().all()


def test_a_slow_producer_on_another_stream():
    inputs = tensors()
    want = run("sage2-8+8", inputs)
    stream = torch.cuda.Stream()
    slow = [torch.zeros_like(x) for x in inputs]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # about 0.1 s, in which a call on another stream would read zeros
        for to, x in zip(slow, inputs, strict=True):
            to.copy_(x)
        o = octavo.attention(*slow, recipe="sage2-8+8")
        for x in slow:
            x.zero_()
    stream.synchronize()
    assert torch.equal(o, want)


def test_a_call_does_not_wait():
    inputs = tensors()
    run("sage2-8+8", inputs)  # the plan, the memory and the kernels are there
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)
    octavo.attention(*inputs, recipe="sage2-8+8")
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


@pytest.mark.parametrize("recipe", ["sage2-8+8", "turbo8", "half", "auto"])
def test_graph_capture_and_replay_with_other_inputs(recipe):
    first, second = tensors(seed=0), tensors(seed=7)
    want = run(recipe, second, causal="bottom_right", return_lse=True)
    held = [x.clone() for x in first]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        octavo.attention(*held, recipe=recipe, causal="bottom_right", return_lse=True)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, lse = octavo.attention(*held, recipe=recipe, causal="bottom_right", return_lse=True)
    for to, x in zip(held, second, strict=True):
        to.copy_(x)
    other = [torch.randn(1 << 20, device="cuda") for _ in range(4)]  # takes memory that was free at capture
    o.fill_(float("nan"))
    lse.fill_(float("nan"))
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(o, want[0]) and torch.equal(lse, want[1])
    del other


def test_two_threads_on_two_streams():
    problems = [tensors(seed=10 * i, q_len=1000 + 100 * i, kv_len=1500) for i in range(2)]
    want = [run("sage2-8+8", p, causal="bottom_right", return_lse=True) for p in problems]
    torch.cuda.synchronize()
    errors = []

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                o, lse = octavo.attention(
                    *problems[i], recipe="sage2-8+8", causal="bottom_right", return_lse=True
                )
                torch.cuda.current_stream().synchronize()
                if not (torch.equal(o, want[i][0]) and torch.equal(lse, want[i][1])):
                    errors.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors


def test_a_kept_plan_serves_other_addresses_and_strides():
    for seed in range(3):
        inputs = tensors(seed=seed)
        check("sage2-8+8", inputs)
        strided = [
            torch.stack([x, x], -1)[..., 0].transpose(2, 3).contiguous().transpose(2, 3) for x in inputs
        ]
        assert not strided[0].is_contiguous()
        assert torch.equal(run("sage2-8+8", strided), run("sage2-8+8", inputs))


def test_errors_after_a_kept_plan():
    inputs = tensors()
    run("sage2-8+8", inputs)
    with pytest.raises(ValueError, match="scale"):
        octavo.attention(*inputs, recipe="sage2-8+8", scale=float("inf"))
    with pytest.raises(ValueError, match="out has shape"):
        octavo.attention(*inputs, recipe="sage2-8+8", out=torch.empty(3, device="cuda"))
    with pytest.raises(ValueError, match="colour"):
        octavo.attention(*inputs, recipe="sage2-8+8", overrides={"colour": 1})


def test_cupy():
    cupy = pytest.importorskip("cupy")
    inputs = tensors()
    want = run("sage2-8+8", inputs)
    torch.cuda.synchronize()
    arrays = [cupy.from_dlpack(x) for x in inputs]
    o, lse = octavo.attention(*arrays, recipe="sage2-8+8", return_lse=True)
    assert isinstance(o, cupy.ndarray) and o.dtype == arrays[0].dtype and lse.dtype == cupy.float32
    assert np.array_equal(cupy.asnumpy(o), want.cpu().numpy())
