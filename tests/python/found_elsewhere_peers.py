#!/usr/bin/env python3
"""The programs of found_elsewhere.py by PyTorch's own ways to many processes, beside one device: two processes over Gloo, in float64.

Usage: found_elsewhere_peers.py [--python PYTHON] [PEER...]      PEER: DDP, FSDP2, DTensor, loss_parallel; all of them unless named. Prints a table, a row a program
PYTHON is another one, with another torch, for the peers' processes.

Each peer is used as its documentation says. DDP and FSDP2: each rank has its rows, the loss is the mean of the ranks' losses. DTensor (tp=2): parameters lie as
tessera's plan for tp=2 says, where torch has such a placement, inputs and buffers are replicated. loss_parallel: of a language model's program the head alone is
cut, over the vocabulary, and the loss is computed within it. A cell says `same`, or by how much at most what is other
than on one device is so, relative to the largest value, or how the peer stops. Nothing of tessera is in these processes.
"""

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import torch
from found_elsewhere import DIM, LENGTH, PROGRAMS, ROWS, VOCABULARY, Language
from torch import distributed

PEERS, RANKS, STEPS = ("DDP", "FSDP2", "DTensor", "loss_parallel"), 2, 2
OPTIMIZERS = {"AdamW": {}, "AdamW foreach": {"foreach": True}, "Adafactor": {}, "Muon": {}}


def made(cls):
    torch.manual_seed(0)
    return cls().double().train()


def batch_of(step):
    """That of found_elsewhere_test.py."""
    generator = torch.Generator().manual_seed(step)
    tokens, labels = (torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator) for _ in range(2))
    labels[torch.rand(ROWS, LENGTH, generator=generator) < 0.3] = -100
    labels[0] = -100
    labels[1, 0] = 3
    return tokens, labels, torch.randn(ROWS, LENGTH, DIM, generator=generator, dtype=torch.float64)


def whole(value):
    value = value.detach()
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()


def train(cls, model, own, mean):
    """What the steps show, by kind. `own` gives a rank's part of a micro-batch, `mean` makes one loss of the ranks'."""
    name = cls.how.get("optimizer", "AdamW")
    optimizer = getattr(torch.optim, name.split()[0])(model.parameters(), 1e-2, **OPTIMIZERS[name])
    seen = {"losses": [], "gradients": [], "norms": []}
    for step in range(STEPS):
        torch.manual_seed(step)
        for parts in zip(*(each.chunk(cls.how.get("micro", 1)) for each in batch_of(step)), strict=True):
            loss = model(*map(own, parts))
            loss.backward()
            seen["losses"].append(mean(whole(loss)))
        seen["gradients"] += [whole(parameter.grad) for parameter in model.parameters()]
        seen["norms"].append(whole(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)))
        optimizer.step()
        optimizer.zero_grad()
    return seen | {"parameters": [whole(value) for value in model.state_dict().values()]}


def of_ranks(loss):
    distributed.all_reduce(loss)
    return loss / RANKS


def by_ddp(cls, plan):
    model = torch.nn.parallel.DistributedDataParallel(made(cls))
    return train(cls, model, lambda part: part.chunk(RANKS)[distributed.get_rank()], of_ranks)


def by_fsdp2(cls, plan):
    from torch.distributed.fsdp import fully_shard
    model = made(cls)
    fully_shard(model, mesh=distributed.init_device_mesh("cpu", (RANKS,)))
    return train(cls, model, lambda part: part.chunk(RANKS)[distributed.get_rank()], of_ranks)


def by_dtensor(cls, plan):
    from torch.distributed import tensor
    mesh, model = distributed.init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",)), made(cls)
    for name, module in model.named_modules(remove_duplicate=False):
        for own, value in [*module._parameters.items()]:
            if value is not None and not isinstance(value, tensor.DTensor):
                dim = plan.get(f"{name}.{own}" if name else own)
                where = tensor.Replicate() if dim is None else tensor.Shard(dim)
                if id(value) not in placed:
                    placed[id(value)] = value, torch.nn.Parameter(tensor.distribute_tensor(value.detach(), mesh, [where]))
                module._parameters[own] = placed[id(value)][1]
        for own, value in [*module._buffers.items()]:
            module._buffers[own] = None if value is None else tensor.distribute_tensor(value, mesh, [tensor.Replicate()])
    return train(cls, model, lambda part: tensor.distribute_tensor(part, mesh, [tensor.Replicate()]), lambda loss: loss)


def by_loss_parallel(cls, plan):
    from torch.distributed.tensor.parallel import loss_parallel
    with loss_parallel():
        return by_dtensor(cls, {"head.weight": 0})


placed = {}  # by the ids of plain parameters: these, which so stay alive, and what stands for them
RUN = {"DDP": by_ddp, "FSDP2": by_fsdp2, "DTensor": by_dtensor, "loss_parallel": by_loss_parallel}


def verdict(cls, peer, plan):
    """As text."""
    placed.clear()
    if peer == "loss_parallel" and not issubclass(cls, Language):
        return "-"
    wanted = train(cls, made(cls), lambda part: part, lambda loss: loss)
    try:
        found = RUN[peer](cls, plan)
    except Exception as error:
        text = str(error).strip().splitlines()[0] if str(error).strip() else ""
        return f"stops: {type(error).__name__}: {re.sub(r'[|<>]', '/', text)[:90]}"
    other = []
    for kind, values in wanted.items():
        far = max(((a - b).abs().max().item() / max(1.0, b.abs().max().item()) if a.shape == b.shape else float("inf")
                   for a, b in zip(found[kind], values, strict=True) if b.numel()), default=0.0)
        if not far <= 1e-12:
            other.append(f"{kind} {far:.0e}")
    return "other: " + ", ".join(other) if other else "same"


def one_rank():
    """As a process of torchrun: the program and the peer, and the plan's cuts, are its arguments."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    peer, plans = sys.argv[2], json.loads(sys.argv[3])
    from datetime import timedelta
    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    for name, cls in PROGRAMS.items():
        said = verdict(cls, peer, plans.get(name, {}))
        everybody = [None] * RANKS
        distributed.all_gather_object(everybody, said)
        if distributed.get_rank() == 0:
            print(json.dumps([name, everybody[0] if len(set(everybody)) == 1 else " / ".join(everybody)]), flush=True)
    os._exit(0)


def plans_on_tp():
    """Of each program the dims in which its parameters are cut on tp=2."""
    code = ("import json, re, sys, torch, tessera\nfrom found_elsewhere import PROGRAMS\nplans = {}\n"
            "for name, cls in PROGRAMS.items():\n"
            "    names = [own for own, _ in cls().named_parameters()]\n"
            "    plan = json.loads(tessera.generate_plan(cls(), mesh='tp=2').json())\n"
            "    cuts = [(re.escape(each['pattern']).replace(r'\\*', '[^.]*'), re.fullmatch(r'\\{tp: S\\((\\d+)(;\\d+)?\\)\\}', each['storage'])) for each in plan['parameters']]\n"
            "    plans[name] = {own: int(cut[1]) for own in names for pattern, cut in cuts if cut and re.fullmatch(pattern, own)}\n"
            "print(json.dumps(plans))")
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parent, timeout=300).stdout.strip().splitlines()[-1]


def main(arguments):
    python, peers = (arguments[1], arguments[2:]) if arguments[:1] == ["--python"] else (sys.executable, arguments)
    peers = peers or PEERS
    version = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True, timeout=100).stdout.strip()
    plans, table = plans_on_tp(), {name: {} for name in PROGRAMS}
    for peer in peers:
        done = subprocess.run([python, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), __file__, "--rank", peer, plans],
                              capture_output=True, text=True, timeout=900)
        for line in done.stdout.splitlines():
            if line.startswith("["):
                name, said = json.loads(line)
                table[name][peer] = said
        if len([row for row in table.values() if peer in row]) < len(table):
            print(done.stderr[-2000:], file=sys.stderr)
    print(f"torch {version}\n\n| program | {' | '.join(peers)} |\n|---|{'---|' * len(peers)}")
    for name, row in table.items():
        print(f"| `{name}` | {' | '.join(row.get(peer, 'ended the process') for peer in peers)} |")


if __name__ == "__main__":
    one_rank() if sys.argv[1:2] == ["--rank"] else main(sys.argv[1:])
