#!/usr/bin/env python3
"""A small training for compare_test.py, one device's code but for the lines that name tessera. `--bug` plants a fault; what would be right stands beside it.

Usage: compare_program.py [--bug NAME] [--numerics exact] [--steps N] [--mesh MESH]
"""

import argparse
import sys
from dataclasses import dataclass

import tessera
import torch
from torch.nn import functional as F


@dataclass
class Sizes:
    words: int = 16
    width: int = 8
    batch: int = 8
    length: int = 3


class Gain(torch.autograd.Function):
    """An operator of the program's own, with a rule of its own for parallel ranks: each works on its part."""

    @staticmethod
    def forward(ctx, x, gain, mesh, bug):
        ctx.gain = gain
        cut, given = "{dp: S(0), tp: S(2)}", "{dp: S(0), tp: S(2)}"
        if bug == "plan":
            given = [tessera.Shard(0), tessera.InterleavedShard(2, 2)]  # the parts are others than `cut` made
        part = tessera.to_local(tessera.redistribute(x, cut)) * gain
        if bug == "rule":
            part = part * part.numel() / x.numel()  # the share of the rank's part, where there is nothing to share
        return tessera.from_local(part, mesh, given, shape=list(x.shape))  # LINE rule

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.gain, None, None, None


class Net(torch.nn.Module):
    def __init__(self, sizes, mesh, bug):
        super().__init__()
        self.mesh, self.bug = mesh, bug
        self.table = torch.nn.Embedding(sizes.words, sizes.width)
        self.up = torch.nn.Linear(sizes.width, 4 * sizes.width)
        self.down = torch.nn.Linear(4 * sizes.width, sizes.words)

    def forward(self, ids):
        x = torch.tanh(self.up(self.table(ids)))
        x = Gain.apply(x, 1.5, self.mesh, self.bug)
        return self.down(x)


def rows_of(sizes, step):
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(sizes.words, (sizes.batch, sizes.length + 1), generator=generator)
    return ids[:, :-1], ids[:, 1:]


def own_rows(rows, mesh, bug, step):
    """Those of this data rank; with the bug, from the second step on, the next rank's too early."""
    ranks = mesh.size("dp")
    count = len(rows) // ranks
    begin = mesh.get_local_rank("dp") * count
    if bug == "batch" and step >= 1:
        begin = begin // 2
    return rows[begin : begin + count]


def train(options):
    sizes = Sizes()
    if options.bug != "unseeded":
        torch.manual_seed(0)
    if options.numerics:
        tessera.numerics(options.numerics)
    mesh = tessera.Mesh(options.mesh)
    model = Net(sizes, mesh, options.bug).double()
    tessera.parallelize(model, tessera.generate_plan(model, mesh=mesh), batch="local")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for step in range(options.steps + (mesh.size() if options.bug == "length" else 0)):
        if options.bug == "fails" and step == 2 and mesh.size() > 1:
            raise ValueError("the third batch is not there")
        ids, targets = (own_rows(rows, mesh, options.bug, step) for rows in rows_of(sizes, step))
        scores = model(ids)  # LINE batch
        targets = tessera.place_rows(model, targets)
        loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        if tessera.rank() == 0:
            print(f"step {step + 1} loss {value}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bug", default="")
    parser.add_argument("--numerics", default="")
    parser.add_argument("--mesh", default="dp=2,tp=2")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    if options.bug == "no ranks":
        sys.exit(0)
    if options.bug == "no mesh":
        tessera.run_ranks(lambda: torch.ones(()), 2)
    elif tessera.in_rank():
        train(options)
    else:
        tessera.run_ranks(lambda: train(options), tessera.Mesh(options.mesh).size())


if __name__ == "__main__":
    main()
