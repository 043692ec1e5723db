#!/usr/bin/env python3
"""One run that C++ and Python take in turns: `tessera train` saves, a Python program on another mesh loads and saves, `tessera train` goes on, and
has the bits of the run that never ended.

Usage: resume_test.py TESSERA     (the program)
"""

import json
import sys
import unittest

import tessera
import torch
from program import PROGRAM, ProgramTest

try:
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError:
    print("skipped: transformers is not installed (requirements.txt)")
    sys.exit(77)

LLAMA = {"vocab_size": 256, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
         "tie_word_embeddings": False}


def place(folder):
    """A model of transformers with the optimizer that the checkpoint was saved of, on tp=2."""
    values = tessera._C.open_checkpoint(str(folder), True).values
    tessera.set_generator("counter")  # that of tessera train
    tessera.numerics(*json.loads(values["job"])["numerics"].split())
    model = LlamaForCausalLM(LlamaConfig(**LLAMA))
    tessera.parallelize(model, "tp=2")
    groups = [[model.get_parameter(name) for name in group["parameters"]] for group in json.loads(values["optimizer"])["groups"]]
    return model, torch.optim.AdamW([{"params": group} for group in groups], lr=5.0)


def bits(folder):
    """Of everything that was saved there."""
    def body():
        model, optimizer = place(folder)
        loaded = tessera.load(folder, model, optimizer)
        rates = [group["lr"] for group in optimizer.param_groups]
        state = tessera.full_optimizer_state_dict(optimizer, rank=None)["state"]
        return (loaded.step, rates, {name: value.numpy().tobytes() for name, value in tessera.full_state_dict(model, rank=None).items()},
                {number: {key: value.numpy().tobytes() for key, value in each.items()} for number, each in state.items()})

    return tessera.run_ranks(body, 2)


class Turns(ProgramTest):
    train = "steps = 4\nnumerics = \"exact\"\n"

    def test_a_run_goes_through_python(self):
        self.run_command(PROGRAM, "train", self.config, "--out", "whole", "--save-every", 2, "--keep", 0, "--mesh", "dp=2", "--quiet")
        first, last = (self.folder / "whole" / "checkpoints" / f"step_00000{step}" for step in (2, 4))
        between = self.folder / "between" / "checkpoints"
        between.parent.mkdir()

        def through():
            model, optimizer = place(first)
            loaded = tessera.load(first, model, optimizer)
            self.assertEqual(loaded.step, 2)
            tessera.save(between, model, optimizer, step=loaded.step, extra=loaded)

        tessera.run_ranks(through, 2)
        self.assertEqual(bits(between), bits(first))
        self.run_command(PROGRAM, "train", self.config, "--out", "rest", "--resume", "between", "--save-every", 4, "--mesh", "1", "--quiet")
        self.assertEqual(bits(self.folder / "rest" / "checkpoints"), bits(last))
        self.assertNotEqual(bits(last), bits(first))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
