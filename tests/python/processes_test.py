#!/usr/bin/env python3
"""Ranks that are processes, started by torchrun: models of transformers with the loss and every gradient of one device, and
derivatives in forward mode, which rank threads refuse.

Usage: processes_test.py [unittest's arguments]
"""

import tempfile
import unittest
import forward_mode
import processes_program
import warm_python


def torchrun(*options):
    with tempfile.TemporaryDirectory() as folder:
        return warm_python.torchrun(2, [processes_program.__file__, folder, *options], timeout=200)


class ProcessesTest(unittest.TestCase):
    def check(self, *options):
        done = torchrun(*options)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.split(), ["llama", "gpt2", "mixtral", "saved"], done.stdout + done.stderr)

    def test_the_launchers_ranks_are_joined(self):
        self.check()

    def test_a_process_group_of_the_program_is_taken(self):
        self.check("with-group")

    def test_forward_mode(self):
        done = torchrun("forward-mode")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.split(), [*forward_mode.FUNCTIONS, "layouts", *forward_mode.TRANSFORMS, "moves", "moved", "refusals", "exact"], done.stdout + done.stderr)

    def test_a_tensor_that_is_at_one_owner(self):
        done = torchrun("homes")
        self.assertEqual((done.returncode, done.stdout.split()), (0, ["homes"]), done.stdout + done.stderr)

    def test_a_seed_from_before_is_the_ranks(self):
        done = torchrun("seed")
        self.assertEqual((done.returncode, done.stdout.split()), (0, ["seed"]), done.stdout + done.stderr)

    def test_an_exception_reaches_the_other_ranks(self):
        done = torchrun("fail")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("rank 0 was", done.stderr)
        self.assertIn("when rank 1 failed: ValueError: on purpose", done.stderr)

    def test_sys_exit_of_one_rank(self):
        done = torchrun("exit")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"(?m)^tessera: \[comm\] rank 1 was at its end when rank 0 failed: .*rank 1 has finished")
        self.assertRegex(done.stderr, r"rank +: 1 .*\n +exitcode +: 3 ")
        self.assertNotIn("Exception ignored", done.stderr)


if __name__ == "__main__":
    warm_python.begin()
    unittest.main()
