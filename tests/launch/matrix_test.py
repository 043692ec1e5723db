#!/usr/bin/env python3
"""Training as Gloo processes, layout by layout, against rank threads and against one rank.

In `exact` numerics every layout, as threads, under `tessera launch` and under torchrun, leaves the same bits: losses, gradient norms, every
parameter. In `fast` processes leave the bits of threads, and the loss, in float64, is one rank's to 1e-12.

Usage: matrix_test.py TESSERA [all]     (the program; every cell instead of some)
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from program import PROGRAM, environment, sampled

IS_FULL = sys.argv[2:] == ["all"] or "TESSERA_FULL" in os.environ
TORCHRUN = Path(sys.executable).parent / "torchrun"
STEPS = 20 if IS_FULL else 6

# Ranks, mesh, micro-batches, sequence parallelism.
CELLS = [
    (2, "dp=2", 1, False),
    (2, "tp=2", 1, False),
    (2, "dp=2", 3, False),
    (2, "tp=2", 2, True),
    (3, "dp=3", 1, False),
    (3, "tp=3", 1, False),
    (3, "dp=3", 2, False),
    (4, "dp=4", 1, False),
    (4, "tp=4", 1, False),
    (4, "dp=2,tp=2", 1, False),
    (4, "dp=2,tp=2", 2, True),
    (4, "tp=4", 3, True),
    (2, "fsdp=2", 2, False),
    (3, "fsdp=3", 1, False),
    (4, "dp=2,fsdp=2", 1, False),
    (4, "fsdp=2,tp=2", 1, True),
]

MODELS = {
    "llama": {"model.kind": "llama", "model.hidden": 72, "model.kv_heads": 12},
    "gpt": {"model.kind": "gpt", "model.dropout": 0.1, "model.tie_embeddings": "true"},
}
COMMON = {
    "model.dim": 48, "model.layers": 2, "model.heads": 12, "data.sequence": 16, "train.batch": 13, "train.lr": 1e-4, "train.eps": 1e-6,
    "train.eval_batches": 1, "train.lattice": "sequence=8",
}


class Matrix(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.holder.name)
        (cls.folder / "text.txt").write_text("".join(f"line {i} of a text that repeats itself\n" for i in range(400)))
        (cls.folder / "base.toml").write_text(f"[data]\nfile = \"text.txt\"\n[train]\nsteps = {STEPS}\n")

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def run_training(self, launcher, model, numerics, mesh, accumulate=1, sequence_parallel=False):
        """The numbers of every step and a hash of the parameters at the end."""
        settings = {**COMMON, **MODELS[model], "train.dtype": "float32" if numerics == "exact" else "float64",
                    "train.accumulate": accumulate, "parallel.sequence_parallel": str(sequence_parallel).lower()}
        sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        words = [*launcher, "train", "base.toml", "--quiet", "--numerics", numerics, "--mesh", mesh, "--metrics", "m.jsonl", "--out", "run", "--replace", *sets]
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, cwd=self.folder, env=environment())
        self.assertEqual(done.returncode, 0, " ".join(map(str, words)) + "\n" + done.stdout + done.stderr)
        records = [json.loads(line) for line in (self.folder / "m.jsonl").read_text().splitlines()]
        self.assertEqual(len(records), STEPS)
        steps = [(record["loss"], record["grad_norm"]) for record in records]
        return steps, hashlib.sha256((self.folder / "run/model.safetensors").read_bytes()).hexdigest()

    def launchers(self, ranks):
        yield "launch", [PROGRAM, "launch", "-n", ranks, "--"]
        if TORCHRUN.exists():
            yield "torchrun", [TORCHRUN, "--nproc-per-node", ranks, "--standalone", "--no-python", PROGRAM]

    def check(self, model, numerics):
        one = self.run_training([PROGRAM], model, numerics, "1")
        cells = CELLS if IS_FULL else sampled(CELLS, 2, model)
        for index, (ranks, *layout) in enumerate(cells):
            threads = self.run_training([PROGRAM], model, numerics, *layout)
            if numerics == "exact":
                self.assertEqual(threads, one, layout)
            for (a, _), (b, _) in zip(threads[0], one[0]):
                self.assertLessEqual(abs(a - b), 1e-12 * abs(b), layout)
            for number, (name, launcher) in enumerate(self.launchers(ranks)):
                if not IS_FULL and number != index % 2:
                    continue
                with self.subTest(model=model, numerics=numerics, layout=layout, launcher=name):
                    self.assertEqual(self.run_training(launcher, model, numerics, *layout), threads)
                    if IS_FULL:
                        print(f"{model} {numerics} {ranks} processes {layout} {name}: {threads[1][:16]}", flush=True)

    def test_exact_has_one_hash(self):
        self.check("gpt", "exact")
        if IS_FULL:
            self.check("llama", "exact")

    def test_fast_has_the_bits_of_threads(self):
        self.check("llama", "fast")
        if IS_FULL:
            self.check("gpt", "fast")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
