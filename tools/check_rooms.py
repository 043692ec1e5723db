#!/usr/bin/env python3
"""The rooms of a floor stand in an order: none of them needs, directly or round about, one that needs it.

A room is a header with its source. Usage: check_rooms.py [ROOT]
"""

import re
import sys
from pathlib import Path

import source_tree

INCLUDE = re.compile(r'^\s*#\s*include\s*"tessera/([^"]+)"', re.MULTILINE)


def rooms_of(root, floor):
    """{room: the rooms of the floor that its header and its source include}."""
    needs = {}
    for path in source_tree.files(root, {".h", ".cpp"}, folders=(f"tessera/{floor}",)):
        here = path.relative_to(root / "tessera").with_suffix("").as_posix()
        included = {Path(name).with_suffix("").as_posix() for name in INCLUDE.findall(path.read_text()) if name.startswith(f"{floor}/")}
        needs.setdefault(here, set()).update(included - {here})
    return needs


def reached(needs, room):
    """All rooms that a room needs, itself among them only if it lies on a circle."""
    seen, todo = set(), [room]
    while todo:
        for other in needs.get(todo.pop(), ()):
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return seen


def knots(needs):
    """The sets of rooms of which each needs every other."""
    reach = {room: reached(needs, room) for room in needs}
    found = []
    for room in sorted(needs):
        if room in reach[room] and not any(room in knot for knot in found):
            found.append({room} | {other for other in reach[room] if room in reach.get(other, ())})
    return found


def check(root):
    """The list of what is wrong."""
    wrong = []
    for floor in source_tree.floors(root):
        needs = rooms_of(root, floor)
        for knot in knots(needs):
            arrows = [f"{room} -> {other}" for room in sorted(knot) for other in sorted(needs[room] & knot)]
            wrong.append(f"{len(knot)} rooms of {floor} need each other: {', '.join(sorted(name.split('/', 1)[1] for name in knot))}\n         " + "\n         ".join(arrows))
    return wrong


if __name__ == "__main__":
    sys.exit(source_tree.report("rooms", check(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())))
