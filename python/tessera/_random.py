"""The generator of the rank stands where libtorch's default generator stands in a program of one device."""

import functools

import torch

from tessera import _C


def _in_rank(name, of_rank):
    """Has torch's function `name` speak of the rank's generator, inside a rank."""
    plain = getattr(torch, name)

    @functools.wraps(plain)
    def function(*args, **kwargs):
        return of_rank(*args, **kwargs) if _C.in_rank() else plain(*args, **kwargs)

    for module in (torch, torch.random):
        setattr(module, name, function)


def _remembered(plain_manual_seed):
    @functools.wraps(plain_manual_seed)
    def manual_seed(seed):
        _given[:] = [int(seed)]
        return plain_manual_seed(seed)

    return manual_seed


def given_seed():
    """What the program has given torch.manual_seed outside of ranks; None before."""
    return _given[0] if _given else None


_given = []
torch.manual_seed = _remembered(torch.manual_seed)
_in_rank("manual_seed", _C.manual_seed)
_in_rank("get_rng_state", _C.rng_state)
_in_rank("set_rng_state", _C.set_rng_state)
_in_rank("initial_seed", _C.initial_seed)
