#!/usr/bin/env python3
"""What a rank gets that waits for others, wherever it waits: tessera.CommError and its kinds, on rank threads and in processes.

Usage: errors_test.py [unittest's arguments]
"""

import copy
import pickle
import sys
import tempfile
import threading
import unittest
import warnings

import tessera
import torch
import warm_python
from waits import WAYS, outcome

KINDS = (tessera.CommTimeout, tessera.DivergenceError, tessera.RankFailed, tessera.Stopped)


def fails(wait, left):
    raise ValueError("the reader found 3 columns")


def is_late(wait, left):
    left.wait(60)


def runs_more(wait, left):
    torch.ops.aten.exp(tessera.distribute_tensor(torch.ones(2), tessera.Mesh("tp=2")))
    wait()


class ErrorsTest(unittest.TestCase):
    def outcome_of(self, name, other, deadline=30.0):
        """What rank 0 gets in its wait, and how the job ends, where rank 1, once rank 0 is there, does something else."""
        seen, waits, left = [], threading.Event(), threading.Event()

        def body():
            wait = WAYS[name]()
            if tessera.rank() == 1:
                waits.wait(60)
                return other(wait, left)
            waits.set()
            seen.append(outcome(wait))
            left.set()

        try:
            tessera.run_ranks(body, 2, deadline=deadline)
        except Exception as error:
            return seen[0], error
        return seen[0], None

    def test_the_failure_of_another(self):
        for name in WAYS:
            with self.subTest(wait=name):
                (kind, rank, message), ended = self.outcome_of(name, fails)
                self.assertEqual((kind, rank), (tessera.RankFailed, 1), message)
                self.assertRegex(message, r"^\[comm\] rank 0 was in .* when rank 1 failed: ValueError: the reader found 3 columns")
                self.assertIsInstance(ended, ValueError)

    def test_one_that_does_not_come(self):
        for name in WAYS:
            with self.subTest(wait=name):
                (kind, _, message), _ = self.outcome_of(name, is_late, deadline=0.3)
                self.assertEqual(kind, tessera.CommTimeout, message)
                self.assertRegex(message, r"rank 0 waited 300 ms in .* for rank 1 \(in no collective\)")

    def test_one_that_has_ended(self):
        for name in WAYS:
            with self.subTest(wait=name):
                (kind, _, message), _ = self.outcome_of(name, lambda wait, left: None)
                self.assertEqual(kind, tessera.DivergenceError, message)
                self.assertIn("rank 1 has finished; rank 0 waits in ", message)

    def test_other_programs(self):
        for name in WAYS:
            with self.subTest(wait=name):
                (kind, _, message), ended = self.outcome_of(name, runs_more)
                self.assertEqual((kind, type(ended)), (tessera.DivergenceError,) * 2, message)
                self.assertRegex(message, r"rank 1 ran aten::exp|ran aten::exp")

    def test_processes(self):
        for other, kind in (("fails", "RankFailed 1"), ("is_late", "CommTimeout None"), ("has_ended", "DivergenceError None")):
            with self.subTest(other=other), tempfile.TemporaryDirectory() as folder:
                done = warm_python.torchrun(2, ["errors_program.py", other, folder], cwd=sys.path[0], timeout=100)
                self.assertIn(f"rank 0: {kind}: ", done.stdout, done.stderr)

    def test_the_kinds_are_those_of_torch(self):
        self.assertTrue(issubclass(tessera.CommError, torch.distributed.DistBackendError))
        self.assertTrue(issubclass(tessera.CommError, RuntimeError))
        for kind in KINDS:
            self.assertTrue(issubclass(kind, tessera.CommError))
            self.assertEqual([other for other in KINDS if issubclass(kind, other)], [kind])

    def test_they_can_be_copied_and_pickled(self):
        error = tessera.RankFailed("gone")
        error.rank = 3
        for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
            self.assertEqual((type(other), str(other), other.rank), (tessera.RankFailed, "gone", 3))


if __name__ == "__main__":
    warm_python.begin()
    warnings.simplefilter("ignore")
    unittest.main()
