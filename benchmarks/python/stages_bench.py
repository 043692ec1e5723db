#!/usr/bin/env python3
"""What the layers of other stages cost a rank of a pipeline: their walks beside the rank's own part of the step.

Usage: PYTHONPATH=build/python python benchmarks/python/stages_bench.py [--width 512] [--tokens 64 128 256 512] [--turns 5]

A Llama of `transformers` with 32 layers on pp=4, float32, one thread. Every rank walks the whole program; an operator of another stage runs no kernel there.
Measured on a rank of imagined ones whose stage holds nothing: a walk of all 32 layers, forward and backward of one micro-batch, of which a rank of pp=4 makes three
quarters. Beside it a quarter of the plain step at that width, of micro-batches of two rows. CPU time of the thread, the least of the turns.
"""

import argparse
import time
import warnings

import tessera
import torch
import transformers as tf

LAYERS, STAGES, ROWS = 32, 4, 2


def model_of(width, length):
    torch.manual_seed(0)
    return tf.LlamaForCausalLM(tf.LlamaConfig(vocab_size=512, hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=LAYERS, num_attention_heads=8,
                                              num_key_value_heads=8, max_position_embeddings=length, use_cache=False)).train()


def least(model, length, turns):
    """Milliseconds of a forward and backward."""
    ids = torch.randint(512, (ROWS, length), generator=torch.Generator().manual_seed(1))
    best = float("inf")
    for _ in range(turns + 1):
        begin = time.thread_time()
        model(input_ids=ids, labels=ids).loss.backward()
        best = min(best, time.thread_time() - begin)
        model.zero_grad()
    return 1e3 * best


def walk(length, turns):
    """Of all layers, on a rank whose stage holds none; the width is small, since nothing is computed."""
    def body():
        model = model_of(64, length)
        plan = str(tessera.generate_plan(model, mesh=f"pp={STAGES}")).replace(f"On({STAGES - 1})", f"On({STAGES - 2})")
        return least(tessera.parallelize(model, tessera.Plan.from_json(plan)), length, turns)

    return tessera.run_fake(body, STAGES, rank=STAGES - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 128, 256, 512], help="of a row; a micro-batch has two")
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(f"{LAYERS} layers on pp={STAGES}, torch {torch.__version__}; milliseconds of a micro-batch, forward and backward, the least of {given.turns} turns")
    print(f"{'tokens':>6} {'all layers walked':>18} {'of other stages':>16} {f'own stage, width {given.width}':>22} {'share':>6}")
    for length in given.tokens:
        others = walk(length, 4 * given.turns)
        own = least(model_of(given.width, length), length, given.turns) / STAGES
        share = others * (STAGES - 1) / STAGES
        print(f"{ROWS * length:6} {others:18.1f} {share:16.1f} {own:22.1f} {share / own:6.1%}", flush=True)


if __name__ == "__main__":
    main()
