#!/usr/bin/env python3
"""A file of a floor includes only its own floor and those its floor declares, which are all lower.

torch/torch.h (13 s a file) is for nn, models and what sits above models.
Usage: check_floors.py [ROOT]
"""

import re
import sys
from pathlib import Path

import source_tree

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
WHOLE_TORCH = {"torch/torch.h", "torch/all.h", "torch/extension.h"}


def declared(root, floor):
    """The floors in DEPENDS of the floor's CMakeLists.txt."""
    path = root / "tessera" / floor / "CMakeLists.txt"
    text = re.sub(r"#.*", "", path.read_text()) if path.exists() else ""
    depends = re.search(r"\bDEPENDS\s+([a-z_\s]*)", text)
    return depends.group(1).split() if depends else []


def closure(root, floor, known):
    """The floor and all floors it declares, directly or through others."""
    seen, todo = set(), [floor]
    while todo:
        here = todo.pop()
        if here not in seen and here in known:
            seen.add(here)
            todo += declared(root, here)
    return seen


def check(root):
    """The list of what is wrong."""
    order = source_tree.floors(root)
    height = {floor: i for i, floor in enumerate(order)}
    with_torch = {"nn"} | set(order[height["models"]:])
    wrong = []
    for floor in order:
        wrong += [f"tessera/{floor}/CMakeLists.txt depends on {other}, which is not below it"
                  for other in declared(root, floor) if height.get(other, len(order)) >= height[floor]]
    for path in source_tree.files(root, {".h", ".cpp"}, folders=("tessera",)):
        parts = path.relative_to(root).parts
        if len(parts) == 2:
            continue  # the umbrella header sees every floor
        name, floor = "/".join(parts), parts[1]
        if floor not in height:
            wrong.append(f"{name} is on no floor; floors: {' '.join(order)}")
            continue
        seen = closure(root, floor, height)
        for included in INCLUDE.findall(path.read_text()):
            other = included.split("/")[1] if included.startswith("tessera/") else None
            if included in WHOLE_TORCH and floor not in with_torch:
                wrong.append(f"{name} includes {included}; floor {floor} includes ATen/ops/*.h and ATen/core/*.h")
            elif included == "tessera/tessera.h":
                wrong.append(f"{name} includes the umbrella header, which is for users")
            elif other and height.get(other, len(order)) > height[floor]:
                wrong.append(f"{name} includes {included}, from a floor above {floor}")
            elif other and other not in seen:
                wrong.append(f"{name} includes {included}; {floor} does not declare that it depends on {other}")
    return wrong


if __name__ == "__main__":
    sys.exit(source_tree.report("floors", check(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())))
