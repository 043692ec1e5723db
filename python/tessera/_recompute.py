"""What runs again in backward instead of keeping what it computed."""

import functools
from collections.abc import Callable
from typing import TypeVar

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tessera import _C
from tessera._ranks import ensure_rank

__all__ = ["recompute"]

T = TypeVar("T")


def recompute(function: Callable[..., T], *inputs: object, **named: object) -> T:
    """Runs `function(*inputs, **named)` now, keeping nothing for backward but the tensors among the inputs, and again when their gradient is
    needed: the same random numbers, the same results, the bits that gradients have without it.

    Tensors stand alone or in tuples, lists and dicts (torch.utils._pytree), going in and coming out; what is no tensor stays as it is. Other
    tensors that want a gradient and are no parameters must be among the inputs. A function that changes an object that it is given, such as a
    key/value cache, is refused: it would change it twice.
    """
    ensure_rank()
    return _run(function, getattr(function, "__qualname__", repr(function)), inputs, named)


def modules_to_recompute(model, plan):
    """The modules of the model whose forward is to run again in backward, each once, by name. Throws if there is no such forward."""
    names = {model.get_submodule(name): name for name in reversed(_C.recomputed_modules(plan, model))}
    modules = {name: module for module, name in reversed(names.items())}
    for name, module in modules.items():
        if type(module).forward is torch.nn.Module.forward:
            raise ValueError(f"[parallelize] the plan has `{name}` recomputed, and a {type(module).__name__} has no forward; accepted: modules that "
                             f"have one, such as `{name}.*`")
    return modules


class Forward:
    """The forward of a module, in its place."""

    def __init__(self, name, module):
        functools.update_wrapper(self, module.forward)
        self.name = name
        self.module = module
        self.forward = module.forward

    def __call__(self, *args, **kwargs):
        if self.module.training and getattr(self.module, "gradient_checkpointing", False):
            raise RuntimeError(f"[recompute] `{self.name}` is recomputed by the plan and by gradient_checkpointing_enable(); accepted: one of the two")
        before = self._writes()
        result = _run(self.forward, f"the forward of `{self.name}`", args, kwargs)
        for name, writes in self._writes().items():
            if torch.is_grad_enabled() and writes != before[name]:
                raise RuntimeError(f"[recompute] the forward of `{self.name}` writes to its buffer `{name}`, and would do so once more when it runs again in "
                                   "backward; accepted: patterns that leave out modules with running statistics, or such modules in eval()")
        return result

    def _writes(self):
        return {name: buffer._version for name, buffer in self.module.named_buffers()}


def _run(function, name, args, kwargs):
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

    results = _C.recompute(body, tensors)
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
