#!/usr/bin/env python3
"""`tessera launch` of programs that are not tessera's: one in Python that joins by its environment, with the bits of rank threads, and any other.

Usage: programs_test.py TESSERA     (the program)
"""

import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

import python_program
import tessera
from program import PROGRAM, ProgramTest, environment, processes_with
import warm_python  # beside the tests of Python, where program.py looks too

SCRIPT = Path(__file__).parent / "python_program.py"


class Programs(ProgramTest):
    def launch(self, *words, ranks=2, code=0, options=(), **more):
        return self.run_command(PROGRAM, "launch", "-n", ranks, *options, "--", *words, code=code, **more)

    def python(self, *words, python=None, **more):
        return self.launch(python or warm_python.executable(), SCRIPT, *words, self.folder, **more)

    def check_none_is_left(self):
        self.assertEqual(processes_with(str(self.folder)), [])

    def script(self, text, mode=0o755):
        path = self.folder / "script"
        path.write_text(text)
        path.chmod(mode)
        return path

    def test_python_has_the_bits_of_threads(self):
        plain = [float.fromhex(number) for number in python_program.train()]
        for ranks in (2, 3):
            threads = tessera.run_ranks(python_program.train, ranks)
            for number, want in zip(threads, plain, strict=True):
                self.assertAlmostEqual(float.fromhex(number), want, delta=1e-12)
            for options in ((), ("with-group",)):
                with self.subTest(ranks=ranks, options=options):
                    is_first = ranks == 2 and not options
                    bits, line = self.python(*options, ranks=ranks, python=sys.executable if is_first else None).stdout.splitlines()
                    self.assertEqual(bits.split(), ["[0]", *threads])
                    self.assertEqual(line, f"[0] rank 0 of {ranks} of process 0")

    def test_the_failing_rank_says_why_and_ends_the_others(self):
        done = self.python("raise", ranks=3, code=1)
        self.assertIn("[1] ValueError: on purpose", done.stderr)
        for other in (0, 2):
            self.assertRegex(done.stderr, rf"\[{other}\] .*rank {other} was in .* when rank 1 failed: ValueError: on purpose")

    def test_the_code_is_that_of_the_first(self):
        done = self.python("exit", ranks=3, code=7)
        self.assertRegex(done.stderr, r"\[0\] .*when rank 1 failed: its process \(pid \d+ ")
        self.check_none_is_left()

    def test_control_c_ends_python(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(signal=number):
                words = [PROGRAM, "launch", "-n", "3", "--", sys.executable, SCRIPT, "wait", self.folder]
                running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(LOG_RANK="1"))
                self.addCleanup(running.kill)
                self.assertEqual(running.stdout.readline(), "[1] rank 1 of 3 of process 1\n")  # as soon as it is written
                time.sleep(0.5)
                running.send_signal(number)
                _, errors = running.communicate(timeout=20)
                self.assertEqual(running.returncode, code, errors)
                self.assertNotIn("lost sys.stderr", errors)
                if number == signal.SIGINT:
                    self.assertIn("[1] KeyboardInterrupt\n", errors)
                    for other in (0, 2):  # on a busy machine it may not wait for rank 1 yet
                        self.assertRegex(errors, rf"(?m)^\[{other}\] (.*rank {other} was in .* when rank [012] failed: )?KeyboardInterrupt")
                self.check_none_is_left()

    def test_log_rank_and_log_dir(self):
        done = self.python(options=("--log-dir", "logs"), LOG_RANK="1")
        self.assertEqual(done.stdout, "[1] rank 1 of 2 of process 1\n")
        for rank in (0, 1):
            self.assertTrue((self.folder / f"logs/rank_{rank}.log").read_text().endswith(f"rank {rank} of 2 of process {rank}\n"))

    def test_any_program_gets_its_arguments(self):
        self.script('#!/bin/sh\necho $RANK of $WORLD_SIZE at $MASTER_ADDR: "$@"\nexit $((RANK * 3))\n')
        done = self.launch("./script", "train", "-n", "5", "--", "a b", "--quiet", code=3)
        self.assertEqual(done.stdout, "[0] 0 of 2 at 127.0.0.1: train -n 5 -- a b --quiet\n")
        done = self.launch("script", PATH=f"{self.folder}:/bin:/usr/bin", ranks=1)
        self.assertEqual(done.stdout, "[0] 0 of 1 at 127.0.0.1:\n")

    def test_what_cannot_be_started_is_one_error(self):
        for words, says in ((("no_such_program",), "no_such_program: No such file or directory"), (("./none", "train"), "./none: No such file or directory"),
                            ((self.script("", 0o644),), "script: Permission denied"), ((self.folder,), "Permission denied")):
            done = self.launch(*words, code=2)
            self.assertRegex(done.stderr, r"^tessera: \[launch\] cannot start .*; accepted: a program on PATH, or the path of one\n$")
            self.assertIn(says, done.stderr)
        self.assertIn('did you mean "train"?', self.launch("trian", code=2).stderr)


if __name__ == "__main__":
    warm_python.begin()
    unittest.main(argv=sys.argv[:1])
