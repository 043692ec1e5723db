"""The whole state of models and optimizers on one rank, as plain PyTorch has it."""

import collections
import copy

import torch

from tessera import _C
from tessera._ranks import ensure_rank, world_size
from tessera._tensor import full_tensor

__all__ = ["full_optimizer_state_dict", "full_state_dict"]


class WholeState(collections.OrderedDict):
    """A whole state, on the rank `holder`; empty on the others. Pickled it is the dict that plain PyTorch has."""

    holder = None
    is_here = True

    def __missing__(self, key):
        if self.is_here:
            raise KeyError(key)
        raise KeyError(f"{key!r}: the whole state is on rank {self.holder} alone; with rank=None every rank has it")

    def _like_this(self, items):
        other = WholeState(items)
        other.__dict__.update(self.__dict__)
        return other

    def copy(self):
        return self._like_this(self.items())

    __copy__ = copy

    def __deepcopy__(self, memo):
        return self._like_this([(key, copy.deepcopy(value, memo)) for key, value in self.items()])

    def __reduce_ex__(self, protocol):
        if not self.is_here:
            raise TypeError(f"the whole state is on rank {self.holder} alone: pickle it there, or write torch.save(state, path), which writes it "
                            "there")
        metadata = {"_metadata": self._metadata} if hasattr(self, "_metadata") else None
        return collections.OrderedDict, (), metadata, None, iter(self.items())


def whole_states(value):
    """Those in dicts, lists and tuples."""
    if isinstance(value, WholeState):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from whole_states(item)


def whole_state(state, rank):
    """`state` with whole, plain tensors, on `rank` alone; on every rank if that is None. Collective. A tensor that it has twice stays one."""
    ensure_rank()
    if not _C.in_rank():
        rank = None
    elif rank is not None and not 0 <= rank < world_size():
        raise ValueError(f"rank {rank} of {world_size()}; accepted: None, or one of 0 to {world_size() - 1}")
    gathered = _gathered(state, rank, {})
    whole = WholeState(gathered if rank is None or rank == _C.rank() else ())
    whole.holder, whole.is_here = rank, rank is None or rank == _C.rank()
    if hasattr(state, "_metadata"):
        whole._metadata = state._metadata
    return whole


def _gathered(value, rank, seen):
    if isinstance(value, torch.Tensor):
        if id(value) not in seen:
            seen[id(value)] = full_tensor(value.detach()) if rank is None else _C.gather_to(rank, value.detach())
        return seen[id(value)]
    if isinstance(value, dict):
        return {key: _gathered(item, rank, seen) for key, item in value.items()}
    return type(value)(_gathered(item, rank, seen) for item in value) if type(value) in (list, tuple) else value


def full_state_dict(model: torch.nn.Module, *, rank: int | None = 0) -> dict[str, torch.Tensor]:
    """The model's state with whole, plain tensors, on one rank: the others get an empty dict, and hold no whole tensor but the one that is sent.

    With rank=None on every rank. A parameter under several names is one tensor. torch.save writes the dict once, on the rank that has it,
    as plain PyTorch writes it. Collective over the model's mesh.
    """
    return whole_state(model.state_dict(keep_vars=True), rank)


def full_optimizer_state_dict(optimizer: torch.optim.Optimizer, *, rank: int | None = 0) -> dict[str, object]:
    """The optimizer's state_dict with whole, plain tensors, on one rank: what full_state_dict is of a model."""
    return whole_state(optimizer.state_dict(), rank)
