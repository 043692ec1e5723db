#!/usr/bin/env python3
"""Matrix-wise optimizers of others, unmodified, on whole matrices, each at one rank: the bits of plain tensors.

Usage: owned_test.py [unittest's arguments]
"""

import copy
import functools
import tempfile
import unittest
import warnings

import tessera
import torch
from zoo import ZOO


class Shampoo(torch.optim.Optimizer):
    """Shampoo-like: two Gram matrices a parameter, kept in a list, whose inverse fourth roots stand around the gradient."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                g, state = p.grad.flatten(1), self.state[p]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["grams"] = [torch.eye(n, dtype=g.dtype) for n in g.shape]
                    state["name"] = "gram"
                state["step"] += 1
                left, right = state["grams"]
                left.add_(g @ g.T)
                right.add_(g.T @ g)
                p.sub_((self.root(left) @ g @ self.root(right)).view_as(p), alpha=group["lr"])

    @staticmethod
    def root(gram):
        values, vectors = torch.linalg.eigh(gram)
        return vectors @ torch.diag(values.clamp_min(1e-6) ** -0.25) @ vectors.T


OPTIMIZERS = {"Muon": lambda p: torch.optim.Muon(p, 0.02, weight_decay=0.1, momentum=0.9),
              "Adafactor": lambda p: torch.optim.Adafactor(p, 0.05),
              "Shampoo": Shampoo}
SIZES = ((16, 24), (7, 5), (32, 8), (9, 9), (12, 6))
MESHES = {"tp=2": ("{tp: S(0)}", "{tp: S(1)}", "{tp: S(0)}", "{}", "{tp: S(0)}"),
          "tp=3": ("{tp: S(1)}", "{tp: S(0)}", "{tp: S(0)}", "{tp: S(0)}", "{tp: S(1)}"),
          "dp=2,tp=2": ("{tp: S(0)}", "{dp: S(0), tp: S(1)}", "{dp: S(0), tp: S(0)}", "{dp: S(1)}", "{tp: S(1)}")}


def waves(shape, step):
    count = torch.Size(shape).numel()
    return (torch.arange(float(count), dtype=torch.float64) * step + 0.3).sin().reshape(shape).float()


def gradient(step, i):
    return waves(SIZES[i], 0.53 + 0.07 * step + 0.01 * i)


class Run:
    """Parameters of SIZES on a mesh, or plain, and an optimizer whose gradients are given."""

    def __init__(self, build, mesh=None, over="cuts"):
        self.place = (lambda value, i: tessera.distribute_tensor(value, tessera.Mesh(mesh), MESHES[mesh][i])) if mesh else (lambda value, i: value)
        self.model = torch.nn.ParameterList([self.place(waves(shape, 0.37 + 0.01 * i), i) for i, shape in enumerate(SIZES)])
        self.optimizer = tessera.optim.owned(build(self.model.parameters()), over=over) if mesh else build(self.model.parameters())

    def step(self, steps):
        for step in steps:
            for i, parameter in enumerate(self.model):
                parameter.grad = self.place(gradient(step, i), i)
            self.optimizer.step()
        return self

    def values(self):
        return [tessera.full_tensor(parameter.detach()) for parameter in self.model]


def on_mesh(mesh, body):
    return tessera.run_ranks(body, tessera.Mesh(mesh).size())


class OwnedTest(unittest.TestCase):
    def check(self, found, expected):
        for i, (own, plain) in enumerate(zip(found, expected, strict=True)):
            self.assertTrue(torch.equal(own, plain), i)

    def test_bits_are_those_of_plain_tensors(self):
        for name, build in OPTIMIZERS.items():
            expected = Run(build).step(range(3)).values()
            for mesh in MESHES:
                for numerics in ("fast", "exact"):
                    for over in ("cuts", "mesh"):
                        def body():
                            tessera.numerics(numerics)
                            return Run(build, mesh, over).step(range(3)).values()
                        with self.subTest(optimizer=name, mesh=mesh, numerics=numerics, over=over):
                            self.check(on_mesh(mesh, body), expected)

    def test_state_is_plain_and_at_one_owner(self):
        def body():
            run = Run(OPTIMIZERS["Muon"], "tp=3").step([0])
            buffers = [(i, kept["momentum_buffer"]) for i, p in enumerate(run.model) if (kept := run.optimizer.state.get(p))]
            return [(i, tuple(buffer.shape), isinstance(buffer, tessera.DTensor)) for i, buffer in buffers]

        found = tessera.run_ranks(body, 3, results="all")
        self.assertEqual(sorted(kept for own in found for kept in own), [(i, shape, False) for i, shape in enumerate(SIZES)])
        self.assertTrue(all(found), found)

    def test_a_step_sends_each_gradient_there_and_each_value_back(self):
        """What an owner lacks of a matrix, both ways (2 T (N-1)/N over even parts), and a flag for each parameter."""
        def summed(value):
            own = torch.tensor([float(value)], dtype=torch.float64)
            return tessera.full_tensor(tessera.from_local(own, tessera.Mesh("tp=2"), [tessera.Partial()])).item()

        def sent(run, steps):
            before = tessera.ledger()["total_bytes"]
            run.step(steps)
            return tessera.ledger()["total_bytes"] - before

        def body():
            run = Run(OPTIMIZERS["Muon"], "tp=2").step([0])
            parts = [(p, tessera.to_local(p).nbytes) for p in run.model]
            lacks = summed(sum(4 * p.numel() - part for p, part in parts if run.optimizer.state.get(p)))
            total = summed(sent(run, [1]))
            with torch.no_grad():
                run.model[0].mul_(2)  # somebody else writes: it is gathered again
            return lacks, total, summed(sent(run, [2]))

        cut = [4 * SIZES[i][0] * SIZES[i][1] for i in (0, 1, 2, 4)]
        flags = 2 * 4 * len(SIZES)
        lacks, total, again = on_mesh("tp=2", body)
        self.assertLessEqual(abs(lacks - sum(cut) / 2), 4 * 7 / 2)  # one matrix has five columns
        self.assertEqual(total, 2 * lacks + flags)
        self.assertEqual(again - total, cut[0] / 2)

    def test_it_goes_on_on_another_mesh(self):
        for name, build in OPTIMIZERS.items():
            expected = Run(build).step(range(4)).values()
            for before, after in (("tp=2", "tp=3"), ("dp=2,tp=2", "tp=2"), ("tp=3", None), (None, "tp=2")):
                with self.subTest(optimizer=name, before=before, after=after), tempfile.TemporaryDirectory() as folder:
                    def save():
                        run = Run(build, before).step(range(2))
                        run.optimizer.param_groups[0]["initial"] = 7
                        tessera.save(folder, run.model, run.optimizer, step=2)

                    def load():
                        run = Run(build, after)
                        tessera.load(folder, run.model, run.optimizer, allows_other_sums=before is None)  # its generator is torch's
                        self.assertEqual(run.optimizer.param_groups[0]["initial"], 7)
                        return run.step(range(2, 4)).values()

                    on_mesh(before, save) if before else save()
                    self.check(on_mesh(after, load) if after else load(), expected)

    def test_a_state_dict_is_whole_and_is_loaded(self):
        def body():
            run = Run(OPTIMIZERS["Muon"], "tp=2").step(range(2))
            state = tessera.full_optimizer_state_dict(run.optimizer, rank=None)
            other = Run(OPTIMIZERS["Muon"], "tp=2")
            for own, value in zip(other.model, run.values(), strict=True):
                with torch.no_grad():
                    own.copy_(value)
            other.optimizer.load_state_dict(state)
            return state, other.step([2]).values()

        expected = Run(OPTIMIZERS["Muon"]).step(range(2))
        state, values = on_mesh("tp=2", body)
        for i, kept in expected.optimizer.state_dict()["state"].items():
            self.assertTrue(torch.equal(state["state"][i]["momentum_buffer"], kept["momentum_buffer"]), i)
        self.check(values, expected.step([2]).values())

    def test_a_schedule_changes_the_rate(self):
        def body(mesh=None):
            run = Run(OPTIMIZERS["Muon"], mesh)
            schedule = torch.optim.lr_scheduler.StepLR(run.optimizer, 1, 0.5)
            for step in range(3):
                run.step([step])
                schedule.step()
            return run.values()

        self.check(on_mesh("tp=2", functools.partial(body, "tp=2")), body())

    def test_a_model_trained_so_has_one_set_of_bits_in_exact(self):
        model, batch = ZOO["llama"].make().eval(), ZOO["llama"].batch(8)

        def body(mesh):
            tessera.numerics("exact", "batch=8,feature=4")
            own = copy.deepcopy(model)
            tessera.parallelize(own, tessera.generate_plan(own, mesh=mesh, lattice="batch=8,feature=4"))
            matrices = [p for name, p in own.named_parameters() if p.dim() == 2 and "embed" not in name and "head" not in name]
            others = [p for p in own.parameters() if not any(p is matrix for matrix in matrices)]
            optimizers = [tessera.optim.owned(torch.optim.Muon(matrices, 0.02)), torch.optim.AdamW(others, 1e-3, fused=True)]
            for _ in range(3):
                own.zero_grad()
                own(**batch).loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
            return tessera.full_state_dict(own, rank=None)

        found = {mesh: on_mesh(mesh, functools.partial(body, mesh)) for mesh in ("1", "dp=2", "tp=2", "dp=2,tp=2")}
        for mesh, state in found.items():
            for name, value in state.items():
                self.assertTrue(torch.equal(value, found["1"][name]), (mesh, name))

    def test_what_it_cannot_do_is_said(self):
        with self.assertRaisesRegex(ValueError, "has state already"):
            tessera.optim.owned(Run(OPTIMIZERS["Muon"]).step([0]).optimizer)
        with self.assertRaisesRegex(ValueError, "accepted: cuts, mesh"):
            on_mesh("tp=2", lambda: Run(OPTIMIZERS["Muon"], "tp=2", "rows").step([0]))

        def added():
            run = Run(OPTIMIZERS["Muon"], "tp=2").step([0])
            run.optimizer.add_param_group({"params": [torch.nn.Parameter(tessera.distribute_tensor(torch.ones(2, 2), tessera.Mesh("tp=2"), "{}"))]})
            run.step([1])

        with self.assertRaisesRegex(RuntimeError, "another owned optimizer"):
            on_mesh("tp=2", added)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    unittest.main()
