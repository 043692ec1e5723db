#!/usr/bin/env python3
"""Sizes of files and functions: above the first limit it asks why, above the second it fails.

Usage: check_sizes.py [ROOT]
"""

import ast
import re
import sys
from pathlib import Path

import source_tree

LIMITS = {"header": (250, 400), "source": (500, 800), "test": (500, 1000), "function": (60, 100)}

# Comments, literals and preprocessor lines: what may hold braces that are not structure.
NOISE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\''
    r"|^[ \t]*#(?:\\\n|[^\n])*", re.DOTALL | re.MULTILINE)
SCOPE = re.compile(r"\s*(?:template\s*<[^{}]*?>\s*)*(?:namespace|class|struct|union|enum|extern)\b")


def kind_of(path, root):
    if path.relative_to(root).parts[0] == "tests":
        return "test"
    return "header" if path.suffix == ".h" else "source"


def without_noise(text):
    """The same lines, with blanks in place of comments, literals and preprocessor lines."""
    return NOISE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def cpp_functions(text):
    """(name, first line, last line) of every function body that is in a namespace or a class."""
    text = without_noise(text)
    found, open_braces, start = [], [], 0  # of each open brace: None, "value", or (head, where) of a function
    for at, char in ((m.start(), m.group()) for m in re.finditer(r"[{};]", text)):
        head = text[start:at]
        outside = all(brace is None for brace in open_braces)
        if char == "{" and re.match(r"[\w>]", text[at - 1]):
            open_braces.append("value")  # a_{a}: still in the head of what surrounds it
            continue
        if char == "{":
            is_function = outside and "(" in head and not SCOPE.match(head)
            open_braces.append((head, at - len(head.lstrip())) if is_function else None if outside else "value")
        elif char == "}" and open_braces:
            brace = open_braces.pop()
            if brace == "value" and all(b is None for b in open_braces):
                continue
            if isinstance(brace, tuple):
                name = re.search(r"([\w:~]*)\s*\(", brace[0]).group(1)
                found.append((name, text.count("\n", 0, brace[1]) + 1, text.count("\n", 0, at) + 1))
        start = at + 1
    return found


def py_functions(text):
    """(name, first line, last line) of every function."""
    return [(node.name, node.lineno, node.end_lineno) for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def check(root):
    """(what is too long, what somebody asks about)."""
    wrong, ask = [], []

    def measure(kind, name, size):
        why, limit = LIMITS[kind]
        if size > why:
            (wrong if size > limit else ask).append(f"{name}: a {kind} of {size} lines (limits {why}, {limit})")

    for path in source_tree.files(root, {".h", ".cpp", ".cu", ".py"}):
        name, text = str(path.relative_to(root)), path.read_text()
        measure(kind_of(path, root), name, text.count("\n"))
        for function, first, last in py_functions(text) if path.suffix == ".py" else cpp_functions(text):
            measure("function", f"{name}:{first} {function}", last - first + 1)
    return wrong, ask


if __name__ == "__main__":
    sys.exit(source_tree.report("sizes", *check(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())))
