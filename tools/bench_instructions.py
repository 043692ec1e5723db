#!/usr/bin/env python3
"""Instructions per cached operator or redistribution, counted by callgrind: of each kind of run, and above `plain` where that is one.

Usage: bench_instructions.py PROGRAM        (of benchmarks/dispatch_bench.cpp or redistribute_bench.cpp)
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path


def dumps(folder):
    """(name of the case, instructions of its thread) of every dump that the program asked for."""
    for path in sorted(folder.glob("callgrind.out.*-01"), key=lambda p: int(p.suffix[1:].split("-")[0])):
        head = path.read_text(errors="replace")
        name = re.search(r"^desc: Trigger: Client Request: (.*)$", head, re.MULTILINE)
        total = re.search(r"^(?:totals|summary): (\d+)", head, re.MULTILINE)
        if name and total:
            yield name.group(1), int(total.group(1))


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=yes", "--combine-dumps=no",
                   "--separate-threads=yes",  # a thread that settles first uses may run meanwhile
                   f"--callgrind-out-file={folder}/callgrind.out", program, "--instructions"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        calls = int(re.search(r"^calls (\d+)", done.stdout, re.MULTILINE).group(1))
        counts = {}
        for name, total in dumps(Path(folder)):
            kind, case = name.split("/", 1)
            counts.setdefault(case, {})[kind] = round(total / calls)
    print_table(counts)


def print_table(counts):
    """A row a case, a column a kind."""
    kinds = list(dict.fromkeys(kind for case in counts.values() for kind in case))
    has_plain = "plain" in kinds
    width = max(len(case) for case in counts) + 2
    cell = max(14, *(len(kind) + 2 for kind in kinds))
    meshes = [kind for kind in kinds if kind != "plain"]
    print(f"{'instructions':<{width}}" + ("     plain" if has_plain else "")
          + "".join(f"{mesh:>{cell}}" + ("     extra" if has_plain else "") for mesh in meshes))
    for case, found in counts.items():
        row = f"{case:<{width}}" + (f"{found['plain']:>10}" if has_plain else "")
        for mesh in meshes:
            row += f"{found.get(mesh, '-'):>{cell}}" + (f"{found[mesh] - found['plain']:>10}" if has_plain else "")
        print(row)


if __name__ == "__main__":
    main(sys.argv[1])
