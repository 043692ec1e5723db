#!/usr/bin/env python3
"""Training under every schedule, by `tessera compare`, as processes, and from one number of stages to another, against one rank.

Each of the ten schedules on meshes with stages, tensor parallelism, sequence parallelism and data parallelism, models tied and not, with dropout,
with recomputation, in micro-batches that are many or odd: in `exact` the bits of one rank, in `fast`, untied and without data parallelism, those of one
rank over the same micro-batches. A rank that is killed is named by all others.

Usage: schedules_test.py TESSERA [all]     (the program; every cell and 20 steps instead of some that are drawn by a seed)
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from program import PROGRAM, environment

IS_FULL = sys.argv[2:] == ["all"] or "TESSERA_FULL" in os.environ
SEED = int(os.environ.get("TESSERA_SEED") or random.SystemRandom().randrange(2**32))
STEPS = 20 if IS_FULL else 3

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zbv", "1f1b-v", "v-half", "v-min", "dualpipe-v")
STAGES = ("pp=2", "pp=4")
MESHES = (*STAGES, "pp=2,tp=2;sp", "pp=2,dp=2", "pp=2,dp=2,tp=2;sp")

COMMON = {"model.dim": 32, "model.layers": 6, "model.heads": 4, "data.sequence": 16, "train.lattice": "sequence=2", "train.eval_batches": 1, "train.clip": 0.5}
LLAMA = {"model.kind": "llama", "model.hidden": 48, "model.kv_heads": 4}
GPT = {"model.kind": "gpt", "model.dropout": 0.1}
TIED = {"model.tie_embeddings": "true"}

# What is trained: samples of a step, micro-batches. Six blocks are 8 or 16 uneven stages.
EXACT = {
    "llama": ({**LLAMA, "train.batch": 16}, 8),
    "llama, tied, odd": ({**LLAMA, **TIED, "train.batch": 18}, 9),
    "gpt, recomputed": ({**GPT, "train.batch": 16, "recompute.modules": "transformer.h.*"}, 8),
    "gpt, tied, 16 micro-batches": ({**GPT, **TIED, "train.batch": 32}, 16),
}
FAST = {"llama": EXACT["llama"], "gpt, recomputed": EXACT["gpt, recomputed"]}


def wait_until(is_so, seconds=60):
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"it was not so within {seconds} s")
        time.sleep(0.01)


def has_the_same_bits(side):
    """Of `compare`'s record of one side: in `exact` it says so, in `fast` it has the errors of everything."""
    if "same_bits" in side:
        return side["same_bits"]
    return side["loss"] == side["grad_norm"] == 0 and side["parameters"] and all(each["error"] == 0 for each in side["parameters"].values())


class Schedules(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        print(f"seed {SEED}", flush=True)
        cls.holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.holder.cleanup)
        cls.folder = Path(cls.holder.name)
        (cls.folder / "text.txt").write_text("".join(f"line {i} of a text that repeats itself\n" for i in range(2000)))
        (cls.folder / "base.toml").write_text("[data]\nfile = \"text.txt\"\n")

    @staticmethod
    def command_of(launcher, *words, settings):
        sets = [word for name, value in {**COMMON, **settings}.items() for word in ("--set", f"{name}={value}")]
        return [str(word) for word in (*launcher, *words, *sets)]

    def run_program(self, launcher, *words, settings):
        command = self.command_of(launcher, *words, settings=settings)
        # libtorch adds the gradient of a layer norm's bias in as many parts as it has threads.
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=self.folder, env=environment(OMP_THREAD_LIMIT="1"))
        self.assertEqual(done.returncode, 0, " ".join(command) + "\n" + done.stdout + done.stderr)
        return done.stdout

    def check(self, cells, numerics, model, settings, microbatches):
        """Each cell, a mesh and a schedule, has the bits of one rank."""
        meshes = [word for mesh, schedule in cells for word in ("--mesh", f"{mesh};schedule={schedule}")]
        text = self.run_program([PROGRAM], "compare", "base.toml", "--json", "--numerics", numerics, "--steps", STEPS, "--microbatches", microbatches, "--mesh", "1",
                                *meshes, settings=settings)
        found = json.loads(text)
        self.assertEqual(len(found["sides"]), len(cells))
        for side in found["sides"]:
            self.assertTrue(has_the_same_bits(side), f"{model}, {numerics}: {side}")
            print(f"{model}, {numerics}, {STEPS} steps: {side['mesh']}: the bits of one rank", flush=True)

    def check_all(self, models, meshes, numerics):
        chance = random.Random(f"{SEED} {numerics}")
        for model, (settings, microbatches) in models.items():
            for mesh in meshes if IS_FULL else [chance.choice(meshes)]:
                drawn = SCHEDULES if IS_FULL else chance.sample(SCHEDULES, 2)
                self.check([(mesh, schedule) for schedule in drawn], numerics, model, settings, microbatches)

    def test_exact_has_the_bits_of_one_rank(self):
        self.check_all(EXACT, MESHES, "exact")

    def test_fast_has_the_bits_of_one_rank_over_the_same_micro_batches(self):
        self.check_all(FAST, STAGES, "fast")

    def train(self, out, mesh, schedule, *more, steps, launcher=(PROGRAM,)):
        """A hash of what a tied GPT is after `steps`."""
        settings, microbatches = EXACT["gpt, tied, 16 micro-batches"]
        scheduled = ("--schedule", schedule) if schedule else ()
        self.run_program(launcher, "train", "base.toml", "--quiet", "--numerics", "exact", "--steps", steps, "--microbatches", microbatches, "--mesh", mesh,
                         "--out", out, *scheduled, *more, settings={**settings, "train.warmup": 0, "train.min_lr": 1e-3, "optimizer.lr": 1e-3})
        return hashlib.sha256((self.folder / out / "model.safetensors").read_bytes()).hexdigest()

    def test_a_checkpoint_goes_on_with_other_stages(self):
        whole = self.train("whole", "1", "", steps=6)
        ways = [("pp=4", "zbv", "pp=2", "1f1b"), ("pp=2", "v-half", "pp=4", "zb-h1"), ("pp=2,tp=2", "interleaved", "1", ""), ("1", "", "pp=4", "dualpipe-v")]
        for number, (mesh, schedule, other_mesh, other_schedule) in enumerate(ways if IS_FULL else ways[:2]):
            self.train(f"first{number}", mesh, schedule, "--save-every", 3, steps=3)
            rest = self.train(f"rest{number}", other_mesh, other_schedule, "--resume", f"first{number}", steps=6)
            self.assertEqual(rest, whole, (mesh, schedule, other_mesh, other_schedule))

    def test_processes_have_the_bits_of_threads(self):
        cells = [(4, "pp=4", "zbv"), (2, "pp=2", "1f1b"), (4, "pp=2,tp=2", "v-half"), (4, "pp=2,dp=2", "interleaved"), (4, "pp=4", "dualpipe-v")]
        whole = self.train("one", "1", "", steps=3)
        for ranks, mesh, schedule in cells if IS_FULL else cells[:1]:
            hashed = self.train(f"processes {mesh} {schedule}", mesh, schedule, steps=3, launcher=(PROGRAM, "launch", "-n", ranks, "--", PROGRAM))
            self.assertEqual(hashed, whole, (mesh, schedule))

    def test_a_killed_rank_is_named_by_all_others(self):
        """At any moment of training under any schedule; none of them hangs."""
        chance = random.Random(f"{SEED} kills")
        for trial in range(100 if IS_FULL else 2):
            mesh, schedule = chance.choice(STAGES), chance.choice(SCHEDULES)
            ranks = int(mesh.removeprefix("pp="))
            culprit = chance.randrange(ranks)
            with self.subTest(trial=trial, mesh=mesh, schedule=schedule, culprit=culprit):
                said = self.kill_one(f"killed{trial}", ranks, culprit, chance.uniform(0, 0.5), "--mesh", mesh, "--schedule", schedule)
                self.assertIn(f"rank {culprit} (pid ", said)
                for rank in set(range(ranks)) - {culprit}:
                    self.assertRegex(said, rf"\[comm\] rank {rank} was in .* when rank {culprit} failed: its process .* ended without a word")

    def kill_one(self, out, ranks, culprit, after, *words):
        """Kills a rank of a run `after` so many seconds from its first step on; what the launcher and the others say."""
        settings, microbatches = EXACT["gpt, recomputed"]
        command = self.command_of([PROGRAM, "launch", "-n", ranks, "--", PROGRAM], "train", "base.toml", "--quiet", "--steps", 10**6, "--out", out,
                                  "--microbatches", microbatches, *words, settings=settings)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=self.folder, env=environment(OMP_THREAD_LIMIT="1")) as run:
            steps = self.folder / out / "metrics.jsonl"
            wait_until(lambda: steps.exists() and steps.stat().st_size > 0)
            time.sleep(after)
            children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
            self.assertEqual(len(children), ranks)
            os.kill(int(children[culprit]), signal.SIGKILL)
            said = run.communicate(timeout=30)[1]
        self.assertNotEqual(run.returncode, 0)
        return said


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
