#!/usr/bin/env python3
"""A script of the shape of TRL's SFT by tessera.trl: the log of TRL on one device, over meshes, as rank threads and as processes, resumed on another
mesh, with LoRA too. In `exact` the bits of one rank.

Usage: sft_test.py [unittest's arguments]
"""

import importlib.util
import json
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

if not all(map(importlib.util.find_spec, ("trl", "datasets", "peft"))):
    print("skipped: trl is not installed (requirements.txt)")
    sys.exit(77)

import datasets
import tessera
import warm_python
from clm_program import make_model
from sft_program import Run, main
from runs import lines_of, on_threads
from sampling import sampled

MESHES = ("dp=2", "dp=2,tp=2", "fsdp=2")
ROUNDED = ("loss", "epoch", "learning_rate", "num_tokens", "step", "total_flos")  # others are printed with all digits
TOLERANCE = 1e-4  # of gradient norms and metrics in float32


class SftTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.base = make_model(self.folder / "base", "llama")

    def run_of(self, name, **fields):
        return Run(self.base, str(self.folder / name), **fields)

    def by_threads(self, name, **fields):
        return on_threads(main, self.run_of(name, **fields))

    def check_log(self, seen, plain, tolerance):
        """The same lines; what is printed with few digits is equal, what has all (the loss too, by transformers 5) is near."""
        self.assertEqual([set(line) for line in seen], [set(line) for line in plain])
        for line, wanted in zip(seen, plain, strict=True):
            for name, value in line.items():
                if name in ROUNDED and (name != "loss" or round(wanted[name], 4) == wanted[name]):
                    self.assertEqual(value, wanted[name], (name, line, wanted))
                else:
                    self.assertLessEqual(abs(value - wanted[name]), tolerance * abs(wanted[name]), (name, line, wanted))

    def test_the_log_of_one_device(self):
        plain = main(self.run_of("plain"))
        for mesh in sampled(MESHES, 1, "log"):
            with self.subTest(mesh=mesh):
                self.check_log(self.by_threads(mesh, mesh=mesh), plain, TOLERANCE)

    def test_adapters(self):
        plain = main(self.run_of("plain", adapters=True))
        self.check_log(self.by_threads("mesh", mesh="dp=2,tp=2", adapters=True), plain, TOLERANCE)
        files = {file.name for file in (self.folder / "mesh").iterdir()}
        self.assertLess({"adapter_config.json", "adapter_model.safetensors"}, files)

    def test_by_processes_and_resumed_on_another_mesh(self):
        plain = main(self.run_of("plain"))
        program = Path(__file__).parent / "sft_program.py"
        for mesh, other in sampled((("dp=2", "dp=2,tp=2"), ("dp=2,tp=2", "dp=4"), ("fsdp=2", "dp=2")), 1, "processes"):
            with self.subTest(mesh=mesh):
                processes, = (json.loads(line) for line in lines_of(program, self.run_of(f"processes {mesh}", mesh=mesh), timeout=300) if line.startswith("["))
                self.check_log(processes, plain, TOLERANCE)
                resumed = self.by_threads(f"resumed {mesh}", mesh=other, resume=str(self.folder / f"processes {mesh}" / "checkpoint-3"))
                self.check_log(_steps(resumed), _steps(plain), TOLERANCE)

    def test_exact_has_the_bits_of_one_rank(self):
        def exact(mesh):
            return self.by_threads(f"exact on {mesh}", mesh=mesh, numerics="exact", lattice="batch=4")

        plain = exact("1")
        for mesh in sampled(MESHES, 1, "exact"):
            with self.subTest(mesh=mesh):
                self.check_log(exact(mesh), plain, 0)


def _steps(log):
    """What it says of steps, and not of the whole run: where it was resumed, TRL counts tokens anew and means are of what came after."""
    return [{name: value for name, value in line.items() if not name.endswith("num_tokens")} for line in log if "train_loss" not in line]


if __name__ == "__main__":
    warm_python.begin()
    warnings.simplefilter("ignore")
    datasets.disable_progress_bars()
    unittest.main()
