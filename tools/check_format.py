#!/usr/bin/env python3
"""Every C++ file is as .clang-format says.

Usage: check_format.py [--fix]   (exit code 77: the clang-format that requirements.txt names is not here)
"""

import re
import subprocess
import sys
from pathlib import Path

import source_tree

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = 77


def program(root):
    """The clang-format beside this python, if its version is the one of requirements.txt."""
    wanted = re.search(r"^clang-format==(\S+)$", (root / "requirements.txt").read_text(), re.MULTILINE).group(1)
    path = Path(sys.executable).parent / "clang-format"
    found = subprocess.run([path, "--version"], capture_output=True, text=True).stdout if path.exists() else ""
    return path if wanted in found.split() else None


def sources(root):
    return source_tree.files(root, {".cpp", ".h", ".cu"})


def check(root, clang_format):
    """The list of files that it would write otherwise."""
    run = subprocess.run([clang_format, "--dry-run", *sources(root)], capture_output=True, text=True, check=True)
    files = dict.fromkeys(re.findall(r"^(.+?):\d+:\d+: warning", run.stderr, re.MULTILINE))
    return [f"{Path(file).relative_to(root)}: not as .clang-format says; `make format` writes it" for file in files]


def main():
    clang_format = program(ROOT)
    if clang_format is None:
        print("format: skipped, the clang-format that requirements.txt names is not beside this python")
        return SKIPPED
    if sys.argv[1:] == ["--fix"]:
        return subprocess.run([clang_format, "-i", *sources(ROOT)]).returncode
    return source_tree.report("format", check(ROOT, clang_format))


if __name__ == "__main__":
    sys.exit(main())
