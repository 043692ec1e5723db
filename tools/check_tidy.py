#!/usr/bin/env python3
"""The library is as .clang-tidy says: no warning. About 6 minutes of a processor.

Usage: check_tidy.py BUILD CLANG_TIDY [--jobs N] [--only REGEX]     BUILD: a folder that CMake has configured; it need not be built
"""

import argparse
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import source_tree

ROOT = Path(__file__).resolve().parents[1]
# Kernels of instruction sets are compiled with flags that clang spells otherwise.
SKIPPED = re.compile(r"_(avx2|avx512|avx512_bf16)\.cpp$")


def commands(build):
    """(source, compiler's words) of every file of the library."""
    database = json.loads(subprocess.run(["ninja", "-C", build, "-t", "compdb"], check=True, capture_output=True, text=True).stdout)
    for entry in database:
        if entry["output"].startswith("tessera/") and entry["output"].endswith(".o") and not SKIPPED.search(entry["file"]):
            yield entry["file"], shlex.split(entry["command"])


def flags(words):
    """Those that say how to read the source: no precompiled header, no warnings of the compiler's own."""
    begin = next(i for i, word in enumerate(words) if re.search(r"(c\+\+|g\+\+|clang\+\+)[\d.-]*$", word))
    taken, skip = [], False
    for word in words[begin + 1:words.index("-o")]:
        if not skip and word != "-include" and not word.startswith(("-W", "-M", "-fmacro-prefix-map")):
            taken.append(word)
        skip = word in ("-include", "-MT", "-MF")
    return [*taken, "-w"]


def check(build, clang_tidy, source, words):
    """The warnings, each once."""
    run = subprocess.run([clang_tidy, "--quiet", source, "--", *flags(words)], cwd=build, capture_output=True, text=True)
    found = re.findall(r"^(/.*?): (?:warning|error): (.*)$", run.stdout, re.MULTILINE)
    if run.returncode and not found:
        return [f"{source}: {run.stderr.strip()[-500:]}"]
    return [f"{os.path.relpath(place, ROOT)}: {text}" for place, text in found if "/site-packages/" not in place and not place.startswith("/usr/")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("clang_tidy")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    chosen = [each for each in commands(arguments.build) if re.search(arguments.only, each[0])]
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        found = pool.map(lambda each: check(arguments.build, arguments.clang_tidy, *each), chosen)
    return source_tree.report("tidy", sorted({problem for problems in found for problem in problems}))


if __name__ == "__main__":
    sys.exit(main())
