#!/usr/bin/env python3
"""`tessera compare` of programs: the same on two meshes, and of a planted fault the step, operator, element and source line, in Python and in C++.

Usage: compare_test.py C++_PROGRAM [unittest's arguments]      (the program of compare_program.cpp)
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch  # noqa: F401: not tessera, which reads what it is compared for when it is imported, so that each program does that itself
import warm_python

HERE = Path(__file__).resolve().parent
TESSERA = Path(importlib.util.find_spec("tessera").origin).parent / "bin" / "tessera"  # which `python -m tessera` becomes
SCRIPT = str(HERE / "compare_program.py")
MESHES = ("--mesh", "1", "--mesh", "dp=2,tp=2")


def compare(program, *arguments, options=()):
    words = ["compare", program, *MESHES, *(() if "--steps" in options else ("--steps", "3")), *options, "--", *arguments]
    return subprocess.run([TESSERA, *words], capture_output=True, text=True, timeout=300, cwd=HERE, env={**os.environ, "TESSERA_PYTHON": warm_python.executable()})


def compare_all(cases):
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda case: compare(*case[0], options=case[1]), cases))


def line_of(path, word):
    """Where the file says that this fault shows."""
    return next(number for number, line in enumerate(Path(path).read_text().splitlines(), 1) if f"LINE {word}" in line)


class CompareTest(unittest.TestCase):
    maxDiff = None

    def check_finds(self, done, source, fault, numerics):
        """The report, of a fault that was planted at the line with its name."""
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        report = json.loads(done.stdout)
        (side,) = report["meshes"]
        first = side["first"]
        self.assertEqual((report["numerics"], report["same"], side["same"]), (numerics, False, False))
        self.assertEqual(side["first_step"], 2 if fault == "batch" else 1)
        self.assertNotEqual(*side["losses"])
        self.assertGreater(side["gradients"], 0)
        self.assertEqual((first["name"], first["phase"]), ("batch" if fault == "batch" else "from_local", "forward"))
        self.assertEqual(first["line"].rsplit("/", 1)[-1], f"{Path(source).name}:{line_of(source, 'batch' if fault == 'batch' else 'rule')}")
        self.assertEqual(first["sizes"], [8, 3] if fault == "batch" else [8, 3, 32])
        # The rows of the second data rank; all of a rank's part; the first column that another rank has.
        self.assertEqual(first["index"], {"batch": [4, 0], "rule": [0, 0, 0], "plan": [0, 0, 8]}[fault])
        self.assertNotEqual(*first["values"])
        self.assertEqual(first["different"], {"rule": 8 * 3 * 32, "plan": 8 * 3 * 16}.get(fault, first["different"]))
        return first

    def test_a_program_without_a_fault_is_the_same(self):
        exact, fast = compare_all([((SCRIPT, "--numerics", "exact"), ()), ((SCRIPT,), ("--json",))])
        self.assertEqual(exact.returncode, 0, exact.stdout + exact.stderr)
        self.assertEqual(exact.stdout, f"{SCRIPT} on 1: 3 steps, numerics exact, compared by bits; loss, 5 gradients, 5 parameters of each\n"
                         "dp=2,tp=2: the same bits\n")
        self.assertEqual(fast.returncode, 0, fast.stdout + fast.stderr)
        report = json.loads(fast.stdout)
        self.assertEqual((report["same"], report["numerics"], report["steps"], report["meshes"][0]["steps"]), (True, "fast", 3, 3))

    def test_planted_faults_are_found_where_they_are(self):
        faults = [("rule", "exact"), ("plan", "fast"), ("batch", "exact")]
        found = compare_all([((SCRIPT, "--bug", fault, "--numerics", numerics), ("--json",)) for fault, numerics in faults])
        for (fault, numerics), done in zip(faults, found):
            with self.subTest(fault=fault):
                first = self.check_finds(done, SCRIPT, fault, numerics)
        # The element of the last is the program's: its value on the first mesh is what the rows of the step hold there, computed here.
        import compare_program
        ids, _ = compare_program.rows_of(compare_program.Sizes(), 1)
        self.assertEqual(first["values"], [str(ids[4, 0].item()), str(ids[2, 0].item())])

    def test_a_program_in_cpp(self):
        source = HERE / "compare_program.cpp"
        cases = [((PROGRAM, "numerics=exact"), ()), ((PROGRAM,), ())]
        faults = [("rule", "fast"), ("plan", "exact"), ("batch", "exact")]
        cases += [((PROGRAM, fault, *(["numerics=exact"] if numerics == "exact" else [])), ("--json",)) for fault, numerics in faults]
        exact, fast, *found = compare_all(cases)
        self.assertEqual((exact.returncode, fast.returncode), (0, 0), exact.stdout + exact.stderr + fast.stdout + fast.stderr)
        self.assertIn("dp=2,tp=2: the same bits", exact.stdout)
        for (fault, numerics), done in zip(faults, found):
            with self.subTest(fault=fault):
                self.check_finds(done, source, fault, numerics)

    def test_numerics_of_the_run_take_the_place_of_the_programs(self):
        same, found = compare_all([((SCRIPT,), ("--numerics", "exact")), ((SCRIPT, "--bug", "rule", "--numerics", "exact"), ("--numerics", "fast", "--json"))])
        self.assertEqual(same.returncode, 0, same.stdout + same.stderr)
        self.assertIn("numerics exact, compared by bits", same.stdout)
        self.check_finds(found, SCRIPT, "rule", "fast")

    def test_ranks_as_processes(self):
        same, found = compare_all([((SCRIPT, "--numerics", "exact"), ("--processes",)), ((SCRIPT, "--bug", "plan"), ("--processes", "--numerics", "exact", "--json"))])
        self.assertEqual(same.returncode, 0, same.stdout + same.stderr)
        self.check_finds(found, SCRIPT, "plan", "exact")

    def test_what_cannot_be_compared_is_said(self):
        says = {
            "no ranks": r"the program never made ranks: .*; accepted: .*--processes",
            "no mesh": r"the program made ranks and took no mesh",
            "fails": r"dp=2,tp=2: the program failed \(exit code 1\) after 1 recorded steps; its last output:\n(.|\n)*ValueError: the third batch is not there",
            "length": r"dp=2,tp=2: the run took 7 steps, and that on 1 4: a program takes as many on every mesh",
            "unseeded": r"NOT the same before the first step: 5 of 5 parameters\n  1 run twice differs from itself: the program draws numbers without a seed",
        }
        done = compare_all([((SCRIPT, "--bug", bug), ("--steps", "9") if bug == "length" else ()) for bug in says])
        for (bug, text), each in zip(says.items(), done):
            with self.subTest(bug=bug):
                self.assertEqual(each.returncode, 1, each.stdout + each.stderr)
                self.assertTrue(re.search(text, each.stdout), each.stdout + each.stderr)

    def test_refusals(self):
        cases = [((SCRIPT,), ("--seed", "1")), ((SCRIPT,), ("--numerics", "exactly")), (("nothing.py",), ())]
        texts = ["--seed is for a configuration", "--numerics exactly; accepted: exact, fast", "there is no file nothing.py"]
        for text, done in zip(texts, compare_all(cases)):
            self.assertEqual(done.returncode, 1)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    warm_python.begin()
    PROGRAM = sys.argv.pop(1)
    unittest.main()
