"""Octavo's CPU recipes against their peers, all in one run on the same cores.

    python bench/peers_cpu.py --tokens 4096 --head-dims 64 128 --json bench/results/NAME.json

Peers: torch SDPA (f32, bf16) and onnxruntime's MultiHeadAttention (f32); those that cannot be imported are
left out and named. Octavo's figures are whole calls of octavo.attention, with quantization; `octavo bench`
gives the kernels alone. Contenders take turns, so that a drifting clock meets all of them.
"""

import argparse
import datetime
import functools
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import octavo

RECIPES = ["cpu8", "sage-8+16", "sage2++-8+8", "sage2-8+8", "int8-icl", "half"]


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def commit() -> str:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return git.stdout.strip() or "unknown"


@functools.cache
def leave_out(peer: str, reason: str) -> None:
    """Says it once, not for every problem."""
    print(f"{peer} is left out: {reason}", file=sys.stderr)


def torch_contenders(q, k, v, causal, threads):
    try:
        import torch
    except ImportError as missing:
        leave_out("torch", str(missing))
        return {}
    torch.set_num_threads(threads)
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def call(dtype):
        args = [torch.from_numpy(x).to(dtype) for x in (q, k, v)]
        return lambda: sdpa(*args, is_causal=causal).float().numpy()

    return {
        f"torch-{torch.__version__}:f32": call(torch.float32),
        f"torch-{torch.__version__}:bf16": call(torch.bfloat16),
    }


def onnxruntime_contenders(q, k, v, causal, threads):
    try:
        import onnx
        import onnxruntime
    except ImportError as missing:
        leave_out("onnxruntime", f"{missing} (it needs onnx, too)")
        return {}
    batch, heads, tokens, dim = q.shape
    attributes = {"num_heads": heads, **({"unidirectional": 1} if causal else {})}
    node = onnx.helper.make_node(
        "MultiHeadAttention", ["q", "k", "v"], ["o"], domain="com.microsoft", **attributes
    )
    shape = [batch, tokens, heads * dim]
    info = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in "qkvo"]
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "attention", info[:3], info[3:]), opset_imports=opsets
    )
    model.ir_version = 8
    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = threads
    session_options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), session_options, providers=["CPUExecutionProvider"]
    )
    feed = {
        n: np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(shape)
        for n, x in zip("qkv", (q, k, v), strict=True)
    }

    def call():
        return session.run(None, feed)[0].reshape(batch, tokens, heads, dim).transpose(0, 2, 1, 3)

    return {f"onnxruntime-{onnxruntime.__version__}:f32": call}


def octavo_contenders(q, k, v, causal, threads, recipes, kernels):
    options = {"causal": "top_left" if causal else "none", "threads": threads}

    def call(recipe, kernel):
        return lambda: octavo.attention(q, k, v, recipe=recipe, kernel=kernel, **options)

    found = {f"octavo:{r}": call(r, None) for r in recipes}
    for kernel in kernels:
        recipe, name = kernel.split("@")
        found[f"octavo:{recipe}@{name}"] = call(recipe, name)
    return found


def measure(contenders, repeats):
    times = {name: [] for name in contenders}
    outputs = {}
    for name, call in contenders.items():  # warm-up, and the output that is judged
        outputs[name] = np.asarray(call(), np.float32)
    for _ in range(repeats):
        for name, call in contenders.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return times, outputs


def run(arguments):
    results = []
    rng = np.random.default_rng(arguments.seed)
    for dim in arguments.head_dims:
        for tokens in arguments.tokens:
            q, k, v = (rng.standard_normal((1, arguments.heads, tokens, dim), np.float32) for _ in range(3))
            for causal in arguments.causal:
                contenders = {
                    **torch_contenders(q, k, v, causal, arguments.threads),
                    **onnxruntime_contenders(q, k, v, causal, arguments.threads),
                    **octavo_contenders(
                        q, k, v, causal, arguments.threads, arguments.recipes, arguments.kernels
                    ),
                }
                times, outputs = measure(contenders, arguments.repeats)
                exact = octavo.attention(
                    q[:, :1], k[:, :1], v[:, :1], recipe="exact", causal="top_left" if causal else "none"
                )
                scores = arguments.heads * tokens * tokens * (0.5 if causal else 1.0)
                print(
                    f"\nd {dim}, N {tokens}, {'causal' if causal else 'full'}, {arguments.threads} thread(s)"
                )
                peers = [min(t) for n, t in times.items() if not n.startswith("octavo")]
                for name, t in times.items():
                    error = float(np.abs(outputs[name][:, :1] - exact).sum() / np.abs(exact).sum())
                    best, median = min(t), sorted(t)[len(t) // 2]
                    ratio = (
                        f"{min(peers) / best:5.2f}x the best peer"
                        if peers and name.startswith("octavo")
                        else ""
                    )
                    speed = f"{best * 1e3:9.2f} ms  {best * 1e9 / scores:7.3f} ns/score"
                    print(f"  {name:34} {speed}  rel. L1 {error:.4f}  {ratio}")
                    results.append(
                        {
                            "problem": {
                                "batch": 1,
                                "q_heads": arguments.heads,
                                "kv_heads": arguments.heads,
                                "q_len": tokens,
                                "kv_len": tokens,
                                "head_dim": dim,
                                "causal": causal,
                            },
                            "contender": name,
                            "threads": arguments.threads,
                            "end_to_end_ms": {"min": best * 1e3, "median": median * 1e3},
                            "ns_per_score": best * 1e9 / scores,
                            "relative_l1": error if math.isfinite(error) else None,
                        }
                    )
    return results


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096])
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 128])
    parser.add_argument(
        "--causal", type=lambda s: {"full": False, "causal": True}[s], nargs="+", default=[False, True]
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument(
        "--kernels", nargs="*", default=[], metavar="RECIPE@KERNEL", help="kernels asked for by name"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="where to write the results")
    arguments = parser.parse_args()
    report = {
        "processor": processor(),
        "gpu": None,
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "affinity": sorted(os.sched_getaffinity(0)),
        "tier": os.environ.get("OCTAVO_CPU_TIER", "best"),
        "octavo": octavo.__version__,
        "results": run(arguments),
    }
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
