"""torch.compile: one operator in the graph, no breaks, equal results; and what torch checks of operators."""

import subprocess
import sys

import pytest

import octavo
from reference import qkv

torch = pytest.importorskip("torch")

import octavo.torch  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def inputs(device="cpu", **shape):
    shape = {"dim": 64, **shape}
    return [torch.from_numpy(x).to(device, torch.bfloat16) for x in qkv(**shape)]


def mask(q, k):
    seed = torch.Generator().manual_seed(0)
    return (torch.rand(q.shape[0], 1, q.shape[2], k.shape[2], generator=seed) < 0.8).to(q.device)


def compiled(function, **options):
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


CALLS = {
    "plain": lambda q, k, v, m: octavo.attention(q, k, v),
    "options": lambda q, k, v, m: octavo.attention(
        q,
        k,
        v,
        recipe="sage2-8+8",
        causal="bottom_right",
        window=(20, -1),
        scale=0.1,
        key_splits=1,
        return_lse=True,
    ),
    "mask": lambda q, k, v, m: octavo.attention(q, k, v, recipe="sage2-8+8", mask=m),
    "overrides": lambda q, k, v, m: octavo.attention(
        q, k, v, recipe="sage2-8+8", overrides={"smooth_k": False, "p_range": 256.0}
    ),
    "nhd": lambda q, k, v, m: octavo.attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), layout="nhd", return_lse=True
    ),
    "sageattn": lambda q, k, v, m: octavo.sageattn(q * 2, k, v, is_causal=True, return_lse=True),
    "as sdpa": lambda q, k, v, m: octavo.sageattn(q, k, v, attn_mask=m, dropout_p=0.0, enable_gqa=True),
    "as sdpa, positional": lambda q, k, v, m: octavo.sageattn(q, k, v, m, 0.0, False),
}


def equal(got, want):
    got, want = ((x,) if isinstance(x, torch.Tensor) else x for x in (got, want))
    return len(got) == len(want) and all(
        torch.equal(a, b) and a.dtype == b.dtype and a.stride() == b.stride()
        for a, b in zip(got, want, strict=True)
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_compiled_equals_eager(call, device):
    q, k, v = inputs(device)
    m = mask(q, k)
    assert equal(compiled(call)(q, k, v, m), call(q, k, v, m))


@pytest.mark.parametrize("device", DEVICES)
def test_one_graph_for_every_length(device):
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    def function(q, k, v):
        return octavo.attention(q * 2, k, v, causal="bottom_right", return_lse=True)

    torch.compiler.reset()
    call = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)
    for q_len, kv_len in ((37, 70), (5, 64), (70, 131)):
        q, k, v = inputs(device, q_len=q_len, kv_len=kv_len)
        assert equal(call(q, k, v), function(q, k, v))
    assert len(graphs) == 1


def test_the_graph_holds_one_operator():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    torch.compile(CALLS["sageattn"], fullgraph=True, backend=backend)(*inputs(), None)
    nodes = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert sum("octavo.attention" in name for name in nodes) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_the_operator_passes_torchs_checks(device):
    q, k, v = inputs(device)
    for options in ({}, {"layout": "nhd"}, {"mask": mask(q, k), "recipe": "sage2++-8+8"}):
        tensors = (x.transpose(1, 2) if "layout" in options else x for x in (q, k, v))
        torch.library.opcheck(torch.ops.octavo.attention.default, tuple(tensors), options)


def test_errors_keep_their_type():
    q, k, v = inputs()
    with pytest.raises(ValueError, match="scale"):
        torch.ops.octavo.attention(q, k, v, scale=float("inf"))
    o, _ = torch.ops.octavo.attention(q.clone().requires_grad_(), k, v)
    with pytest.raises(RuntimeError, match="octavo"):  # NotImplementedError is one
        o.float().sum().backward()


def test_the_order_of_imports_does_not_matter():
    code = (
        "import octavo, torch\n"
        "x = torch.ones(1, 1, 4, 8)\n"
        "octavo.attention(x, x, x)\n"
        "torch.compile(lambda x: octavo.attention(x, x, x), fullgraph=True, backend='eager')(x)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
