#!/usr/bin/env python3
"""The example text is whole: 66 books, 1,189 chapters, 31,102 verses, ASCII.

Usage: check_text.py [FILE]
"""

import re
import sys
from pathlib import Path

import source_tree

WHOLE = {"books": 66, "chapters": 1189, "verses": 31102}


def check(text):
    """The list of what is missing."""
    chapters = re.findall(r"^((?:\d )?[A-Z][A-Za-z ]+) (\d+)$", text, re.MULTILINE)
    found = {"books": len({book for book, _ in chapters}), "chapters": len(set(chapters)),
             "verses": len(re.findall(r"^ +\d+ \S", text, re.MULTILINE))}
    return [f"{found[what]} {what} instead of {count}" for what, count in WHOLE.items() if found[what] != count]


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "examples/data/kjv.txt")
    sys.exit(source_tree.report("text", check(path.read_text(encoding="ascii"))))
