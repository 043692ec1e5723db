"""What the trainers of other libraries need on a mesh."""

import pickle

import torch
from torch.utils import _pytree as pytree

from tessera import _C
from tessera._layout import Partial, mesh_of
from tessera._parallel import generate_plan, parallelize, passes_of
from tessera._ranks import ensure_rank, in_rank, rank, world_size
from tessera._run import numerics as set_numerics
from tessera._run import set_generator
from tessera._tensor import from_local, full_tensor


def begin(trainer, mesh, numerics, lattice, generator):
    """Settles how ranks compute, before the trainer's own constructor. Without ranks a mesh of more than one is refused."""
    ensure_rank()
    if in_rank():
        set_generator(generator)
        if numerics is not None:
            set_numerics(numerics, lattice)
    elif mesh is not None and _mesh_in(mesh).size() > 1:
        raise ValueError(f"[{trainer}] {_mesh_in(mesh)} in a program without ranks; accepted: a launcher (torchrun --nproc-per-node "
                         f"{_mesh_in(mesh).size()} script.py), or tessera.run_ranks(main, {_mesh_in(mesh).size()})")


def place(model, mesh, optimizer=None, accumulate=1):
    """Places the model on the mesh, or as the plan says that stands for one, unless it is placed or this is no rank."""
    if in_rank() and not passes_of(model):
        plan = mesh if isinstance(mesh, _C.Plan) else generate_plan(model, mesh=mesh)
        parallelize(model, plan, optimizer, accumulate=accumulate)


def whole(values):
    """The same with whole, plain tensors in place of DTensors. Collective."""
    return pytree.tree_map_only(torch.Tensor, full_tensor, values) if in_rank() else values


def sum_of_ranks(value):
    """Of a tensor of each rank, of one shape. Collective over the job."""
    return full_tensor(from_local(value, _C.Mesh(f"dp={world_size()}"), [Partial()])) if world_size() > 1 else value


def given_by(source, value):
    """What rank `source` passed, on every rank. Collective over the job."""
    words = list(pickle.dumps(value)) if rank() == source else []
    count = int(sum_of_ranks(torch.tensor(len(words))))
    return pickle.loads(bytes(sum_of_ranks(torch.tensor(words or [0] * count)).tolist()))


def _mesh_in(plan_or_mesh):
    return plan_or_mesh.mesh if isinstance(plan_or_mesh, _C.Plan) else mesh_of(plan_or_mesh)
