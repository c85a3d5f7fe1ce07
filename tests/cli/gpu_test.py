"""The command on a GPU; skipped where there is none or where this build has no kernel for it."""

import json
import os
import unittest

from support import NO_GPU, CommandTest, octavo, qkv, read_safetensors

GPU = {name: os.environ.get(name, "0") for name in NO_GPU}


def gpu_name():
    info = json.loads(octavo("info", "--json", environment=GPU).stdout)
    usable = any(k["backend"] == "cuda" and k["available"] for k in info["kernels"])
    return info["gpus"][0]["name"] if info["gpus"] and usable else None


@unittest.skipUnless(gpu_name(), "no GPU that a kernel of this build runs on")
class OnGpu(CommandTest):
    def setUp(self):
        super().setUp()
        self.source = self.write("in.safetensors", qkv(batch=2, q_heads=4, head_dim=64))

    def json(self, *arguments):
        return json.loads(self.succeeds(*arguments, environment=GPU))

    def test_attend(self):
        out = self.path("out")
        arguments = [
            "attend",
            self.source,
            "--recipe",
            "half",
            "--out-dtype",
            "f32",
            "-o",
            out,
            "--json",
            "-",
        ]
        report = self.json(*arguments, "--device", "cuda:0")
        self.assertTrue(report["kernel"].startswith("cuda."))
        self.assertEqual(report["device"]["name"], gpu_name())
        self.assertLess(report["error"]["relative_l1"], 0.01)
        self.assertLess(report["error"]["lse"]["max_abs"], 0.01)
        self.assertGreater(report["seconds"]["end_to_end"], 0.0)
        self.assertEqual(len(read_safetensors(out)[0]["o"][2]), 2 * 4 * 6 * 64)

    def test_auto_takes_the_gpu_and_says_so(self):
        text = self.succeeds("attend", self.source, environment=GPU)
        self.assertRegex(text, r"(?m)^GPU +cuda:0 ")
        cpu = self.succeeds("attend", self.source, "--device", "cpu", environment=GPU)
        self.assertNotIn("cuda", cpu)

    def test_a_recipe_that_only_the_cpu_runs(self):
        report = self.json("attend", self.source, "--recipe", "cpu8", "--json", "-")
        self.assertTrue(report["kernel"].startswith("cpu."))
        self.assertIn("cuda:0", report["reason"])
        self.fails(
            3, "cpu8", "attend", self.source, "--recipe", "cpu8", "--device", "cuda:0", environment=GPU
        )

    def test_misuse(self):
        self.fails(
            3, ["cuda:99", "does not exist"], "attend", self.source, "--device", "cuda:99", environment=GPU
        )
        nan = qkv()
        nan["k"] = ("F32", nan["k"][1], [float("nan")] * len(nan["k"][2]))
        self.fails(2, "k holds nan", "attend", self.write("nan", nan), "--device", "cuda:0", environment=GPU)

    def test_bench(self):
        report = self.json(
            "bench",
            "--device",
            "cuda:0",
            "--recipes",
            "half",
            "--heads",
            "2",
            "--tokens",
            "512",
            "--json",
            "-",
        )
        for result in report["results"]:
            self.assertTrue(result["kernel"].startswith("cuda."))
            self.assertGreater(result["tflops"], 0.0)
            self.assertGreater(result["seconds"]["end_to_end"]["min"], 0.0)

    def test_demo(self):
        report = self.json("demo", "--tokens", "256", "--json")
        self.assertEqual(report["gpu"]["name"], gpu_name())
        kernels = {row["recipe"]: row["kernel"] for row in report["recipes"]}
        self.assertTrue(kernels["half"].startswith("cuda."))


if __name__ == "__main__":
    unittest.main()
