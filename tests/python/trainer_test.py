#!/usr/bin/env python3
"""A script of the shape of run_clm.py by tessera.transformers: the log of the Trainer of transformers on one device, over meshes, as rank threads and as
processes, resumed on another mesh; in `exact` its bits. A GPT-2 with dropout and a tied head, accumulation, clipping, evaluation, checkpoints.

Usage: trainer_test.py [unittest's arguments]
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

if importlib.util.find_spec("accelerate") is None:
    print("skipped: accelerate is not installed (requirements.txt)")
    sys.exit(77)

import tessera
import torch
import warm_python
from clm_program import Run, main, make_model, rows_of
from runs import lines_of, on_threads
from sampling import sampled
from wide import doubles
from zoo import tf

PROGRAM = Path(__file__).parent / "clm_program.py"
MESHES = ("dp=2", "tp=2", "dp=2,tp=2", "fsdp=2")
LATTICE = "batch=4,sequence=1,feature=4"

OPENS = """
import sys
import transformers as tf
for folder in sys.argv[1:]:
    model, about = tf.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(about.values()), about
    print(sum(p.double().square().sum().item() for p in model.parameters()))
assert "tessera" not in sys.modules
"""


def by_threads(run):
    return on_threads(main, run)


def by_processes(*runs):
    return [json.loads(line) for line in lines_of(PROGRAM, *runs, timeout=600) if line.startswith("[")]


def steps_of(log):
    """What it says of steps. The mean over a run is, of one that was resumed, over what came after, with every Trainer."""
    return [line for line in log if "train_loss" not in line]


class TrainerTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.base = make_model(self.folder / "base")

    def run_of(self, name, **fields):
        return Run(**({"model": self.base, "out": str(self.folder / name)} | fields))

    def check_log(self, seen, plain, tolerance):
        """The same lines; what is printed with four digits is equal, what has all (the loss too, by transformers 5) is near."""
        self.assertEqual([set(line) for line in seen], [set(line) for line in plain])
        for line, wanted in zip(seen, plain, strict=True):
            for name, value in line.items():
                if name in ("grad_norm", "eval_loss", "train_loss") or name == "loss" and round(wanted[name], 4) != wanted[name]:
                    self.assertLess(abs(value / wanted[name] - 1), tolerance, (name, line, wanted))
                else:
                    self.assertEqual(value, wanted[name], (name, line, wanted))

    def test_the_log_of_one_device(self):
        plain = main(self.run_of("plain"))
        self.assertLess(plain[-2]["train_loss"], plain[0]["loss"] - 0.1)
        for mesh in sampled(MESHES, 2):
            with self.subTest(mesh=mesh):
                self.check_log(by_threads(self.run_of(mesh, mesh=mesh)), plain, 1e-5)

    def test_in_float64(self):
        with doubles():
            self.base = make_model(self.folder / "wide", "llama", torch.float64)
            plain = main(self.run_of("plain"))
            self.check_log(by_threads(self.run_of("mesh", mesh="dp=2,tp=2")), plain, 1e-12)

    def test_bits_of_one_rank_resumed_on_another_mesh(self):
        exact = {"numerics": "exact", "lattice": LATTICE}
        one = by_threads(self.run_of("one", mesh="1", **exact))
        for mesh in ("dp=2,tp=2", "fsdp=2"):
            with self.subTest(mesh=mesh):
                self.assertEqual(by_threads(self.run_of(mesh, mesh=mesh, **exact)), one)
        for before, mesh in sampled((("dp=2,tp=2", "dp=4"), ("one", "tp=2"), ("fsdp=2", "1")), 1):
            with self.subTest(before=before, mesh=mesh):
                checkpoint = str(self.folder / before / "checkpoint-4")
                resumed = by_threads(self.run_of(f"{before} to {mesh}", mesh=mesh, resume=checkpoint, **exact))
                self.assertEqual(steps_of(resumed), steps_of(one))

    def test_by_processes(self):
        """The bits of an `exact` run by threads, whole and from the middle of it on another mesh."""
        exact = {"numerics": "exact", "lattice": LATTICE}
        for mesh, other in sampled((("dp=2", "tp=2"), ("dp=2,tp=2", "dp=4"), ("fsdp=2", "dp=2")), 1, "processes"):
            with self.subTest(mesh=mesh):
                threads = by_threads(self.run_of(f"threads {mesh}", mesh=mesh, **exact))
                whole, resumed = by_processes(self.run_of(f"whole {mesh}", mesh=mesh, **exact),
                                              self.run_of(f"resumed {mesh}", mesh=other, resume=str(self.folder / f"threads {mesh}" / "checkpoint-4"), **exact))
                self.assertEqual(steps_of(whole), steps_of(threads))
                self.assertEqual(steps_of(resumed), steps_of(threads))

    def test_files_open_without_tessera(self):
        by_threads(self.run_of("run", mesh="dp=2,tp=2"))
        run = self.folder / "run"
        self.assertEqual({file.name for file in run.iterdir() if file.is_dir()}, {"checkpoint-4", "checkpoint-8"})
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run([sys.executable, "-c", OPENS, run, run / "checkpoint-8"], capture_output=True, text=True, env=environment, timeout=200)
        self.assertEqual(done.returncode, 0, done.stderr)
        of_run, of_checkpoint = done.stdout.split()
        self.assertEqual(of_run, of_checkpoint)

    def test_a_checkpoint_of_one_device_goes_on_here(self):
        """But for its random numbers."""
        self.base = make_model(self.folder / "undropped", dropout=0.0)
        options = {"options": {"max_steps": 6, "save_steps": 3, "logging_steps": 1}}
        plain = main(self.run_of("plain", **options))
        seen = by_threads(self.run_of("mesh", mesh="tp=2", resume=str(self.folder / "plain" / "checkpoint-3"), **options))
        self.check_log(steps_of(seen), steps_of(plain), 1e-5)

    def test_a_pipeline(self):
        """Placed by the script, in micro-batches: the log of one device, also where the trainer computes the loss itself, and goes on on another mesh."""
        self.base = make_model(self.folder / "undropped", dropout=0.0)
        short = {"max_steps": 6, "save_steps": 3, "eval_steps": 3, "logging_steps": 1, "gradient_accumulation_steps": 1}
        staged = {"mesh": "pp=2", "schedule": "1f1b", "microbatches": 2}
        for name, options in (("whole", short), ("smooth", {**short, "label_smoothing_factor": 0.1})):
            with self.subTest(name):
                plain = main(self.run_of(f"plain {name}", options=options))
                self.check_log(by_threads(self.run_of(name, options=options, **staged)), plain, 1e-5)
        plain = main(self.run_of("plain", options=short))
        for name, where in (("again", {**staged, "mesh": "pp=2,dp=2", "microbatches": 4}), ("cut", {"mesh": "tp=2"})):
            with self.subTest(name):
                seen = by_threads(self.run_of(name, options=short, resume=str(self.folder / "whole" / "checkpoint-3"), **where))
                self.check_log(steps_of(seen), steps_of(plain), 1e-5)
        with self.assertRaisesRegex(NotImplementedError, r"microbatches=2, and a trainer that gives 2 batches a step; accepted: one, of all of the step's samples"):
            by_threads(self.run_of("accumulates", options={**short, "gradient_accumulation_steps": 2}, **staged))

    def test_the_best_model_is_loaded_at_the_end(self):
        best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "save_total_limit": 1}
        plain = main(self.run_of("plain", options=best))
        self.check_log(by_threads(self.run_of("mesh", mesh="dp=2", options=best)), plain, 1e-5)

    @unittest.skipUnless(importlib.util.find_spec("peft"), "peft is not installed (requirements.txt)")
    def test_adapters(self):
        plain = main(self.run_of("plain", adapters=True))
        self.check_log(by_threads(self.run_of("mesh", mesh="dp=2,tp=2", adapters=True)), plain, 1e-5)
        resumed = by_threads(self.run_of("resumed", mesh="fsdp=2", adapters=True, resume=str(self.folder / "mesh" / "checkpoint-4")))
        self.check_log(steps_of(resumed), steps_of(plain), 1e-5)
        for folder in ("mesh", "mesh/checkpoint-8"):
            files = {file.name for file in (self.folder / folder).iterdir()}
            self.assertLess({"adapter_config.json", "adapter_model.safetensors", "training_args.bin"}, files)
            self.assertNotIn("model.safetensors", files)

    def test_what_is_refused(self):
        def trainer(mesh="dp=2", **options):
            args = tf.TrainingArguments(str(self.folder / "refused"), report_to=[], **({"use_cpu": True} | options))
            return tessera_trainer(tf.AutoModelForCausalLM.from_pretrained(self.base), args, train_dataset=rows_of(8, 1), mesh=mesh)

        from tessera.transformers import Trainer as tessera_trainer
        for options, says in (({"auto_find_batch_size": True}, r"auto_find_batch_size=True on a mesh: .*accepted: a per_device"),
                              ({"torch_compile": True}, r"torch_compile=True on a mesh: DTensors run eagerly")):
            with self.assertRaisesRegex(ValueError, says):
                tessera.run_ranks(lambda: trainer(**options), 2)
        with self.assertRaisesRegex(ValueError, r"dp=2.* in a program without ranks; accepted: a launcher \(torchrun --nproc-per-node 2"):
            trainer()
        trainer(mesh=None).train()  # without ranks it is the Trainer alone


if __name__ == "__main__":
    warm_python.begin()
    warnings.simplefilter("ignore")
    unittest.main()
