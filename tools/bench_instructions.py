#!/usr/bin/env python3
"""Instructions per cached operator, plain and on DTensors, counted by callgrind.

Usage: bench_instructions.py BENCH_DISPATCH        (the program benchmarks/dispatch_bench.cpp)
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path


def dumps(folder):
    """(name of the case, instructions) of every dump that the program asked for."""
    for path in sorted(folder.glob("callgrind.out.*"), key=lambda p: int(p.suffix[1:])):
        head = path.read_text(errors="replace")
        name = re.search(r"^desc: Trigger: Client Request: (.*)$", head, re.MULTILINE)
        total = re.search(r"^(?:totals|summary): (\d+)", head, re.MULTILINE)
        if name and total:
            yield name.group(1), int(total.group(1))


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=yes", "--combine-dumps=no",
                   f"--callgrind-out-file={folder}/callgrind.out", program, "--instructions"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        calls = int(re.search(r"^calls (\d+)", done.stdout, re.MULTILINE).group(1))
        counts = {}
        for name, total in dumps(Path(folder)):
            kind, case = name.split("/", 1)
            counts.setdefault(case, {})[kind] = round(total / calls)
    meshes = [kind for kind in next(iter(counts.values())) if kind != "plain"]
    print(f"{'instructions':<20}{'plain':>10}" + "".join(f"{mesh:>14}{'extra':>10}" for mesh in meshes))
    for case, kinds in counts.items():
        print(f"{case:<20}{kinds['plain']:>10}" + "".join(f"{kinds[m]:>14}{kinds[m] - kinds['plain']:>10}" for m in meshes))


if __name__ == "__main__":
    main(sys.argv[1])
