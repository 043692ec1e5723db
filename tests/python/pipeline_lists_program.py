#!/usr/bin/env python3
"""One rank that runs lists of actions with torch.distributed.pipelining over Gloo, and saves the gradients of its stages for each.

Usage: pipeline_lists_program.py RANK RANKS FOLDER NAME:FORMAT...      NAME.csv in FOLDER is the list, FORMAT `compute_only` or `compute_comms`
"""

import csv
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

DIM, ROWS = 6, 3  # of a micro-batch
DEADLINE = timedelta(seconds=60)


def part(stage):
    """A stage of the model: the same in every process."""
    generator = torch.Generator().manual_seed(stage)
    module = torch.nn.Sequential(torch.nn.Linear(DIM, DIM, dtype=torch.float64), torch.nn.Tanh())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / DIM)
    return module


def batch(micro_batches):
    generator = torch.Generator().manual_seed(99)
    return (torch.randn(micro_batches * ROWS, DIM, generator=generator, dtype=torch.float64) for _ in range(2))


def loss_of(output, target):
    return ((output - target)**2).sum()


def stages_of(rows):
    """{stage: the rank that runs it}, and how many micro-batches there are."""
    actions = [(rank, _Action.from_str(cell)) for rank, row in enumerate(rows) for cell in row]
    forwards = [(rank, action) for rank, action in actions if action.computation_type.value == "F"]
    return {action.stage_index: rank for rank, action in forwards}, 1 + max(action.microbatch_index for _, action in forwards)


def run(path, form, rank):
    """{name: gradient} of this rank's stages after a step."""
    with open(path, newline="") as file:
        rank_of, micro_batches = stages_of(list(csv.reader(file)))
    modules = {stage: part(stage) for stage in sorted(rank_of) if rank_of[stage] == rank}
    stages = [PipelineStage(module, stage, len(rank_of), torch.device("cpu")) for stage, module in modules.items()]
    schedule = _PipelineScheduleRuntime(stages, micro_batches, loss_fn=loss_of, scale_grads=False)
    schedule._load_csv(str(path), format=form)
    inputs, target = batch(micro_batches)
    schedule.step(*([inputs] if 0 in modules else []), **({"target": target} if len(rank_of) - 1 in modules else {}))
    return {f"{stage}.{name}": parameter.grad for stage, module in modules.items() for name, parameter in module.named_parameters()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    own, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=own, world_size=ranks, timeout=DEADLINE)
    for task in sys.argv[4:]:
        name, form = task.split(":")
        torch.save(run(folder / f"{name}.csv", form, own), folder / f"{name}.{form}.{own}.pt")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # now and then a thread of its groups aborts the process that ends
