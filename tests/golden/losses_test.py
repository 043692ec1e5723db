#!/usr/bin/env python3
"""The first losses of both examples in `exact`, bit for bit, on one device and on a mesh: the file losses.json beside this one.

Usage: losses_test.py TESSERA [--write]     (the program; --write keeps what it computes now, for a change that means to move bits)

`exact` has the same bits on every layout, processor and number of threads, so one list a model is right everywhere. `fast` has not: no
loss of it is kept.
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("losses.json")
PROGRAM = Path(sys.argv.pop(1)).resolve()
STEPS = 4
BYTES = 1 << 16  # of the examples' text
MESHES = ("1", "dp=2,tp=2")
SMALLER = {"model.dim": 32, "model.layers": 2, "data.sequence": 32, "train.batch": 8, "train.warmup": 2, "train.proof": "false", "train.eval_batches": 1}
MODELS = {"llama": {"model.hidden": 96}, "gpt": {}}


def losses(model, mesh):
    """Of every step the loss and the norm of the gradients, as hexadecimal floats."""
    with tempfile.TemporaryDirectory() as folder:
        metrics, text = Path(folder) / "metrics.jsonl", Path(folder) / "text.txt"
        text.write_bytes((ROOT / "examples/data/kjv.txt").read_bytes()[:BYTES])
        sets = [word for name, value in {**SMALLER, **MODELS[model], "data.file": text}.items() for word in ("--set", f"{name}={value}")]
        subprocess.run([PROGRAM, "train", ROOT / f"examples/{model}.toml", "--quiet", "--numerics", "exact", "--mesh", mesh,
                        "--steps", str(STEPS), "--metrics", metrics, *sets], check=True)
        records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [{"loss": record["loss"].hex(), "grad_norm": record["grad_norm"].hex()} for record in records]


class Losses(unittest.TestCase):
    def test_are_those_that_were_kept(self):
        kept = json.loads(FILE.read_text())
        self.assertEqual(set(kept), set(MODELS))
        for model, expected in kept.items():
            self.assertEqual(len(expected), STEPS)
            for mesh in MESHES:
                with self.subTest(model=model, mesh=mesh):
                    self.assertEqual(losses(model, mesh), expected)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(json.dumps({model: losses(model, MESHES[0]) for model in MODELS}, indent=1) + "\n")
    else:
        unittest.main()
