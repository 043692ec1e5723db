"""The tensors in what a function is given."""

import torch


def named_tensors(args, kwargs):
    """The tensors among a call's arguments, with names for errors."""
    given = {**{f"argument {i}": value for i, value in enumerate(args)}, **kwargs}
    return (found for name, value in given.items() for found in _tensors_in(value, name))


def _tensors_in(value, name):
    """The tensors in tuples, lists and dicts, in order, with their names. Other objects (a key/value cache) are left alone."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif type(value) in (tuple, list, dict):
        for key, item in value.items() if type(value) is dict else enumerate(value):
            yield from _tensors_in(item, f"{name}[{key!r}]")


def with_tensors(value, placed):
    """The same value with the next of `placed` for each of them."""
    if isinstance(value, torch.Tensor):
        return next(placed)
    if type(value) is dict:
        return {key: with_tensors(item, placed) for key, item in value.items()}
    return type(value)(with_tensors(item, placed) for item in value) if type(value) in (tuple, list) else value
