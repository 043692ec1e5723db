"""Which files the checks look at, and the floors in their order."""

import re
from pathlib import Path

FOLDERS = ("tessera", "tests", "benchmarks", "examples", "recipes", "python", "tools", "cmake", "docs", ".ci")


def files(root, suffixes=None, folders=FOLDERS):
    """The repository's files under `folders`, and those at its root when all folders are asked for, sorted."""
    found = [p for p in root.iterdir() if p.is_file()] if folders is FOLDERS else []
    for folder in folders:
        found += [p for p in (root / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return sorted(p for p in found if suffixes is None or p.suffix in suffixes)


def floors(root):
    """The floors from the ground up, as the root CMakeLists.txt lists them."""
    text = re.sub(r"#.*", "", (root / "CMakeLists.txt").read_text())
    return re.search(r"set\(TESSERA_FLOORS\s+([^)]*)\)", text).group(1).split()


def report(what, problems, warnings=()):
    """Prints warnings and problems; the exit code of the check."""
    for line in warnings:
        print("why:  " + line)
    for line in problems:
        print("wrong: " + line)
    print(f"{what}: {len(problems)} wrong, {len(warnings)} to explain")
    return 1 if problems else 0
