#!/usr/bin/env python3
"""Fully sharded training beside PyTorch's FSDP2: one program for both, the seconds of a step and the memory of a rank, in one run.

Usage: PYTHONPATH=build/python python benchmarks/python/fsdp2_bench.py [--widths 64 128 256 512 1024] [--turns 3] [--ranks 2] [--tokens 64]

A Llama of `transformers`, 4 layers, each of them a group and the rest one, fused AdamW, 2 rows of tokens a rank, float32, one thread a rank; processes
over Gloo. The program is the same but for what it imports. Both take turns, each turn in processes of its own; of all turns the least step counts, and
the least memory: the most that was resident during steps, over what was before the model was made, of the rank that has more. The mean of the ranks'
last losses says that both computed the same.
"""

import argparse
import ctypes
import gc
import json
import os
import sys
import time

import torch
from rank_processes import run_ranks

SIDES = ("tessera", "FSDP2")
LAYERS, ROWS, VOCABULARY = 4, 2, 512
WARM_STEPS = 3
DEADLINE = 300  # seconds of one turn


def llama(width, tokens):
    import transformers
    torch.manual_seed(0)
    heads = max(width // 64, 2)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=LAYERS, num_attention_heads=heads,
        num_key_value_heads=heads, max_position_embeddings=tokens, use_cache=False, attn_implementation="sdpa")).train()


def steps_of(width):
    """About two seconds of them; the same number on every rank and side."""
    return max(5, min(100, 2 * 10**7 // width**2))


def resident_mebibytes(most=False):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:" if most else "VmRSS:")) / 1024


def forget_most():
    """What making the model took is given back, and no longer counts."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as most:
        most.write("5")


def import_side(side):
    if side == "tessera":
        from tessera import fully_shard
    else:
        from torch.distributed.fsdp import fully_shard
        torch.distributed.init_process_group("gloo")
    return fully_shard


def measure(side, width, tokens):
    """One turn of one rank, as a line of JSON."""
    torch.set_num_threads(1)
    fully_shard = import_side(side)
    import transformers.models.llama.modeling_llama  # noqa: F401 (what it takes is no model's)
    before = resident_mebibytes()
    model = llama(width, tokens)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    ids = torch.randint(VOCABULARY, (ROWS, tokens), generator=torch.Generator().manual_seed(int(os.environ["RANK"])))
    least = float("inf")
    for step in range(WARM_STEPS + steps_of(width)):
        if step == WARM_STEPS:
            forget_most()
        begin = time.perf_counter()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= WARM_STEPS:
            least = min(least, time.perf_counter() - begin)
    print(json.dumps({"time": least, "memory": resident_mebibytes(most=True) - before, "loss": loss.item()}), flush=True)
    if side == "FSDP2":
        os._exit(0)  # now and then a thread of its groups aborts the process that ends


def run_turn(side, width, tokens, ranks):
    """The step of the slowest rank, the memory of the largest, the mean loss."""
    outputs = run_ranks([__file__, "--rank-of", side, "--widths", width, "--tokens", tokens], ranks, DEADLINE, f"{side} at width {width}")
    found = [json.loads(output.strip().splitlines()[-1]) for output in outputs]
    return {"time": max(each["time"] for each in found), "memory": max(each["memory"] for each in found), "loss": sum(each["loss"] for each in found) / ranks}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rank-of", choices=SIDES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_of:
        return measure(given.rank_of, given.widths[0], given.tokens)
    print(f"{given.ranks} processes, 2x{given.tokens} tokens a rank, torch {torch.__version__}; the least of {given.turns} turns\n"
          "width    ms a step: tessera     FSDP2  ratio    MiB a rank: tessera     FSDP2  ratio    last loss: tessera     FSDP2")
    for width in given.widths:
        turns = {side: [] for side in SIDES}
        for _ in range(given.turns):
            for side in SIDES:
                turns[side].append(run_turn(side, width, given.tokens, given.ranks))
        time_of, memory_of = ([min(turn[what] for turn in turns[side]) for side in SIDES] for what in ("time", "memory"))
        losses = [turns[side][0]["loss"] for side in SIDES]
        print(f"{width:5}{time_of[0] * 1e3:22.2f}{time_of[1] * 1e3:10.2f}{time_of[0] / time_of[1]:7.2f}{memory_of[0]:23.1f}{memory_of[1]:10.1f}"
              f"{memory_of[0] / memory_of[1]:7.2f}{losses[0]:22.5f}{losses[1]:10.5f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
