#!/usr/bin/env python3
"""`tessera train` as processes: the numbers of rank threads, files of rank 0 alone, and an end together.

Usage: train_test.py TESSERA     (the program)
"""

import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest
from pathlib import Path

from program import PROGRAM, ProgramTest, environment, processes_with, sampled

TORCHRUN = Path(sys.executable).parent / "torchrun"


class Train(ProgramTest):
    train = "steps = 4"

    def steps(self, name):
        """Every number of every step but times and memory."""
        records = [json.loads(line) for line in (self.folder / name).read_text().splitlines()]
        return [[record[key] for key in ("step", "loss", "grad_norm", "tokens")] for record in records]

    def sent(self, name):
        """What every rank sent; which collectives were composed is the backend's affair."""
        ledger = json.loads((self.folder / name).read_text())
        for rank in ledger["ranks"]:
            rank.pop("composed", None)
        return ledger

    def start(self, *command):
        """A long training in the background, once its ranks have made a step."""
        metrics = self.folder / "running.jsonl"
        metrics.unlink(missing_ok=True)
        words = [*command, "train", self.config, "--steps", 100000000, "--metrics", metrics]
        started = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        self.addCleanup(started.communicate)
        self.addCleanup(started.kill)
        for _ in range(2000):
            if metrics.exists() and metrics.read_text().count("\n") > 2:
                return started
            time.sleep(0.01)
        started.kill()
        self.fail("no step: " + "".join(started.communicate()))

    def ranks(self):
        """Process ids by rank."""
        ids = {}
        for process in processes_with(str(self.config)):
            found = re.search(rb"\0RANK=(\d+)\0", b"\0" + Path(f"/proc/{process}/environ").read_bytes())
            if found:
                ids[int(found.group(1))] = process
        return ids

    def test_launch_has_the_numbers_of_threads(self):
        for numerics, ranks in sampled(itertools.product(("exact", "fast"), (2, 3, 4)), 2):
            with self.subTest(numerics=numerics, ranks=ranks):
                flags = ["--numerics", numerics, "--quiet"]
                self.run_command(PROGRAM, "train", self.config, *flags, "--ranks", ranks, "--metrics", "threads.jsonl", "--ledger", "threads.json")
                self.run_command(PROGRAM, "launch", "-n", ranks, "--", "train", self.config, *flags, "--metrics", "launch.jsonl", "--ledger", "launch.json")
                self.assertEqual(len(self.steps("launch.jsonl")), 4)
                self.assertEqual(self.steps("launch.jsonl"), self.steps("threads.jsonl"))
                self.assertEqual(self.sent("launch.json"), self.sent("threads.json"))

    def test_a_mesh_of_two_axes_and_the_proof(self):
        flags = [self.config, "--mesh", "dp=2,tp=2", "--numerics", "exact", "--set", "train.proof=true"]
        done = self.run_command(PROGRAM, "launch", "-n", 4, "--", "train", *flags)
        self.assertIn("[0] proof: first 4 steps on 1 rank and on 4 (dp=2,tp=2)", done.stdout)
        self.assertIn("same bits", done.stdout)
        self.assertNotIn("[1]", done.stdout)
        done = self.run_command(PROGRAM, "launch", "-n", 2, "--", "train", *flags, code=1)
        self.assertIn("started 2 processes, but this job has 4 ranks; accepted: as many processes, or a mesh of 2", done.stderr)

    @unittest.skipUnless(TORCHRUN.exists(), "no torchrun beside this python")
    def test_torchrun_needs_no_flag(self):
        self.run_command(PROGRAM, "train", self.config, "--quiet", "--ranks", 2, "--metrics", "threads.jsonl")
        done = self.run_command(TORCHRUN, "--nproc-per-node", 2, "--standalone", "--no-python", PROGRAM, "train", self.config,
                                "--metrics", "torchrun.jsonl")
        self.assertEqual(self.steps("torchrun.jsonl"), self.steps("threads.jsonl"))
        self.assertEqual(done.stdout.count("step 4/4"), 1)

    @unittest.skipUnless(TORCHRUN.exists(), "no torchrun beside this python")
    def test_torchrun_of_two_agents(self):
        self.run_command(PROGRAM, "train", self.config, "--quiet", "--ranks", 4, "--metrics", "threads.jsonl")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = ["--nnodes", 2, "--nproc-per-node", 2, "--master-addr", "127.0.0.1", "--master-port", port, "--no-python", PROGRAM, "train", self.config]
        second = subprocess.Popen([str(word) for word in [TORCHRUN, "--node-rank", 1, *words]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  env=environment(), cwd=self.folder)
        self.addCleanup(second.communicate)
        self.addCleanup(second.kill)
        self.run_command(TORCHRUN, "--node-rank", 0, *words, "--metrics", "agents.jsonl")
        self.assertEqual(second.wait(timeout=60), 0)
        self.assertEqual(self.steps("agents.jsonl"), self.steps("threads.jsonl"))

    @unittest.skipUnless(shutil.which("mpirun"), "no mpirun: install openmpi-bin")
    def test_mpirun_needs_no_flag(self):
        self.run_command(PROGRAM, "train", self.config, "--quiet", "--ranks", 4, "--metrics", "threads.jsonl")
        done = self.run_command("mpirun", "-n", 4, "--oversubscribe", PROGRAM, "train", self.config, "--metrics", "mpirun.jsonl",
                                OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        self.assertEqual(self.steps("mpirun.jsonl"), self.steps("threads.jsonl"))
        self.assertEqual(done.stdout.count("step 4/4"), 1)

    def test_log_rank_and_log_dir(self):
        done = self.run_command(PROGRAM, "launch", "-n", 2, "--log-dir", "logs", "--", "train", self.config, "--steps", 2, LOG_RANK="1")
        self.assertIn("[1] step 2/2", done.stdout)
        self.assertNotIn("[0]", done.stdout)
        for rank in (0, 1):
            self.assertIn("step 2/2", (self.folder / f"logs/rank_{rank}.log").read_text())

    def test_an_error_is_everyones(self):
        done = self.run_command(PROGRAM, "launch", "-n", 2, "--", "train", self.config, "--set", "train.lr=1e30", code=1)
        self.assertRegex(done.stderr, "rank [01]: .* of step 2 is -?nan; try a smaller optimizer.lr")
        self.run_command(PROGRAM, "launch", "-n", 2, "--", "trian", code=2)
        done = self.run_command(PROGRAM, "train", self.config, code=1, WORLD_SIZE="2")
        self.assertIn("WORLD_SIZE is set (by torchrun or tessera launch?) but RANK is not", done.stderr)

    def test_a_killed_rank_is_named_with_the_axis(self):
        for victim in (0, 2):
            running = self.start(PROGRAM, "launch", "-n", 3, "--")
            ids = self.ranks()
            self.assertEqual(sorted(ids), [0, 1, 2])
            begin = time.monotonic()
            os.kill(ids[victim], signal.SIGKILL)
            _, errors = running.communicate(timeout=20)
            self.assertLess(time.monotonic() - begin, 3)
            self.assertEqual(running.returncode, 128 + signal.SIGKILL)
            for other in {0, 1, 2} - {victim}:
                self.assertRegex(errors, rf"\[{other}\] tessera: \[comm\] rank {other} was in \w+.* over \w+ .*when rank {victim} failed: its process \(pid {ids[victim]} ")
            self.assertEqual(processes_with(str(self.config)), [])

    def test_control_c_leaves_nothing_behind(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            running = self.start(PROGRAM, "launch", "-n", 3, "--")
            begin = time.monotonic()
            running.send_signal(number)
            _, errors = running.communicate(timeout=20)
            self.assertLess(time.monotonic() - begin, 3)
            self.assertEqual(running.returncode, 130)
            self.assertIn("tessera: stopped", errors)
            self.assertEqual(processes_with(str(self.config)), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
