#!/usr/bin/env python3
"""Unmodified models of transformers, and a ResNet, on meshes of rank threads: the loss and every gradient of one device.

Usage: models_test.py [unittest's arguments]
"""

import contextlib
import copy
import unittest
import warnings

import tessera
import torch
from wide import doubles
from zoo import ZOO

LAYOUTS = ("tp=2", "tp=4", "dp=2,tp=2")
SAMPLES = 4

# A gradient below this part of the model's largest is zero but for rounding (a softmax takes no notice of the bias of its keys)
# and is compared with the largest instead of with itself.
NOTHING = 1e-6


def build(entry, dtype):
    """The model with nothing random in its forward, and a batch."""
    model = entry.make().to(dtype)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    batch = {name: value.to(dtype) if value.is_floating_point() else value for name, value in entry.batch(SAMPLES).items()}
    return (model if entry.trains_alike else model.eval()), batch


def gradients(model):
    return {name: tessera.full_tensor(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def furthest(got, want):
    """The largest difference of two sets of tensors, each relative to its largest element."""
    sizes = {name: tensor.abs().max().item() for name, tensor in want.items()}
    top = max(sizes.values())
    scales = {name: size if size > NOTHING * top else top for name, size in sizes.items()}
    return max((got[name] - tensor).abs().max().item() / scales[name] for name, tensor in want.items())


def train(model, batch, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    return {name: tessera.full_tensor(p.detach()) for name, p in model.named_parameters()}


class ModelTest(unittest.TestCase):
    def compare(self, entry, dtype, limit):
        with doubles() if dtype == torch.float64 else contextlib.nullcontext():
            model, batch = build(entry, dtype)
            reference = copy.deepcopy(model)
            loss = reference(**batch).loss
            loss.backward()
            want = {name: p.grad for name, p in reference.named_parameters() if p.grad is not None}
            for layout in LAYOUTS:
                with self.subTest(layout=layout, dtype=dtype):
                    self.compare_on(layout, model, batch, loss.item(), want, limit)

    def compare_on(self, layout, model, batch, loss, want, limit):
        def on_ranks():
            mine = copy.deepcopy(model)
            tessera.parallelize(mine, tessera.generate_plan(mine, mesh=layout))
            result = mine(**batch).loss
            result.backward()
            return result.item(), gradients(mine)

        got, parts = tessera.run_ranks(on_ranks, tessera.Mesh(layout).size())
        self.assertLessEqual(abs(got - loss), limit * abs(loss))
        self.assertEqual(parts.keys(), want.keys())
        self.assertLessEqual(furthest(parts, want), limit)

    def compare_steps(self, entry):
        """Five steps of an optimizer that was built before the model was placed."""
        with doubles():
            model, batch = build(entry, torch.float64)
            reference = copy.deepcopy(model)
            want = train(reference, batch, torch.optim.AdamW(reference.parameters(), 1e-3), 5)

            def on_ranks():
                mine = copy.deepcopy(model)
                optimizer = torch.optim.AdamW(mine.parameters(), 1e-3)
                tessera.parallelize(mine, tessera.generate_plan(mine, mesh="dp=2,tp=2"), optimizer)
                return train(mine, batch, optimizer, 5)

            self.assertLessEqual(furthest(tessera.run_ranks(on_ranks, 4), want), 1e-9)

    def compare_generation(self, entry):
        """Greedy, with the cache."""
        model = entry.make()
        want = entry.generate(copy.deepcopy(model))
        for layout in LAYOUTS:
            with self.subTest(layout=layout):
                self.assertTrue(torch.equal(self.generated_on(layout, entry, model), want))

    def test_llama_generates_in_inference_mode(self):
        model = ZOO["llama"].make()
        want = ZOO["llama"].generate(copy.deepcopy(model))
        self.assertTrue(torch.equal(self.generated_on("dp=2,tp=2", ZOO["llama"], model, torch.inference_mode), want))

    def generated_on(self, layout, entry, model, mode=torch.no_grad):
        def on_ranks():
            mine = copy.deepcopy(model)
            tessera.parallelize(mine, tessera.generate_plan(mine, mesh=layout))
            with mode():
                return tessera.full_tensor(entry.generate(mine))

        return tessera.run_ranks(on_ranks, tessera.Mesh(layout).size())


def add_tests(name, entry):
    if entry.generate:
        setattr(ModelTest, f"test_{name}_generates", lambda self: self.compare_generation(entry))
    setattr(ModelTest, f"test_{name}_in_double", lambda self: self.compare(entry, torch.float64, 1e-12))
    setattr(ModelTest, f"test_{name}_in_float", lambda self: self.compare(entry, torch.float32, 1e-5))
    setattr(ModelTest, f"test_{name}_trains", lambda self: self.compare_steps(entry))


for zoo_name, zoo_entry in ZOO.items():
    add_tests(zoo_name, zoo_entry)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    unittest.main()
