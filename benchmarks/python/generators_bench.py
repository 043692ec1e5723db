#!/usr/bin/env python3
"""What drawing plain PyTorch's random numbers costs a training step, beside the `counter` generator and a step that draws nothing.

Usage: PYTHONPATH=build/python python benchmarks/python/generators_bench.py [ROUNDS]

A step (forward, backward, AdamW) of a GPT-2 of `transformers`, 2 layers of width 256, batch 8 x 128, with its dropouts of 0.1: of embeddings, attention weights, both residuals.
Plainly on one device, on a mesh of one, and as rank 0 of imagined meshes (nothing is sent), where `counter` draws a rank's part alone and `stock` walks the whole stream. CPU time
of the thread, one thread, the least of the rounds; the kinds take turns.
"""

import sys
import time
import warnings

import tessera
import torch
import transformers as tf

WIDTH, LAYERS, BATCH, LENGTH = 256, 2, 8, 128
MESHES = ("1", "dp=2", "dp=8", "tp=4", "dp=2,tp=2")


def model_with(dropout):
    torch.manual_seed(0)
    return tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=512, n_embd=WIDTH, n_layer=LAYERS, n_head=4, n_positions=LENGTH, attn_implementation="eager",
                                            embd_pdrop=dropout, attn_pdrop=dropout, resid_pdrop=dropout)).train()


def step_of(dropout, mesh, generator):
    """A function that takes a step and returns its milliseconds."""
    if generator:
        tessera.set_generator(generator)
    model = model_with(dropout)
    if mesh:
        tessera.parallelize(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    ids = torch.randint(512, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))

    def step():
        begin = time.thread_time()
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return 1e3 * (time.thread_time() - begin)

    return step


def least(dropout, mesh, generator, rounds):
    def body():
        step = step_of(dropout, mesh, generator)
        return min(step() for _ in range(rounds + 1))

    return tessera.run_fake(body, tessera.Mesh(mesh).size()) if mesh else body()


def main(rounds):
    print(f"torch {torch.__version__}, {rounds} rounds, ms of a step\n\n{'mesh':10} {'no dropout':>12} {'counter':>12} {'stock':>12} {'stock - counter':>16} {'of the step':>12}")
    for mesh in ("", *MESHES):
        kinds = [(0.0, mesh and "counter"), (0.1, "counter"), (0.1, mesh and "stock")] if mesh else [(0.0, ""), (0.1, "")]
        found = [min(times) for times in zip(*[[least(dropout, mesh, generator, rounds) for dropout, generator in kinds] for _ in range(3)], strict=True)]
        if mesh:
            none, counter, stock = found
            print(f"{mesh:10} {none:12.1f} {counter:12.1f} {stock:12.1f} {stock - counter:16.1f} {100 * (stock - counter) / counter:11.0f}%")
        else:
            print(f"{'plainly':10} {found[0]:12.1f} {'':>12} {found[1]:12.1f}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
