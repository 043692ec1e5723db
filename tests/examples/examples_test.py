#!/usr/bin/env python3
"""The one-device example and the one on many ranks: what differs in the text, and that nothing differs in the numbers.

Usage: examples_test.py ONE_DEVICE ONE_DEVICE_ON_ONE_RANK MANY_RANKS   (programs; run in the repository's root)
"""

import difflib
import re
import subprocess
import sys
import unittest
from pathlib import Path

ONE, MANY = (Path("examples") / name for name in ("01_one_device.cpp", "02_many_ranks.cpp"))
PROGRAMS = sys.argv[1:4]


def changes():
    """Pairs of (lines taken out, lines put in), as difflib finds them."""
    old, new = ONE.read_text().splitlines(), MANY.read_text().splitlines()
    blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [(old[a:b], new[c:d]) for tag, a, b, c, d in blocks if tag != "equal"]


def is_the_word_job(before, after):
    """Whether one line became another by writing `job` for `model`."""
    return len(before) == len(after) == 1 and re.sub(r"\bmodel\(", "job(", before[0]) == after[0] != before[0]


def learns(curve):
    """Whether the last five losses are below the first five, on average: every batch is another one."""
    return sum(curve[-5:]) < sum(curve[:5])


def losses(program, *arguments):
    done = subprocess.run([program, *arguments], check=True, capture_output=True, text=True, timeout=120)
    return [float(line.split()[3]) for line in done.stdout.splitlines()]


class Examples(unittest.TestCase):
    def test_five_lines_and_the_word_job(self):
        changed = changes()
        words = [pair for pair in changed if is_the_word_job(*pair)]
        lines = sum(max(len(before), len(after)) for before, after in changed if not is_the_word_job(before, after))
        print(f"\n{lines} lines and the word `job`:")
        for before, after in changed:
            print("\n".join(["- " + line for line in before] + ["+ " + line for line in after]))
        self.assertEqual(len(words), 1)
        self.assertLessEqual(lines, 5)

    def test_the_one_device_program_knows_nothing_of_tessera(self):
        self.assertNotIn("tessera", ONE.read_text())

    def test_the_one_device_program_learns(self):
        curve = losses(PROGRAMS[0])
        self.assertEqual(len(curve), 20)
        self.assertTrue(learns(curve), curve)

    def test_the_curves_agree(self):
        # In float32 each rounds otherwise: ranks_training holds the two against float64.
        for arguments, tolerance in ((["float64"], 1e-12), ([], None)):
            one, many = losses(PROGRAMS[1], *arguments), losses(PROGRAMS[2], *arguments)
            self.assertEqual(len(one), 20)
            self.assertEqual(len(many), 20)
            worst = max(abs(a - b) / abs(a) for a, b in zip(one, many))
            print(f"\nlargest relative difference of 20 losses, {arguments or 'float32'}: {worst:.3g}")
            if tolerance:
                self.assertLessEqual(worst, tolerance)
            self.assertTrue(learns(many), many)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
