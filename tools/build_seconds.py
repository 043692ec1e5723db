#!/usr/bin/env python3
"""Processor seconds of a cold build, of several revisions: what `make train` compiles, and what `make test` compiles beside it.

Usage: build_seconds.py [--every N] [--jobs N] [--folder FOLDER] REVISION...     such as 5a12afd HEAD

Each revision is built in FOLDER/<revision> (build/seconds) without compiler caches: first what is compiled, then the rest (links, files
that are copied or written); the compiler's warnings are counted. With --every N only the precompiled headers and every N-th other file are
compiled, what they cost is taken N times, and there is no rest. Prints a table as in docs/measured/build.md. What was measured of a revision
stays in FOLDER/seconds.json and is not measured again, so a run may be ended at any time.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STAGES = {"make train": "tessera_program", "the tests": "all"}


def call(*command, cwd):
    """What it printed, and its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=cwd, env={**os.environ, "CCACHE_DISABLE": "1"}, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def configure(revision, tree):
    tree.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "x"], cwd=tree, check=True, input=archive)
    call("cmake", "--preset", "release", f"-DTESSERA_PYTHON={sys.executable}", cwd=tree)


def measure(tree, target, every, jobs, seen):
    """(files compiled, processor seconds of compiling, of the rest, warnings). `seen`: what earlier stages have compiled."""
    warnings = 0

    def build(*targets):
        nonlocal warnings
        said, seconds = call("ninja", "-C", "build", "-j", str(jobs), *targets, cwd=tree) if targets else ("", 0)
        warnings += len(re.findall(r"\bwarning: ", said))
        return seconds

    commands, _ = call("ninja", "-C", "build", "-t", "commands", target, cwd=tree)
    outputs = [name for name in re.findall(r" -o (\S+\.(?:o|gch)) ", commands) if name not in seen]
    seen |= set(outputs)
    headers = [name for name in outputs if name.endswith(".gch")]
    others = [name for name in outputs if not name.endswith(".gch")]
    sample = others[::every]
    seconds = build(*headers) + build(*sample) * len(others) / len(sample)
    rest = build(target) if every == 1 else 0
    return len(outputs), seconds, rest, warnings


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "seconds")
    parser.add_argument("revisions", nargs="+", metavar="REVISION")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    record = arguments.folder.resolve() / "seconds.json"
    known = json.loads(record.read_text()) if record.exists() else {}
    print("| revision | " + " | ".join(f"{stage}, files | compiling, s | the rest, s | warnings" for stage in STAGES) + " |\n|---|" + "---|" * 4 * len(STAGES))
    for revision in arguments.revisions:
        commit = subprocess.run(["git", "rev-parse", "--short", revision], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
        key = f"{commit} every {arguments.every}"
        if key not in known:
            tree, seen = arguments.folder.resolve() / f"{commit}-{arguments.every}", set()
            configure(commit, tree)
            known[key] = [measure(tree, target, arguments.every, arguments.jobs, seen) for target in STAGES.values()]
            record.write_text(json.dumps(known))
        print(f"| {commit} | " + " | ".join(f"{files} | {compiling:.0f} | {rest:.0f} | {warnings}" for files, compiling, rest, warnings in known[key]) + " |", flush=True)


if __name__ == "__main__":
    main()
