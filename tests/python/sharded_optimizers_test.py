#!/usr/bin/env python3
"""Optimizers on fully sharded meshes: one rank's bits in `exact`, those of whole matrices for owned ones, what ranks keep and send, and checkpoints.

Usage: sharded_optimizers_test.py [unittest's arguments]     with TESSERA_FULL=1: every optimizer on every mesh, 20 steps
"""

import copy
import functools
import itertools
import os
import tempfile
import unittest
import warnings

import tessera
import torch
from owned_test import Shampoo, waves
from sampling import sampled
from zoo import ZOO

IS_FULL = "TESSERA_FULL" in os.environ
STEPS = 20 if IS_FULL else 3
SAMPLES = 8
LATTICE = "batch=8,feature=4"
# (mesh, sharding); the first is the reference.
ONE_RANK = ("1", "parameters")
LAYOUTS = (("fsdp=3", "parameters"), ("fsdp=2,tp=2", "parameters"), ("dp=2,fsdp=2", "parameters"), ("fsdp=2", "gradients"), ("fsdp=2", "state"))

ELEMENTWISE = {"AdamW": lambda p: torch.optim.AdamW(p, 1e-3, foreach=False),
               "AdamW foreach": lambda p: torch.optim.AdamW(p, 1e-3, foreach=True),
               "AdamW fused": lambda p: torch.optim.AdamW(p, 1e-3, fused=True),
               "Adam": lambda p: torch.optim.Adam(p, 1e-3, weight_decay=0.1),
               "SGD": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, weight_decay=0.01),
               "SGD fused": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, dampening=0.5, fused=True),
               "Lion": lambda p: tessera.optim.Lion(p, 1e-4, weight_decay=0.1),
               "AdamW8bit": lambda p: tessera.optim.AdamW8bit(p, 1e-3)}
OWNED = {"Muon": lambda p: torch.optim.Muon(p, 0.02, weight_decay=0.1, momentum=0.9),
         "Adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
         "Shampoo": Shampoo}
# What `make test` runs on every mesh; the others run on one.
SAMPLED = ("AdamW fused", "AdamW8bit", "Muon")


def is_matrix(name, parameter):
    return parameter.dim() == 2 and not any(part in name for part in ("wte", "wpe", "lm_head"))


def optimizers_of(model, name):
    """The optimizer of all parameters, or an owned one of the matrices inside of layers and AdamW of the others."""
    if name in ELEMENTWISE:
        return [ELEMENTWISE[name](model.parameters())]
    named = list(model.named_parameters())
    matrices = [p for key, p in named if is_matrix(key, p)]
    others = [p for key, p in named if not is_matrix(key, p)]
    return [tessera.optim.owned(OWNED[name](matrices)), torch.optim.AdamW(others, 1e-3, fused=True)]


def tensors_in(value):
    """In the order of keys, which a loaded state has otherwise than one that was made."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in([value[key] for key in sorted(value, key=str)])
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)


def placed(mesh, sharding):
    tessera.manual_seed(3)
    tessera.numerics("exact", LATTICE)
    torch.manual_seed(3)
    model = ZOO["gpt2"].make()
    tessera.parallelize(model, tessera.generate_plan(model, mesh=mesh, sharding=sharding, lattice=LATTICE))
    return model


def whole(model, optimizers):
    """Parameters and all that optimizers keep, whole, in one order."""
    states = [tessera.full_optimizer_state_dict(optimizer, rank=None)["state"] for optimizer in optimizers]
    return [each.clone() for each in tensors_in([tessera.full_state_dict(model, rank=None), *states])]


def step(model, optimizers, batch):
    """With dropout; returns the loss and the norm that clipping saw."""
    loss = model(**batch).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return [tessera.full_tensor(loss.detach()), tessera.full_tensor(norm)]


def on_mesh(mesh, body):
    return tessera.run_ranks(body, tessera.Mesh(mesh).size())


@functools.cache
def trained(name, layout, steps=STEPS):
    """Losses, norms, parameters and state of a run from its first step on."""
    def body():
        model = placed(*layout)
        optimizers = optimizers_of(model, name)
        seen = []
        for _ in range(steps):
            seen += step(model, optimizers, ZOO["gpt2"].batch(SAMPLES))
        return seen + whole(model, optimizers)

    return on_mesh(layout[0], body)


def same(test, found, expected):
    for i, (own, want) in enumerate(zip(found, expected, strict=True)):
        test.assertTrue(torch.equal(own, want), i)


class BitsTest(unittest.TestCase):
    def check_bits(self, name, layouts):
        for layout in layouts:
            with self.subTest(optimizer=name, layout=layout):
                same(self, trained(name, layout), trained(name, ONE_RANK))


def add_tests(number, name):
    layouts = LAYOUTS if IS_FULL or name in SAMPLED else (LAYOUTS[number % len(LAYOUTS)],)
    setattr(BitsTest, f"test_{name.lower().replace(' ', '_')}", lambda self: self.check_bits(name, layouts))


for number, name in enumerate({**ELEMENTWISE, **OWNED}):
    add_tests(number, name)


class Matrices(torch.nn.Module):
    """Of sizes that do not divide, two layers and one apart; what it computes is nothing: gradients are given."""

    SIZES = ((16, 24), (7, 5), (32, 8), (9, 9), (12, 6))

    def __init__(self):
        super().__init__()
        first, second, third, fourth, last = (torch.nn.Linear(columns, rows, bias=False) for rows, columns in self.SIZES)
        self.layers = torch.nn.ModuleList([torch.nn.Sequential(first, second), torch.nn.Sequential(third, fourth)])
        self.last = last
        with torch.no_grad():
            for i, parameter in enumerate(self.parameters()):
                parameter.copy_(waves(parameter.shape, 0.37 + 0.01 * i))


def step_given(optimizer, parameters, steps):
    """Steps with gradients that are given, each where its parameter lies."""
    for number in steps:
        for i, parameter in enumerate(parameters):
            gradient = waves(parameter.shape, 0.53 + 0.07 * number + 0.01 * i)
            is_placed = isinstance(parameter.data, tessera.DTensor)
            parameter.grad = tessera.distribute_tensor(gradient, parameter.device_mesh, parameter.placements) if is_placed else gradient
        optimizer.step()


def summed(value):
    """Over the ranks of the job."""
    own, ranks = torch.tensor([float(value)], dtype=torch.float64), tessera.Mesh(f"dp={tessera.world_size()}")
    return tessera.full_tensor(tessera.from_local(own, ranks, [tessera.Partial()])).item()


def sent(work):
    """What all ranks send while each does the work."""
    before = tessera.ledger()["total_bytes"]
    work()
    return summed(tessera.ledger()["total_bytes"] - before)


class OwnedTest(unittest.TestCase):
    def test_given_equal_gradients_the_bits_are_those_of_whole_tensors(self):
        for name, build in OWNED.items():
            plain = Matrices()
            step_given(build(plain.parameters()), list(plain.parameters()), range(3))
            for (mesh, sharding), numerics in sampled(itertools.product(LAYOUTS, ("fast", "exact")), 3, name):
                def body(mesh=mesh, sharding=sharding, numerics=numerics, build=build):
                    tessera.numerics(numerics)
                    model = Matrices()
                    tessera.parallelize(model, tessera.generate_plan(model, mesh=mesh, sharding=sharding))
                    step_given(tessera.optim.owned(build(model.parameters())), list(model.parameters()), range(3))
                    return [tessera.full_tensor(parameter.detach()) for parameter in model.parameters()]

                with self.subTest(optimizer=name, mesh=mesh, sharding=sharding, numerics=numerics):
                    same(self, on_mesh(mesh, body), plain.parameters())

    def test_a_step_sends_what_owners_lack_there_and_back(self):
        """Of matrices whose rows lie in runs of a group: many are whole at one rank already, and are not sent."""
        def body():
            model = tessera.parallelize(Matrices(), mesh)
            parameters = list(model.parameters())
            optimizer = tessera.optim.owned(torch.optim.Muon(parameters, 0.02))
            step_given(optimizer, parameters, [0])
            parts = [(p, tessera.to_local(p).nbytes) for p in parameters]
            lacks = summed(sum(4 * p.numel() - part for p, part in parts if optimizer.state.get(p)))
            for p in parameters:
                p.grad = torch.ones_like(p)
            return lacks, sent(optimizer.step)

        for ranks in (2, 3, 4):
            mesh = f"fsdp={ranks}"
            flags = 2 * 4 * len(Matrices.SIZES) * (ranks - 1)
            with self.subTest(mesh=mesh):
                lacks, total = on_mesh(mesh, body)
                self.assertGreater(lacks, 0)
                self.assertLess(lacks, sum(4 * p.numel() for p in Matrices().parameters()) * (ranks - 1) / ranks)
                self.assertLessEqual(abs(total - 2 * lacks - flags), 2 * ranks * len(Matrices.SIZES))  # each rank counts whole bytes of each move

    def test_a_matrix_that_is_cut_evenly_goes_there_and_back_and_a_whole_one_stays(self):
        def body(ranks, layout):
            parameter = torch.nn.Parameter(tessera.distribute_tensor(waves((24, 8), 0.37), tessera.Mesh(f"fsdp={ranks}"), layout))
            optimizer = tessera.optim.owned(torch.optim.Muon([parameter], 0.02))
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            return sent(optimizer.step) - 2 * 4 * (ranks - 1)  # a flag

        for ranks in (2, 3, 4):
            even = on_mesh(f"fsdp={ranks}", lambda ranks=ranks: body(ranks, "{fsdp: S(0)}"))
            rows = ",".join(["0"] * (ranks - 1) + ["24"])
            whole_rows = on_mesh(f"fsdp={ranks}", lambda ranks=ranks, rows=rows: body(ranks, f"{{fsdp: S(0|{rows})}}"))
            with self.subTest(ranks=ranks):  # each rank counts whole bytes of each move
                self.assertLessEqual(abs(even - 2 * 24 * 8 * 4 * (ranks - 1) / ranks), 2 * ranks)
                self.assertLessEqual(abs(whole_rows), ranks)


class KeptTest(unittest.TestCase):
    def test_state_of_eight_bits_is_shared_out(self):
        """2 + 8/256 bytes a parameter over the ranks, within a row of each; a vector is one row, the last block of a row may be short."""
        def wide():
            return torch.nn.Sequential(torch.nn.Linear(512, 256), torch.nn.Linear(256, 768), torch.nn.Linear(768, 40))

        def body(mesh):
            model = tessera.parallelize(tessera.deferred(wide), mesh)
            optimizer = tessera.optim.AdamW8bit(model.parameters())
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            optimizer.step()
            return sum(tessera.to_local(kept).nbytes for kept in tensors_in(list(optimizer.state.values())))

        rows = [p if p.dim() > 1 else p.unsqueeze(0) for p in wide().parameters()]
        total = sum(2 * p.numel() + 8 * len(p) * -(-p.shape[1] // 256) for p in rows)
        row = sum((2 + 8 / 256) * max(p.shape[1], 256) for p in rows)
        self.assertLess(total - (2 + 8 / 256) * sum(p.numel() for p in rows), 8)  # of one short block
        for ranks in (1, 2, 3, 4):
            with self.subTest(ranks=ranks):
                owns = []
                on_mesh(f"fsdp={ranks}", lambda ranks=ranks, owns=owns: owns.append(body(f"fsdp={ranks}")))
                self.assertEqual(sum(owns), total)
                self.assertLessEqual(max(owns), total / ranks + row)

    def test_an_average_lies_as_its_parameter_and_has_one_ranks_bits(self):
        def body(layout):
            model = placed(*layout)
            optimizers = optimizers_of(model, "AdamW fused")
            ema = tessera.optim.Ema(model.parameters(), 0.9)
            for _ in range(2):
                step(model, optimizers, ZOO["gpt2"].batch(SAMPLES))
                ema.update()
            self.assertEqual([average.placements for average in ema.averages], [p.placements for p in model.parameters()])
            with ema.applied():
                loss = tessera.full_tensor(model.eval()(**ZOO["gpt2"].batch(SAMPLES)).loss.detach())
            return [loss, *(tessera.full_tensor(average) for average in ema.averages)]

        want = on_mesh("1", lambda: body(ONE_RANK))
        for layout in sampled(LAYOUTS, 2):
            with self.subTest(layout=layout):
                same(self, on_mesh(layout[0], lambda layout=layout: body(layout)), want)


class CheckpointTest(unittest.TestCase):
    def check_bits(self, name, moves):
        """A run that was saved and goes on on another mesh ends with the bits of one rank that never stopped."""
        for before, after in moves:
            with self.subTest(optimizer=name, before=before, after=after), tempfile.TemporaryDirectory() as folder:
                def save():
                    model = placed(*before)
                    optimizers = optimizers_of(model, name)
                    step(model, optimizers, ZOO["gpt2"].batch(SAMPLES))
                    for i, optimizer in enumerate(optimizers):
                        tessera.save(f"{folder}/{i}", model, optimizer, step=1)

                def load():
                    model = placed(*after)
                    optimizers = optimizers_of(model, name)
                    for i, optimizer in enumerate(optimizers):
                        tessera.load(f"{folder}/{i}", model, optimizer)
                    step(model, optimizers, ZOO["gpt2"].batch(SAMPLES))
                    return whole(model, optimizers)

                on_mesh(before[0], save)
                same(self, on_mesh(after[0], load), trained(name, ONE_RANK, 2)[4:])  # behind losses and norms


TWO = ("fsdp=2", "parameters")
MOVES = ((TWO, ("fsdp=3", "parameters")), (TWO, ("tp=2", "parameters")), (("fsdp=3", "gradients"), TWO))
for name in {**ELEMENTWISE, **OWNED} if IS_FULL else SAMPLED:
    setattr(CheckpointTest, f"test_{name.lower().replace(' ', '_')}", lambda self, name=name: self.check_bits(name, MOVES if IS_FULL else MOVES[:2]))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    unittest.main()
