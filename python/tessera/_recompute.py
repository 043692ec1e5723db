"""What runs again in backward instead of keeping what it computed, and what keeps it outside of memory."""

import functools
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tessera import _C
from tessera._ranks import ensure_rank

__all__ = ["offload", "recompute", "set_offload_folder"]

T = TypeVar("T")


def recompute(function: Callable[..., T], *inputs: object, keep: str | Sequence[str] = (), **named: object) -> T:
    """Runs `function(*inputs, **named)` now, keeping nothing for backward but the tensors among the inputs, and again when their gradient is
    needed: the same random numbers, the same results, the bits that gradients have without it.

    Tensors stand alone or in tuples, lists and dicts (torch.utils._pytree), going in and coming out; what is no tensor stays as it is. Other
    tensors that want a gradient and are no parameters must be among the inputs. A function that changes an object that it is given, such as a
    key/value cache, is refused: it would change it twice.

    Results of the operators that `keep` names are kept and not computed again: "mm", "aten::mm", or what programs call them, as
    "scaled_dot_product_attention".
    """
    ensure_rank()
    return _run(function, getattr(function, "__qualname__", repr(function)), inputs, named, [keep] if isinstance(keep, str) else list(keep))


def offload(function: Callable[..., T], *inputs: object, **named: object) -> T:
    """Runs `function(*inputs, **named)`, and moves what its graph saved for backward to a file of the rank (`set_offload_folder`), whence the system
    takes it when backward reads it: the same bits, less memory.

    What moves are the parts, of 4 KiB or more, of what operators gave in it and of the tensors among its inputs, where they are still there and only
    DTensors have their memory. Its results go with what the next such call saved. CPU only.
    """
    ensure_rank()
    if not torch.is_grad_enabled():
        return function(*inputs, **named)
    tensors, given = _taken_apart((inputs, named))
    shells = []  # what is around the results

    def body(tensors):
        args, kwargs = given.around(tensors)
        results, shell = _taken_apart(function(*args, **kwargs))
        shells.append(shell)
        return results

    results = _C.offload(body, tensors)
    return shells[0].around(results)


def set_offload_folder(folder: str | os.PathLike[str]) -> None:
    """Where this rank keeps what `offload` and offloaded modules of a plan saved: a folder on a disk of this machine. Until it is called, that for
    temporary files. The file there has no name."""
    ensure_rank()
    _C.set_offload_folder(os.fspath(folder))


def modules_to_recompute(model, plan):
    """The modules of the model whose forward is to run again in backward, each once, by name. Throws if there is no such forward."""
    return _modules_of(model, _C.recomputed_modules(plan, model), "recomputed")


def modules_to_offload(model, plan):
    """Likewise those of which it is offloaded what they save."""
    return _modules_of(model, _C.offloaded_modules(plan, model), "offloaded")


def _modules_of(model, found, what):
    names = {model.get_submodule(name): name for name in reversed(found)}
    modules = {name: module for module, name in reversed(names.items())}
    for name, module in modules.items():
        if type(module).forward is torch.nn.Module.forward:
            raise ValueError(f"[parallelize] the plan has `{name}` {what}, and a {type(module).__name__} has no forward; accepted: modules that "
                             f"have one, such as `{name}.*`")
    return modules


class Forward:
    """The forward of a module, in its place. Its second run takes the results of operators that `keep` names from its first."""

    def __init__(self, name, module, keep):
        functools.update_wrapper(self, module.forward)
        self.name = name
        self.keep = keep
        self.module = module
        self.forward = module.forward

    def __call__(self, *args, **kwargs):
        if self.module.training and getattr(self.module, "gradient_checkpointing", False):
            raise RuntimeError(f"[recompute] `{self.name}` is recomputed by the plan and by gradient_checkpointing_enable(); accepted: one of the two")
        before = self._writes()
        result = _run(self.forward, f"the forward of `{self.name}`", args, kwargs, self.keep, list(self.module.parameters()))
        for name, writes in self._writes().items():
            if torch.is_grad_enabled() and writes != before[name]:
                raise RuntimeError(f"[recompute] the forward of `{self.name}` writes to its buffer `{name}`, and would do so once more when it runs again in "
                                   "backward; accepted: patterns that leave out modules with running statistics, or such modules in eval()")
        return result

    def _writes(self):
        return {name: buffer._version for name, buffer in self.module.named_buffers()}


class OffloadedForward:
    """The forward of a module, in its place, that offloads what it saves."""

    def __init__(self, module):
        functools.update_wrapper(self, module.forward)
        self.forward = module.forward

    def __call__(self, *args, **kwargs):
        return offload(self.forward, *args, **kwargs)


def _run(function, name, args, kwargs, keep, parameters=()):
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    tensors, given = _taken_apart((args, kwargs))
    before = given.contents()
    found = []  # what is around the results of the first run

    def body(tensors):
        args, kwargs = given.around(tensors)
        results, shell = _taken_apart(function(*args, **kwargs))
        if not found:
            found.append(shell)
        return results

    results = _C.recompute(body, tensors, keep, parameters)
    for value, old, new in zip(given.others, before, given.contents(), strict=True):
        if len(old) != len(new) or any(a is not b for a, b in zip(old, new)):
            raise RuntimeError(f"[recompute] {name} changes a {type(value).__name__} that it is given, and would change it once more when it runs again in "
                               "backward; accepted: a call without one (use_cache=False for models of transformers), or one under torch.no_grad()")
    return found[0].around(results)


def _taken_apart(value):
    """The tensors in it, and what is around them."""
    leaves, structure = tree_flatten(value)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    return [leaves[i] for i in places], _Shell(structure, places, [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves])


class _Shell:
    """A value without its tensors, of which it keeps none alive."""

    def __init__(self, structure, places, others):
        self.structure = structure
        self.places = places
        self.others = others

    def around(self, tensors):
        leaves = list(self.others)
        for i, tensor in zip(self.places, tensors, strict=True):
            leaves[i] = tensor
        return tree_unflatten(leaves, self.structure)

    def contents(self):
        """The tensors in each of the other objects."""
        return [list(_tensors_of(value, set())) for value in self.others]


def _tensors_of(value, seen):
    if isinstance(value, torch.Tensor):
        yield value
    elif id(value) not in seen and not isinstance(value, (torch.nn.Module, type)):
        seen.add(id(value))
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else getattr(value, "__dict__", {}).values()
        for part in list(parts):
            yield from _tensors_of(part, seen)
