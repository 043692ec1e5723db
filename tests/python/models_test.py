#!/usr/bin/env python3
"""Unmodified models of transformers, and a ResNet, on meshes of rank threads: the loss and every gradient of one device, in float64 to
1e-12 and in float32 but for rounding.

Usage: models_test.py [unittest's arguments]
"""

import copy
import unittest
import warnings

import tessera
import torch
from sampling import sampled
from wide import doubles
from zoo import ZOO

LAYOUTS = ("tp=2", "tp=4", "dp=2,tp=2")
SAMPLES = 4

# A gradient below this part of the model's largest is zero but for rounding (a softmax takes no notice of the bias of its keys)
# and is compared with the largest instead of with itself.
NOTHING = 1e-6

# How much further from float64 one way of rounding to float32 may lie than another (docs/measured/rounding.md).
ROUNDING = 4


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


def distance(got, want):
    """Root mean square of the relative distances of two sets of tensors: alike for every way of rounding the same values."""
    sizes = {name: tensor.norm().item() for name, tensor in want.items()}
    top = max(sizes.values())
    shares = [((got[name].double() - tensor).norm().item() / sizes[name]) ** 2 for name, tensor in want.items() if sizes[name] > NOTHING * top]
    return (sum(shares) / len(shares)) ** 0.5


def results_of(model, batch):
    """The loss and the gradients, on one device."""
    loss = model(**batch).loss
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def train(model, batch, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    return {name: tessera.full_tensor(p.detach()) for name, p in model.named_parameters()}


class ModelTest(unittest.TestCase):
    def compare(self, name, entry):
        with doubles():
            model, batch = build(entry, torch.float64)
            loss, want = results_of(copy.deepcopy(model), batch)
            for layout in sampled(LAYOUTS, 1, f"{name} double"):
                with self.subTest(layout=layout):
                    got, parts = self.results_on(layout, model, batch)
                    self.assertLessEqual(abs(got - loss), 1e-12 * abs(loss))
                    self.assertEqual(parts.keys(), want.keys())
                    self.assertLessEqual(furthest(parts, want), 1e-12)

    def compare_rounding(self, name, entry):
        """The gradients in float32 are as far from those in float64 as one device's are, on whatever processor."""
        model, batch = build(entry, torch.float32)
        _, by_one = results_of(copy.deepcopy(model), batch)
        with doubles():
            wide = {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}
            _, want = results_of(copy.deepcopy(model).double(), wide)
        for layout in sampled(LAYOUTS, 1, f"{name} float"):
            with self.subTest(layout=layout):
                _, by_many = self.results_on(layout, model, batch)
                self.assertEqual(by_many.keys(), want.keys())
                self.assertLessEqual(distance(by_many, want), ROUNDING * distance(by_one, want))

    def results_on(self, layout, model, batch):
        def on_ranks():
            mine = copy.deepcopy(model)
            tessera.parallelize(mine, tessera.generate_plan(mine, mesh=layout))
            result = mine(**batch).loss
            result.backward()
            return result.item(), gradients(mine)

        return tessera.run_ranks(on_ranks, tessera.Mesh(layout).size())

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

    def compare_generation(self, name, entry):
        """Greedy, with the cache."""
        model = entry.make()
        want = entry.generate(copy.deepcopy(model))
        for layout in sampled(LAYOUTS, 1, f"{name} generates"):
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
        setattr(ModelTest, f"test_{name}_generates", lambda self: self.compare_generation(name, entry))
    setattr(ModelTest, f"test_{name}_in_double", lambda self: self.compare(name, entry))
    setattr(ModelTest, f"test_{name}_in_float", lambda self: self.compare_rounding(name, entry))
    setattr(ModelTest, f"test_{name}_trains", lambda self: self.compare_steps(entry))


for zoo_name, zoo_entry in ZOO.items():
    add_tests(zoo_name, zoo_entry)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    unittest.main()
