#!/usr/bin/env python3
"""What the layers of other stages cost a rank of a pipeline: their walks beside the rank's own part of the step.

Usage: PYTHONPATH=build/python python benchmarks/python/stages_bench.py [--width 512] [--tokens 64 128 256 512] [--turns 5]

A Llama of `transformers` with 32 layers on pp=4, float32, one thread. Every rank walks the whole program; an operator of another stage runs no kernel there.
Measured on a rank of imagined ones whose stage holds nothing: a walk of all 32 layers, forward and backward of one micro-batch, of which a rank of pp=4 makes three
quarters; once without a schedule, and once by 1F1B in 8 micro-batches, where the rank goes past layers in all but one. Beside it a quarter of the plain step at that width, of
micro-batches of two rows. What the model does outside of its layers (most of it the mask) is in the walks, and on one device too: the last column is what layers alone
take, the walk in a schedule without what a plain model of no layers takes. CPU time of the thread, the least of the turns.
"""

import argparse
import time
import warnings

import tessera
import torch
import transformers as tf

LAYERS, STAGES, ROWS, MICRO_BATCHES = 32, 4, 2, 8


def model_of(width, length, layers=LAYERS):
    torch.manual_seed(0)
    return tf.LlamaForCausalLM(tf.LlamaConfig(vocab_size=512, hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=layers, num_attention_heads=8,
                                              num_key_value_heads=8, max_position_embeddings=length, use_cache=False)).train()


def least(model, length, turns, microbatches=1):
    """Milliseconds of a forward and backward of a micro-batch."""
    ids = torch.randint(512, (ROWS * microbatches, length), generator=torch.Generator().manual_seed(1))
    best = float("inf")
    for _ in range(turns + 3):
        begin = time.thread_time()
        model(input_ids=ids, labels=ids).loss.backward()
        best = min(best, time.thread_time() - begin)
        model.zero_grad()
    return 1e3 * best / microbatches


def walk(length, turns, microbatches=1):
    """Of all layers, on a rank whose stage holds none; the width is small, since nothing is computed."""
    def body():
        model = model_of(64, length)
        plan = str(tessera.generate_plan(model, mesh=f"pp={STAGES}", schedule="1f1b" if microbatches > 1 else ""))
        plan = tessera.Plan.from_json(plan.replace(f"On({STAGES - 1})", f"On({STAGES - 2})"))
        return least(tessera.parallelize(model, plan, microbatches=microbatches), length, turns, microbatches)

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
    print(f"{'tokens':>6} {'all layers walked':>18} {'in a schedule':>14} {f'own stage, width {given.width}':>22} {'share of other stages':>22} {'in a schedule':>14} "
          f"{'outside of layers':>18} {'share of layers':>16}")
    for length in given.tokens:
        own = least(model_of(given.width, length), length, given.turns) / STAGES
        walks = [walk(length, 4 * given.turns), walk(length, given.turns, MICRO_BATCHES)]
        outside = least(model_of(64, length, layers=0), length, given.turns)
        shares = [each * (STAGES - 1) / STAGES / own for each in (*walks, walks[1] - outside)]
        print(f"{ROWS * length:6} {walks[0]:18.1f} {walks[1]:14.1f} {own:22.1f} {shares[0]:22.1%} {shares[1]:14.1%} {outside:18.1f} {shares[2]:16.1%}", flush=True)


if __name__ == "__main__":
    main()
