#!/usr/bin/env python3
"""Fails when a tier's object file offers the linker a function that is not the tier's own.

A function with weak linkage (inline, or a template) may be defined in several files, and the linker keeps
one copy for everybody. If that copy was compiled for AVX-512, the program dies on a processor without it. So
every weak function of a tier file must carry the tier's type in its name.

    check_symbols.py OBJECT...        needs nm
"""

import re
import subprocess
import sys

OWN = re.compile(r"octavo::cpu::(Portable|Avx2|Avx512|Avx512Bf16|Amx)\b")
WEAK = re.compile(r"^[0-9a-f]* +[VWu] (.*)$")
# Data of the exception tables, the same in every object file.
HARMLESS = re.compile(r"^DW\.ref\.")


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: check_symbols.py OBJECT...")
    seen = bad = 0
    for path in sys.argv[1:]:
        listing = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=True).stdout
        for line in listing.splitlines():
            weak = WEAK.match(line)
            if not weak or HARMLESS.match(weak[1]):
                continue
            seen += 1
            if not OWN.search(weak[1]):
                bad += 1
                print(f"{path}: {weak[1]} may be taken for every processor")
    if seen == 0:
        sys.exit("no weak function was found at all: is this a tier's object file?")
    print(f"{seen} weak functions, {bad} not a tier's own")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
