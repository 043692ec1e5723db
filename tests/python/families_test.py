#!/usr/bin/env python3
"""Families of transformers that no other test names: plain PyTorch's numbers in `fast`, one hash on every layout in `exact`.

Usage: families_test.py [unittest's arguments], a sample of the families; with TESSERA_FULL=1 all of them.
"""

import contextlib
import copy
import os
import unittest
import warnings

import tessera
import torch
from families import FAMILIES  # skips the test where transformers is missing
from wide import doubles

SAMPLES = 12
LATTICE = "batch=12"
LAYOUTS = ("1", "tp=2", "dp=3", "dp=2,tp=2")
SAMPLED = ("falcon", "gpt_neox", "olmo2", "rwkv")


def in_doubles(batch):
    return {name: value.double() if torch.is_tensor(value) and value.is_floating_point() else value for name, value in batch.items()}


def gradients(model):
    return {name: tessera.full_tensor(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def furthest(got, want, nothing):
    """The largest difference, relative to its tensor's largest element, or to `nothing` times the largest of all: below it all is rounding."""
    top = max(tensor.abs().max().item() for tensor in want.values())
    return max((got[name] - tensor).abs().max().item() / max(tensor.abs().max().item(), nothing * top) for name, tensor in want.items())


def steps(model, batch, layout):
    """The loss, the gradients and the parameters of two steps in `exact`, of a model that each rank makes."""
    tessera.numerics("exact", LATTICE)
    tessera.parallelize(model, tessera.generate_plan(model, mesh=layout, lattice=LATTICE))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    seen = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        seen += [tessera.full_tensor(loss.detach()), *gradients(model).values()]
        optimizer.step()
    return [each.clone() for each in seen + list(tessera.full_state_dict(model).values())]


class FamilyTest(unittest.TestCase):
    def check_fast(self, family):
        model, batch = family.make(), family.batch(SAMPLES)
        if family.is_wide:
            model, batch = model.double(), in_doubles(batch)
        with doubles() if family.is_wide else contextlib.nullcontext():
            reference = copy.deepcopy(model)
            loss = reference(**batch).loss
            loss.backward()
            want = gradients(reference)

            def on_ranks(layout):
                mine = copy.deepcopy(model)
                tessera.parallelize(mine, tessera.generate_plan(mine, mesh=layout))
                mine(**batch).loss.backward()
                return gradients(mine)

            for layout in LAYOUTS:
                got = tessera.run_ranks(lambda layout=layout: on_ranks(layout), tessera.Mesh(layout).size())
                self.assertEqual(got.keys(), want.keys())
                if family.is_wide:
                    self.assertLessEqual(furthest(got, want, nothing=1e-6), 1e-10, layout)
                else:
                    self.assertLessEqual(furthest(got, want, nothing=1e-2), 1e-4, layout)

    def check_exact(self, family):
        """The model is made inside: on one rank libtorch has all cores, on four one each."""
        batch, first, refusals = family.batch(SAMPLES), None, 0
        for layout in LAYOUTS:
            def run(layout=layout):
                return tessera.run_ranks(lambda: steps(family.make(), batch, layout), tessera.Mesh(layout).size())

            try:
                got = run()
            except RuntimeError as error:
                self.assertTrue(family.refused, error)
                self.assertRegex(str(error), rf"\[(\w+ -> )?{family.refused} .*numerics exact")
                refusals += 1
                continue
            first = first or got
            self.assertEqual(len(got), len(first))
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(got, first, strict=True)), layout)
        self.assertEqual(refusals > 0, bool(family.refused))


def add_tests(name, family):
    setattr(FamilyTest, f"test_{name}_in_fast", lambda self: self.check_fast(family))
    setattr(FamilyTest, f"test_{name}_in_exact", lambda self: self.check_exact(family))


for name, family in FAMILIES.items():
    if name in SAMPLED or os.environ.get("TESSERA_FULL"):
        add_tests(name, family)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    unittest.main()
