#!/usr/bin/env python3
"""The examples on one device, on many ranks and on stages: what differs in the text, and that nothing differs in the numbers.

Usage: examples_test.py ONE_DEVICE ONE_DEVICE_ON_ONE_RANK MANY_RANKS PIPELINE   (programs; run in the repository's root)
"""

import difflib
import re
import subprocess
import sys
import unittest
from pathlib import Path

ONE, MANY, PIPELINE = (Path("examples") / name for name in ("01_one_device.cpp", "02_many_ranks.cpp", "03_pipeline.cpp"))
PROGRAMS = sys.argv[1:5]


def changes(before=ONE, after=MANY):
    """Pairs of (lines taken out, lines put in), as difflib finds them."""
    old, new = before.read_text().splitlines(), after.read_text().splitlines()
    blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [(old[a:b], new[c:d]) for tag, a, b, c, d in blocks if tag != "equal"]


def is_the_word_job(before, after):
    """Whether one line became another by writing `job` for `model`."""
    return len(before) == len(after) == 1 and re.sub(r"\bmodel\(", "job(", before[0]) == after[0] != before[0]


def learns(curve):
    """Whether the last five losses are below the first five, on average: every batch is another one."""
    return sum(curve[-5:]) < sum(curve[:5])


def part_of(text, first, last):
    """The lines from one that begins so to the next that is `last`."""
    lines = text.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(first))
    return lines[begin : lines.index(last, begin) + 1]


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

    def test_a_pipeline_changes_no_line_of_model_and_loop(self):
        of_many, of_pipeline = MANY.read_text(), PIPELINE.read_text()
        for first, last in (("struct ClassifierImpl", "TORCH_MODULE(Classifier);"), ("  std::vector<double> losses;", "}")):
            self.assertEqual(part_of(of_many, first, last), part_of(of_pipeline, first, last))
        print("\nfrom ranks to stages:")
        for before, after in changes(MANY, PIPELINE):
            print("\n".join(["- " + line for line in before] + ["+ " + line for line in after]))

    def test_one_program_has_one_curve_on_one_stage_and_on_four(self):
        one = losses(PROGRAMS[3], "1", "1f1b")
        self.assertEqual(len(one), 20)
        self.assertTrue(learns(one), one)
        for arguments in (["pp=4"], ["pp=4", "gpipe"], ["pp=4", "1f1b"], ["pp=2", "interleaved"], ["pp=2,dp=2", "1f1b"]):
            self.assertEqual(losses(PROGRAMS[3], *arguments), one, arguments)

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
