#!/usr/bin/env python3
"""tessera.lightning: the losses and metrics of Lightning on one device, over meshes, as rank threads and as processes, resumed on another mesh; in
`exact` its bits.

Usage: lightning_test.py [unittest's arguments]
"""

import csv
import importlib.util
import json
import os
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

if importlib.util.find_spec("pytorch_lightning") is None:
    print("skipped: pytorch-lightning is not installed (requirements.txt)")
    sys.exit(77)

import tessera
import torch
import warm_python
from lightning_program import Run, main
from runs import lines_of, on_threads
from sampling import sampled

EXACT = {"numerics": "exact", "lattice": "batch=4,feature=4"}


class LightningTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def run_of(self, name, **fields):
        return Run(str(self.folder / name), **fields)

    def plain(self, name="plain", **fields):
        return main(self.run_of(name, **fields))

    def by_threads(self, name, **fields):
        return on_threads(main, self.run_of(name, **fields))

    def check(self, seen, plain, tolerance):
        """The losses of the steps within `tolerance`, and what Lightning logs, which it does in float32."""
        self.assertEqual(len(seen["seen"]), len(plain["seen"]))
        for part in ("metrics", "tested"):
            self.assertEqual([set(line) for line in _lines(seen[part])], [set(line) for line in _lines(plain[part])])
        for values, wanted_ones, near in ((seen["seen"], plain["seen"], tolerance), (_logged(seen), _logged(plain), max(tolerance, 1e-5))):
            for value, wanted in zip(values, wanted_ones, strict=True):
                self.assertLessEqual(abs(value - wanted), near * abs(wanted), (seen, plain))

    def test_the_numbers_of_one_device(self):
        plain = self.plain()
        for mesh, calls_itself in sampled((("dp=2", True), ("tp=2", False), ("dp=2,tp=2", True), ("dp=2,tp=2", False), ("fsdp=2", False)), 2):
            with self.subTest(mesh=mesh, calls_itself=calls_itself):
                self.check(self.by_threads(f"{mesh} {calls_itself}", mesh=mesh, calls_itself=calls_itself), plain, 1e-5)
        self.check(self.by_threads("double", mesh="dp=2,tp=2", dtype="float64"), self.plain("plain double", dtype="float64"), 1e-12)
        self.check(self.by_threads("bf16", mesh="tp=2", precision="bf16-mixed"), self.plain("plain bf16", precision="bf16-mixed"), 3e-2)

    def test_bits_of_one_rank_resumed_on_another_mesh(self):
        one = self.by_threads("one", mesh="1", **EXACT)
        self.check(one, self.plain(), 1e-5)
        for mesh in ("dp=2,tp=2", "fsdp=2"):
            with self.subTest(mesh=mesh):
                self.assertEqual(self.by_threads(mesh, mesh=mesh, **EXACT), one)
        for before, mesh in sampled((("dp=2,tp=2", "dp=4"), ("one", "tp=2"), ("fsdp=2", "1")), 1):
            with self.subTest(before=before, mesh=mesh):
                resumed = self.by_threads(f"{before} to {mesh}", mesh=mesh, resume=str(self.folder / before / "epoch=0.ckpt"), **EXACT)
                self.assertEqual(resumed["seen"], [None] * 9 + one["seen"][9:])
                self.assertEqual({name: resumed[name] for name in ("metrics", "tested")}, {name: one[name] for name in ("metrics", "tested")})

    def test_by_processes(self):
        exact = {"mesh": "dp=2", **EXACT}
        threads = self.by_threads("threads", **exact)
        runs = [self.run_of("whole", **exact), self.run_of("resumed", resume=str(self.folder / "threads" / "epoch=0.ckpt"), **exact)]
        whole, resumed = (json.loads(line) for line in lines_of(Path(__file__).parent / "lightning_program.py", *runs, timeout=300) if line.startswith("{"))
        self.assertEqual(whole, threads)
        self.assertEqual(resumed["seen"][9:], threads["seen"][9:])
        self.assertEqual(resumed["metrics"], threads["metrics"])

    def test_files(self):
        """One rank writes the log. A file that Lightning saved on one device goes on here, but for its random numbers."""
        self.by_threads("run", mesh="dp=2,tp=2")
        logs = list((self.folder / "run" / "lightning_logs").glob("*/metrics.csv"))
        self.assertEqual(len(logs), 1)
        with open(logs[0]) as file:
            self.assertEqual(len([line for line in csv.DictReader(file) if line["loss"]]), 10)
        self.assertEqual(sorted(name for name in os.listdir(self.folder / "run") if "ckpt" in name), ["epoch=0.ckpt", "epoch=1.ckpt", "last.ckpt"])
        drawless = {"dropout": 0.0, "shuffle": False}
        plain = self.plain(**drawless)
        resumed = self.by_threads("resumed", mesh="fsdp=2", resume=str(self.folder / "plain" / "epoch=0.ckpt"), **drawless)
        self.check({**resumed, "seen": resumed["seen"][9:]}, {**plain, "seen": plain["seen"][9:]}, 1e-5)

    def test_what_is_refused(self):
        from tessera.lightning import Strategy

        with self.assertRaisesRegex(ValueError, r"\[Strategy\] .*dp=2.* in a program without ranks; accepted: a launcher"):
            Strategy("dp=2")


def _lines(part):
    return [part] if isinstance(part, dict) else part


def _logged(log):
    return [value for part in ("metrics", "tested") for line in _lines(log[part]) for _, value in sorted(line.items())]


if __name__ == "__main__":
    warm_python.begin()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    unittest.main()
