"""What programs_test.py runs on every rank: trains a small model, and rank 0 prints every bit of its losses and weights.

Usage: python_program.py [with-group] [raise | exit | wait] MARK     (what rank 1 does then; MARK is there to be found by)
"""

import os
import sys
import time

import tessera
import torch


def train():
    """The bits of three losses and of the weights after them."""
    random = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).double()
    inputs, targets = (torch.randn(6, width, generator=random, dtype=torch.float64) for width in (12, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if tessera.in_rank():
        tessera.parallelize(model, f"tp={tessera.world_size()}")
    losses = []
    for _ in range(3):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return [number.hex() for number in losses + [number for p in model.parameters() for number in p.flatten().tolist()]]


def main(*options):
    if "with-group" in options:
        torch.distributed.init_process_group("gloo")
    rank = tessera.rank()
    bits = [] if "wait" in options else train()  # which imports much
    if rank == 0:
        print(*bits)
    print(f"rank {rank} of {tessera.world_size()} of process {os.environ['RANK']}")
    if rank == 1 and "raise" in options:
        raise ValueError("on purpose")
    if rank == 1 and "exit" in options:
        os._exit(7)
    if rank == 1 and "wait" in options:
        time.sleep(1000)
    tessera.distribute_tensor(torch.ones(4), tessera.Mesh(f"tp={tessera.world_size()}"), "{tp: S(0)}").full_tensor()


if __name__ == "__main__":
    main(*sys.argv[1:])
