"""What checkpoint_test.py runs on every rank: torch.distributed.checkpoint on DTensors, and whole states by processes. Prints what is right, on
rank 0.

Usage: checkpoint_program.py FOLDER
"""

import copy
import sys
import warnings
from pathlib import Path

import tessera
import torch
import torch.distributed.checkpoint as dcp

# Sizes, and layouts of them on dp=2,tp=2: even and uneven, in blocks, replicas, one owner, several axes on a dim, none, no elements, no dims.
LAYOUTS = {
    "even": ((8, 6), "{dp: R, tp: S(0)}"), "uneven": ((5, 3), "{dp: S(0), tp: S(1)}"), "short": ((3, 2), "{dp: S(0), tp: S(0)}"),
    "blocks": ((12, 4), "{dp: R, tp: S(0/3)}"), "both": ((12, 8), "{dp: S(1/2), tp: S(0/3)}"), "nested": ((12, 4), "{dp: S(0/3), tp: S(0/3)}"),
    "all": ((4, 3), "{dp: R, tp: R}"), "owner": ((4, 3), "{dp: On(1), tp: S(0)}"), "none": ((0, 4), "{dp: R, tp: S(1)}"), "scalar": ((), "{dp: R, tp: R}"),
}
OTHERS = {name: layout for name, layout in zip(LAYOUTS, ("{tp: S(1)}", "{tp: S(0)}", "{tp: R}", "{tp: S(0)}", "{tp: S(1)}", "{tp: S(0/6)}", "{tp: S(0)}",
                                                         "{tp: R}", "{tp: R}", "{tp: R}"), strict=True)}


def value_of(name, dtype=torch.float32):
    sizes = LAYOUTS[name][0]
    return (torch.arange(float(torch.Size(sizes).numel()), dtype=dtype).reshape(sizes) + len(name)).sin()


def placed(mesh, layouts, value=value_of):
    return {name: tessera.distribute_tensor(value(name), tessera.Mesh(mesh), layout) for name, layout in layouts.items()}


def say(name):
    if tessera.rank() == 0:
        print(name, flush=True)


def check_refused(folder):
    """Before the program has told torch.distributed of its ranks."""
    try:
        dcp.save(placed("dp=4", {"even": "{dp: S(0)}"}), checkpoint_id=folder / "refused")
    except BaseException as error:
        assert "does not know of the 4 ranks of this job" in str(error) and "init_process_group" in str(error), error
        say("refused")


def load_and_compare(folder, state):
    dcp.load(state, checkpoint_id=folder)
    for name, value in state.items():
        assert torch.equal(tessera.full_tensor(value), value_of(name)), name


def check_layouts(folder):
    """Saved from one mesh, loaded to another, and what plain PyTorch saved."""
    saved = placed("dp=2,tp=2", {name: layout for name, (_, layout) in LAYOUTS.items()})
    dcp.save(saved, checkpoint_id=folder / "layouts")
    load_and_compare(folder / "layouts", placed("tp=4", OTHERS, lambda name: torch.zeros(LAYOUTS[name][0])))
    load_and_compare(folder / "layouts", placed("dp=2,tp=2", {name: layout for name, (_, layout) in LAYOUTS.items()}, lambda name: -value_of(name)))
    say("layouts")
    load_and_compare(folder / "plain", placed("dp=2,tp=2", {name: layout for name, (_, layout) in LAYOUTS.items()}, lambda name: -value_of(name)))
    say("plain")


def model_and_optimizer(mesh, seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 8))
    tessera.parallelize(model, mesh)
    return model, torch.optim.AdamW(model.parameters(), 1e-2)


def step(model, optimizer):
    x = torch.arange(32.0).reshape(4, 8).sin()
    optimizer.zero_grad()
    (model(x) - x).square().mean().backward()
    optimizer.step()


def ordered(value):
    """As a text that the order of keys does not change."""
    if isinstance(value, dict):
        return str(sorted((str(key), ordered(item)) for key, item in value.items()))
    return str([ordered(item) for item in value]) if isinstance(value, (list, tuple)) else str(value)


def check_training(folder):
    """A model and its optimizer; what async_save wrote is what was there when it was called."""
    model, optimizer = model_and_optimizer("dp=2,tp=2", 0)
    step(model, optimizer)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    want = tessera.full_state_dict(model, rank=None), tessera.full_optimizer_state_dict(optimizer, rank=None)
    saved = copy.deepcopy(dict(want[1]))
    want = {name: value.clone() for name, value in want[0].items()}, str(want[1])
    dcp.save(state, checkpoint_id=folder / "training")
    done = dcp.async_save(state, checkpoint_id=folder / "later", process_group=torch.distributed.new_group())
    step(model, optimizer)
    done.result()
    for path in ("training", "later"):
        other, others_optimizer = model_and_optimizer("tp=4", 1)
        step(other, others_optimizer)
        found = {"model": other.state_dict(), "optimizer": others_optimizer.state_dict(), "epoch": 0}
        dcp.load(found, checkpoint_id=folder / path)
        others_optimizer.load_state_dict(found["optimizer"])
        assert found["epoch"] == 3
        for name, value in tessera.full_state_dict(other, rank=None).items():
            assert torch.equal(value, want[0][name]), (path, name)
        assert str(tessera.full_optimizer_state_dict(others_optimizer, rank=None)) == want[1], path
        fresh, freshs_optimizer = model_and_optimizer("tp=4", 1)  # which has taken no step
        assert tessera.load(folder / path, fresh, freshs_optimizer) == {"epoch": 3}
        for name, value in tessera.full_state_dict(fresh, rank=None).items():
            assert torch.equal(value, want[0][name]), (path, name)
        assert ordered(tessera.full_optimizer_state_dict(freshs_optimizer, rank=None)) == ordered(saved), path
        say(path)


def check_whole_states(folder):
    """Plain PyTorch's files of a model and an optimizer, read by processes; and theirs."""
    model, optimizer = model_and_optimizer("dp=2,tp=2", 1)
    saved = torch.load(folder / "plain.pt", weights_only=True, mmap=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    for parameter in model.parameters():
        assert optimizer.state[parameter]["exp_avg"].placements == parameter.placements
        assert optimizer.state[parameter]["exp_avg"].to_local().shape == parameter.detach().to_local().shape
    torch.save({"model": tessera.full_state_dict(model), "optimizer": tessera.full_optimizer_state_dict(optimizer)}, folder / "ranks.pt")
    say("whole")


def main(folder):
    warnings.simplefilter("ignore")
    folder = Path(folder)
    check_refused(folder)
    torch.distributed.init_process_group("gloo")
    check_layouts(folder)
    check_training(folder)
    check_whole_states(folder)
    torch.distributed.barrier()


main(*sys.argv[1:])
