#!/usr/bin/env python3
"""No file names an absolute path of somebody's machine: a home, a work folder.

Usage: check_paths.py [ROOT]
"""

import re
import sys
from pathlib import Path

import source_tree

PRIVATE = re.compile(r"(?<![\w.}/-])/(home|root|Users|work)/[\w.]")


def check(root):
    """The list of lines that name such a path."""
    wrong = []
    for path in source_tree.files(root):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if PRIVATE.search(line):
                wrong.append(f"{path.relative_to(root)}:{number}: {line.strip()}")
    return wrong


if __name__ == "__main__":
    sys.exit(source_tree.report("paths", check(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())))
