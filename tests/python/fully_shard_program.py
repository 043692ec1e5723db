"""One rank of a script like FSDP2's tutorial, started by torchrun, with fully_shard of `tessera` or of `torch`; rank 0 prints the losses and norms.

Usage: fully_shard_program.py tessera|torch [MESH]        MESH: 2, or replicas and shards such as 2x2
"""

import importlib
import os
import sys

import torch
import torch.distributed as dist
import toy_transformer

LIBRARY = sys.argv[1]
shape = tuple(map(int, sys.argv[2].split("x"))) if len(sys.argv) > 2 else None
fsdp, tensors = map(importlib.import_module, {"tessera": ("tessera", "tessera"), "torch": ("torch.distributed.fsdp", "torch.distributed.tensor")}[LIBRARY])

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
mesh = dist.init_device_mesh("cpu", shape or (size,), mesh_dim_names=("replicate", "shard")[-len(shape or (1,)):])
with torch.device("meta"):
    model = toy_transformer.Transformer(tied=False)
toy_transformer.shard(model, fsdp.fully_shard, mesh=None if LIBRARY == "tessera" and shape is None else mesh)
assert isinstance(model, toy_transformer.Transformer) and isinstance(model, fsdp.FSDPModule)
model.set_modules_to_forward_prefetch([model.layers[0]])
for one, following in zip(model.layers, model.layers[1:]):
    one.set_modules_to_forward_prefetch([following])
    following.set_modules_to_backward_prefetch([one])
model.to_empty(device="cpu")
values = toy_transformer.make(tied=False).state_dict()
with torch.no_grad():
    for name, parameter in model.double().named_parameters():
        parameter.copy_(tensors.distribute_tensor(values[name], parameter.device_mesh, parameter.placements))


def own(tokens):
    count = len(tokens) // size
    return tokens[rank * count:rank * count + count]


def whole(value):
    """A loss or norm of all ranks: FSDP2's losses are each rank's own."""
    value = value.detach().clone()
    if not isinstance(value, tensors.DTensor):
        dist.all_reduce(value)
        return value / size
    return value.full_tensor()


seen = toy_transformer.train(model, own, whole, before=model.unshard)
names = list(model.state_dict())
if rank == 0:
    print("\n".join([*(value.hex() for value in seen.tolist()), *names]))
dist.barrier()
dist.destroy_process_group()
if LIBRARY == "torch":  # now and then a thread of its groups aborts the process that ends
    sys.stdout.flush()
    os._exit(0)
