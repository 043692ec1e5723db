#!/usr/bin/env python3
"""Bugs that were found in other libraries where parallelisms met: here each program has one device's numbers on every mesh.

Losses, every gradient, the norm by which they are clipped, and parameters and buffers after the steps, in float64 to 1e-12 of the largest. Where random
numbers are drawn they are libtorch's own on both sides. In `exact`, float32, dp=2,tp=2 has the bits of one rank, or refuses by name what has no form there.

Usage: found_elsewhere_test.py [unittest's arguments]
"""

import copy
import re
import unittest
from pathlib import Path

import tessera
import torch
from found_elsewhere import DIM, LENGTH, PROGRAMS, ROWS, VOCABULARY

PAGE = Path(__file__).resolve().parents[2] / "docs" / "found-elsewhere.md"
MESHES = ("dp=2", "tp=2", "fsdp=3", "dp=2,tp=2")
STEPS = 2
OPTIMIZERS = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 1e-2),
    "AdamW foreach": lambda parameters: torch.optim.AdamW(parameters, 1e-2, foreach=True),
    "Adafactor": lambda parameters: torch.optim.Adafactor(parameters, 1e-2),
    "Muon": lambda parameters: tessera.optim.owned(torch.optim.Muon(parameters, 1e-2)),  # it computes in bfloat16: whole matrices, or other roundings
}


def made(cls, dtype):
    torch.manual_seed(0)
    return cls().to(dtype).train()


def batch_of(step, dtype):
    generator = torch.Generator().manual_seed(step)
    tokens, labels = (torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator) for _ in range(2))
    labels[torch.rand(ROWS, LENGTH, generator=generator) < 0.3] = -100
    labels[0] = -100  # so that one data rank has fewer that count
    labels[1, 0] = 3
    return tokens, labels, torch.randn(ROWS, LENGTH, DIM, generator=generator, dtype=torch.float64).to(dtype)


def train(cls, model, dtype, see):
    """What the steps of one program show, by name."""
    optimizer, seen = OPTIMIZERS[cls.how.get("optimizer", "AdamW")](model.parameters()), {}
    micro = cls.how.get("micro", 1)
    for step in range(STEPS):
        torch.manual_seed(step)
        losses = []
        for parts in zip(*(each.chunk(micro) for each in batch_of(step, dtype)), strict=True):
            loss = model(*parts)
            loss.backward()
            losses.append(loss.detach())
        seen[f"loss {step}"] = torch.stack([see(loss) for loss in losses])
        for name, parameter in model.named_parameters():
            seen[f"gradient of {name} {step}"] = see(parameter.grad)
        seen[f"norm {step}"] = see(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05))
        optimizer.step()
        optimizer.zero_grad()
    return seen | {f"{name} at the end": see(value) for name, value in model.state_dict().items()}


def on_mesh(cls, mesh, numerics, dtype):
    def body():
        tessera.numerics(numerics)
        model = made(cls, dtype)
        plan = tessera.generate_plan(model, mesh=mesh, sequence_parallel=cls.how.get("sequence_parallel", False))
        tessera.parallelize(model, plan, accumulate=cls.how.get("micro", 1))
        return train(cls, model, dtype, lambda value: tessera.full_tensor(value.detach()).clone())

    return tessera.run_ranks(body, tessera.Mesh(mesh).size())


class FoundElsewhereTest(unittest.TestCase):
    def assert_near(self, found, wanted):
        self.assertEqual(found.keys(), wanted.keys())
        for name, want in wanted.items():
            far = (found[name] - want).abs().max().item() if want.numel() else 0.0
            self.assertLessEqual(far, 1e-12 * max(1.0, want.abs().max().item()), name)

    def check(self, cls):
        model = made(cls, torch.float64)
        alone = train(cls, copy.deepcopy(model), torch.float64, lambda value: value.detach().clone())
        for mesh in MESHES:
            with self.subTest(mesh=mesh):
                self.assert_near(on_mesh(cls, mesh, "fast", torch.float64), alone)

    def check_bits(self, cls):
        if what := cls.how.get("refused"):
            with self.assertRaisesRegex(RuntimeError, what):
                on_mesh(cls, MESHES[-1], "exact", torch.float32)
            return
        alone, many = (on_mesh(cls, mesh, "exact", torch.float32) for mesh in ("1", MESHES[-1]))
        self.assertEqual(many.keys(), alone.keys())
        for name, want in alone.items():
            self.assertTrue(torch.equal(many[name], want), name)

    def test_page_lists_them_all(self):
        rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
        self.assertEqual([name for name, _ in rows], list(PROGRAMS))
        for name, sources in rows:
            self.assertEqual(re.findall(r"\[([^\]]+)\]\(https://github\.com/[^)]+\)", sources), list(PROGRAMS[name].sources), name)


for the_name, the_class in PROGRAMS.items():
    setattr(FoundElsewhereTest, f"test_{the_name}", lambda self, cls=the_class: self.check(cls))
    setattr(FoundElsewhereTest, f"test_{the_name}_in_exact", lambda self, cls=the_class: self.check_bits(cls))


if __name__ == "__main__":
    unittest.main()
