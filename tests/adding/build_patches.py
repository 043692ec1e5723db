#!/usr/bin/env python3
"""Applies each patch of this folder to a copy of the sources, builds what its tests need, and runs them.

Usage: build_patches.py [--only NAME] [--folder FOLDER] [--jobs N] [--deadline SECONDS]

FOLDER (build/adding) is the copy, FOLDER/build its build. A patch that passed is not built again while no source has changed, so a run
may be ended at any time.
"""

import argparse
import hashlib
import os
import sys
import time
from pathlib import Path

from patches import ROOT, patches

sys.path.insert(0, str(ROOT / "tools"))

import source_tree  # noqa: E402
from run_mutants import Broken, Copy, Results  # noqa: E402


def key_of(patch):
    digest = hashlib.sha256(patch.path.read_bytes())
    for path in source_tree.files(ROOT):
        if path.parent != patch.path.parent and path.suffix in {".cpp", ".h", ".txt", ".cmake", ".in", ".py"}:
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def try_patch(copy, patch, deadline):
    """What went wrong, or nothing. The copy is as it was afterwards."""
    if complaint := patch.apply(copy.root):
        return complaint
    try:
        copy.make([test for test, _ in patch.runs])
        for test, cases in patch.runs:
            if (outcome := copy.run(test, cases, deadline)) != "passed":
                return f"{test} {cases}: {outcome}"
    except Broken as problem:
        return str(problem)
    finally:
        patch.apply(copy.root, "--reverse")
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "adding")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--deadline", type=float, default=600, help="seconds that a test may take")
    arguments = parser.parse_args()
    results = Results(arguments.folder.resolve() / "build" / "adding.jsonl")
    copy, failed = None, False
    for patch in patches():
        if arguments.only not in patch.name:
            continue
        key, begin, wrong = key_of(patch), time.monotonic(), ""
        if key not in results.all:
            copy = copy or Copy(arguments.folder.resolve(), arguments.jobs)
            wrong = try_patch(copy, patch, arguments.deadline)
        print(f"{patch.name}: {len(patch.files)} files, {wrong or 'its tests pass'} ({time.monotonic() - begin:.0f} s)", flush=True)
        if not wrong and key not in results.all:
            results.add({"key": key, "patch": patch.name})
        failed |= bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
