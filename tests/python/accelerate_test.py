#!/usr/bin/env python3
"""What accelerate keeps for a process is each rank thread's own: by a stand-in that keeps it in the same way and, where it is installed,
by accelerate itself under a loop that accumulates and under the Trainer of transformers.

Usage: accelerate_test.py [unittest's arguments]
"""

import importlib.util
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import tessera
import torch

# accelerate/state.py, as far as its states go.
STAND_IN = """
class _Shared:
    def __init__(self):
        self.__dict__ = self._shared_state


class PartialState(_Shared):
    _shared_state = {}


class AcceleratorState(_Shared):
    _shared_state = {}


class GradientState(_Shared):
    _shared_state = {}
"""

PROGRAM = """
import sys, tempfile, warnings
warnings.simplefilter("ignore")
import accelerate, tessera, torch
import transformers as tf
from torch.nn import functional

def loop():
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    tessera.parallelize(model, "dp=2", optimizer)
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=3, cpu=True)
    optimizer = accelerator.prepare_optimizer(optimizer)
    x, y = torch.arange(8 * 16.0).reshape(8, 16).sin(), torch.arange(8) % 4
    for _ in range(30):
        with accelerator.accumulate(model):
            loss = functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()

def trainer():
    torch.manual_seed(0)
    config = tf.LlamaConfig(vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)
    model = tf.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    tessera.parallelize(model, "dp=2", optimizer)
    rows = [{"input_ids": (torch.arange(12) * i) % 99, "labels": (torch.arange(12) * i) % 99} for i in range(3, 51)]
    with tempfile.TemporaryDirectory() as folder:
        options = tf.TrainingArguments(folder, per_device_train_batch_size=4, gradient_accumulation_steps=3, max_steps=4, report_to=[], use_cpu=True,
                                       save_strategy="no", logging_strategy="no", disable_tqdm=True)
        return tf.Trainer(model=model, args=options, train_dataset=rows, optimizers=(optimizer, None)).train().training_loss

losses = {tessera.run_ranks(globals()[sys.argv[1]], 2, deadline=30) for _ in range(int(sys.argv[2]))}
print(len(losses))
"""


class AccelerateTest(unittest.TestCase):
    def test_each_rank_thread_has_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder) / "accelerate"
            package.mkdir()
            (package / "__init__.py").touch()
            (package / "state.py").write_text(STAND_IN)
            sys.path.insert(0, folder)
            from accelerate.state import GradientState
            sys.path.remove(folder)

        def body():
            GradientState().sync = tessera.rank() == 0
            tessera.distribute_tensor(torch.ones(2), tessera.Mesh("dp=2"), tessera.Shard(0)).sum().item()  # both have come here
            return GradientState().sync, sorted(GradientState._shared_state)

        GradientState().of_main = 1
        self.assertEqual(tessera.run_ranks(body, 2, results="all"), [(True, ["sync"]), (False, ["sync"])])
        self.assertEqual(GradientState._shared_state, {"of_main": 1})
        self.assertEqual(tessera.run_ranks(lambda: GradientState().of_main, 1), 1)  # no other rank thread

    @unittest.skipUnless(importlib.util.find_spec("accelerate"), "accelerate is not installed")
    def test_programs_that_accumulate(self):
        for name, runs in (("loop", 10), ("trainer", 3)):
            with self.subTest(program=name):
                done = subprocess.run([sys.executable, "-c", PROGRAM, name, str(runs)], capture_output=True, text=True, timeout=250)
                self.assertEqual(done.stdout.splitlines()[-1:], ["1"], done.stderr)


if __name__ == "__main__":
    unittest.main()
