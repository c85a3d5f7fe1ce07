"""torch.compile: one operator in the graph, no breaks, equal results; and what torch checks of operators."""

import subprocess
import sys

import pytest

import octavo
from reference import qkv

torch = pytest.importorskip("torch")

import octavo.torch  # noqa: E402

Q, K, V = (torch.from_numpy(x).bfloat16() for x in qkv())
MASK = torch.rand(2, 1, 37, 70, generator=torch.Generator().manual_seed(0)) < 0.8


def compiled(function):
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


CALLS = {
    "plain": lambda q, k, v: octavo.attention(q, k, v),
    "options": lambda q, k, v: octavo.attention(
        q, k, v, causal="bottom_right", window=(20, -1), scale=0.1, mask=MASK, return_lse=True, threads=1
    ),
    "overrides": lambda q, k, v: octavo.attention(
        q, k, v, recipe="sage2-8+8", overrides={"smooth_k": False, "p_range": 256.0}
    ),
    "nhd": lambda q, k, v: octavo.attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), layout="nhd", return_lse=True
    ),
    "sageattn": lambda q, k, v: octavo.sageattn(q * 2, k, v, is_causal=True, return_lse=True),
    "as sdpa": lambda q, k, v: octavo.sageattn(q, k, v, attn_mask=MASK, dropout_p=0.0, enable_gqa=True),
    "as sdpa, positional": lambda q, k, v: octavo.sageattn(q, k, v, MASK, 0.0, False),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_compiled_equals_eager(call):
    want, got = call(Q, K, V), compiled(call)(Q, K, V)
    if isinstance(want, torch.Tensor):
        want, got = (want,), (got,)
    assert len(want) == len(got)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(want, got, strict=True))


def test_the_graph_holds_one_operator():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    torch.compile(CALLS["sageattn"], fullgraph=True, backend=backend)(Q, K, V)
    nodes = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert sum("octavo.attention" in name for name in nodes) == 1


def test_the_operator_passes_torchs_checks():
    for options in ({}, {"layout": "nhd"}, {"mask": MASK, "recipe": "sage2++-8+8"}):
        tensors = (x.transpose(1, 2) if "layout" in options else x for x in (Q, K, V))
        torch.library.opcheck(torch.ops.octavo.attention.default, tuple(tensors), options)


def test_errors_keep_their_type():
    with pytest.raises(ValueError, match="scale"):
        torch.ops.octavo.attention(Q, K, V, scale=float("inf"))
    o, _ = torch.ops.octavo.attention(Q.clone().requires_grad_(), K, V)
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
