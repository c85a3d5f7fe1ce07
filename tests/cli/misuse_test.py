"""Every kind of misuse: its exit code, and one line that says what is wrong."""

import os
import stat
import struct
import unittest

from support import CommandTest, octavo, qkv

USAGE, UNSUPPORTED, FILE = 2, 3, 4


class Misuse(CommandTest):
    def setUp(self):
        super().setUp()
        self.good = self.write("good.safetensors", qkv())

    def test_command_line(self):
        table = [
            ([], ["a subcommand is missing", "attend", "demo"]),
            (["atend"], ["'atend'", "attend"]),
            (["--bogus"], "--bogus"),
            (["attend"], ["FILE", "octavo attend --help"]),
            (["attend", "a", "b"], ["not expected", "b"]),
            (["attend", "a", "--bogus"], "--bogus"),
            (["attend", "a", "--recipe"], "--recipe"),
            (["attend", "a", "--causal", "none", "--causal", "none"], ["--causal", "more than once"]),
            (["compare", "a"], "B is required"),
            (["recipes", "nope"], ["'nope'", "sage2++-8+8"]),
            (["recipes", "half", "exact"], "exact"),
            (["info", "extra"], "extra"),
            (["a\nb\x1b[31m"], "\\x1b"),
        ]
        for arguments, words in table:
            with self.subTest(arguments=arguments):
                self.fails(USAGE, words, *arguments)

    def test_option_values(self):
        table = [
            (["--threads", "-1"], ["--threads", "'-1'"]),
            (["--threads", "two"], ["--threads", "'two'"]),
            (["--threads", "99999999999999999999"], "--threads"),
            (["--threads", "1.5"], "--threads"),
            (["--threads="], "--threads"),
            (["--scale", "nan"], ["--scale", "'nan'"]),
            (["--scale", "inf"], "--scale"),
            (["--scale", "1e400"], "--scale"),
            (["--scale", "0.1x"], "--scale"),
            (["--window", "1"], ["--window", "'1'"]),
            (["--window", "a,b"], "'a,b'"),
            (["--window", "1,2,3"], "'1,2,3'"),
            (["--window", "-2,0"], "'-2,0'"),
            (["--window", "1,99999999999999999999"], "--window"),
            (["--window", ","], "--window"),
            (["--causal", "left"], ["--causal", "top-left"]),
            (["--layout", "dhn"], ["--layout", "nhd"]),
            (["--device", "gpu"], ["--device", "'gpu'"]),
            (["--device", "cuda:x"], "'cuda:x'"),
            (["--device", "cuda:-1"], "'cuda:-1'"),
            (["--out-dtype", "f64"], ["--out-dtype", "'f64'"]),
            (["--out-dtype", "f16"], ["--out-dtype", "f32"]),
            (["--recipe", "sage3"], ["'sage3'", "sage2-8+8"]),
            (["--kernel", "cpu.magic"], "cpu.magic"),
            (["--recipe", "half", "--set", "p_range"], ["--set", "'p_range'", "FIELD=VALUE"]),
            (["--recipe", "half", "--set", "=3"], "--set"),
            (["--recipe", "half", "--set", "nope=3"], ["nope", "p_range"]),
            (["--recipe", "sage2-8+8", "--set", "p_range="], "p_range"),
            (["--recipe", "sage2-8+8", "--set", "p_range=nan"], "p_range"),
            (["--recipe", "sage2-8+8", "--set", "p_range=1e99"], "p_range"),
            (["--recipe", "sage2-8+8", "--set", "p_range=449"], ["448", "range budget"]),
            (["--recipe", "sage2++-8+8", "--set", "pv_buffer=8"], ["65504", "pv_buffer"]),
            (["--recipe", "sage2-8+8", "--set", "p_range=224", "v_range=abc"], "v_range"),
            (["--set", "p_range=224"], ["--set", "--recipe"]),
        ]
        for arguments, words in table:
            with self.subTest(arguments=arguments):
                self.fails(USAGE, words, "attend", self.good, *arguments)

    def test_not_supported_here(self):
        table = [
            (["--device", "cuda:0"], ["--device", "'cuda:0'", "CUDA"]),
            (["--recipe", "half", "--kernel", "reference.exact"], "reference.exact"),
        ]
        for arguments, words in table:
            with self.subTest(arguments=arguments):
                self.fails(UNSUPPORTED, words, "attend", self.good, *arguments)
        wide = self.write("wide.safetensors", qkv(head_dim=260))
        self.fails(UNSUPPORTED, ["wide.safetensors", "260"], "attend", wide)

    def test_other_subcommands(self):
        table = [
            (USAGE, ["bench", "--tokens", "1,"], "--tokens"),
            (USAGE, ["bench", "--tokens", "0"], "--tokens"),
            (USAGE, ["bench", "--head-dim", "64,512"], "--head-dim"),
            (USAGE, ["bench", "--heads", "-3"], "--heads"),
            (USAGE, ["bench", "--recipes", "half,,cpu8"], "--recipes"),
            (USAGE, ["bench", "--recipes", "nope"], "'nope'"),
            (USAGE, ["bench", "--kernel", "nope"], "nope"),
            (USAGE, ["bench", "--repeat", "0"], "--repeat"),
            (USAGE, ["bench", "--causal", "x"], "--causal"),
            (USAGE, ["bench", "--threads", "-1"], "--threads"),
            (USAGE, ["bench", "--device", "auto"], ["--device", "cuda:N"]),
            (USAGE, ["bench", "--device", "cuda:"], ["--device", "'cuda:'"]),
            (UNSUPPORTED, ["bench", "--device", "cuda:3"], ["--device", "'cuda:3'", "CUDA"]),
            (USAGE, ["demo", "--device", "gpu"], ["--device", "'gpu'"]),
            (UNSUPPORTED, ["demo", "--device", "cuda:0"], ["--device", "'cuda:0'", "CUDA"]),
            (FILE, ["bench", "--json", "/nonexistent/x.json"], "/nonexistent/x.json"),
            (USAGE, ["demo", "--tokens", "0"], "--tokens"),
            (USAGE, ["demo", "--tokens", "99999999"], ["--tokens", "2048"]),
            (USAGE, ["demo", "--tokens", "many"], "--tokens"),
            (USAGE, ["demo", "--threads", "x"], "--threads"),
            (FILE, ["demo", "--data", "/nonexistent"], "/nonexistent"),
            (USAGE, ["demo", "--data", "empty"], ["empty", "--data"]),
            (FILE, ["compare", "missing", "missing"], "missing"),
        ]
        self.path("empty").mkdir()
        for code, arguments, words in table:
            with self.subTest(arguments=arguments):
                self.fails(code, words, *arguments, cwd=self.directory)
        self.fails(
            USAGE, ["empty", "--data"], "demo", cwd=self.directory, environment={"OCTAVO_DATA": "empty"}
        )

    def test_environment(self):
        self.fails(
            USAGE,
            ["OCTAVO_CPU_TIER", "'warp'", "avx2"],
            "attend",
            self.good,
            environment={"OCTAVO_CPU_TIER": "warp"},
        )

    def test_compare(self):
        one = {"o": ("F32", [1, 1, 2, 4], [0.0] * 8)}
        a = self.write("a", one)
        table = [
            (self.write("shape", {"o": ("F32", [1, 1, 4, 2], [0.0] * 8)}), [], "[1, 1, 4, 2]"),
            (self.write("none", {"x": ("F32", [1], [0.0])}), [], ["'o'", "--tensor", "x"]),
            (self.write("same", one), ["--layout", "thd"], "thd"),
            (self.write("meta", one, {"layout": "xyz"}), [], ["layout", "'xyz'"]),
        ]
        for b, arguments, words in table:
            with self.subTest(b=b.name):
                self.fails(USAGE, words, "compare", a, b, *arguments)
        self.write("hnd", one, {"layout": "hnd"})
        self.write("nhd", one, {"layout": "nhd"})
        self.fails(USAGE, ["hnd", "nhd", "--layout"], "compare", self.path("hnd"), self.path("nhd"))
        self.fails(
            UNSUPPORTED, "i32", "compare", self.write("i", {"o": ("I32", [1, 1, 1, 1], [0])}), self.path("i")
        )


class BadFiles(CommandTest):
    def test_files_that_cannot_be_read(self):
        whole = self.write("whole", qkv()).read_bytes()
        self.path("truncated").write_bytes(whole[:-5])
        self.path("short").write_bytes(whole[:6])
        self.path("header").write_bytes(whole[:40])
        self.path("empty").write_bytes(b"")
        self.path("text").write_text("this is not a safetensors file at all")
        self.path("huge").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
        self.path("directory").mkdir()
        for name in ["missing", "directory", "truncated", "short", "header", "empty", "text", "huge"]:
            with self.subTest(name=name):
                self.fails(FILE, name, "attend", self.path(name))
                self.fails(FILE, name, "compare", self.path(name), self.path("whole"))

    @unittest.skipIf(os.geteuid() == 0, "root may read everything")
    def test_file_without_permission(self):
        path = self.write("secret", qkv())
        path.chmod(0)
        self.fails(FILE, ["secret", "Permission denied"], "attend", path)

    def test_files_that_hold_the_wrong_things(self):
        good = qkv()
        packed = {
            name: (dtype, [shape[0] * shape[2], shape[1], shape[3]], values)
            for name, (dtype, shape, values) in qkv(q_heads=1).items()
        }
        offsets = {"cu_seqlens_q": ("I32", [2], [0, 6]), "cu_seqlens_k": ("I32", [2], [0, 7])}
        nan = dict(good, v=("F32", good["v"][1], [float("nan"), *good["v"][2][1:]]))
        many = {f"layer.{i}": ("F32", [1], [0.0]) for i in range(40)}
        table = [
            (
                USAGE,
                {"k": good["k"], "v": good["v"], "extra": ("F32", [1], [0.0])},
                {},
                [],
                ["'q'", "k, v, extra"],
            ),
            (USAGE, many, {}, [], ["'q'", "and 28 more"]),
            (USAGE, dict(good, k=("F16", good["k"][1], good["k"][2])), {}, [], ["f16", "f32"]),
            (UNSUPPORTED, dict(good, q=("I32", good["q"][1], [1] * len(good["q"][2]))), {}, [], ["q", "i32"]),
            (UNSUPPORTED, dict(good, x=("F64", [1], [0.0])), {}, [], "F64"),
            (
                USAGE,
                dict(good, q=("F32", [2, 6, 8], good["q"][2])),
                {},
                ["--layout", "hnd"],
                ["q", "[2, 6, 8]"],
            ),
            (USAGE, dict(good, q=("F32", [1, 1, 2, 6, 8], good["q"][2])), {}, [], "q"),
            (USAGE, packed, {}, [], ["cu_seqlens_q", "thd"]),
            (USAGE, packed, {}, ["--layout", "thd"], ["cu_seqlens_q", "thd"]),
            (USAGE, good, {}, ["--layout", "thd"], ["q", "thd"]),
            (USAGE, packed | offsets, {}, ["--layout", "nhd"], "nhd"),
            (USAGE, packed | offsets | {"cu_seqlens_k": ("I64", [2], [0, 8])}, {}, [], "cu_seqlens_k"),
            (USAGE, good | offsets, {}, [], "thd"),
            (USAGE, good | {"kv_lengths": ("I32", [1], [8])}, {}, [], "kv_lengths"),
            (USAGE, good | {"kv_lengths": ("F32", [1], [7.0])}, {}, [], "kv_lengths"),
            (USAGE, good | {"mask": ("F32", [7], [1.0] * 7)}, {}, [], "mask"),
            (USAGE, good | {"mask": ("BOOL", [5], [1] * 5)}, {}, [], "mask"),
            (USAGE, good | {"bias": ("I32", [7], [1] * 7)}, {}, [], "bias"),
            (USAGE, good | {"q_absmax": ("F32", [2], [1.0, -1.0])}, {}, ["--recipe", "fp8-icl"], "q_absmax"),
            (USAGE, good | {"q_absmax": ("F32", [2], [1.0, 1.0])}, {}, ["--recipe", "half"], "q_absmax"),
            (USAGE, good, {"layout": "sideways"}, [], ["layout", "'sideways'"]),
            (USAGE, good, {"causal": "sometimes"}, [], ["causal", "'sometimes'"]),
            (USAGE, nan, {}, [], "v"),
        ]
        for number, (code, tensors, metadata, arguments, words) in enumerate(table):
            with self.subTest(number=number, words=words):
                self.fails(
                    code, words, "attend", self.write(f"{number}.safetensors", tensors, metadata), *arguments
                )


class Outputs(CommandTest):
    def setUp(self):
        super().setUp()
        tensors = qkv()
        # A NaN is refused as soon as work starts; an output that cannot be written must be refused before.
        tensors["k"] = ("F32", tensors["k"][1], [float("nan")] * len(tensors["k"][2]))
        self.bad = self.write("bad.safetensors", tensors)
        self.before = self.bad.read_bytes()

    def tearDown(self):
        self.assertEqual(self.bad.read_bytes(), self.before)

    def test_refused_before_the_work_starts(self):
        self.path("directory").mkdir()
        self.path("link").symlink_to(self.path("elsewhere"))
        for option in ["-o", "--json"]:
            for target in ["/nonexistent/out", self.path("directory"), self.path("link"), "/dev/null"]:
                with self.subTest(option=option, target=target):
                    self.fails(FILE, str(target), "attend", self.bad, option, target)
        self.assertEqual(
            sorted(p.name for p in self.directory.iterdir()), ["bad.safetensors", "directory", "link"]
        )

    def test_empty_values_are_not_taken_for_none(self):
        for arguments in (["-o", ""], ["--json", ""], ["--json=", "--no-compare"], ["--causal", ""]):
            with self.subTest(arguments=arguments):
                self.fails(USAGE, "empty value", "attend", self.bad, *arguments, cwd=self.directory)
        self.assertEqual([p.name for p in self.directory.iterdir()], ["bad.safetensors"])

    def test_one_file_under_two_names(self):
        os.link(self.bad, self.path("hard"))
        for name in [
            "bad.safetensors",
            "./bad.safetensors",
            "../" + self.directory.name + "/bad.safetensors",
            "hard",
        ]:
            with self.subTest(name=name):
                self.fails(USAGE, "input file", "attend", "bad.safetensors", "-o", name, cwd=self.directory)
                self.fails(
                    USAGE, "input file", "attend", "bad.safetensors", "--json", name, cwd=self.directory
                )
        self.fails(USAGE, "output file", "attend", self.bad, "-o", "x", "--json", "./x", cwd=self.directory)

    def test_nothing_is_left_when_the_work_fails(self):
        self.fails(USAGE, "k", "attend", self.bad, "-o", self.path("out"), "--json", self.path("json"))
        self.assertEqual([p.name for p in self.directory.iterdir()], ["bad.safetensors"])

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_directory_without_permission(self):
        closed = self.path("closed")
        closed.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
        self.fails(FILE, "Permission denied", "attend", self.bad, "-o", closed / "out")

    @unittest.skipUnless(os.path.exists("/dev/full"), "needs /dev/full")
    def test_standard_output_that_is_full(self):
        with open("/dev/full", "w") as full:
            for arguments in [["info"], ["recipes", "--json"], ["--help"]]:
                done = octavo(*arguments, stdout=full)
                self.assertEqual(done.returncode, FILE, arguments)
                self.assertRegex(done.stderr, r"\Aoctavo: error: standard output [^\n]+\n\Z")


if __name__ == "__main__":
    unittest.main()
