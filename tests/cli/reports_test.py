"""The shape of every JSON report, and the promises of the tables."""

import json
import re
import unittest

from support import DATA, CommandTest, qkv

NUMBER, TEXT, FLAG = "number", "text", "flag"


class Optional:
    """A value that may be null: what cannot be measured here."""

    def __init__(self, inner):
        self.inner = inner


HEAD = {
    "octavo": TEXT,
    "command": TEXT,
    "command_line": TEXT,
    "date": TEXT,
    "commit": TEXT,
    "processor": {
        "model": TEXT,
        "features": [TEXT],
        "threads": NUMBER,
        "tier": TEXT,
        "tier_forced": Optional(TEXT),
    },
}
MEASURES = {"relative_l1": NUMBER, "relative_l2": NUMBER, "cossim": NUMBER, "rmse": NUMBER, "max_abs": NUMBER}
LSE = {"max_abs": NUMBER, "mean_abs": NUMBER, "rows": NUMBER, "one_sided": NUMBER}
TENSOR = {"dtype": TEXT, "shape": [NUMBER]}
PER_HEAD = [{"name": TEXT} | MEASURES]
ATTEND = HEAD | {
    "device": TEXT,
    "threads": NUMBER,
    "input": {
        "file": TEXT,
        "q": TENSOR,
        "k": TENSOR,
        "v": TENSOR,
        "with": [TEXT],
        "unused": [TEXT],
        "layout": TEXT,
        "layout_from": TEXT,
        "causal": TEXT,
        "causal_from": TEXT,
        "scale": NUMBER,
        "window": [NUMBER],
    },
    "asked_for": TEXT,
    "recipe": {"name": TEXT, "fields": dict},
    "kernel": TEXT,
    "reason": TEXT,
    "seconds": {
        "quantize_kv": NUMBER,
        "quantize_q": NUMBER,
        "quantize": NUMBER,
        "attend": NUMBER,
        "together": NUMBER,
        "end_to_end": Optional(NUMBER),
        "runs": NUMBER,
    },
    "scores": NUMBER,
    "clock_hz": Optional(NUMBER),
    "cycles_per_score": {"attend": Optional(NUMBER), "together": Optional(NUMBER)},
    "error": Optional(
        {
            "reference": TEXT,
            "sampled": FLAG,
            "rows_per_head": NUMBER,
            "rows_per_head_in_all": NUMBER,
            "worst_head": NUMBER,
            "lse": LSE,
            "heads": PER_HEAD,
        }
        | MEASURES
    ),
    "output": Optional({"file": TEXT, "o": TEXT, "lse": TEXT}),
}
COMPARE = HEAD | {
    "a": TEXT,
    "b": TEXT,
    "tensor": TEXT,
    "shape": [NUMBER],
    "layout": TEXT,
    "layout_from": TEXT,
    "error": MEASURES,
    "worst_head": NUMBER,
    "lse": Optional(LSE),
    "heads": PER_HEAD,
}
INFO = HEAD | {
    "gpus": [
        {
            "index": NUMBER,
            "name": TEXT,
            "compute_capability": TEXT,
            "sm_count": NUMBER,
            "memory_bytes": NUMBER,
        }
    ],
    "cuda": TEXT,
    "kernels": [
        {"name": TEXT, "backend": TEXT, "tier": TEXT, "file": TEXT, "summary": TEXT, "available": FLAG}
    ],
}
FIELD = {"name": TEXT, "value": TEXT, "values": TEXT, "help": TEXT}
RECIPE = {"name": TEXT, "summary": TEXT, "source": TEXT, "budget": TEXT, "fields": [FIELD]}
SPREAD = {"min": NUMBER, "median": NUMBER}
BENCH = HEAD | {
    "device": TEXT,
    "threads": NUMBER,
    "causal": TEXT,
    "data": TEXT,
    "left_out": [TEXT],
    "results": [
        {
            "recipe": TEXT,
            "kernel": TEXT,
            "heads": NUMBER,
            "tokens": NUMBER,
            "head_dim": NUMBER,
            "scores": NUMBER,
            "runs": NUMBER,
            "clock_hz": Optional(NUMBER),
            "seconds": {"quantize": SPREAD, "attend": SPREAD, "together": SPREAD},
            "cycles_per_score": {"attend": Optional(NUMBER), "together": Optional(NUMBER)},
            "mac_per_cycle": Optional(NUMBER),
        }
    ],
}
CELL = MEASURES | {"worst_head": NUMBER, "worst_head_relative_l1": NUMBER, "seconds": Optional(NUMBER)}
DEMO = HEAD | {
    "threads": NUMBER,
    "gpu": Optional(dict),
    "directory": TEXT,
    "model": TEXT,
    "tokens": NUMBER,
    "layers": [TEXT],
    "skipped": [TEXT],
    "sampled": FLAG,
    "rows_per_head": NUMBER,
    "baseline": TEXT,
    "recipes": [{"recipe": TEXT, "kernel": TEXT, "emulated": FLAG, "all": CELL, "layers": [CELL]}],
}


class Reports(CommandTest):
    def matches(self, value, golden, where="report"):
        if isinstance(golden, Optional):
            if value is None:
                return
            golden = golden.inner
        if golden is dict:
            self.assertIsInstance(value, dict, where)
        elif isinstance(golden, dict):
            self.assertEqual(sorted(value), sorted(golden), where)
            for key, inner in golden.items():
                self.matches(value[key], inner, f"{where}.{key}")
        elif isinstance(golden, list):
            self.assertIsInstance(value, list, where)
            for i, item in enumerate(value):
                self.matches(item, golden[0], f"{where}[{i}]")
        else:
            kind = {NUMBER: (int, float), TEXT: str, FLAG: bool}[golden]
            self.assertIsInstance(value, kind, where)
            self.assertEqual(isinstance(value, bool), golden == FLAG, where)

    def report(self, golden, *arguments):
        report = json.loads(self.succeeds(*arguments))
        self.matches(report, golden)
        return report

    def fits(self, text):
        for line in text.splitlines():
            self.assertLessEqual(len(line), 100, line)
            self.assertEqual(line, line.rstrip(), line)

    def test_attend(self):
        source = self.write("in.safetensors", qkv(batch=2, q_heads=2) | {"kv_lengths": ("I32", [2], [7, 3])})
        to_file = self.succeeds(
            "attend", source, "--recipe", "sage2-8+8", "-o", self.path("out"), "--json", self.path("report")
        )
        self.fits(re.sub(r"/\S+", "PATH", to_file))
        report = json.loads(self.path("report").read_text())
        self.matches(report, ATTEND)
        self.assertEqual(
            [h["name"] for h in report["error"]["heads"]],
            ["batch 0 head 0", "batch 0 head 1", "batch 1 head 0", "batch 1 head 1"],
        )
        self.assertEqual(report["input"]["with"], ["kv_lengths i32 [2]"])
        self.assertEqual(report["scores"], 2 * 6 * (7 + 3))
        self.assertEqual(report["asked_for"], "sage2-8+8")
        seconds = report["seconds"]
        self.assertAlmostEqual(seconds["quantize"], seconds["quantize_kv"] + seconds["quantize_q"])
        self.assertAlmostEqual(seconds["together"], seconds["quantize"] + seconds["attend"])
        bare = self.report(ATTEND, "attend", source, "--no-compare", "--json", "-")
        self.assertEqual((bare["error"], bare["output"], bare["asked_for"]), (None, None, "auto"))

    def test_auto_says_what_it_picked(self):
        source = self.write("in.safetensors", qkv())
        report = self.report(ATTEND, "attend", source, "--json", "-")
        self.assertNotEqual(report["recipe"]["name"], "auto")
        self.assertIn("auto:", report["reason"])

    def test_compare(self):
        def output(extra):
            return {
                "o": ("F32", [1, 2, 1, 2], [1.0, 2.0, 3.0, 4.0 + extra]),
                "lse": ("F32", [1, 2, 1], [0.5, float("-inf")]),
            }

        a, b = self.write("a", output(1.0)), self.write("b", output(0.0))
        report = self.report(COMPARE, "compare", a, b, "--json")
        self.assertAlmostEqual(report["error"]["relative_l1"], 0.1)
        self.assertAlmostEqual(report["error"]["rmse"], 0.5)
        self.assertEqual((report["error"]["max_abs"], report["worst_head"]), (1.0, 1))
        self.assertEqual(report["lse"], {"max_abs": 0.0, "mean_abs": 0.0, "rows": 2, "one_sided": 0})
        text = self.succeeds("compare", a, b, "--per-head")
        self.assertRegex(text, r"head 0 +0 ")
        self.assertRegex(text, r"head 1 +14\.3 ")
        other = self.write(
            "c", {"o": ("F32", [1, 2, 1, 2], [1.0, 2.0, 3.0, 4.0]), "lse": ("F32", [1, 2, 1], [0.5, 0.0])}
        )
        self.assertEqual(self.report(COMPARE, "compare", other, b, "--json")["lse"]["one_sided"], 1)
        no_lse = self.write("d", {"o": ("F32", [1, 2, 1, 2], [1.0, 2.0, 3.0, 4.0])})
        self.assertIsNone(self.report(COMPARE, "compare", a, no_lse, "--json")["lse"])

    def test_compare_of_equal_outputs_is_perfect(self):
        for scale in range(1, 9):  # sums of squares and their root round differently from one to the next
            path = self.write("same", {"o": ("F32", [1, 1, 1, 7], [(scale + i) ** 0.5 for i in range(7)])})
            self.assertIn("cossim 1.000000", self.succeeds("compare", path, path))
        near = self.write(
            "near", {"o": ("F32", [1, 1, 1, 7], [(8 + i) ** 0.5 * (1 + 1e-3 * (i % 2)) for i in range(7)])}
        )
        self.assertIn("cossim 0.999999", self.succeeds("compare", near, path))

    def test_recipes(self):
        listed = json.loads(self.succeeds("recipes", "--json"))["octavo_recipes"]
        names = [recipe["name"] for recipe in listed]
        self.assertEqual((names[0], names[-1]), ("exact", "auto"))
        for name in names[:-1]:
            recipe = self.report(RECIPE, "recipes", name, "--json")
            self.assertIn(recipe, listed)
            text = self.succeeds("recipes", name)
            self.fits(text)
            for field in recipe["fields"]:
                self.assertRegex(text, rf"(?m)^{field['name']} +{re.escape(field['value'])} ")
        self.fits(self.succeeds("recipes"))
        self.assertEqual(
            sorted(json.loads(self.succeeds("recipes", "auto", "--json"))), ["name", "source", "summary"]
        )

    def test_info(self):
        report = self.report(INFO, "info", "--json")
        kernels = {kernel["name"]: kernel for kernel in report["kernels"]}
        self.assertTrue(kernels["reference.exact"]["available"])
        text = self.succeeds("info")
        self.fits(text)
        for name, kernel in kernels.items():
            line = f"{'+' if kernel['available'] else '-'} {name}  {kernel['file']}"
            self.assertIn(line, text.splitlines())

    def test_info_names_the_forced_tier(self):
        report = json.loads(self.succeeds("info", "--json", environment={"OCTAVO_CPU_TIER": "scalar"}))
        self.assertEqual(
            (report["processor"]["tier"], report["processor"]["tier_forced"]), ("scalar", "scalar")
        )
        available = [k["tier"] for k in report["kernels"] if k["available"] and k["backend"] == "cpu"]
        self.assertEqual(set(available), {"scalar"})

    def test_bench(self):
        arguments = [
            "bench",
            "--recipes",
            "half,sage2-8+8",
            "--heads",
            "1,2",
            "--tokens",
            "48",
            "--head-dim",
            "16",
            "--repeat",
            "2",
        ]
        report = self.report(BENCH, *arguments, "--causal", "top-left", "--json", "-")
        for recipe in ["half", "sage2-8+8"]:
            self.assertEqual({r["heads"] for r in report["results"] if r["recipe"] == recipe}, {1, 2})
        for result in report["results"]:
            self.assertEqual(result["scores"], result["heads"] * 48 * 49 / 2)
            self.assertEqual(result["runs"], 2)
            self.assertLessEqual(result["seconds"]["attend"]["min"], result["seconds"]["attend"]["median"])
            self.assertFalse(result["kernel"].startswith("reference."))
        self.assertEqual(
            report["command_line"], "octavo " + " ".join(arguments) + " --causal top-left --json -"
        )
        self.fits(self.succeeds(*arguments, "--json", self.path("bench.json")))
        self.matches(json.loads(self.path("bench.json").read_text()), BENCH)
        named = self.report(BENCH, *arguments, "--kernel", "reference.emulate", "--json", "-")
        self.assertEqual({r["kernel"] for r in named["results"]}, {"reference.emulate"})

    def test_demo(self):
        report = self.report(DEMO, "demo", "--data", DATA, "--tokens", "320", "--json")
        self.assertEqual(report["layers"], ["0", "20", "29"])
        self.assertEqual((report["tokens"], report["sampled"], report["rows_per_head"]), (320, True, 256))
        by_name = {recipe["recipe"]: recipe for recipe in report["recipes"]}
        listed = [
            recipe["name"] for recipe in json.loads(self.succeeds("recipes", "--json"))["octavo_recipes"]
        ]
        self.assertEqual([*by_name, "auto"], listed)
        self.assertLess(by_name["half"]["all"]["relative_l1"], 1e-3)
        # INT4 keys cost several times what INT8 keys cost, on any data.
        self.assertGreater(
            by_name["sage2-4+8"]["all"]["relative_l1"], 2 * by_name["sage2-8+8"]["all"]["relative_l1"]
        )
        for recipe in report["recipes"]:
            layers = recipe["layers"]
            self.assertEqual(len(layers), 3)
            self.assertAlmostEqual(
                recipe["all"]["relative_l1"], sum(layer["relative_l1"] for layer in layers) / 3
            )
            self.assertEqual(
                recipe["all"]["worst_head_relative_l1"],
                max(layer["worst_head_relative_l1"] for layer in layers),
            )
            # No time that could be mistaken for a kernel's.
            self.assertEqual(recipe["emulated"], recipe["all"]["seconds"] is None, recipe["recipe"])

    def test_demo_table(self):
        text = self.succeeds("demo", "--tokens", "64", "--per-layer", environment={"OCTAVO_DATA": str(DATA)})
        self.fits(text)
        self.assertEqual(len(re.findall(r"(?m)^turbo8 ", text)), 4)  # three layers and all of them
        self.assertIn("all 64 query rows a head", text)
        for line in re.findall(r"(?m)^.*\(emulated\)$", text):
            self.assertRegex(line, r" - +- +\(emulated\)$")

    def test_demo_names_what_it_leaves_out(self):
        self.write("other.safetensors", {"x": ("F32", [1], [0.0])})
        self.write("mine.safetensors", qkv(q_len=32, kv_len=32), {"causal": "bottom_right"})
        text = self.succeeds("demo", "--data", self.directory)
        self.assertIn("other.safetensors", text)
        self.assertIn("layer mine; 32 tokens", text)
        self.assertIn("causal bottom-right", " ".join(text.split()))

    def test_help_and_version(self):
        self.assertRegex(self.succeeds("--version"), r"\Aoctavo \d+\.\d+\.\d+\n\Z")
        text = self.succeeds("--help")
        self.fits(text)
        for name in ["attend", "bench", "compare", "demo", "info", "recipes"]:
            self.assertRegex(text, rf"(?m)^  {name} ")
            self.fits(self.succeeds(name, "--help"))
        self.assertIn("Examples:", self.succeeds("attend", "--help"))


if __name__ == "__main__":
    unittest.main()
