#!/usr/bin/env python3
"""Training from Python that ends, is loaded on another mesh and goes on: the bits of training that never ended. An unmodified GPT-2 of transformers
with dropout, a tied head, micro-batches and torch.optim.AdamW; as rank threads and as processes.

Usage: resume_test.py [unittest's arguments]     (TESSERA_FULL=1: every ordered pair of meshes)
"""

import dataclasses
import json
import os
import random
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

import tessera
import warm_python
from resume_program import Run, train
from runs import lines_of

PROGRAM = Path(__file__).parent / "resume_program.py"
IS_FULL = "TESSERA_FULL" in os.environ
STEPS, HALF = (30, 15) if IS_FULL else (4, 2)
MESHES = ("1", "dp=2", "dp=3", "dp=4", "tp=2", "tp=4", "dp=2,tp=2", "fsdp=3", "fsdp=2,tp=2")
MICRO = {"dp=2": 2, "tp=2": 3}  # micro-batches of a step, elsewhere one
PAIRS = [(a, b) for a in MESHES for b in MESHES]


def sampled(count):
    """So many pairs, drawn anew each time; all of them in full."""
    seed = random.randrange(2**32)
    print(f"pairs drawn with seed {seed}", file=sys.stderr)
    return PAIRS if IS_FULL else random.Random(seed).sample(PAIRS, count)


def by_threads(*runs):
    ranks = tessera.Mesh(runs[0].mesh).size()
    return tessera.run_ranks(lambda: [train(run) for run in runs], ranks)


def by_processes(*runs):
    return [json.loads(line) for line in lines_of(PROGRAM, *runs, timeout=900)]


class ResumeTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def check(self, seen, whole, micro):
        losses = [parts for parts in whole["losses"][HALF:]]
        if micro == 1:  # else a part's loss is no step's
            self.assertEqual(seen["losses"], losses)
        for what in ("model", "optimizer", "draws"):
            self.assertEqual(seen[what], whole[what], what)

    def resume(self, pairs, start):
        """The second half on another mesh than the first: all bits are those of one rank that never ended."""
        micros = {1, *(MICRO.get(second, 1) for _, second in pairs)}
        whole = {micro: by_threads(Run("1", 0, STEPS, micro=micro))[0] for micro in sorted(micros)}
        for key in ("model", "optimizer", "draws"):
            self.assertEqual(len({json.dumps(each[key]) for each in whole.values()}), 1, key)  # micro-batches change nothing
        for first in {first for first, _ in pairs}:
            start(Run(first, 0, HALF, save=str(self.folder / first), micro=MICRO.get(first, 1), in_slices=first == "tp=4"))
        for second in {second for _, second in pairs}:  # one job, one program after the other
            micro, firsts = MICRO.get(second, 1), [first for first, other in pairs if other == second]
            runs = [Run(second, HALF, STEPS, load=str(self.folder / first), micro=micro, seed=99) for first in firsts]
            for first, seen in zip(firsts, start(*runs), strict=True):
                with self.subTest(first=first, second=second):
                    self.check(seen, whole[1], micro)
                    self.assertEqual(seen["losses"], whole[micro]["losses"][HALF:])
                    print(f"{first} -> {second}: {seen['draws']}", file=sys.stderr, flush=True)

    def test_on_another_mesh_by_threads(self):
        self.resume(sampled(3), by_threads)

    def test_on_another_mesh_by_processes(self):
        self.resume(sampled(1), by_processes)

    def test_from_processes_to_threads(self):
        path = str(self.folder / "run")
        by_processes(Run("dp=2", 0, HALF, save=path, micro=2))
        self.check(by_threads(Run("tp=2", HALF, STEPS, load=path))[0], by_threads(Run("1", 0, STEPS))[0], 1)

    def test_in_fast_on_the_same_mesh(self):
        for mesh in MESHES if IS_FULL else ("dp=2,tp=2",):
            with self.subTest(mesh=mesh):
                path = str(self.folder / mesh)
                whole, = by_threads(Run(mesh, 0, STEPS, numerics="fast"))
                by_threads(Run(mesh, 0, HALF, numerics="fast", save=path))
                self.check(by_threads(Run(mesh, HALF, STEPS, numerics="fast", load=path, seed=99))[0], whole, 1)

    def test_in_one_program_back_to_an_earlier_step(self):
        """A program that has gone further is set back: the steps since are the same again."""
        path = str(self.folder / "run")

        def body():
            first = train(Run("dp=2", 0, HALF, save=path))
            return first, train(Run("dp=2", HALF, STEPS, load=path)), train(Run("dp=2", HALF, STEPS, load=path, seed=5))

        _, once, again = tessera.run_ranks(body, 2)
        self.assertEqual(once, again)

    def test_other_sums_are_refused_unless_asked_for(self):
        path = str(self.folder / "run")
        by_threads(Run("dp=2", 0, 1, save=path))
        for run, says in ((Run("dp=2", 1, 2, load=path, numerics="fast"), r"was saved in numerics exact batch=12.*the job is in fast.*allows_other_sums"),
                          (Run("tp=2", 1, 2, load=path, lattice="batch=4,sequence=1,feature=4"), r"the job is in exact batch=4")):
            with self.assertRaisesRegex(RuntimeError, says):
                by_threads(run)
            by_threads(dataclasses.replace(run, allows_other_sums=True))


if __name__ == "__main__":
    warm_python.begin()
    warnings.simplefilter("ignore")
    unittest.main()
