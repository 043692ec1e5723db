"""The generator of the rank stands where libtorch's default generator stands in a program of one device, and goes on from it."""

import functools
import zlib

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


def stream_of_program():
    """The seed and the state of libtorch's default generator, and a checksum of it, for `continue_stream` in a rank."""
    state = torch.random.default_generator.get_state()
    return torch.random.default_generator.initial_seed(), state, zlib.crc32(bytes(state.tolist()))


def continue_stream(stream):
    """Has this rank draw the numbers of plain libtorch that come next. Ranks whose streams differ are told so by the next collective."""
    seed, state, checksum = stream
    _C.set_generator("stock")
    _C.manual_seed(checksum)
    _C.manual_seed(seed)
    _set_rng_state(state)


def stream_of_rank():
    """Where this rank is among the numbers of plain libtorch; None if it draws from `counter`."""
    state = _C.rng_state()
    return state[-_BYTES_OF_STREAM:] if state.numel() > _BYTES_OF_STREAM else None


def has_drawn_since(stream):
    """Whether numbers of plain libtorch were drawn since stream_of_rank() returned `stream`."""
    now = stream_of_rank()
    return now is None or not torch.equal(now, stream)


def _set_rng_state(state):
    """As torch.set_rng_state. What plain PyTorch has returned is taken too, where this rank draws plain PyTorch's numbers."""
    mine = _C.rng_state()
    if state.numel() == _BYTES_OF_STREAM < mine.numel():
        mine[-_BYTES_OF_STREAM:] = state  # the stream stands at the end
        state = mine
    _C.set_rng_state(state)


_given = []
_BYTES_OF_STREAM = torch.get_rng_state().numel()
torch.manual_seed = _remembered(torch.manual_seed)
_in_rank("manual_seed", _C.manual_seed)
_in_rank("get_rng_state", _C.rng_state)
_in_rank("set_rng_state", _set_rng_state)
_in_rank("initial_seed", _C.initial_seed)
