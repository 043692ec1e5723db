"""What another library would do to a model on a mesh, or to a value of it, refused with what does it here."""

import functools
import sys

import torch

from tessera import _C

_PLACED = ("gradients of {what} are those of the whole batch already, and its parameters lie as its plan says; accepted: the model without the wrapper. "
           "Of a trainer: tessera.transformers.Trainer, tessera.accelerate.Accelerator, tessera.lightning.Strategy with mesh=")
_REDUCED = "what a DTensor holds is the value of all ranks already; accepted: x.item(), tessera.full_tensor(x); or x.to_local(), this rank's part"
_COLLECTIVES = ("all_gather", "all_gather_into_tensor", "all_reduce", "broadcast", "reduce")


def _refuse_wrapper(name, plain, place=0):
    """For a wrapper of models, whose argument `module` has this place."""
    @functools.wraps(plain)
    def wrapper(*args, **kwargs):
        module = args[place] if len(args) > place else kwargs.get("module")
        if isinstance(module, torch.nn.Module) and any(map(_C.is_dtensor, module.parameters())):
            raise NotImplementedError(f"[{name}] {type(module).__name__} is on a mesh: " + _PLACED.format(what=type(module).__name__))
        return plain(*args, **kwargs)

    return wrapper


def refuse_fully_shard(module):
    """For the module of torch.distributed.fsdp that has FSDP2."""
    module.fully_shard = _refuse_wrapper("torch.distributed.fsdp.fully_shard", module.fully_shard)
    if package := sys.modules.get("torch.distributed.fsdp"):
        package.fully_shard = module.fully_shard


def refuse_resize(module):
    """For transformers.modeling_utils."""
    plain = module.PreTrainedModel.resize_token_embeddings

    @functools.wraps(plain)
    def resize_token_embeddings(self, new_num_tokens=None, *args, **kwargs):
        table = self.get_input_embeddings().weight
        if _C.is_dtensor(table) and new_num_tokens not in (None, table.shape[0]):
            raise NotImplementedError(f"[resize_token_embeddings] {type(self).__name__} is on a mesh, where its {table.shape[0]} rows of the vocabulary lie as its "
                                      f"plan says; accepted: resize_token_embeddings({new_num_tokens}) before parallelize")
        return plain(self, new_num_tokens, *args, **kwargs)

    module.PreTrainedModel.resize_token_embeddings = resize_token_embeddings


def _refuse_collective(name):
    plain = getattr(torch.distributed, name)

    @functools.wraps(plain)
    def collective(*args, **kwargs):
        for value in (*args, *kwargs.values()):
            for tensor in value if isinstance(value, list) else (value,):
                if isinstance(tensor, torch.Tensor) and _C.is_dtensor(tensor):
                    raise NotImplementedError(f"[torch.distributed.{name}] a DTensor ({_C.layout(tensor)}): {_REDUCED}")
        return plain(*args, **kwargs)

    for module in (torch.distributed, torch.distributed.distributed_c10d):
        setattr(module, name, collective)


if torch.distributed.is_available():
    for _name in _COLLECTIVES:
        _refuse_collective(_name)
    _ddp = torch.nn.parallel.DistributedDataParallel
    _ddp.__init__ = _refuse_wrapper("DistributedDataParallel", _ddp.__init__, place=1)
