#!/usr/bin/env python3
"""Random programs around the modules of a pipeline have one rank's losses, norms of gradients and parameters under every schedule.

A program calls its blocks in their order, on values that it made before, and does something between them: skips, values that
several blocks read, blocks that are called twice or of two values, tied weights, losses on the way, terms of parameters of two blocks. It prints its seed; a
program that fails is printed as it stands.

Usage: random_programs_test.py [--seed N] [--programs 3] [--run pp=2,dp=2:1f1b]... [--run pp=4:zbv:exact]...
"""

import argparse
import collections
import random
import sys

import tessera
import torch
from torch import nn
from torch.nn import functional as F

WIDTH, STEPS, MICRO_BATCHES = 8, 5, 4
LONGEST = 1.0  # of all gradients together: a program that diverges would differ from itself by how its sums were rounded
DEADLINE = 30.0
RUNS = ("pp=2:1f1b", "pp=4:1f1b", "pp=4:zb-h1", "pp=2:interleaved", "pp=2:zbv", "pp=4:zbv", "pp=2:v-half", "pp=2,dp=2:1f1b", "pp=2,tp=2:zb-h1", "pp=2,tp=2:zbv",
        "pp=2:v-half:exact", "pp=4:zbv:exact", "pp=2,dp=2:interleaved:exact")


class Block(nn.Module):
    """A value of the sizes of its weight, so that no message could be told from another by its sizes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, beside=None):
        inner = x if beside is None else x + torch.sigmoid(beside)
        return x + torch.tanh(self.linear(inner))


class Pair(nn.Module):
    """Two blocks, of which the second is given what the first was given, too."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()
        self.linear = self.first.linear

    def forward(self, x, beside=None):
        return self.second(self.first(x, beside), x) + x * 0.5


class Net(nn.Module):
    def __init__(self, blocks, ties, body):
        super().__init__()
        self.blocks = nn.ModuleList(block() for block in blocks)
        for k, first in ties.items():
            self.blocks[k].tied = self.blocks[first].linear.weight
        self.head = nn.Linear(WIDTH, WIDTH)
        self.body = body

    def forward(self, x, y):
        return self.body(self.blocks, lambda value: (self.head(value) - y).square().mean(), x)


class Program:
    def __init__(self, seed):
        draw = random.Random(seed)
        self.blocks = draw.choices([Block, Pair], [4, 1], k=draw.randint(4, 6))
        self.ties = {}  # of which block the weight is that of another one, too
        count = len(self.blocks)
        lines = [f"v{k + 1} = {self.call(draw, k)}" for k in range(count)]
        middle = draw.randrange(1, count)
        extra = draw.choice(["", "", f" + loss_of(v{middle}) * 0.3", f" + v{middle}.square().mean() * 0.1"])
        self.text = "\n    ".join(["def body(blocks, loss_of, v0):", *lines, f"return loss_of(v{count}){extra}"])

    def call(self, draw, k):
        """Of the block k."""
        last, other = f"v{k}", f"v{draw.randint(0, k)}"
        kinds = {
            f"blocks[{k}]({last})": 8,
            f"blocks[{k}]({last}, {other})": 2,
            f"blocks[{k}]({last}) + {other} * 0.5": 2,
            f"blocks[{k}]({last} * 0.5 + {other} * 0.5)": 2,
            f"blocks[{k}]({last} + blocks[{k}]({other})) * 0.5": 2,
            f"blocks[{k}](torch.tanh({last}))": 2,
            f"blocks[{k}]({last}) + {other}.detach() * 0.5": 1,
            f"blocks[{k}]({last}, {other}.detach())": 1,
        }
        early = draw.randint(0, k)
        kinds[f"blocks[{k}]({last}) + (blocks[{early}].linear.bias + blocks[{k}].linear.bias) * 0.1"] = 1
        kinds[f"blocks[{k}]({last}) + (blocks[{early}].linear.weight - blocks[{k}].linear.weight.t()).square().mean()"] = 1
        if k:
            self.ties[k] = draw.choice([0, draw.randrange(k)])
            kinds[f"blocks[{k}]({last}) + F.linear({other}, blocks[{k}].tied) * 0.1"] = 3
        chosen = draw.choices(list(kinds), list(kinds.values()))[0]
        if "tied" not in chosen:
            self.ties.pop(k, None)
        return chosen

    def __str__(self):
        kinds = f"blocks = {', '.join(block.__name__ for block in self.blocks)}\n"
        return kinds + "".join(f"blocks[{k}].tied = blocks[{first}].linear.weight\n" for k, first in self.ties.items()) + self.text

    def body(self):
        names = {"torch": torch, "F": F}
        exec(self.text, names)
        return names["body"]


def trained(mesh, schedule, numerics, program):
    def on_rank():
        tessera.numerics(numerics)
        torch.manual_seed(0)
        model = Net(program.blocks, program.ties, program.body())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        tessera.parallelize(model, tessera.generate_plan(model, mesh=mesh, schedule=schedule), optimizer, microbatches=MICRO_BATCHES)
        seen = []
        for step in range(STEPS):
            loss = model(*torch.randn(2, MICRO_BATCHES * WIDTH, WIDTH, generator=torch.Generator().manual_seed(step)))
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), LONGEST)
            optimizer.step()
            optimizer.zero_grad()
            seen += [value.full_tensor() if isinstance(value, tessera.DTensor) else value for value in (loss.detach(), norm)]
        return [torch.stack(seen), *(value.clone() for value in tessera.full_state_dict(model).values())]

    return tessera.run_ranks(on_rank, tessera.Mesh(mesh).size(), deadline=DEADLINE)


def is_same(got, want, is_exact):
    if is_exact:
        return all(map(torch.equal, got, want))
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(got, want, strict=True))


def run(mesh, schedule, numerics, program, want):
    """(verdict, the error's text). In `fast`, gradients of tied weights and of parts of a batch or a product are rounded in another order."""
    try:
        got = trained(mesh, schedule, numerics, program)
    except RuntimeError as error:
        return "error", str(error)
    is_exact = numerics == "exact" or (not program.ties and "," not in mesh)
    return "right" if is_same(got, want, is_exact) else "wrong", ""


def parsed(text):
    mesh, schedule, *numerics = text.split(":")
    return mesh, schedule, *(numerics or ["fast"])


def main():
    parser = argparse.ArgumentParser(usage=__doc__.partition("Usage: ")[2])
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--programs", type=int, default=3)
    parser.add_argument("--run", action="append", help="a mesh, a schedule, and the numerics")
    options = parser.parse_args()
    runs = [parsed(text) for text in options.run or RUNS]
    print(f"seed {options.seed}", flush=True)
    counts, failed = collections.Counter(), False
    for seed in range(options.seed, options.seed + options.programs):
        program = Program(seed)
        want = {numerics: trained("1", "", numerics, program) for numerics in {numerics for _, _, numerics in runs}}
        for mesh, schedule, numerics in runs:
            verdict, error = run(mesh, schedule, numerics, program, want[numerics])
            counts[mesh, schedule, numerics, verdict] += 1
            if verdict != "right":
                failed = True
                print(f"seed {seed}, {mesh}, {schedule}, {numerics}: {verdict}\n{program}\n{error}", flush=True)
    for (mesh, schedule, numerics, verdict), count in sorted(counts.items()):
        print(f"{mesh} {schedule} {numerics}: {count} {verdict}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
