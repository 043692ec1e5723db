"""What processes_test.py runs on every rank: prints the name of each model that is right, on rank 0.

Usage: processes_program.py FOLDER [with-group] [fail] | FOLDER forward-mode | FOLDER homes | FOLDER seed | FOLDER exit
"""

import copy
import signal
import sys
import time
import warnings
from pathlib import Path

import forward_mode
import tessera
import torch
from models_test import build, furthest, gradients
from wide import doubles
from zoo import ZOO


def check(name):
    model, batch = build(ZOO[name], torch.float64)
    reference = copy.deepcopy(model)
    loss = reference(**batch).loss
    loss.backward()
    want = {name: p.grad for name, p in reference.named_parameters() if p.grad is not None}
    tessera.parallelize(model, tessera.generate_plan(model, mesh="tp=2"))
    got = model(**batch).loss
    got.backward()
    parts, value = gradients(model), got.item()
    assert abs(value - loss.item()) <= 1e-12 * abs(loss.item()), (value, loss.item())
    assert furthest(parts, want) <= 1e-12, furthest(parts, want)
    if tessera.rank() == 0:
        print(name, flush=True)
    return model, reference


def check_files(path, model, reference):
    """Written from one layout, read into another."""
    tessera.save(path, model)
    other = copy.deepcopy(reference)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    tessera.parallelize(other, tessera.generate_plan(other, mesh="dp=2"))
    tessera.load(path, other)
    state = tessera.full_state_dict(other, rank=None)
    assert all(torch.equal(value, state[name]) for name, value in reference.state_dict().items())
    if tessera.rank() == 0:
        print("saved", flush=True)


def check_forward_mode():
    for name in forward_mode.check_all():
        if tessera.rank() == 0:
            print(name, flush=True)


def check_homes():
    """A tensor that is at one owner: calls run there, gradients are there, others hold nothing."""
    mesh, torch_value = tessera.init_device_mesh("cpu", (2,), mesh_dim_names=("pp",)), torch.arange(12.0, dtype=torch.float64).reshape(4, 3).sin()
    for owner in (0, 1):
        x = tessera.distribute_tensor(torch_value, mesh, [tessera.On(owner)]).requires_grad_()
        y = (x * 2 + x.exp()) @ tessera.distribute_tensor(torch_value.T.contiguous(), mesh, [tessera.Shard(0)])
        y.sum().backward()
        plain = torch_value.clone().requires_grad_()
        ((plain * 2 + plain.exp()) @ torch_value.T).sum().backward()
        here = tessera.rank() == owner
        assert x.grad.placements == (tessera.On(owner),) and tessera.to_local(x).numel() == 12 * here
        for found, want in ((y, (torch_value * 2 + torch_value.exp()) @ torch_value.T), (x.grad, plain.grad)):
            assert torch.allclose(tessera.full_tensor(found), want, rtol=0, atol=1e-12)
        for to in ([tessera.On(1 - owner)], [tessera.Shard(1)], [tessera.Replicate()]):
            moved = tessera.redistribute(x.detach(), to)
            assert moved.placements == tuple(to) and torch.equal(tessera.full_tensor(moved), torch_value)
    if tessera.rank() == 0:
        print("homes", flush=True)


def check_seed():
    """What was seeded before this process was a rank."""
    torch.manual_seed(5)
    assert tessera.in_rank() and torch.initial_seed() == 5, torch.initial_seed()
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), drawn)
    if tessera.rank() == 0:
        print("seed", flush=True)


def leave_early():
    """Rank 1 ends where rank 0 goes on, which waits until that rank has seen it."""
    layer = tessera.parallelize(torch.nn.Linear(6, 6), "tp=2")
    if tessera.rank() == 1:
        sys.exit(3)
    try:
        tessera.full_state_dict(layer)
    except tessera.CommError:
        time.sleep(5)
        raise


def main(folder, *options):
    warnings.simplefilter("ignore")
    if "forward-mode" in options:
        check_forward_mode()
        return
    if "homes" in options:
        with doubles():
            check_homes()
        return
    if "seed" in options:
        check_seed()
        return
    if "exit" in options:
        leave_early()
    if "with-group" in options:
        torch.distributed.init_process_group("gloo")
    with doubles():
        for name in ("llama", "gpt2", "mixtral"):
            placed = check(name)
    check_files(Path(folder) / "model.safetensors", *placed)
    if "fail" in options and tessera.rank() == 1:
        raise ValueError("on purpose")
    tessera.full_state_dict(placed[0])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of torchrun, once a process has failed: the others are to hear of it by themselves
    main(*sys.argv[1:])
