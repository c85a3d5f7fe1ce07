#!/usr/bin/env python3
"""Writes the seed files of the safetensors fuzzer: small, valid and almost valid, one idea per file.

Usage: make_safetensors_corpus.py DIRECTORY
"""

import json
import pathlib
import struct
import sys

SIZES = {
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "I8": 1,
    "U8": 1,
    "I32": 4,
    "I64": 8,
    "BOOL": 1,
    "F64": 8,
}


def pack(header: object, data: bytes = b"", pad: int = 8) -> bytes:
    text = (
        header if isinstance(header, str) else json.dumps(header, separators=(",", ":"), ensure_ascii=False)
    )
    raw = text.encode()
    raw += b" " * (-len(raw) % pad)
    return struct.pack("<Q", len(raw)) + raw + data


def entries(*tensors: tuple[str, str, list[int]]) -> tuple[dict, bytes]:
    header, end = {}, 0
    for name, dtype, shape in tensors:
        count = SIZES[dtype]
        for n in shape:
            count *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + count]}
        end += count
    return header, bytes(i % 251 for i in range(end))


def seeds() -> dict[str, bytes]:
    every, every_data = entries(*[(d.lower(), d, [2, 1]) for d in SIZES if d != "F64"])
    qkv, qkv_data = entries(
        ("q", "F16", [1, 2, 2, 2]), ("k", "F16", [1, 1, 2, 2]), ("v", "F16", [1, 1, 2, 2])
    )
    odd, odd_data = entries(("b", "U8", [1]), ("f", "F32", [2]), ("i", "I64", [1]))
    ranks, ranks_data = entries(
        ("scalar", "F32", []), ("five", "I8", [1, 1, 2, 1, 1]), ("none", "I64", [3, 0])
    )
    one, one_data = entries(("a", "F32", [1]))
    double, double_data = entries(("a", "F64", [1]))
    text = json.dumps(one, separators=(",", ":"))
    return {
        "empty_object": pack({}),
        "every_dtype": pack(every, every_data),
        "qkv_with_metadata": pack({"__metadata__": {"layout": "hnd", "é": "\u4e2d"}, **qkv}, qkv_data),
        "unaligned": pack(odd, odd_data, pad=1),
        "ranks": pack(ranks, ranks_data),
        "unknown_dtype": pack(double, double_data),
        "trailing": pack(one, one_data + b"x"),
        "truncated": pack(one, one_data[:3]),
        "twice": pack(text[:-1] + "," + text[1:], one_data),
        "overlap": pack({**one, "b": one["a"]}, one_data),
        "gap": pack({"a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}, b"ab"),
        "huge_shape": pack({"a": {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 0]}}),
        "negative": pack({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, one_data),
        "fraction": pack({"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 6]}}, b"abcdef"),
        "escaped_name": pack('{"\\u0061\\n":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}', b"z"),
        "nested": pack('{"a":' + "[" * 20 + "]" * 20 + "}"),
        "long_header": struct.pack("<Q", 1 << 40) + b"{}",
        "not_a_file": b"\x80\x02}q\x00.",
    }


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    directory = pathlib.Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in seeds().items():
        (directory / name).write_bytes(content)
    print(f"{len(seeds())} seeds in {directory}")


if __name__ == "__main__":
    main()
