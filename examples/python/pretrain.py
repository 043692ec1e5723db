#!/usr/bin/env python3
"""Pretraining a small GPT-2 of `transformers` from scratch, on any mesh, with checkpoints from which any other mesh goes on.

    python pretrain.py                                                      one device
    python pretrain.py --ranks 4 --mesh dp=2,tp=2                           four rank threads of this process
    torchrun --nproc-per-node 4 pretrain.py --mesh fsdp=2,tp=2              four processes; `tessera launch -n 4 -- python` does the same
    sbatch ../slurm/pretrain.sbatch                                         processes of several machines
    python pretrain.py --checkpoints runs/small --save-every 20                     started again it goes on from the newest whole checkpoint

What tessera is for stands in the lines that name it; the rest is PyTorch for one device. In `exact` numerics the losses that it prints have the same
bits on every mesh.
"""

import argparse
from pathlib import Path

import tessera
import torch
from transformers import GPT2Config, GPT2LMHeadModel

TEXT = Path(__file__).parents[1] / "data" / "kjv.txt"
BATCH, LENGTH = 16, 64


def batch_of(text, step):
    """The sequences of a step, the same on every rank: bytes are tokens."""
    starts = torch.randint(len(text) - LENGTH, (BATCH,), generator=torch.Generator().manual_seed(step))
    return torch.stack([text[start : start + LENGTH] for start in starts]).long()


def resume(run, model, optimizer, schedule):
    """How many steps the newest whole checkpoint of the run had taken, all of which are then in what is given; 0 if there is none."""
    tessera.remove_unfinished(run)  # what a killed save left
    if not any(Path(run).glob("step_*/manifest.json")):
        return 0
    loaded = tessera.load(run, model, optimizer)
    schedule.load_state_dict(loaded["schedule"])
    return loaded.step


def train(options):
    """The losses of the steps that this program took."""
    torch.manual_seed(0)
    tessera.numerics(options.numerics, *([f"batch={BATCH}"] if options.numerics == "exact" else []))
    text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=options.width, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0,
                                       loss_type="ForCausalLM"))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=10)
    tessera.parallelize(model, tessera.generate_plan(model, mesh=options.mesh))
    first = resume(options.checkpoints, model, optimizer, schedule) if options.checkpoints else 0

    losses = []
    for step in range(first, options.steps):
        ids = batch_of(text, step)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if tessera.rank() == 0:
            print(f"step {step + 1}: loss {losses[-1]!r}", flush=True)
        if options.checkpoints and (step + 1) % options.save_every == 0:
            tessera.save(options.checkpoints, model, optimizer, step=step + 1, extra={"schedule": schedule.state_dict()}, keep=2)
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--mesh", default=None, help="such as dp=2,tp=2; as many ranks as there are, if it is not given")
    parser.add_argument("--ranks", type=int, default=1, help="rank threads of this process, where no launcher has made ranks of processes")
    parser.add_argument("--numerics", choices=("fast", "exact"), default="fast")
    parser.add_argument("--checkpoints", help="the folder of checkpoints")
    parser.add_argument("--save-every", type=int, default=20)
    options = parser.parse_args()
    if tessera.in_rank():  # a launcher has started this process as one
        train(options)
    else:
        tessera.run_ranks(lambda: train(options), options.ranks)


if __name__ == "__main__":
    main()
