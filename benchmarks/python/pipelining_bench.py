#!/usr/bin/env python3
"""Pipelines beside torch.distributed.pipelining: the seconds of a step by 1F1B and by ZBV, in one run.

Usage: PYTHONPATH=build/python python benchmarks/python/pipelining_bench.py [--widths 128 512] [--schedules 1f1b zbv] [--pairs 4] [--turns 6] [--steps 8] [--tokens 64]

A decoder of 8 blocks with its loss, fused AdamW, 8 micro-batches of 2 rows of tokens, float32, one thread a rank; 2 processes over Gloo. PyTorch's side
cuts the model into stages by hand and gives its schedule the batch where the first stage is and the targets where the last one is; ours calls the
model. The processes of both live side by side and take turns of a few steps, so that a machine which slows down slows both; of a turn the least step of
the slower rank counts, of all turns the least and the median of the ratios. How processes come to lie in the machine's caches makes more than is to be
told, so both sides start anew several times (--pairs). The losses after the first steps say that both computed the same.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time

import torch
from rank_processes import start_ranks
from torch import nn
from torch.nn import functional as F

SIDES = ("tessera", "torch")
RANKS, LAYERS, MICRO_BATCHES, ROWS, VOCABULARY = 2, 8, 8, 2, 512
WARM_STEPS = 3
DEADLINE = 1200  # seconds of one row


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = max(width // 64, 2)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """Blocks [first, last), with what stands before the first and behind the last; with labels its loss."""

    def __init__(self, width, first=0, last=LAYERS):
        super().__init__()
        torch.manual_seed(0)
        table, blocks, norm, head = nn.Embedding(VOCABULARY, width), [Block(width) for _ in range(LAYERS)], nn.LayerNorm(width), nn.Linear(width, VOCABULARY, False)
        self.table = table if first == 0 else None
        self.blocks = nn.ModuleList(blocks[first:last])
        self.norm, self.head = (norm, head) if last == LAYERS else (None, None)

    def forward(self, x, labels=None):
        x = self.table(x) if self.table else x
        for block in self.blocks:
            x = block(x)
        x = self.head(self.norm(x)) if self.head else x
        return x if labels is None else loss_of(x, labels)


def loss_of(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def our_step(schedule, width):
    """A function of ids and labels that trains one step and gives its loss."""
    import tessera
    model = Decoder(width)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    tessera.parallelize(model, tessera.generate_plan(model, mesh=f"pp={RANKS}", schedule=schedule), optimizer, microbatches=MICRO_BATCHES)

    def step(ids, labels):
        loss = model(ids, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss
    return step


def their_step(schedule, width):
    from torch.distributed import pipelining
    torch.distributed.init_process_group("gloo")
    rank, is_v = torch.distributed.get_rank(), schedule == "zbv"
    count = RANKS * (1 + is_v)
    own = [rank, count - 1 - rank] if is_v else [rank]
    parts = [Decoder(width, index * LAYERS // count, (index + 1) * LAYERS // count) for index in own]
    stages = [pipelining.PipelineStage(part, index, count, torch.device("cpu")) for part, index in zip(parts, own, strict=True)]
    made = pipelining.schedules.ScheduleZBVZeroBubble(stages, MICRO_BATCHES, loss_of) if is_v else pipelining.Schedule1F1B(stages[0], MICRO_BATCHES, loss_of)
    optimizer = torch.optim.AdamW([parameter for part in parts for parameter in part.parameters()], 1e-3, fused=True)

    def step(ids, labels):
        losses = []
        has_last = count - 1 in own
        made.step(*([ids] if 0 in own else []), **({"target": labels, "losses": losses} if has_last else {}))
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean() if has_last else None
    return step


def answer(side, schedule, width, tokens):
    """One rank of one side: it trains as many steps as each line that it reads says, and answers with the least seconds of one and the last loss, as JSON."""
    torch.set_num_threads(1)
    step = (our_step if side == "tessera" else their_step)(schedule, width)
    ids, labels = torch.randint(VOCABULARY, (2, ROWS * MICRO_BATCHES, tokens), generator=torch.Generator().manual_seed(1))
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            begin = time.perf_counter()
            loss = step(ids, labels)
            seconds.append(time.perf_counter() - begin)
        print(json.dumps({"time": min(seconds), "loss": None if loss is None else loss.item()}), flush=True)
    if side == "torch":
        os._exit(0)  # now and then a thread of its groups aborts the process that ends


class Side:
    """The processes of one side, which wait until they are asked for steps."""

    def __init__(self, name, schedule, width, tokens):
        self.ranks = start_ranks([__file__, "--rank-of", name, "--schedules", schedule, "--widths", width, "--tokens", tokens], RANKS, stdin=subprocess.PIPE)

    def take(self, steps):
        """The least seconds of a step of the slower rank, and the last loss."""
        for rank in self.ranks:
            print(steps, file=rank.stdin, flush=True)
        found = [json.loads(rank.stdout.readline()) for rank in self.ranks]
        return max(each["time"] for each in found), next(each["loss"] for each in found if each["loss"] is not None)

    def end(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            rank.wait()


def take_turns(schedule, width, given):
    """What both sides take, turn by turn, and their losses after the first steps."""
    sides = [Side(name, schedule, width, given.tokens) for name in SIDES]
    losses = [side.take(WARM_STEPS)[1] for side in sides]
    turns = [[side.take(given.steps)[0] for side in sides] for _ in range(given.turns)]
    for side in sides:
        side.end()
    return turns, losses


def compare(schedule, width, given):
    """A row of both sides, of all pairs of processes together; behind it the median of each pair."""
    pairs = [take_turns(schedule, width, given) for _ in range(given.pairs)]
    turns, losses = [turn for turns, _ in pairs for turn in turns], pairs[0][1]
    ours, theirs = (min(turn[i] for turn in turns) for i in range(2))
    of_pairs = " ".join(f"{middle_of(turns):.2f}" for turns, _ in pairs)
    return f"{schedule:8}{width:7}{ours * 1e3:22.2f}{theirs * 1e3:10.2f}{ours / theirs:7.2f}{middle_of(turns):15.2f}{losses[0]:22.5f}{losses[1]:10.5f}   {of_pairs}"


def middle_of(turns):
    return statistics.median(turn[0] / turn[1] for turn in turns)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--schedules", nargs="+", default=["1f1b", "zbv"], choices=("1f1b", "zbv"))
    parser.add_argument("--pairs", type=int, default=4, help="of processes of both sides, one after the other")
    parser.add_argument("--turns", type=int, default=6, help="of a pair")
    parser.add_argument("--steps", type=int, default=8, help="of a turn")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rank-of", choices=SIDES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_of:
        return answer(given.rank_of, given.schedules[0], given.widths[0], given.tokens)
    print(f"{RANKS} processes a side, {MICRO_BATCHES} micro-batches of {ROWS}x{given.tokens} tokens, torch {torch.__version__}; {given.pairs} times {given.turns} turns of {given.steps} steps\n"
          "schedule  width    ms a step: tessera     torch  ratio  of turns' median  early loss: tessera     torch   medians of pairs")
    for schedule in given.schedules:
        for width in given.widths:
            signal.signal(signal.SIGALRM, lambda *_, row=f"{schedule} at width {width}": sys.exit(f"{row} took more than {DEADLINE} s"))
            signal.alarm(DEADLINE)
            print(compare(schedule, width, given), flush=True)


if __name__ == "__main__":
    main()
