"""What the tests of the command share: running it, safetensors files, attention in plain Python."""

import json
import math
import os
import pathlib
import random
import struct
import subprocess
import tempfile
import unittest

COMMAND = os.environ.get("OCTAVO_COMMAND", "octavo")
DATA = pathlib.Path(os.environ.get("OCTAVO_TEST_DATA", pathlib.Path(__file__).resolve().parents[2] / "data"))
CODES = {"F32": "f", "I32": "i", "I64": "q", "U8": "B", "BOOL": "B", "F64": "d", "F16": "e"}


# Reports and tables are the CPU's on every machine; tests of a GPU put the variable back.
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def octavo(*arguments, environment=None, cwd=None, stdout=subprocess.PIPE):
    """Runs the command; standard error is no terminal. Variables that change what it does are taken out."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("OCTAVO_")} | NO_GPU | (environment or {})
    return subprocess.run(
        [COMMAND, *map(str, arguments)],
        env=env,
        cwd=cwd,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=240,
        check=False,
    )


def write_safetensors(path, tensors, metadata=None):
    """tensors: name -> (dtype, shape, flat values). Values of dtype "BF16" are given as their 16 bits."""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}{'H' if dtype == 'BF16' else CODES[dtype]}", *values)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    """(tensors, metadata), tensors: name -> (dtype, shape, flat values)."""
    raw = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        count = math.prod(entry["shape"])
        tensors[name] = (
            entry["dtype"],
            entry["shape"],
            list(struct.unpack(f"<{count}{CODES[entry['dtype']]}", raw[begin:end])),
        )
    return tensors, metadata


def normal(count, seed):
    generator = random.Random(seed)
    return [generator.gauss(0.0, 1.0) for _ in range(count)]


def qkv(batch=1, q_heads=2, kv_heads=1, q_len=6, kv_len=7, head_dim=8, dtype="F32"):
    """Random q [B, Hq, Lq, D], k and v [B, Hkv, Lk, D]."""
    q, kv = [batch, q_heads, q_len, head_dim], [batch, kv_heads, kv_len, head_dim]
    return {
        "q": (dtype, q, normal(math.prod(q), 1)),
        "k": (dtype, kv, normal(math.prod(kv), 2)),
        "v": (dtype, kv, normal(math.prod(kv), 3)),
    }


def attend(query, keys, values, visible, scale):
    """One row of attention: (o, lse)."""
    scores = {
        j: scale * sum(a * b for a, b in zip(query, key, strict=True))
        for j, key in enumerate(keys)
        if visible(j)
    }
    if not scores:
        return [0.0] * len(query), -math.inf
    top = max(scores.values())
    weights = {j: math.exp(s - top) for j, s in scores.items()}
    total = sum(weights.values())
    return [
        sum(w * values[j][d] for j, w in weights.items()) / total for d in range(len(query))
    ], top + math.log(total)


class CommandTest(unittest.TestCase):
    """A temporary directory for each test, and checks of what the command promises."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="octavo-cli-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def path(self, name):
        return self.directory / name

    def write(self, name, tensors, metadata=None):
        write_safetensors(self.path(name), tensors, metadata)
        return self.path(name)

    def succeeds(self, *arguments, **options):
        done = octavo(*arguments, **options)
        self.assertEqual((done.returncode, done.stderr), (0, ""), f"octavo {' '.join(map(str, arguments))}")
        return done.stdout

    def fails(self, code, words, *arguments, **options):
        """The exit code, nothing on standard output, one line on standard error, and the words in it."""
        done = octavo(*arguments, **options)
        said = f"octavo {' '.join(map(str, arguments))}\n{done.stderr}"
        self.assertEqual(done.returncode, code, said)
        self.assertRegex(done.stderr, r"\Aoctavo: error: [^\n]+\n\Z", said)
        self.assertFalse(done.stdout, said)
        for word in [words] if isinstance(words, str) else words:
            self.assertIn(word, done.stderr, said)
        return done.stderr
