#!/usr/bin/env python3
"""What a DTensor costs in Python: cached operators and a training step, beside PyTorch's DTensor and plain torch, in one run.

Usage: PYTHONPATH=build/python python benchmarks/python/dtensor_bench.py [--rounds N]

Nothing here communicates. Operators: local parts of 4x4, in layouts that need no communication; tessera on two ranks that are
threads, of which one works while the other waits outside Python's lock; PyTorch as rank 0 of two over its fake process group.
The step: forward, backward and fused AdamW of a Llama of `transformers`, 2 layers of width 64, batch 2x32, as rank 0 of tp=2
whose collectives move nothing (tessera's run_fake, PyTorch's fake group); and tessera's on a mesh of one rank, where the
kernels work as much as in the plain step. Times are of the thread's own CPU clock, the least of the repeats; each column is measured in a process of its own, the rounds taking turns.
"""

import argparse
import gc
import json
import subprocess
import sys
import threading
import time

import torch

SIDE = 4
CALLS, REPEATS, STEPS = 200, 30, 40

# In the first PyTorch has its DTensors in the linear layers alone, in the second everywhere, which its fused attention refuses.
STEP_ROWS = {"step": "sdpa", "step, eager attention": "eager"}
ALONE = "step, mesh of one"


def least(function, calls, repeats):
    """Microseconds of one call."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.thread_time()
        for _ in range(calls):
            function()
        best = min(best, time.thread_time() - begin)
    return best / calls * 1e6


def operators(rows, whole, height):
    """The cached operators of `rows(...)`, which makes a tensor whose dim 0 is cut, and `whole(...)`; `height` is the global one."""
    x, y, flat = rows(SIDE, SIDE), rows(SIDE, SIDE), rows(SIDE, SIDE // 2, 2)
    weight, scale, bias = whole(SIDE, SIDE), whole(SIDE), whole(SIDE)
    return {
        "add": lambda: x + y,
        "mm": lambda: x @ weight,
        "view": lambda: flat.view(height, SIDE),
        "layer_norm": lambda: torch.nn.functional.layer_norm(x, (SIDE,), scale, bias),
        "mul by a number": lambda: x * 2.0,
    }


def time_operators(rows, whole, height):
    with torch.no_grad():
        return {name: least(call, CALLS, REPEATS) for name, call in operators(rows, whole, height).items()}


def llama(attention):
    import transformers

    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, use_cache=False, attn_implementation=attention)).train()


def time_step(model, ids):
    """One optimizer for the parameters of each kind: fused AdamW refuses a group of plain tensors and DTensors."""
    kinds = {}
    for parameter in model.parameters():
        kinds.setdefault(type(parameter.data), []).append(parameter)
    optimizer = torch.optim.AdamW([{"params": group} for group in kinds.values()], 1e-3, fused=True)

    def step():
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    return least(step, 1, STEPS)


def tokens():
    return torch.randint(128, (2, 32), generator=torch.Generator().manual_seed(1))


def of_plain():
    steps = {row: time_step(llama(attention), tokens()) for row, attention in STEP_ROWS.items()}
    return {**time_operators(torch.randn, torch.randn, SIDE), **steps, ALONE: steps["step"]}


def of_tessera():
    import tessera

    barrier = threading.Barrier(2)

    def on_two_ranks():
        mesh = tessera.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        rows = lambda *sizes: tessera.from_local(torch.randn(sizes), mesh, [tessera.Shard(0)])
        whole = lambda *sizes: tessera.distribute_tensor(torch.randn(sizes), mesh, [tessera.Replicate()])
        for turn in range(2):
            if turn == tessera.rank():
                times = time_operators(rows, whole, 2 * SIDE)
            barrier.wait()
        return times

    def step(attention, ranks):
        def on_rank():
            model = tessera.deferred(lambda: llama(attention))
            tessera.parallelize(model, tessera.generate_plan(model, mesh=f"tp={ranks}"))
            return time_step(model, tokens())

        return tessera.run_fake(on_rank, ranks)

    steps = {row: step(attention, 2) for row, attention in STEP_ROWS.items()}
    return {**tessera.run_ranks(on_two_ranks, 2), **steps, ALONE: step(STEP_ROWS["step"], 1)}


def of_pytorch():
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
    from torch.distributed.tensor.experimental import implicit_replication
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    mesh = init_device_mesh("cpu", (2,))
    rows = lambda *sizes: DTensor.from_local(torch.randn(sizes), mesh, [Shard(0)], run_check=False)
    whole = lambda *sizes: DTensor.from_local(torch.randn(sizes), mesh, [Replicate()], run_check=False)
    times = time_operators(rows, whole, 2 * SIDE)
    in_part, whole_model = STEP_ROWS
    times[in_part] = time_step(tensor_parallel(mesh, STEP_ROWS[in_part]), tokens())
    with implicit_replication():
        times[whole_model] = time_step(*every_tensor(mesh, STEP_ROWS[whole_model]))
    return times


def tensor_parallel(mesh, attention):
    """The plan that the model's authors give: the linear layers hold DTensors, the rest is plain."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = llama(attention)
    columns, rows = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"), ("self_attn.o_proj", "mlp.down_proj")
    for layer in model.model.layers:
        parallelize_module(layer, mesh, {**{name: ColwiseParallel() for name in columns}, **{name: RowwiseParallel() for name in rows}})
    return parallelize_module(model, mesh, {"lm_head": ColwiseParallel(output_layouts=Replicate())})


def every_tensor(mesh, attention):
    """The same layouts with parameters, buffers and ids as DTensors; plain tensors that meet them count as replicated."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    model = llama(attention)
    for name, parameter in list(model.named_parameters()):
        module, kind = model.get_submodule(name.rpartition(".")[0]), name.split(".")[-2]
        cut = {"q_proj": Shard(0), "k_proj": Shard(0), "v_proj": Shard(0), "gate_proj": Shard(0), "up_proj": Shard(0), "lm_head": Shard(0),
               "o_proj": Shard(1), "down_proj": Shard(1)}.get(kind, Replicate())
        module.weight = torch.nn.Parameter(distribute_tensor(parameter.data, mesh, [cut]))
    return model, distribute_tensor(tokens(), mesh, [Replicate()])


COLUMNS = {"plain": of_plain, "tessera": of_tessera, "PyTorch": of_pytorch}


def measured(rounds):
    """The least times of each column, every round in new processes."""
    table = {column: {} for column in COLUMNS}
    for column in list(COLUMNS) * rounds:
        text = subprocess.run([sys.executable, __file__, "--column", column], check=True, stdout=subprocess.PIPE, text=True).stdout
        for name, value in json.loads(text.splitlines()[-1]).items():
            table[column][name] = min(value, table[column].get(name, value))
    return table


def show(table):
    print(f"{'':22}{'plain us':>10}{'tessera us':>12}{'PyTorch us':>12}{'tessera over':>14}{'PyTorch over':>14}{'ratios':>14}")
    for name, plain in table["plain"].items():
        ours, theirs = table["tessera"][name], table["PyTorch"].get(name, float("nan"))
        print(f"{name:22}{plain:10.2f}{ours:12.2f}{theirs:12.2f}{ours - plain:14.2f}{theirs - plain:14.2f}{ours / plain:7.2f}{theirs / plain:7.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--column", choices=COLUMNS, help="measure this column alone, and print it as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.column:
        gc.disable()
        print(json.dumps(COLUMNS[options.column]()))
    else:
        show(measured(options.rounds))
