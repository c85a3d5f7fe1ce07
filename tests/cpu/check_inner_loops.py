#!/usr/bin/env python3
"""Fails when a product loop of an attention kernel keeps something on the stack.

GCC 12 can move accumulators to memory for reasons as small as a known trip count; results stay right and the
kernel runs at half speed, which no other test sees. So this reads the machine code: an innermost loop with a
product instruction must have no operand on the stack.

    check_inner_loops.py [--functions REGEX] [--products A,B] [--least N] [--require N] OBJECT...

Needs objdump. Prints each loop found; exit status 1 when one touches the stack, or when fewer than N loops
were found in all (a check that looks at nothing must not pass).
"""

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass, field

FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")
TARGET = re.compile(r"^([0-9a-f]+)\b")
PREFIXES = {"notrack", "bnd", "data16", "cs", "ds", "{evex}", "{vex}"}


@dataclass
class Instruction:
    address: int
    name: str
    operands: str


@dataclass
class Function:
    name: str
    body: list[Instruction] = field(default_factory=list)

    def has_frame_pointer(self) -> bool:
        """rbp points into the stack, and is no general register."""
        return any(i.name == "mov" and i.operands.replace(" ", "") == "%rsp,%rbp" for i in self.body)

    def innermost_loops(self) -> list[list[Instruction]]:
        """Bodies of backward jumps that contain no other backward jump's body."""
        first, last = self.body[0].address, self.body[-1].address
        spans = set()
        for i in self.body:
            target = TARGET.match(i.operands)
            if i.name.startswith("j") and target:
                to = int(target.group(1), 16)
                if first <= to <= i.address <= last:
                    spans.add((to, i.address))
        innermost = [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]
        return [[i for i in self.body if a <= i.address <= b] for a, b in sorted(innermost)]


def disassemble(path: str) -> list[Function]:
    text = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", path], check=True, capture_output=True, text=True
    ).stdout
    functions: list[Function] = []
    for line in text.splitlines():
        if match := FUNCTION.match(line):
            functions.append(Function(match.group(1)))
        elif functions and (match := INSTRUCTION.match(line)):
            address, name, operands = match.groups()
            while name in PREFIXES and operands:
                name, _, operands = operands.partition(" ")
                operands = operands.strip()
            functions[-1].body.append(Instruction(int(address, 16), name, operands.split("#")[0].strip()))
    return [f for f in functions if f.body]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("objects", nargs="+", metavar="OBJECT")
    parser.add_argument("--functions", default="Attention", help="regular expression on mangled names")
    parser.add_argument("--products", default="vpmaddwd,vpdpbusd", help="instructions that make a loop count")
    parser.add_argument("--least", type=int, default=4, help="products of such a loop; a row sum has fewer")
    parser.add_argument("--require", type=int, default=1, help="loops that must be found in all")
    arguments = parser.parse_args()
    products = set(arguments.products.split(","))
    wanted = re.compile(arguments.functions)

    found = 0
    bad = 0
    for path in arguments.objects:
        for function in disassemble(path):
            if not wanted.search(function.name):
                continue
            stack = re.compile(r"\(%r[sb]p" if function.has_frame_pointer() else r"\(%rsp")
            for loop in function.innermost_loops():
                count = sum(i.name in products for i in loop)
                if count < arguments.least:
                    continue
                found += 1
                spilled = [i for i in loop if stack.search(i.operands)]
                bad += bool(spilled)
                print(
                    f"{'BAD ' if spilled else 'good'} {path} {function.name} at {loop[0].address:#x}: "
                    f"{len(loop)} instructions, {count} products, {len(spilled)} on the stack"
                )
                for i in spilled:
                    print(f"       {i.address:#x}: {i.name} {i.operands}")
    if found < arguments.require:
        print(f"found {found} product loops, expected at least {arguments.require}")
        return 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
