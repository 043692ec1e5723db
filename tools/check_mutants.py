#!/usr/bin/env python3
"""The list of planted faults (tools/mutants) still fits the sources: every line is there once, every test exists, no floor lacks one.

Usage: check_mutants.py [ROOT]

A file lists faults of one floor, each a paragraph:

    tessera/rules/families/reductions.cpp: the largest of nothing is finite
    - return of_max ? -infinity : infinity;
    + return of_max ? std::numeric_limits<double>::lowest() : infinity;
    found by: ranks_whole_ops Operators.ExtremesOfWhatSomeRanksHoldNothingOf

`-` is a whole line of the file without its indentation, `+` what becomes of it (alone: nothing), `found by` a test of ctest and, if
not all of it, a filter for GoogleTest, a name for unittest or options; there may be several. A fault that changes nothing has `equivalent: the reason` instead.
Lines that begin with # are comments.
"""

import fnmatch
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import source_tree

LIST = "tools/mutants"


@dataclass
class Fault:
    floor: str
    file: str
    title: str
    line: str = ""
    becomes: str = ""
    found_by: list = field(default_factory=list)  # (test, filter or "")
    equivalent: str = ""

    def __str__(self):
        return f"{self.file}: {self.title}"

    def planted(self, text):
        """The file's text with the fault; None if the line is not there exactly once."""
        lines = text.splitlines(keepends=True)
        places = [i for i, line in enumerate(lines) if line.strip() == self.line]
        if len(places) != 1:
            return None
        lines[places[0]] = lines[places[0]].replace(self.line, self.becomes)
        return "".join(lines)


def read_fault(paragraph, floor):
    lines = [line for line in paragraph.splitlines() if line and not line.startswith("#")]
    if not lines:
        return None
    file, _, title = lines[0].partition(": ")
    fault = Fault(floor, file, title)
    for line in lines[1:]:
        sign, _, text = line.partition(" ")
        if sign == "-":
            fault.line = text.strip()
        elif sign == "+":
            fault.becomes = text.strip()
        elif line.startswith("found by: "):
            test, _, names = line.removeprefix("found by: ").partition(" ")
            fault.found_by.append((test, names))
        elif line.startswith("equivalent: "):
            fault.equivalent = line.removeprefix("equivalent: ")
        else:
            raise ValueError(f"{LIST}/{floor}.txt: cannot read \"{line}\"")
    return fault


def read_all(root):
    """The faults, floor by floor."""
    faults = []
    for floor in source_tree.floors(root):
        path = root / LIST / f"{floor}.txt"
        paragraphs = re.split(r"\n\s*\n", path.read_text()) if path.exists() else []
        faults += [fault for fault in (read_fault(paragraph, floor) for paragraph in paragraphs) if fault]
    return faults


def known_tests(root):
    """Every name of a test case in the sources of the tests: Suite.Name, Class.method."""
    names = set()
    for path in source_tree.files(root, {".cpp", ".py"}, folders=("tests",)):
        text = path.read_text(errors="replace")
        names |= {f"{suite}.{name}" for suite, name in re.findall(r"^TEST(?:_[FP])?\((\w+), (\w+)\)", text, re.MULTILINE)}
        suite = ""
        for kind, name in re.findall(r"^(?:    )?(class|def) (\w+)", text, re.MULTILINE):
            suite = name if kind == "class" else suite
            names.add(f"{suite}.{name}")
    return names


def check_fault(root, fault, tests):
    path = root / fault.file
    if not path.is_file():
        return [f"{fault}: there is no such file"]
    wrong = []
    planted = fault.planted(path.read_text())
    if planted is None:
        wrong.append(f"{fault}: this is not one line of the file: {fault.line}")
    elif fault.line == fault.becomes:
        wrong.append(f"{fault}: changes nothing")
    if bool(fault.found_by) == bool(fault.equivalent):
        wrong.append(f"{fault}: give it `found by` or `equivalent`")
    cases = [name for _, names in fault.found_by if not names.startswith("-") for name in re.split(r"[: ]", names) if name]
    return wrong + [f"{fault}: there is no test {name}" for name in cases if not any(fnmatch.fnmatch(test, name) for test in tests)]


def check(root):
    """The list of what does not fit."""
    faults, tests = read_all(root), known_tests(root)
    wrong = [problem for fault in faults for problem in check_fault(root, fault, tests)]
    without = [floor for floor in source_tree.floors(root) if not any(fault.floor == floor for fault in faults)]
    return wrong + [f"{LIST}: no fault of the floor {floor}" for floor in without]


if __name__ == "__main__":
    sys.exit(source_tree.report("mutants", check(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())))
