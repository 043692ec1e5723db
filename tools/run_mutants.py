#!/usr/bin/env python3
"""Plants the faults of tools/mutants one by one in a copy of the sources, and runs the tests that are to find them.

Usage: run_mutants.py [--only REGEX] [--shard I/N] [--again] [--deadline SECONDS] [--jobs N] [--folder FOLDER]

FOLDER (build/mutants) is the copy, FOLDER/build its build and the results. A fault that was found is not tried again while its file and its
tests' names are the same; so a run may be ended at any time. A test that fails or crashes finds its fault; one that hangs or a fault
that does not compile finds nothing. The exit code is 0 if every fault was found.
"""

import argparse
import collections
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import check_mutants
import source_tree

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = ("found", "lived", "hung", "not compiled", "equivalent")


class Broken(Exception):
    """What no fault is to blame for."""


class Copy:
    """The sources once more, with a build of their own."""

    def __init__(self, folder, jobs):
        self.root, self.build, self.jobs = folder, folder / "build", jobs
        self.update()
        if not (self.build / "build.ninja").exists():
            self.call("cmake", "--preset", "release", "-DTESSERA_WERROR=OFF", f"-DTESSERA_PYTHON={sys.executable}", cwd=self.root)
        listed = self.call("ctest", "--test-dir", str(self.build), "--show-only=json-v1")
        self.tests = dict(map(self.whole, json.loads(listed)["tests"]))

    def update(self):
        """Files that are as they were keep their times, so that what was built of them stays."""
        wanted = {path.relative_to(ROOT): path for path in source_tree.files(ROOT)}
        self.root.mkdir(parents=True, exist_ok=True)
        for path in source_tree.files(self.root):
            if path.relative_to(self.root) not in wanted:
                path.unlink()
        for name, path in wanted.items():
            to, content = self.root / name, path.read_bytes()
            if not to.exists() or to.read_bytes() != content:
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(content)
                to.chmod(path.stat().st_mode)

    def call(self, *command, cwd=None):
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
        if done.returncode:
            raise Broken(f"{' '.join(command)}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        return done.stdout

    def whole(self, test):
        """(name, test): of one of the parts of a long test the test itself."""
        is_part = any(item.startswith("GTEST_") for item in self.property(test, "ENVIRONMENT", []))
        test["properties"] = [each for each in test.get("properties", []) if not (is_part and each["name"] == "ENVIRONMENT")]
        return (test["name"].rpartition("_")[0] if is_part else test["name"]), test

    def property(self, test, name, default):
        return next((each["value"] for each in test.get("properties", []) if each["name"] == name), default)

    def command_of(self, name):
        """ctest does not say that of a program which is not built yet."""
        if name not in self.tests:
            raise Broken(f"ctest knows no test {name}")
        program = self.property(self.tests[name], "LABELS", [f"test_{name}"])[0]
        return self.tests[name].get("command", [str(self.build / "bin" / program)])

    def targets_of(self, name):
        """What must be built for a test: its own program, or what a script of Python runs."""
        programs = [Path(word).name for word in self.command_of(name) if Path(word).parent == self.build / "bin"]
        targets = [{"tessera": "tessera_program"}.get(program, program) for program in programs]
        environment = self.property(self.tests[name], "ENVIRONMENT", [])
        return targets + (["tessera_python"] if any("build/python" in item for item in environment) else [])

    def make(self, tests):
        self.call("cmake", "--build", str(self.build), "-j", str(self.jobs), "--target",
                  *sorted({target for test in tests for target in self.targets_of(test)}))

    def run(self, name, cases, deadline):
        """`passed`, `failed`, `skipped` or `hung`."""
        test, command = self.tests[name], self.command_of(name)
        is_google = Path(command[0]).parent == self.build / "bin"
        words = [f"--gtest_filter={cases}"] if is_google and cases and not cases.startswith("-") else cases.split()
        environment = {**os.environ, "TESSERA_CELLS": "all", **dict(item.split("=", 1) for item in self.property(test, "ENVIRONMENT", []))}
        process = subprocess.Popen([*command, *words], env=environment, start_new_session=True, text=True, errors="replace",
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   cwd=self.property(test, "WORKING_DIRECTORY", str(self.build)))
        try:
            output, _ = process.communicate(timeout=deadline)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "hung"
        if re.search(r"Running 0 tests|^Ran 0 tests", output, re.MULTILINE):
            raise Broken(f"{name} has no test {cases}")
        if str(process.returncode) == str(self.property(test, "SKIP_RETURN_CODE", "")):
            return "skipped"
        return "failed" if process.returncode else "passed"


class Results:
    """One JSON object a line; the last of a key counts."""

    def __init__(self, path):
        self.path, self.all = path, {}
        for line in path.read_text().splitlines() if path.exists() else []:
            record = json.loads(line)
            self.all[record["key"]] = record

    def add(self, record):
        self.all[record["key"]] = record
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def key_of(fault):
    planted = fault.planted((ROOT / fault.file).read_text())
    return hashlib.sha256(json.dumps([fault.file, planted, fault.found_by]).encode()).hexdigest()[:16]


def verify_sound(copy, faults, deadline):
    """Without a fault every test passes; otherwise failing says nothing."""
    copy.make({test for fault in faults for test, _ in fault.found_by})
    for test, cases in sorted({pair for fault in faults for pair in fault.found_by}):
        outcome = copy.run(test, cases, deadline)
        if outcome != "passed":
            raise Broken(f"{test} {cases}: {outcome} without any fault")


def try_fault(copy, fault, deadline):
    """(verdict, by which test)."""
    path = copy.root / fault.file
    whole = path.read_text()
    path.write_text(fault.planted(whole))
    try:
        hung = False
        for test, cases in fault.found_by:
            try:
                copy.make([test])
            except Broken:
                return "not compiled", ""
            outcome = copy.run(test, cases, deadline)
            if outcome == "failed":
                return "found", f"{test} {cases}".strip()
            hung |= outcome == "hung"
        return ("hung" if hung else "lived"), ""
    finally:
        path.write_text(whole)


def run_all(copy, faults, results, deadline):
    for number, fault in enumerate(faults, 1):
        begin = time.monotonic()
        verdict, by = try_fault(copy, fault, deadline)
        seconds = round(time.monotonic() - begin, 1)
        results.add({"key": key_of(fault), "fault": str(fault), "verdict": verdict, "by": by, "seconds": seconds})
        print(f"[{number}/{len(faults)}] {verdict:<12} {fault} ({by + ', ' if by else ''}{seconds} s)", flush=True)


def report(faults, results):
    """Counts by floor; the exit code."""
    verdicts = {id(fault): "equivalent" if fault.equivalent else results.all.get(key_of(fault), {}).get("verdict", "not tried") for fault in faults}
    print(f"\n| floor | {' | '.join(COLUMNS)} |\n|---|{'---|' * len(COLUMNS)}")
    for floor in [*dict.fromkeys(fault.floor for fault in faults), "all"]:
        counts = collections.Counter(verdicts[id(fault)] for fault in faults if floor in (fault.floor, "all"))
        print(f"| {floor} | {' | '.join(str(counts[column]) for column in COLUMNS)} |")
    failed = [fault for fault in faults if verdicts[id(fault)] not in ("found", "equivalent")]
    for fault in failed:
        print(f"{verdicts[id(fault)]}: {fault}")
    return 1 if failed else 0


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression: faults whose file or title has it")
    parser.add_argument("--shard", default="1/1", help="the I-th of N parts, in a folder of its own")
    parser.add_argument("--again", action="store_true", help="those that were found too")
    parser.add_argument("--deadline", type=float, default=120, help="seconds that a test may take")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mutants")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    index, parts = map(int, arguments.shard.split("/"))
    folder = arguments.folder if parts == 1 else arguments.folder.with_name(f"{arguments.folder.name}-{index}-of-{parts}")
    if problems := check_mutants.check(ROOT):
        return source_tree.report("mutants", problems)
    by_test = sorted(check_mutants.read_all(ROOT), key=lambda fault: (fault.found_by, fault.file))  # neighbours share what is linked
    chosen = [fault for fault in by_test if re.search(arguments.only, str(fault))][index - 1::parts]
    results = Results(folder.resolve() / "build" / "results.jsonl")
    is_found = lambda fault: results.all.get(key_of(fault), {}).get("verdict") == "found" and not arguments.again
    faults = [fault for fault in chosen if fault.found_by and not is_found(fault)]
    print(f"{len(chosen)} faults, {len(faults)} to try", flush=True)
    try:
        if faults:
            copy = Copy(folder.resolve(), arguments.jobs)
            verify_sound(copy, faults, arguments.deadline)
            run_all(copy, faults, results, arguments.deadline)
    except Broken as problem:
        print(problem, file=sys.stderr)
        return 1
    order = check_mutants.read_all(ROOT)
    return report([fault for fault in order if any(str(fault) == str(each) for each in chosen)], results)


if __name__ == "__main__":
    sys.exit(main())
