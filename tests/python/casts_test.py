#!/usr/bin/env python3
""".to(dtype), .double() and their like on a placed model, and other data for its parameters: what the plan says holds, and numbers are those of a model that
was cast before.

Usage: casts_test.py [unittest's arguments]
"""

import unittest

import tessera
import torch
from torch.nn import functional

MESHES = ("dp=2", "tp=2", "fsdp=2", "fsdp=2,tp=2")
X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def train(model):
    """Losses of three steps, where the last gradients lie, and the parameters."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-2), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.mse_loss(model(X.to(model[0].weight.dtype)), torch.ones(8, 3, dtype=model[0].weight.dtype))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses += [loss.item(), norm.item()]
    is_placed = hasattr(model[0].weight, "placements")
    layouts = [(p.placements, p.grad.placements) for p in model.parameters()] if is_placed else []
    return losses, layouts, [tessera.full_tensor(p.detach()).clone() for p in model.parameters()]


CASTS = {
    "double()": lambda model: model.double(),
    "to(float64)": lambda model: model.to(torch.float64),
    "of a part, then of all": lambda model: (model[0].double(), model[2:].to(torch.float64)),
    "there and back": lambda model: model.double().float().double(),
    "data": lambda model: [setattr(p, "data", p.data.double()) for p in model.parameters()],
}


class CastsTest(unittest.TestCase):
    def test_are_those_of_a_model_that_was_cast_before(self):
        wanted = train(make().double())

        def body(mesh, cast):
            model = make()
            if not cast:
                return train(tessera.parallelize(model.double(), mesh))
            tessera.parallelize(model, mesh)
            own = list(model.parameters())
            CASTS[cast](model)
            self.assertTrue(all(p is one and p.dtype == torch.float64 for p, one in zip(model.parameters(), own, strict=True)))
            return train(model)

        for mesh in MESHES:
            before = tessera.run_ranks(body, tessera.Mesh(mesh).size(), args=(mesh, ""))
            for cast in CASTS:
                with self.subTest(mesh=mesh, cast=cast):
                    seen = tessera.run_ranks(body, tessera.Mesh(mesh).size(), args=(mesh, cast))
                    self.assertEqual(seen[1], before[1])
                    torch.testing.assert_close(seen[0] + seen[2], wanted[0] + wanted[2], rtol=1e-12, atol=1e-12)

    def test_between_steps(self):
        """The optimizer goes on, as it does on one device."""
        def body(mesh):
            model = make()
            if mesh:
                tessera.parallelize(model, mesh)
            optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
            for cast in (None, torch.float64, None, torch.float32):
                if cast:
                    model.to(cast)
                loss = model(X.to(model[0].weight.dtype)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            return losses

        wanted = body("")
        for mesh in MESHES:
            torch.testing.assert_close(tessera.run_ranks(body, tessera.Mesh(mesh).size(), args=(mesh,)), wanted, rtol=1e-5, atol=0)

    def test_other_devices_are_refused(self):
        def body():
            model = tessera.parallelize(make(), "tp=2")
            own = [p.placements for p in model.parameters()]
            with self.assertRaisesRegex(NotImplementedError, r"Sequential is on a mesh of cpu devices, and cannot go to meta; accepted: another dtype; another device before"):
                model.to("meta")
            self.assertIs(model.to("cpu"), model)
            self.assertEqual([p.placements for p in model.parameters()], own)

        tessera.run_ranks(body, 2)

    def test_exact(self):
        def body(mesh):
            tessera.numerics("exact", "batch=4,feature=2")
            model = tessera.parallelize(make().double(), mesh).float()
            losses, _, parameters = train(model)
            return losses, parameters

        one = tessera.run_ranks(body, 1, args=("1",))
        for mesh in MESHES:
            torch.testing.assert_close(tessera.run_ranks(body, tessera.Mesh(mesh).size(), args=(mesh,)), one, rtol=0, atol=0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
