#!/usr/bin/env python3
"""Ctrl-C ends ranks that are threads: in Python, in operators, in a collective; and a process can run ranks again afterwards. Where a
foreign call does not return, the third one ends the process.

Usage: interrupt_test.py [unittest's arguments]
"""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from pathlib import Path

import tessera
import torch
import warm_python

# How long ranks, none of which ends by itself, may take to end, and a program to come to its loop, in seconds.
SOON = 20.0
STARTED = 120.0

PROGRAM = """
import ctypes, time, signal, sys
import tessera, torch

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored

def begun():
    if tessera.rank() == 1:
        print("begun", flush=True)

def x():
    return tessera.distribute_tensor(torch.ones(64, 64), tessera.Mesh("tp=2"), tessera.Shard(0))

def loop():
    while True:
        time.sleep(0.01)

def sleeps():
    begun()
    loop()

def multiplies():
    y = x()
    begun()
    while True:
        y = (y @ y.T) / 64

def waits():
    begun()
    if tessera.rank() == 1:
        loop()
    x().full_tensor()

def imports():
    begun()
    import slowly

def goes_on_once():
    begun()
    try:
        loop()
    except KeyboardInterrupt:
        sleeps()

def is_deaf():
    begun()
    if tessera.rank() == 1:
        time.sleep(1e6)
    loop()

def keeps_the_lock():
    begun()
    loop() if tessera.rank() == 0 else ctypes.PyDLL(None).sleep(1000000)

"""


def next_line(child):
    """The next line of its output; what comes after it stays for `communicate`, which does not see what a text stream has read ahead."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(child.stdout.fileno(), 1)):
        line += byte
    return line.decode()


def start(lines):
    """A process that runs the lines, once a rank of it has begun."""
    child = subprocess.Popen([warm_python.executable(), "-c", PROGRAM + textwrap.dedent(lines)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watch = threading.Timer(STARTED, child.kill)
    watch.start()
    begun = next_line(child)
    watch.cancel()
    assert begun == "begun\n", begun + child.communicate()[1]
    time.sleep(0.3)  # into its loop
    return child


def last_line(error):
    """Of what Python says of a process that ends; libraries may report behind it what they did not free."""
    return error.partition("nanobind: leaked")[0].splitlines()[-1]


class InterruptTest(unittest.TestCase):
    def interrupt(self, child):
        """What it prints when it gets a Ctrl-C, and how it ends."""
        child.send_signal(signal.SIGINT)
        try:
            return (*child.communicate(timeout=SOON), child.returncode)
        except subprocess.TimeoutExpired:
            child.kill()
            self.fail(f"it ran for {SOON} s after Ctrl-C" + "".join(child.communicate()))

    def test_it_ends_with_a_keyboard_interrupt(self):
        for body in ("sleeps", "multiplies", "waits"):
            with self.subTest(body=body):
                _, error, status = self.interrupt(start(f"tessera.run_ranks({body}, 2)"))
                self.assertEqual(last_line(error), "KeyboardInterrupt")
                self.assertEqual(status, -signal.SIGINT)

    def test_a_later_run_begins_afresh(self):
        for body in ("sleeps", "multiplies", "waits"):
            with self.subTest(body=body):
                child = start(f"""
                    try:
                        tessera.run_ranks({body}, 2)
                    except KeyboardInterrupt:
                        print(tessera.run_ranks(lambda: x().sum().item(), 2))
                """)
                output, error, status = self.interrupt(child)
                self.assertEqual((output, status), ("4096.0\n", 0), error)

    def test_ranks_that_wait_for_an_import(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "slowly.py").write_text("import time\nfor _ in range(100): time.sleep(0.01)\n")
            _, error, status = self.interrupt(start(f"sys.path.insert(0, {folder!r}); tessera.run_ranks(imports, 4)"))
            self.assertEqual((last_line(error), status), ("KeyboardInterrupt", -signal.SIGINT))

    def test_a_second_one_reaches_a_rank_that_went_on(self):
        child = start("tessera.run_ranks(goes_on_once, 2)")
        child.send_signal(signal.SIGINT)
        self.assertEqual(next_line(child), "begun\n")
        time.sleep(0.3)
        self.assertIsNone(child.poll())
        self.assertEqual(self.interrupt(child)[2], -signal.SIGINT)

    def test_the_third_one_kills_where_a_call_does_not_return(self):
        for body, line in (("is_deaf", r"tessera: Ctrl-C has not ended rank 1 \(<string>:\d+, in is_deaf\); one more kills the process\n"),
                           ("keeps_the_lock", r"tessera: Ctrl-C has ended no rank: a call of one holds Python's lock; one more kills the process\n")):
            with self.subTest(body=body):
                child = start(f"tessera.run_ranks({body}, 2)")
                time.sleep(1.5)  # until the lock must be kept
                child.send_signal(signal.SIGINT)
                time.sleep(0.5)
                self.assertIsNone(child.poll())
                child.send_signal(signal.SIGINT)
                self.assertRegex(child.stderr.readline(), line)
                time.sleep(0.3)
                self.assertIsNone(child.poll())
                self.assertEqual(self.interrupt(child), ("", "", -signal.SIGINT))

    def test_a_rank_that_does_not_come_back_ends_the_process(self):
        """After the grace, once another has failed or a signal came."""
        for lines, status, reason in (("""
            def body():
                if tessera.rank() == 0:
                    time.sleep(1e6)
                begun()
                print("buffered")
                raise ValueError("the disk is full")
            tessera.run_ranks(body, 2, grace=1.0)
        """, 1, r"rank 1 failed: ValueError: the disk is full.*"), ("""
            def handler(number, frame):
                raise SystemExit(3)
            signal.signal(signal.SIGTERM, handler)
            tessera.run_ranks(is_deaf, 2, grace=1.0)
        """, 130, "stopped by a signal")):
            with self.subTest(status=status):
                child = start(lines)
                child.send_signal(signal.SIGTERM if status == 130 else 0)
                output, error = child.communicate(timeout=SOON)
                self.assertEqual(child.returncode, status, error)
                self.assertRegex(error, rf"tessera: {reason}\ntessera: 1 s later rank [01] \(<string>:\d+, in (body|is_deaf)\) has not come back; a thread cannot be "
                                        r"ended alone: this ends the process\n$")
                self.assertEqual(output, "buffered\n" if status == 1 else "")

    def test_a_third_one_after_the_ranks_have_ended_kills_nothing(self):
        child = start("""
            try:
                tessera.run_ranks(goes_on_once, 2)
            except KeyboardInterrupt:
                pass
            try:
                print("begun", flush=True)
                loop()
            except KeyboardInterrupt:
                print(tessera.run_ranks(lambda: x().sum().item(), 2))
        """)
        for _ in range(2):
            child.send_signal(signal.SIGINT)
            self.assertEqual(next_line(child), "begun\n")
            time.sleep(0.3)
        output, error, status = self.interrupt(child)
        self.assertEqual((output, status), ("4096.0\n", 0), error)

    def test_what_another_handler_raises_is_raised(self):
        child = start("""
            def handler(number, frame):
                raise TimeoutError("enough")
            signal.signal(signal.SIGINT, handler)
            tessera.run_ranks(sleeps, 2)
        """)
        _, error, status = self.interrupt(child)
        self.assertEqual((last_line(error), status), ("TimeoutError: enough", 1))

    def test_a_handler_that_returns_ends_nothing(self):
        child = start("""
            seen = []
            signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
            def until_seen():
                begun()
                while not seen:
                    time.sleep(0.01)
                return x().sum().item()
            print(tessera.run_ranks(until_seen, 2))
        """)
        output, error, status = self.interrupt(child)
        self.assertEqual((output, status), ("4096.0\n", 0), error)

    def test_callers_without_signals(self):
        """Another thread, whose modes the ranks get as those of the main thread; and a rank, which may not start ranks."""
        def modes():
            with torch.no_grad():
                seen.append(tessera.run_ranks(torch.is_grad_enabled, 2))

        seen = []
        modes()
        other = threading.Thread(target=modes)
        other.start()
        other.join()
        self.assertEqual(seen, [False, False])
        self.assertTrue(tessera.run_ranks(torch.is_grad_enabled, 2))
        with self.assertRaisesRegex(RuntimeError, "a rank cannot start ranks"):
            tessera.run_fake(lambda: tessera.run_ranks(tessera.rank, 2), 2)


if __name__ == "__main__":
    warm_python.begin()
    unittest.main()
