#!/usr/bin/env python3
"""The programs of examples/python, as rank threads, by torchrun and by the batch file of examples/slurm: in `exact` the losses of one rank, also of a run
that ends and goes on on another mesh.

Usage: python_examples_test.py [unittest's arguments]     (PYTHONPATH names the build's Python)
"""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "examples" / "python")]
import warm_python  # noqa: E402
PRETRAIN, FINETUNE = (ROOT / "examples" / "python" / name for name in ("pretrain.py", "finetune.py"))
HAS_PEFT = importlib.util.find_spec("accelerate") and importlib.util.find_spec("peft")
SIZES = ("--width", "32", "--numerics", "exact")

# What Slurm's srun gives the processes of a step, here all on this machine.
SRUN = """#!/bin/bash
shift  # --kill-on-bad-exit=1
for ((rank = 0; rank < RANKS; ++rank)); do
  SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=$rank SLURM_STEP_NUM_TASKS=$RANKS SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=$RANKS \\
    SLURM_STEP_NODELIST=localhost SLURM_LOCALID=$rank "$@" &
done
for job in $(jobs -p); do
  wait "$job" || exit 1
done
"""


def losses(*command, **more):
    """Step and loss of each line that says them."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, cwd=ROOT,
                          env={**os.environ, "OMP_NUM_THREADS": "1", **more})
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"step (\d+): loss (\S+)", done.stdout)


def pretrain(steps, *words):
    return losses(warm_python.executable(), PRETRAIN, *SIZES, "--steps", steps, *words)


class PretrainTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.whole = pretrain(4)

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.run_folder = Path(holder.name) / "run"

    def test_one_rank_learns(self):
        self.assertEqual([step for step, _ in self.whole], ["1", "2", "3", "4"])
        self.assertLess(float(self.whole[-1][1]), float(self.whole[0][1]))

    def test_goes_on_on_another_mesh(self):
        saved = pretrain(2, "--ranks", 4, "--mesh", "fsdp=2,tp=2", "--checkpoints", self.run_folder, "--save-every", 2)
        rest = losses(warm_python.executable(), "-m", "torch.distributed.run", "--nproc-per-node", 2, PRETRAIN, *SIZES, "--steps", 4, "--mesh", "dp=2",
                      "--checkpoints", self.run_folder)
        self.assertEqual(saved + rest, self.whole)

    def test_under_slurm(self):
        tools = self.run_folder.parent / "bin"
        tools.mkdir()
        for name, text in (("srun", SRUN), ("python", f'#!/bin/bash\nexec {warm_python.executable()} "$@"\n')):
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        seen = losses("bash", ROOT / "examples" / "slurm" / "pretrain.sbatch", *SIZES, RANKS="4", MESH="dp=2,tp=2", STEPS="4", RUN=str(self.run_folder),
                      SAVE_EVERY="2", PATH=f"{tools}:{os.environ['PATH']}")
        self.assertEqual(seen, self.whole)


@unittest.skipUnless(HAS_PEFT, "accelerate or peft is not installed")
class FinetuneTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def check(self, *words):
        common = (*words, "--numerics", "exact", "--steps", 4, "--save-every", 2)
        whole = losses(warm_python.executable(), FINETUNE, *common, "--out", self.folder / "whole")
        self.assertEqual([step for step, _ in whole], ["1", "2", "3", "4"])
        self.assertLess(float(whole[-1][1]), float(whole[0][1]))
        meshed = losses(warm_python.executable(), FINETUNE, *common, "--out", self.folder / "meshed", "--ranks", 4, "--mesh", "dp=2,tp=2")
        self.assertEqual(meshed, whole)
        rest = losses(warm_python.executable(), "-m", "torch.distributed.run", "--nproc-per-node", 2, FINETUNE, *common, "--out", self.folder / "rest", "--mesh", "fsdp=2",
                      "--resume", self.folder / "meshed" / "checkpoint-2")
        self.assertEqual(rest, whole[2:])
        return {file.name for file in (self.folder / "rest").iterdir()}

    def test_whole(self):
        self.assertIn("model.safetensors", self.check())
        again = losses(warm_python.executable(), FINETUNE, "--model", self.folder / "rest", "--steps", 1, "--out", self.folder / "again")
        self.assertEqual(len(again), 1)

    def test_adapters(self):
        self.assertIn("adapter_model.safetensors", self.check("--lora"))


if __name__ == "__main__":
    if not importlib.util.find_spec("transformers"):
        print("skipped: transformers is not installed")
        sys.exit(77)
    warm_python.begin("pretrain", *(["finetune"] if HAS_PEFT else []), "transformers.models.gpt2.modeling_gpt2")
    unittest.main()
