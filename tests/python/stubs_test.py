#!/usr/bin/env python3
"""The stubs name what the modules have, with the same parameters.

Usage: stubs_test.py [unittest's arguments]
"""

import ast
import importlib
import inspect
import re
import unittest
from pathlib import Path

import tessera

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "tessera"


def members(body):
    """{name: its node} of a stub's module or class, without names that begin with an underscore."""
    named = {}
    for node in body:
        name = (node.targets[0].id if isinstance(node, ast.Assign) else node.target.id if isinstance(node, ast.AnnAssign)
                else getattr(node, "name", "_"))
        if not name.startswith("_"):
            named[name] = node
    return named


def stubbed(function):
    """The parameters that a stub gives; those without a usable name as argN, as pybind11 calls them."""
    positional = [a.arg for a in function.args.posonlyargs if a.arg != "self"]
    rest = [a.arg for a in function.args.args + function.args.kwonlyargs if a.arg != "self"]
    return [f"arg{i}" for i in range(len(positional))] + rest


def bound(function):
    """The parameters that a function has, by its signature or, from pybind11, by the first line of its documentation."""
    if inspect.isfunction(function):
        return list(inspect.signature(function).parameters)
    return [name for name in re.findall(r"[(,] ?(\w+): ", function.__doc__.split("\n")[0]) if name != "self"]


class StubsTest(unittest.TestCase):
    def check(self, named, owner, has):
        self.assertEqual(set(named), has)
        for name, node in named.items():
            with self.subTest(owner=owner.__name__, name=name):
                value = getattr(owner, name)
                if isinstance(node, ast.ClassDef):
                    self.assertIsInstance(value, type)
                elif isinstance(node, ast.FunctionDef) and not isinstance(value, property):
                    self.assertEqual(stubbed(node), bound(value))

    def test_the_extension(self):
        named = members(ast.parse((PACKAGE / "_C.pyi").read_text()).body)
        self.check(named, tessera._C, {name for name in dir(tessera._C) if not name.startswith("_")})
        for node in named.values():
            value = getattr(tessera._C, getattr(node, "name", ""), None)
            if isinstance(node, ast.ClassDef) and not issubclass(value, BaseException):
                self.check(members(node.body), value, {name for name in vars(value) if not name.startswith("_")})

    def test_the_modules(self):
        for name in ("_layout", "_tensor"):
            module = importlib.import_module(f"tessera.{name}")
            public = {key for key in vars(module) if key in tessera.__all__}
            named = members(ast.parse((PACKAGE / f"{name}.pyi").read_text()).body)
            self.check(named, module, public)

    def test_what_users_see_of_classes_is_documented(self):
        for owner in (tessera.Mesh, tessera.Placement, tessera.Plan):
            for name in (name for name in vars(owner) if not name.startswith("_")):
                with self.subTest(owner=owner.__name__, name=name):
                    text = getattr(owner, name).__doc__ or ""
                    self.assertTrue(text if isinstance(getattr(owner, name), property) else "\n" in text.strip())

    def test_every_public_name_is_documented_and_typed(self):
        for name in tessera.__all__:
            value = getattr(tessera, name)
            with self.subTest(name=name):
                self.assertRegex(value.__doc__, r"[a-z]{2}.*\.")
                if inspect.isfunction(value) and not (PACKAGE / f"{value.__module__.split('.')[1]}.pyi").exists():
                    parameters = inspect.signature(value).parameters
                    self.assertEqual(set(parameters) - set(value.__annotations__), set())
                    self.assertIn("return", value.__annotations__)


if __name__ == "__main__":
    unittest.main()
