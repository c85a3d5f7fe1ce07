"""The parts of `python -m octavo.bench` that need no GPU, and a short run where there is one."""

import json
import subprocess
import sys

import numpy as np
import pytest

from reference import attention, qkv

torch = pytest.importorskip("torch")

from octavo.bench import report  # noqa: E402
from octavo.bench.__main__ import QUICK_PEERS, QUICK_RECIPES, RECIPES, names_of, parse  # noqa: E402
from octavo.bench.contenders import exact_rows, relative_l1  # noqa: E402
from octavo.bench.peers import PEERS  # noqa: E402
from octavo.bench.problems import SETS, Problem, chosen  # noqa: E402


def test_the_sets_of_shapes():
    every = chosen(["all"])
    assert len(set(every)) == len(every) and all(p in every for p in chosen(["key", "decode"]))
    assert chosen(["key", "key"]) == SETS["key"]
    with pytest.raises(ValueError, match=r"'tiny'.*key"):
        chosen(["tiny"])
    with pytest.raises(ValueError, match="causal"):
        Problem(1, 8, 8, 5, 6, 64, True)
    assert Problem(1, 8, 8, 1024, 1024, 64).flop == 4 * 8 * 1024**2 * 64
    assert Problem(1, 8, 8, 1024, 1024, 64, True).flop == 2 * 8 * 1024**2 * 64


@pytest.mark.parametrize("causal", [False, True])
def test_the_exact_rows(causal):
    q, k, v = qkv(q_len=300, kv_len=300, q_heads=4, kv_heads=2)
    want, _ = attention(q, k, v, causal="top_left" if causal else "none")
    exact = exact_rows(*(torch.from_numpy(x) for x in (q, k, v)), causal, 0)
    heads, rows, o = exact
    assert len(heads) == 8 and 200 < len(rows) <= 256
    assert np.allclose(o.numpy(), want.reshape(8, 300, 40)[:, rows.numpy()], atol=1e-12)
    assert relative_l1(torch.from_numpy(want), exact) < 1e-12
    assert np.isnan(relative_l1(torch.full(want.shape, float("nan")), exact))


def result(contender, ms, whole, error=0.04):
    times = {"min": ms, "median": ms}
    return {
        "contender": contender,
        "ms": times,
        "tflops": 100.0,
        "flop_per_clk_per_sm": 500.0,
        "kv_tb_per_s": 1.0,
        "end_to_end_ms": whole and {"min": whole, "median": whole},
        "call_ms": None,
        "relative_l1": error,
        "sm_clock_mhz": None,
    }


def test_the_table_compares_with_the_best_peer():
    results = [
        result("torch:flash", 4.0, 4.0),
        result("fa3:fp8", 2.0, None),
        result("octavo:turbo", 1.0, 1.6),
    ]
    lines = report.table(Problem(1, 8, 8, 1024, 1024, 64), results).splitlines()
    assert "B1 H8 N 1,024 full" in lines[1]
    assert [line.split()[0] for line in lines[3:]] == ["octavo:turbo", "fa3:fp8", "torch:flash"]
    assert "2.00x" in lines[3] and "2.50x" in lines[3] and "x" not in lines[5].split("flash")[1]


def test_reports_are_written_whole(tmp_path):
    path = tmp_path / "results.json"
    report.write({"results": [1]}, str(path))
    report.write({"results": [1, 2]}, str(path))
    assert json.loads(path.read_text()) == {"results": [1, 2]}
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_the_commit_can_be_given(monkeypatch):
    monkeypatch.setenv("OCTAVO_COMMIT", "0123abc")
    assert report.commit() == "0123abc"
    monkeypatch.setenv("OCTAVO_COMMIT", "")
    assert report.commit()


@pytest.mark.parametrize("quick", [(), ("--quick",)])
def test_contenders_by_default_and_by_name(quick):
    def names(*arguments):
        return names_of(parse([*quick, *arguments]))

    recipes = [f"octavo:{recipe}" for recipe in (QUICK_RECIPES if quick else RECIPES)]
    assert names() == recipes + (QUICK_PEERS if quick else list(PEERS))
    assert names("--recipes", "half", "--contenders", "fa3:fp8") == ["octavo:half", "fa3:fp8"]
    assert names("--contenders") == recipes
    assert names("--recipes", "--contenders", "cudnn:fp8") == ["cudnn:fp8"]
    with pytest.raises(SystemExit, match=r"'warp'.*torch:flash"):
        names("--contenders", "warp")


def bench(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "octavo.bench", *arguments], capture_output=True, text=True, timeout=300
    )


def test_says_what_is_missing_or_wrong():
    wrong = bench("--shapes", "tiny")
    assert wrong.returncode == 2 and "tiny" in wrong.stderr
    if not torch.cuda.is_available():
        missing = bench("--quick")
        assert missing.returncode == 3 and "CUDA device" in missing.stderr and not missing.stdout


@pytest.mark.cuda
def test_a_short_run(tmp_path):
    path = tmp_path / "results.json"
    options = ["--shapes", "decode", "--recipes", "auto", "half", "--contenders", "torch:flash"]
    done = bench(*options, "--repeat", "2", "--json", str(path))
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    assert {"gpu", "driver", "commit", "date", "command", "clocks", "results"} <= set(found)
    ours = [r for r in found["results"] if r["contender"].startswith("octavo:")]
    assert ours and all(0 < r["relative_l1"] < 0.1 and r["ms"]["median"] > 0 for r in ours)
    half = [r for r in ours if r["contender"] == "octavo:half"]
    assert half and all("as they are" in r["note"] and r["ms"] == r["end_to_end_ms"] for r in half)
