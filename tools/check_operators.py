#!/usr/bin/env python3
"""One row an operator: what the program knows of an operator by name stands in its family's file, tessera/rules/families/*.cpp.

In other sources no string is the name of an operator (`aten::mul.Tensor`, also without its overload or its end), but for the rows of
tools/operator_names.txt, `name  file  reason`, which may only get fewer: a name that is not listed fails, and so does a row whose name
is gone. Not looked at is what a TORCH_LIBRARY block defines: those are our own schemas.

Usage: check_operators.py [ROOT] [--write]    (--write takes rows whose name is gone off the list)
"""

import re
import sys
from pathlib import Path

import source_tree

FAMILIES = "tessera/rules/families"
LIST = "tools/operator_names.txt"
NAMESPACES = ("aten", "c10d", "_c10d_functional", "prims", "rngprims", "tessera")
NAME = re.compile(r'"((?:%s)::\w+(?:\.\w+)?)"' % "|".join(NAMESPACES))
REGISTERED = re.compile(r'\bimpl\(\s*"(\w+(?:\.\w+)?)"')  # a kernel of an operator whose namespace stands elsewhere
SHORT = re.compile(r'"(\w+\.\w+)"')
LIBRARY = re.compile(r"^TORCH_LIBRARY\w*\(.*?^\}", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"//.*")


def in_families(root):
    """The names that the families know."""
    paths = source_tree.files(root, {".h", ".cpp"}, folders=(FAMILIES,))
    return {name for path in paths for name in NAME.findall(path.read_text())}


def names_in(text, known):
    """The operators that a source names."""
    text = COMMENT.sub("", LIBRARY.sub("", text))
    names = set(NAME.findall(text)) | {"aten::" + name for name in REGISTERED.findall(text)}
    return names | {"aten::" + name for name in SHORT.findall(text) if "aten::" + name in known}


def named(root):
    """{(name, file)} outside of the families."""
    known = in_families(root)
    found = set()
    for path in source_tree.files(root, {".h", ".cpp"}, folders=("tessera",)):
        file = path.relative_to(root).as_posix()
        if not file.startswith(FAMILIES + "/"):
            found |= {(name, file) for name in names_in(path.read_text(), known)}
    return found


def listed(root):
    """{(name, file): reason} of the kept list."""
    path = root / LIST
    rows = [line.split(None, 2) for line in (path.read_text().splitlines() if path.exists() else ()) if line.strip() and not line.startswith("#")]
    return {(row[0], row[1] if len(row) > 1 else ""): row[2] if len(row) > 2 else "" for row in rows}


def check(root):
    """The list of what is wrong."""
    found, kept = named(root), listed(root)
    wrong = [f"{file} names {name}: what is known of an operator stands in its row, in {FAMILIES}" for name, file in sorted(found - set(kept))]
    wrong += [f"{LIST}: {file} does not name {name} any more: take the row off" for name, file in sorted(set(kept) - found)]
    return wrong + [f"{LIST}: {name} {file} has no reason" for (name, file), reason in sorted(kept.items()) if not reason]


def shrink(root):
    """Takes rows off whose name is gone."""
    found, path = named(root), root / LIST
    lines = [line for line in path.read_text().splitlines() if not line.strip() or line.startswith("#") or tuple(line.split(None, 2)[:2]) in found]
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--write"]
    root = Path(arguments[0] if arguments else ".").resolve()
    if "--write" in sys.argv:
        shrink(root)
    print(f"{len(named(root))} names of operators outside of {FAMILIES}")
    sys.exit(source_tree.report("operators", check(root)))
