#!/usr/bin/env python3
"""What models and optimizers keep: whole on one rank, in files, and loaded onto a mesh.

Usage: state_test.py [unittest's arguments]
"""

import copy
import io
import pickle
import tempfile
import unittest
import warnings
from pathlib import Path

import tessera
import torch

OPTIMIZERS = {
    "Adadelta": lambda p: torch.optim.Adadelta(p, 1e-2),
    "Adafactor": lambda p: torch.optim.Adafactor(p, 1e-2),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
    "Adam": lambda p: torch.optim.Adam(p, 1e-2),
    "Adamax": lambda p: torch.optim.Adamax(p, 1e-2),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-2, amsgrad=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, 1e-2, fused=True),
    "ASGD": lambda p: torch.optim.ASGD(p, 1e-2),
    "NAdam": lambda p: torch.optim.NAdam(p, 1e-2),
    "RAdam": lambda p: torch.optim.RAdam(p, 1e-2),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 1e-2, momentum=0.9, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, 1e-2),
    "SGD": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9),
}


def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 8)).double()
    model.register_buffer("count", torch.arange(3))
    return model


def train(model, optimizer, steps):
    x = torch.arange(32.0, dtype=torch.float64).reshape(4, 8).sin()
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        optimizer.step()


class StateTest(unittest.TestCase):
    def test_a_loaded_optimizer_lies_as_its_parameters(self):
        for name, build in OPTIMIZERS.items():
            with self.subTest(optimizer=name):
                self.check_loading(build)

    def check_loading(self, build):
        reference = make()
        optimizer = build(reference.parameters())
        train(reference, optimizer, 3)
        weights, saved = copy.deepcopy(reference.state_dict()), copy.deepcopy(optimizer.state_dict())
        before = copy.deepcopy(saved)
        reference = make()  # plain PyTorch that loads: it casts some sums (NAdam, ASGD) to the dtype of the parameters
        reference.load_state_dict(weights)
        optimizer = build(reference.parameters())
        optimizer.load_state_dict(copy.deepcopy(saved))
        loaded = copy.deepcopy(optimizer.state_dict())
        train(reference, optimizer, 3)

        def body():
            model = make()
            mine = build(model.parameters())
            tessera.parallelize(model, "dp=2,tp=2")
            model.load_state_dict(weights)
            mine.load_state_dict(saved)
            for parameter in model.parameters():
                for key, value in mine.state[parameter].items():
                    self.assertIsInstance(value, tessera.DTensor, key)
                    if value.shape == parameter.shape:
                        self.assertEqual(value.placements, parameter.placements, key)
                        self.assertEqual(value.to_local().shape, parameter.detach().to_local().shape, key)
                    elif value.dim() == parameter.dim():  # Adafactor's sums: whole dims are one, the others cut as the parameter's
                        parts = [part if size > 1 else 1 for size, part in zip(value.shape, parameter.detach().to_local().shape)]
                        self.assertEqual(list(value.to_local().shape), parts, key)
            whole = tessera.full_optimizer_state_dict(mine)
            train(model, mine, 3)
            return tessera.full_state_dict(model), whole

        state, whole = tessera.run_ranks(body, 4)
        for key, value in reference.state_dict().items():
            self.assertLessEqual((state[key] - value).abs().max().item(), 1e-12, key)
        self.assertEqual(str(dict(whole)), str(loaded))
        build(make().parameters()).load_state_dict(whole)  # in plain PyTorch
        self.assertEqual(str(saved), str(before))  # nobody wrote to what was loaded

    def test_whole_on_one_rank(self):
        def body():
            model = tessera.parallelize(make(), "dp=2,tp=2")
            states[tessera.rank()] = tessera.full_state_dict(model, rank=2)
            return tessera.full_state_dict(model, rank=None)

        states = {}
        everywhere = tessera.run_ranks(body, 4)
        self.assertEqual([len(states[rank]) for rank in range(4)], [0, 0, len(everywhere), 0])
        for key, value in everywhere.items():
            self.assertNotIsInstance(states[2][key], tessera.DTensor)
            self.assertTrue(torch.equal(states[2][key], value), key)

    def test_saved_and_loaded(self):
        reference = make()

        def body(path):
            model = tessera.parallelize(copy.deepcopy(reference), "tp=2")
            tessera.save(path, model)
            self.assertTrue(Path(path).exists())  # on every rank
            other = tessera.parallelize(make(), "dp=2")
            with torch.no_grad():
                for parameter in other.parameters():
                    parameter.zero_()
            tessera.load(path, other)
            return tessera.full_state_dict(other)

        with tempfile.TemporaryDirectory() as folder:
            state = tessera.run_ranks(lambda: body(Path(folder) / "model.safetensors"), 2)
        for key, value in reference.state_dict().items():
            self.assertTrue(torch.equal(state[key], value), key)

    def test_pickling_a_model_says_what_to_write(self):
        reference, x = torch.nn.Sequential(make()), torch.ones(2, 8, dtype=torch.float64)

        def body():
            model = tessera.parallelize(copy.deepcopy(reference), "tp=2")
            for write in (pickle.dumps, lambda value: torch.save(value, io.BytesIO())):
                with self.assertRaisesRegex(TypeError, r"torch\.save\(tessera\.full_state_dict\(model\), path\), or tessera\.save\(\"model\.safetensors\", model\)"):
                    write(model)
                with self.assertRaisesRegex(TypeError, r"tessera\.full_state_dict\(model\)"):
                    write(model[0])
            torch.save(tessera.full_state_dict(model), io.BytesIO())
            return copy.deepcopy(model)(x).sum().item()

        self.assertAlmostEqual(tessera.run_ranks(body, 2), reference(x).sum().item(), places=12)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    unittest.main()
