#!/usr/bin/env python3
"""Runs every test beside processes that never rest, and writes how long each took.

Usage: test_times.py BUILD [--busy 2] [--jobs 2] [--only REGEX] [--table FILE]

Fails if a test fails or takes more than a third of its limit: a limit is there for hangs, not for slow machines. FILE gets the table
in Markdown; with --only, which runs the tests of these names again, the rows of the others stay.
"""

import argparse
import json
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from pathlib import Path


def limits(build):
    """Seconds by the name of the test."""
    listed = json.loads(subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True).stdout)
    return {test["name"]: value["value"] for test in listed["tests"] for value in test["properties"] if value["name"] == "TIMEOUT"}


def run(build, busy, jobs, only):
    """(exit status of ctest, {name: (status, seconds)}, seconds of all)."""
    report = Path(build).resolve() / "test_times.xml"
    restless = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    start = time.monotonic()
    try:
        status = subprocess.run(["ctest", "--test-dir", build, "-j", str(jobs), "-R", only, "--output-on-failure", "--output-junit", report]).returncode
    finally:
        for process in restless:
            process.kill()
    cases = xml.parse(report).getroot().iter("testcase")
    return status, {case.get("name"): (case.get("status"), float(case.get("time"))) for case in cases}, time.monotonic() - start


def read_table(path):
    """{name: seconds} of an earlier one."""
    rows = [line.split("|")[1:3] for line in path.read_text().splitlines()[2:]] if path.exists() else []
    return {name.strip(): float(seconds) for name, seconds in rows}


def table(times, limit):
    rows = ["| test | seconds | of its limit |", "|---|---|---|"]
    for name, seconds in sorted(times.items(), key=lambda row: -row[1]):
        share = f"{seconds / limit[name]:.3f}" if name in limit else "no limit"
        rows.append(f"| {name} | {seconds:.1f} | {share} |")
    return "\n".join(rows) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--busy", type=int, default=2, help="processes that never rest")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    limit = limits(args.build)
    status, times, seconds = run(args.build, args.busy, args.jobs, args.only)
    if args.table:
        earlier = read_table(args.table) if args.only else {}
        known = {name: seconds for name, seconds in earlier.items() if name in limit}
        args.table.write_text(table(known | {name: seconds for name, (_, seconds) in times.items()}, limit))
    slow = [name for name, (_, took) in times.items() if took > limit.get(name, 0) / 3]
    most = max(times, key=lambda name: times[name][1])
    print(f"{len(times)} tests in {seconds:.0f} s beside {args.busy} busy processes; the longest, {most}, took {times[most][1]:.1f} s")
    for name in slow:
        print(f"more than a third of its limit ({limit.get(name, 'none')} s): {name}, {times[name][1]:.1f} s")
    return 1 if status or slow else 0


if __name__ == "__main__":
    sys.exit(main())
