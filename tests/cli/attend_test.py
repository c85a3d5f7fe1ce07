"""octavo attend: outputs against attention in plain Python, defaults and overrides, what is left on disk."""

import json
import math
import os
import pty
import signal
import subprocess
import time
import unittest

from support import COMMAND, DATA, CommandTest, attend, normal, qkv, read_safetensors

TOLERANCE = 2e-6  # f32 rounding of values and logits below 8 in size: 8 * 2^-24 = 5e-7, and a few of those


def rows(tensor, batch, head):
    """Rows of a head of a [B, H, L, D] tensor."""
    _, (_, heads, length, channels), values = tensor
    start = (batch * heads + head) * length * channels
    return [values[start + i * channels : start + (i + 1) * channels] for i in range(length)]


def expected(tensors, visible, scale=None):
    """o [B, Hq, Lq, D] and lse [B, Hq, Lq], flat; visible(b, i, j)."""
    batch, heads, _, channels = tensors["q"][1]
    group = heads // tensors["k"][1][1]
    scale = 1.0 / math.sqrt(channels) if scale is None else scale
    o, lse = [], []
    for b in range(batch):
        for h in range(heads):
            keys, values = rows(tensors["k"], b, h // group), rows(tensors["v"], b, h // group)
            for i, query in enumerate(rows(tensors["q"], b, h)):
                row, row_lse = attend(query, keys, values, lambda j, b=b, i=i: visible(b, i, j), scale)
                o += row
                lse.append(row_lse)
    return o, lse


class Exact(CommandTest):
    """Recipe exact on small inputs: every input tensor and option has to show in the result."""

    def close(self, got, want):
        self.assertEqual(len(got), len(want))
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            self.assertTrue(
                a == b or abs(a - b) <= TOLERANCE * max(1.0, abs(b)), f"element {i}: {a} is not {b}"
            )

    def attend(self, tensors, *arguments, metadata=None):
        source = self.write("in.safetensors", tensors, metadata)
        text = self.succeeds(
            "attend", source, "--recipe", "exact", "-o", self.path("out.safetensors"), *arguments
        )
        out, written = read_safetensors(self.path("out.safetensors"))
        self.assertEqual(sorted(out), ["lse", "o"])
        return out, written, text

    def check(self, tensors, visible, *arguments, scale=None, metadata=None):
        out, _, _ = self.attend(tensors, *arguments, metadata=metadata)
        o, lse = expected(tensors, visible, scale)
        self.assertEqual(out["o"][1], tensors["q"][1])
        self.assertEqual(out["lse"][1], tensors["q"][1][:3])
        self.close(out["o"][2], o)
        self.close(out["lse"][2], lse)

    def test_plain(self):
        self.check(qkv(batch=2, q_heads=4, kv_heads=2), lambda b, i, j: True)

    def test_scale(self):
        for scale in [0.7, 0.0, -0.25]:
            with self.subTest(scale=scale):
                self.check(qkv(), lambda b, i, j: True, "--scale", scale, scale=scale)

    def test_causal_and_window(self):
        self.check(qkv(), lambda b, i, j: j <= i, "--causal", "top-left")
        self.check(qkv(), lambda b, i, j: j <= i + 1, "--causal", "bottom_right")
        self.check(qkv(), lambda b, i, j: i - 2 <= j <= i, "--causal", "top-left", "--window", "2,-1")
        self.check(qkv(), lambda b, i, j: i + 1 - 2 <= j <= i + 1 + 1, "--window", "2,1")
        self.check(
            qkv(),
            lambda b, i, j: j <= i,
            "--causal",
            "top-left",
            "--window",
            "9223372036854775807,9223372036854775807",
        )

    def test_kv_lengths_mask_and_bias(self):
        for dtype in ["I32", "I64"]:
            self.check(qkv(batch=2) | {"kv_lengths": (dtype, [2], [3, 0])}, lambda b, i, j: j < [3, 0][b])
        bits = [int((3 * i + j) % 4 != 0) for i in range(6) for j in range(7)]
        for dtype, factor in [("BOOL", 1), ("U8", 3)]:  # any byte but 0 is visible
            self.check(
                qkv() | {"mask": (dtype, [6, 7], [factor * bit for bit in bits])},
                lambda b, i, j: bits[7 * i + j],
            )
        bias = [0.0, -math.inf, 0.0, -math.inf, 0.0, 0.0, -math.inf]
        self.check(qkv() | {"bias": ("F32", [7], bias)}, lambda b, i, j: bias[j] == 0.0)

    def test_metadata_is_the_default_and_options_override_it(self):
        causal = {"causal": "top_left", "layout": "hnd"}
        self.check(qkv(), lambda b, i, j: j <= i, metadata=causal)
        self.check(qkv(), lambda b, i, j: True, "--causal", "none", metadata=causal)
        self.check(
            qkv(), lambda b, i, j: True, "--causal", "none", metadata={"causal": "a word that is overridden"}
        )
        _, _, text = self.attend(qkv(), metadata=causal)
        self.assertIn("causal top-left (file metadata)", text)
        _, _, text = self.attend(qkv(), "--causal", "none", metadata=causal)
        self.assertIn("causal none (option)", text)

    def test_nhd(self):
        hnd = qkv(q_heads=2, kv_heads=2)
        nhd = {}
        for name, (dtype, (batch, heads, length, channels), _) in hnd.items():
            per_head = [rows(hnd[name], 0, h) for h in range(heads)]
            nhd[name] = (
                dtype,
                [batch, length, heads, channels],
                [x for i in range(length) for h in range(heads) for x in per_head[h][i]],
            )
        out, written, _ = self.attend(nhd, "--layout", "nhd")
        self.assertEqual(written["layout"], "nhd")
        o, lse = expected(hnd, lambda b, i, j: True)
        self.assertEqual(out["o"][1], [1, 6, 2, 8])
        self.close(
            out["o"][2], [o[(h * 6 + i) * 8 + d] for i in range(6) for h in range(2) for d in range(8)]
        )
        self.close(out["lse"][2], lse)

    def test_packed(self):
        lengths_q, lengths_k, channels = [4, 0, 2], [3, 2, 5], 8
        tensors = {
            "q": ("F32", [6, 1, channels], normal(6 * channels, 1)),
            "k": ("F32", [10, 1, channels], normal(10 * channels, 2)),
            "v": ("F32", [10, 1, channels], normal(10 * channels, 3)),
            "cu_seqlens_q": ("I32", [4], [0, 4, 4, 6]),
            "cu_seqlens_k": ("I64", [4], [0, 3, 5, 10]),
        }

        def line(name, i):
            return tensors[name][2][i * channels : (i + 1) * channels]

        o, lse, begin_q, begin_k = [], [], 0, 0
        for n_q, n_k in zip(lengths_q, lengths_k, strict=True):
            for i in range(n_q):
                row, row_lse = attend(
                    line("q", begin_q + i),
                    [line("k", begin_k + j) for j in range(n_k)],
                    [line("v", begin_k + j) for j in range(n_k)],
                    lambda j, i=i, shift=n_k - n_q: j <= i + shift,
                    1.0 / math.sqrt(channels),
                )
                o += row
                lse.append(row_lse)
            begin_q, begin_k = begin_q + n_q, begin_k + n_k
        for arguments in [[], ["--layout", "thd"]]:
            out, _, _ = self.attend(tensors, "--causal", "bottom-right", *arguments)
            self.assertEqual((out["o"][1], out["lse"][1]), ([6, 1, channels], [1, 6]))
            self.close(out["o"][2], o)
            self.close(out["lse"][2], lse)

    def test_out_dtype(self):
        half = qkv(dtype="F16")
        self.assertEqual(self.attend(half)[0]["o"][0], "F16")
        self.assertEqual(self.attend(half, "--out-dtype", "f32")[0]["o"][0], "F32")
        ones = {name: ("BF16", shape, [0x3F80] * len(values)) for name, (_, shape, values) in qkv().items()}
        out = self.attend(ones, "--out-dtype", "f32")[0]["o"]
        self.assertEqual((out[0], set(out[2])), ("F32", {1.0}))

    def test_tensors_that_mean_nothing_are_named(self):
        text = self.attend(qkv() | {"temperature": ("F32", [1], [1.0])})[2]
        self.assertRegex(text, r"not used +temperature")


class Recipes(CommandTest):
    def test_settings_reach_the_kernel_and_the_metadata(self):
        source = self.write("in.safetensors", qkv(q_len=64, kv_len=64))
        spread = ["--set", "p_range=112", "key_order=reverse"]  # one --set, two settings, and FILE after them
        self.succeeds("attend", "--recipe", "sage2-8+8", *spread, source, "-o", self.path("a"))
        self.succeeds(
            "attend",
            source,
            "--recipe",
            "sage2-8+8",
            "--set=p_range=112",
            "--set",
            "key_order=reverse",
            "-o",
            self.path("b"),
        )
        self.assertEqual(self.path("a").read_bytes(), self.path("b").read_bytes())
        metadata = read_safetensors(self.path("a"))[1]
        self.assertEqual(
            (metadata["p_range"], metadata["key_order"], metadata["recipe"]), ("112", "reverse", "sage2-8+8")
        )
        self.succeeds("attend", source, "--recipe", "sage2-8+8", "-o", self.path("c"))
        self.assertNotEqual(read_safetensors(self.path("a"))[0], read_safetensors(self.path("c"))[0])

    def test_metadata_is_a_recipe_that_gives_the_same_output(self):
        source = self.write("in.safetensors", qkv(q_len=40, kv_len=70, head_dim=16))
        for name in ["sage2++-8+8", "fp8-head", "cpu8"]:
            self.succeeds("attend", source, "--recipe", name, "-o", self.path("a"))
            first, metadata = read_safetensors(self.path("a"))
            fields = [f["name"] for f in json.loads(self.succeeds("recipes", "half", "--json"))["fields"]]
            settings = [x for field in fields for x in ("--set", f"{field}={metadata[field]}")]
            self.succeeds(
                "attend",
                source,
                "--recipe",
                "half",
                *settings,
                "--kernel",
                metadata["kernel"],
                "-o",
                self.path("b"),
            )
            self.assertEqual(first, read_safetensors(self.path("b"))[0], name)

    def test_threads_do_not_change_the_output(self):
        source = self.write("in.safetensors", qkv(q_heads=4, kv_heads=2, q_len=150, kv_len=150, head_dim=16))
        for name in ["auto", "sage2-8+8", "half"]:
            self.succeeds(
                "attend", source, "--recipe", name, "--threads", 1, "--no-compare", "-o", self.path("a")
            )
            self.succeeds(
                "attend", source, "--recipe", name, "--threads", 3, "--no-compare", "-o", self.path("b")
            )
            self.assertEqual(self.path("a").read_bytes(), self.path("b").read_bytes(), name)

    def test_error_is_that_of_compare(self):
        source = self.write("in.safetensors", qkv(q_heads=2, q_len=64, kv_len=64, head_dim=16))
        self.succeeds("attend", source, "--recipe", "exact", "-o", self.path("exact"))
        self.succeeds(
            "attend", source, "--recipe", "sage2-4+8", "-o", self.path("out"), "--json", self.path("report")
        )
        error = json.loads(self.path("report").read_text())["error"]
        compared = json.loads(self.succeeds("compare", self.path("out"), self.path("exact"), "--json"))
        self.assertGreater(error["relative_l1"], 1e-3)
        for key in ["relative_l1", "relative_l2", "cossim", "rmse", "max_abs"]:
            self.assertAlmostEqual(error[key], compared["error"][key], places=12)
        self.assertEqual(error["worst_head"], compared["worst_head"])
        self.assertAlmostEqual(error["lse"]["max_abs"], compared["lse"]["max_abs"], places=12)


class Long(CommandTest):
    def test_long_inputs_are_compared_on_a_sample(self):
        length, channels = 8400, 2  # 8400^2 scores are above the 64 Mi a head that are still compared in full
        shape = [1, 1, length, channels]
        q, k, v = (normal(length * channels, seed) for seed in (1, 2, 3))
        source = self.write(
            "in.safetensors", {"q": ("F32", shape, q), "k": ("F32", shape, k), "v": ("F32", shape, v)}
        )
        text = self.succeeds("attend", source, "--recipe", "half")
        self.assertIn("256 of 8400 query rows a head, sampled", " ".join(text.split()))
        report = json.loads(self.succeeds("attend", source, "--recipe", "half", "--json", "-"))["error"]
        self.assertEqual(
            (report["sampled"], report["rows_per_head"], report["lse"]["rows"]), (True, 256, 256)
        )
        self.assertLess(
            report["relative_l1"], 1e-2
        )  # f16 operands: 2^-11 a rounding, averaged over thousands of keys of mean 0

    def test_interrupted_work_leaves_nothing(self):
        source = DATA / "smollm2-135m-L20.safetensors"
        command = [
            COMMAND,
            "attend",
            source,
            "--kernel",
            "reference.emulate",
            "--recipe",
            "turbo",
            "-o",
            self.path("out"),
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out, error), (-signal.SIGINT, b"", b""))
        self.assertEqual(list(self.directory.iterdir()), [])

    def test_progress_is_for_terminals(self):
        source = DATA / "smollm2-135m-L20.safetensors"
        command = [
            COMMAND,
            "attend",
            source,
            "--kernel",
            "reference.emulate",
            "--recipe",
            "turbo",
            "--threads",
            "1",
            "--no-compare",
        ]
        master, terminal = pty.openpty()
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=terminal, env=os.environ | {"TERM": "xterm"}
        )
        os.close(terminal)
        painted = b""
        while (
            b"quantize and attend" not in painted
        ):  # at the end of the process, reading fails with OSError and so does the test
            painted += os.read(master, 4096)
        process.kill()
        process.wait()
        os.close(master)
        self.assertIn(b"\r", painted)


if __name__ == "__main__":
    unittest.main()
