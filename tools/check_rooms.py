#!/usr/bin/env python3
"""The rooms of a floor stand in an order.

A floor's folders are its rooms; its CMakeLists.txt lists them after ROOMS, and a file includes of its own floor only its room and those
before it. Files beside the folders come before all of them. And of no two pairs of header and source does each need the other,
directly or round about.

Usage: check_rooms.py [ROOT]
"""

import re
import sys
from pathlib import Path

import source_tree

INCLUDE = re.compile(r'^\s*#\s*include\s*"tessera/([^"]+)"', re.MULTILINE)


def listed(root, floor):
    """The names after ROOMS."""
    path = root / "tessera" / floor / "CMakeLists.txt"
    found = re.search(r"\bROOMS\s+([a-z_ ]+)", re.sub(r"#.*", "", path.read_text()) if path.exists() else "")
    return found.group(1).split() if found else []


def pairs_of(root, floor):
    """{pair: the pairs of the floor that its header and its source include}."""
    needs = {}
    for path in source_tree.files(root, {".h", ".cpp"}, folders=(f"tessera/{floor}",)):
        here = path.relative_to(root / "tessera").with_suffix("").as_posix()
        included = {Path(name).with_suffix("").as_posix() for name in INCLUDE.findall(path.read_text()) if name.startswith(f"{floor}/")}
        needs.setdefault(here, set()).update(included - {here})
    return needs


def room_of(pair):
    """The folder in the floor; empty beside the folders."""
    return "/".join(pair.split("/")[1:-1])


def out_of_order(root, floor, needs):
    order = ["", *listed(root, floor)]
    folders = {room_of(pair) for pair in needs}
    wrong = [f"{floor}/{room} is not among the ROOMS of tessera/{floor}/CMakeLists.txt" for room in sorted(folders - set(order))]
    wrong += [f"tessera/{floor}/CMakeLists.txt lists the room {room}, which has no file" for room in order[1:] if room not in folders]
    for pair in sorted(needs) if not wrong else []:
        wrong += [f"{pair} includes {other}, from a room behind its own" for other in sorted(needs[pair])
                  if other in needs and order.index(room_of(other)) > order.index(room_of(pair))]
    return wrong


def reached(needs, pair):
    """All pairs that a pair needs, itself among them only if it lies on a circle."""
    seen, todo = set(), [pair]
    while todo:
        for other in needs.get(todo.pop(), ()):
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return seen


def knots(needs):
    """The sets of pairs of which each needs every other."""
    reach = {pair: reached(needs, pair) for pair in needs}
    found = []
    for pair in sorted(needs):
        if pair in reach[pair] and not any(pair in knot for knot in found):
            found.append({pair} | {other for other in reach[pair] if pair in reach.get(other, ())})
    return found


def check(root):
    """The list of what is wrong."""
    wrong = []
    for floor in source_tree.floors(root):
        needs = pairs_of(root, floor)
        wrong += out_of_order(root, floor, needs)
        for knot in knots(needs):
            arrows = [f"{pair} -> {other}" for pair in sorted(knot) for other in sorted(needs[pair] & knot)]
            wrong.append(f"{len(knot)} of {floor} need each other: {', '.join(sorted(name.split('/', 1)[1] for name in knot))}\n         " + "\n         ".join(arrows))
    return wrong


if __name__ == "__main__":
    sys.exit(source_tree.report("rooms", check(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())))
