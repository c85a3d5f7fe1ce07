"""The big cases on a GPU: PyTorch makes the tensors there, rows are compared with big_rows()."""

import ctypes
import math
from functools import cache

import numpy as np

from .capi import CAUSAL, LAYOUTS, Library, Tensor
from .case import Case
from .definition import entry_for
from .device import device_of
from .evaluate import Finding, failed
from .limits import TOLERANCES
from .matrix import Cell, Outcome, Target
from .memory import make_tensor
from .problem import CaseError
from .recipes import excuses, mode_of
from .themes.big import big_rows

_CHUNK = 1 << 25  # elements made at a time
_DTYPES = {"f16": "float16", "bf16": "bfloat16"}


class Big:
    """Tensors of one big case, shared by all recipes; those of one seed are views of one buffer."""

    def __init__(self, torch, case: Case, device: str):
        self.torch, self.case, self.device, s = torch, case, device, case.big
        self.dtype = getattr(torch, _DTYPES[s["dtype"]])
        sizes: dict[int, int] = {}
        for t in (s["q"], s["k"], s["v"]):
            span = sum((n - 1) * st for n, st in zip(t["shape"], t["strides"], strict=True))
            sizes[t["seed"]] = max(sizes.get(t["seed"], 0), t.get("offset", 0) + 1 + span)
        how = {t["seed"]: t for t in (s["q"], s["k"], s["v"])}
        self._bases = {seed: self._fill(n, how[seed]) for seed, n in sizes.items()}
        self.layout = "NHD" if s["q"]["axes"] == "bnhd" else "HND"
        q = s["q"]["shape"]
        self.out = torch.empty(q, dtype=self.dtype, device=device)
        rows, heads = (q[1], q[2]) if self.layout == "NHD" else (q[2], q[1])
        self.lse = torch.empty((q[0], heads, rows), dtype=torch.float32, device=device)
        self.q_absmax = None
        if "q_absmax" in s:
            self.q_absmax = torch.full((heads,), s["q_absmax"], dtype=torch.float32, device=device)

    def _fill(self, count: int, t: dict):
        """counter_uniform() of the first `count` flat indices."""
        torch, mask = self.torch, 0xFFFFFFFF
        base = torch.empty(count, dtype=self.dtype, device=self.device)
        for start in range(0, count, _CHUNK):
            i = torch.arange(start, min(count, start + _CHUNK), dtype=torch.int64, device=self.device)
            x = ((i & mask) * 2654435761 + (i >> 32) * 374761393 + t["seed"] * 40503) & mask
            x ^= x >> 15
            x = (x * 2246822519) & mask
            x ^= x >> 13
            x = (x.double() / 2.0**31 - 1.0).float() * t.get("gain", 1.0) + t.get("mean", 0.0)
            base[start : start + _CHUNK] = x.to(self.dtype)
        return base

    def tensor(self, name: str, entry: int | None = None, rows: int | None = None) -> Tensor:
        """q, k or v; one batch entry of it, or the first rows."""
        t = self.case.big[name]
        shape, offset = list(t["shape"]), t.get("offset", 0)
        if entry is not None:
            shape[0], offset = 1, offset + entry * t["strides"][0]
        if rows is not None:
            shape[t["axes"].index("n")] = rows
        address = self._bases[t["seed"]].data_ptr() + 2 * offset
        return make_tensor(address, self.case.big["dtype"], shape, t["strides"], device_of(self.device))

    def of_torch(self, x) -> Tensor:
        dtype = {self.torch.float32: "f32"}.get(x.dtype, self.case.big["dtype"])
        return make_tensor(x.data_ptr(), dtype, list(x.shape), list(x.stride()), device_of(self.device))


@cache
def _expected(case_id: str, index: int):
    case = _cases[case_id]
    b, h, rows = case.big["check"][index]
    return big_rows(case, b, h, rows)


_cases: dict[str, Case] = {}


def run_big(target: Target, chosen: list[Cell], case: Case) -> list[Outcome]:
    """Outcomes of every cell, or a RuntimeError that says what is missing."""
    try:
        import torch
    except ImportError as e:
        raise RuntimeError(f"PyTorch makes its tensors and is not here ({e})") from e
    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch sees no GPU")
    free, _ = torch.cuda.mem_get_info(target.device)
    needed = 2.5 * case.big["gib"] * 2**30  # quantized copies beside the inputs
    if free < needed:
        raise RuntimeError(f"needs {needed / 2**30:.0f} GiB, {free / 2**30:.0f} are free")
    _cases[case.id] = case
    library = Library(target.library)
    with torch.cuda.device(target.device):
        big = Big(torch, case, target.device)
        outcomes = [_run_cell(target, library, cell, big) for cell in chosen]
        del big
        torch.cuda.empty_cache()
    return outcomes


def _run_cell(target: Target, library: Library, cell: Cell, big: Big) -> Outcome:
    case = big.case
    try:
        fields, findings = _look(target, library, cell, big)
    except CaseError as e:
        fields, findings = library.recipe_fields(cell.recipe), [Finding("error", False, f"{e.kind}: {e}")]
    mode = mode_of(fields)
    bad = failed(findings)
    if not bad:
        return Outcome(cell, case.id, "passed", [])
    lines = [f"{f.check}: {f.detail}" for f in bad]
    needs = ("q_absmax",) if "q_absmax" in case.big else ()
    if all(excuses(fields, needs, f.check) for f in bad):
        return Outcome(cell, case.id, "listed", lines)
    entry = entry_for(case, mode, fields)
    if entry and entry.limits and not failed(_look_values(big, entry.limits)):
        return Outcome(cell, case.id, "defined", [f"{entry.why} ({'; '.join(lines)})"])
    return Outcome(cell, case.id, "failed", lines)


def _look(target: Target, library: Library, cell: Cell, big: Big):
    """The effective recipe's fields, and findings."""
    torch, case = big.torch, big.case
    options = library.options()
    options.layout, options.causal = LAYOUTS[big.layout], CAUSAL[case.big.get("causal", "none")]
    options.key_splits = target.key_splits
    if "sm_scale" in case.big:
        options.has_scale, options.scale = 1, case.big["sm_scale"]
    if big.q_absmax is not None:
        options.q_absmax = ctypes.pointer(big.of_torch(big.q_absmax))

    def attend(q, k, v, out, lse):
        with library.recipe(cell.recipe, {}) as recipe:
            seen = None if lse is None else big.of_torch(lse)
            library.attention(q, k, v, big.of_torch(out), seen, recipe, options)
        torch.cuda.synchronize()

    all_of = [big.tensor(n) for n in "qkv"]
    with library.recipe(cell.recipe, {}) as recipe:
        fields = library.plan(*all_of, recipe, options)[1]
    big.out.fill_(math.nan)
    big.lse.fill_(math.nan)
    attend(*all_of, big.out, big.lse)
    findings = _look_values(big, TOLERANCES[case.tol][mode_of(fields)])
    holes = sum(int((~torch.isfinite(x)).sum()) for x in big.out)  # entry by entry: the test takes memory
    findings.append(Finding("value:finite", holes == 0, f"{holes} elements are NaN or Inf"))

    for check in case.big.get("extra_checks", ()):
        if check in target.without():
            continue
        first = big.out.clone()
        if check == "repeat":
            attend(*all_of, big.out, big.lse)
            findings.append(Finding(check, _same(torch, first, big.out)))
        elif check == "same_batch_alone":
            for b in range(case.big["q"]["shape"][0]):
                part = torch.full_like(first[b : b + 1], math.nan)
                attend(*(big.tensor(n, entry=b) for n in "qkv"), part, None)
                findings.append(Finding(f"{check}[{b}]", _same(torch, part, first[b : b + 1])))
        elif check == "row_subsets":
            for rows in (1, 7, 64):
                part = torch.full_like(first[:, :, :rows].contiguous(), math.nan)
                attend(big.tensor("q", rows=rows), all_of[1], all_of[2], part, None)
                findings.append(Finding(f"{check}[{rows}]", _same(torch, part, first[:, :, :rows])))
    return fields, findings


def _look_values(big: Big, limits: tuple[float, ...]) -> list[Finding]:
    """The class limits on the rows that the case names."""
    rel_max, row_max, lse_abs, lse_reach = limits
    findings = []
    for index, (b, h, rows) in enumerate(big.case.big["check"]):
        want, want_lse, reach, rms = _expected(big.case.id, index)
        at = (b, rows, h) if big.layout == "NHD" else (b, h, rows)
        got = big.out[at].double().cpu().numpy()
        lse = big.lse[b, h, rows].double().cpu().numpy()
        error, size = np.linalg.norm(got - want, axis=1), np.linalg.norm(want, axis=1)
        rel = float(np.linalg.norm(error) / np.linalg.norm(size))
        row = float((error / (size + 0.02 * rms * math.sqrt(want.shape[1]))).max())
        over = np.abs(lse - want_lse) - (lse_abs + lse_reach * reach)
        place = f"entry {b} head {h} rows {rows}"
        findings.append(
            Finding(
                "value",
                rel <= rel_max and row <= row_max,
                f"rel {rel:.4g} <= {rel_max:.4g}, row {row:.4g} <= {row_max:.4g} ({place})",
            )
        )
        findings.append(
            Finding("value:lse", bool((over <= 0).all()), f"over the limit by {over.max():.4g} ({place})")
        )
    return findings


def _same(torch, a, b) -> bool:
    return bool(torch.equal(a.contiguous().view(torch.int16), b.contiguous().view(torch.int16)))
