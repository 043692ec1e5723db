#!/usr/bin/env python3
"""Names without linkage are one of a kind in a floor, of which files are compiled together (cmake/TesseraFloor.cmake): with the same name in two files it depends on
which of them meet whether they compile, or which of two functions is called.

What stands in an unnamed namespace of a source of tessera/ counts; two files may have the same alias of a type. Usage: check_names.py [ROOT]
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

import source_tree
from check_sizes import without_noise

UNNAMED = re.compile(r"\bnamespace\s*\{")
KIND = re.compile(r"(?:template\s*<.*?>\s*)?(?:struct|class|union|enum(?:\s+class)?)\s+(\w+)", re.DOTALL)
ALIAS = re.compile(r"(?:template\s*<.*?>\s*)?(?:using|namespace)\s+(\w+)\s*=\s*(.*)", re.DOTALL)
FUNCTION = re.compile(r"(\w+)\s*\(")
VALUE = re.compile(r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)*(?:=|\{|,|$)")
NO_NAME = re.compile(r"using\b|static_assert\b|friend\b|\W|$")  # the rest of a value behind its braces, too


def declarations(text):
    """What is declared in unnamed namespaces, without bodies."""
    text = without_noise(text)
    for found in UNNAMED.finditer(text):
        depth, begin = 1, found.end()
        for brace in re.finditer(r"[{};]", text[begin:]):
            at = found.end() + brace.start()
            if brace.group() == ";":
                if depth == 1:
                    yield text[begin:at]
                    begin = at + 1
                continue
            depth += 1 if brace.group() == "{" else -1
            if depth == 0:
                break
            if depth == 1 and not text[at + 1:].lstrip().startswith((";", ",", "=")):
                yield text[begin:at + 1]
                begin = at + 1


def names(text):
    """(name, the type if it is an alias) of each."""
    for declaration in declarations(text):
        declared = declaration.strip()
        if kind := KIND.match(declared):
            yield kind[1], ""
        elif alias := ALIAS.match(declared):
            yield alias[1], re.sub(r"\b(?:c10|at|std)::", "", alias[2]).strip()
        elif not NO_NAME.match(declared):
            head = declared.split("{")[0]
            function, value = FUNCTION.search(head), VALUE.search(head)
            if function and "=" not in head[:function.start()]:
                yield function[1], ""
            elif value:
                yield value[1], ""


def check(root):
    """The list of what is wrong."""
    wrong = []
    for floor in source_tree.floors(root):
        places = defaultdict(dict)
        for path in source_tree.files(root, {".cpp"}, folders=(f"tessera/{floor}",)):
            for name, alias in names(path.read_text()):
                places[name][path.relative_to(root).as_posix()] = alias
        for name, files in sorted(places.items()):
            if len(files) > 1 and (len(set(files.values())) > 1 or "" in files.values()):
                wrong.append(f"{name} stands in {' and in '.join(files)}; accepted: another name in all but one, or one declaration in a header")
    return wrong


if __name__ == "__main__":
    sys.exit(source_tree.report("names", check(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())))
