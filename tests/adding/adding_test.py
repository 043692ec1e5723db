#!/usr/bin/env python3
"""A collective, a rule, a command and a schedule are added in as few files as docs/adding.md promises.

Each patch of this folder still applies to the sources, and touches no more files than its row of the page says. `make adding` builds
them and runs the tests that they add.
"""

import re
import shutil
import tempfile
import unittest
from pathlib import Path

from patches import ROOT, patches

ROWS = {"collective": "a collective", "command": "a command", "rule": "a sharding rule", "schedule": "a pipeline schedule"}


def promised(what):
    """The number of files in the page's row for `what`."""
    for line in (ROOT / "docs" / "adding.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 4 and what in cells[1].split(", "):
            return int(re.match(r"\d+", cells[2]).group())
    raise AssertionError(f"docs/adding.md has no row for {what}")


class Adding(unittest.TestCase):
    def test_every_row_has_its_patch(self):
        self.assertEqual({patch.name for patch in patches()}, set(ROWS))

    def test_patches_touch_no_more_files_than_promised(self):
        for patch in patches():
            with self.subTest(patch=patch.name):
                self.assertTrue(patch.runs, "no line `run: TEST CASES`")
                self.assertLessEqual(len(patch.files), promised(ROWS[patch.name]), patch.files)
                self.assertTrue(any(file.startswith("tests/") for file in patch.files), "it adds no test")

    def test_patches_apply(self):
        for patch in patches():
            with self.subTest(patch=patch.name), tempfile.TemporaryDirectory() as holder:
                root = Path(holder)
                for file in patch.files:
                    (root / file).parent.mkdir(parents=True, exist_ok=True)
                    if file not in patch.new:
                        shutil.copy(ROOT / file, root / file)
                self.assertEqual(patch.apply(root), "")
                for file in patch.files:
                    self.assertNotEqual((root / file).read_text(), (ROOT / file).read_text() if file not in patch.new else "")

    def test_what_does_not_apply_is_found(self):
        with tempfile.TemporaryDirectory() as holder:
            root = Path(holder)
            patch = next(each for each in patches() if each.name == "command")
            for file in set(patch.files) - set(patch.new):
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_text("other lines\n")
            self.assertIn("does not apply", patch.apply(root))


if __name__ == "__main__":
    unittest.main()
