#!/usr/bin/env python3
"""A forward pass of 40,000 operators: its backward knows all of them.

Usage: long_pass_test.py [unittest's arguments]
"""

import copy
import unittest

import tessera
import torch
from torch import nn
from torch.nn import functional as F

SAMPLES, NODES = 4, 40_000
LATTICE = "batch=4"


class Deep(nn.Module):
    """Reads its parameters first; then comes the long way to the loss."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x, y):
        scores = self.second(torch.tanh(self.first(x)))
        for i in range(NODES):
            scores = scores * (1.5 if i % 2 == 0 else 1 / 1.5)
        return F.cross_entropy(scores, y)


class LongPassTest(unittest.TestCase):
    def test_a_pass_of_40000_operators(self):
        torch.manual_seed(0)
        model, x, y = Deep().double(), torch.randn(SAMPLES, 6).double(), torch.randint(5, (SAMPLES,))

        def on_ranks(mesh, numerics, accumulate):
            def body():
                tessera.numerics(numerics, LATTICE)
                mine = copy.deepcopy(model)
                tessera.parallelize(mine, tessera.generate_plan(mine, mesh=mesh, lattice=LATTICE), accumulate=accumulate)
                for part in zip(x.chunk(accumulate), y.chunk(accumulate), strict=True):
                    (mine(*part) / accumulate).backward()
                return [tessera.full_tensor(parameter.grad) for parameter in mine.parameters()]

            return tessera.run_ranks(body, tessera.Mesh(mesh).size())

        model(x, y).backward()
        wanted = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        torch.testing.assert_close(on_ranks("dp=2", "fast", 1), wanted, rtol=1e-9, atol=1e-12)
        exact = on_ranks("1", "exact", 1)
        torch.testing.assert_close(exact, wanted, rtol=1e-9, atol=1e-12)
        for mesh, accumulate in (("dp=2", 1), ("tp=2", 1), ("1", 2)):
            with self.subTest(mesh=mesh, accumulate=accumulate):
                self.assertTrue(all(map(torch.equal, on_ranks(mesh, "exact", accumulate), exact)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
