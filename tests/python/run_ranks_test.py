#!/usr/bin/env python3
"""What rank threads are given, and what of them comes back.

Usage: run_ranks_test.py [unittest's arguments]
"""

import gc
import unittest

import tessera


class RunRanksTest(unittest.TestCase):
    def test_garbage_is_not_collected_meanwhile(self):
        """By itself, where several threads are ranks; afterwards as before, whatever became of the job."""
        self.assertTrue(gc.isenabled())
        self.assertEqual(tessera.run_ranks(gc.isenabled, 2, results="all"), [False, False])
        self.assertTrue(gc.isenabled())
        self.assertTrue(tessera.run_ranks(gc.isenabled, 1))
        with self.assertRaises(ZeroDivisionError):
            tessera.run_ranks(lambda: 1 / 0, 2)
        self.assertTrue(gc.isenabled())

    def test_arguments_and_results(self):
        def body(*texts):
            return texts, tessera.rank()

        self.assertEqual(tessera.run_ranks(body, 3), ((), 0))
        self.assertEqual(tessera.run_ranks(body, 3, args=("a", "b")), (("a", "b"), 0))
        self.assertEqual(tessera.run_ranks(body, 3, args=["a"], results="all"), [(("a",), rank) for rank in range(3)])
        self.assertEqual(tessera.run_ranks(body, 3, results="first"), ((), 0))

    def test_another_word_is_refused(self):
        with self.assertRaisesRegex(ValueError, "results='last'; accepted: \"first\""):
            tessera.run_ranks(tessera.rank, 2, results="last")

    def test_what_is_no_function_or_number_is_refused(self):
        for run in (tessera.run_ranks, tessera.run_fake):
            for body, ranks in ((2, tessera.rank), (tessera.rank, "2"), (tessera.rank, 2.5), (None, 2)):
                with self.assertRaisesRegex(TypeError, rf"\[{run.__name__}\] body=.*, ranks=.*; accepted: a function and how many ranks"):
                    run(body, ranks)

    def test_one_that_fails(self):
        def body(failing):
            if tessera.rank() == failing:
                raise KeyError("here")
            return tessera.rank()

        with self.assertRaisesRegex(KeyError, "here"):
            tessera.run_ranks(body, 2, args=[1], results="all")


if __name__ == "__main__":
    unittest.main()
