"""Modules of a pipeline's other stages, past which a rank goes in all micro-batches of a step but the first (docs/guide/pipelines.md)."""

import collections
import functools
import types
from collections.abc import Sequence

import torch

from tessera import _C

# What may stand around tensors and is told from others by its value.
_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)


class PassableForward:
    """The forward of a module, in its place."""

    def __init__(self, module):
        functools.update_wrapper(self, module.forward)
        self.forward = module.forward
        self.module = module
        self.body = None
        self.hooks = []
        self.around = {}  # the results' tensors, by what is around those that were given

    def __getstate__(self):
        return {**self.__dict__, "body": None, "hooks": [], "around": {}}

    def __call__(self, *args, **kwargs):
        if self.body is None:
            self.body = _C.PassableBody(list(self.module.parameters()))
            self.hooks = _hooks_in(self.module)
        tensors = []
        if not self.body.needs_run() or any(self.hooks):
            return self.forward(*args, **kwargs)
        try:
            given = _taken_apart((args, tuple(kwargs.items())), tensors, (tuple,))  # a list or a dict is its caller's, too
        except _Opaque:
            return self.forward(*args, **kwargs)
        result, is_alone = None, _is_run_again_alone(self.module)

        def body(tensors):
            nonlocal result
            args, named = _around(given, tensors)
            before = self._attributes() if given not in self.around else None
            result = self.forward(*args, **dict(named))
            if not is_alone:
                return None
            tensors = []
            try:
                around = _taken_apart(result, tensors, (tuple, list, dict))
            except _Opaque:
                return None
            if before is not None and before != self._attributes():
                return None
            self.around[given] = around
            return tensors

        results = self.body.run(hash((given, is_alone)) % 2**64, tensors, body)
        return result if results is None else _around(self.around[given], results)

    def _attributes(self):
        """What the module and those in it have, and what is in it: other when a call has changed it."""
        return [(name, _trace(value)) for module in self.module.modules() for name, value in module.__dict__.items()]


def make_passable(model, plan):
    """Has ranks go past modules of other stages, where the plan has a schedule: the outermost that are on one stage."""
    passed: list[str] = []
    for name in _C.passable_modules(plan, model):
        module = model.get_submodule(name)
        if type(module).forward is not torch.nn.Module.forward and not any(name.startswith(f"{outer}.") for outer in passed):
            module.forward = PassableForward(module)
            passed.append(name)


class _Opaque(Exception):
    """A value of which it is not known whether it is the same as another."""


def _taken_apart(value: object, tensors: list[torch.Tensor], containers: tuple[type, ...]) -> object:
    """What is around the tensors in the value, which are appended, each once: equal for equal values, which _recompute's shells are not."""
    if isinstance(value, torch.Tensor):
        place = next((i for i, tensor in enumerate(tensors) if tensor is value), len(tensors))
        if place == len(tensors):
            tensors.append(value)
        return torch.Tensor, place
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind not in containers:
        raise _Opaque
    if kind is dict:
        return kind, tuple(value), tuple([_taken_apart(each, tensors, containers) for each in value.values()])
    return kind, tuple([_taken_apart(each, tensors, containers) for each in value])


def _around(shell: object, tensors: Sequence[torch.Tensor]) -> object:
    """The value with these tensors."""
    kind, *parts = shell
    if kind is torch.Tensor:
        return tensors[parts[0]]
    if kind is dict:
        return dict(zip(parts[0], [_around(each, tensors) for each in parts[1]], strict=True))
    return kind([_around(each, tensors) for each in parts[0]]) if kind in (tuple, list) else parts[0]


def _trace(value: object, depth: int = 3) -> object:
    """Another one when the value was changed, or what it holds so deep."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return id(value), value._version
    if depth == 0 or isinstance(value, (torch.nn.Module, type, types.FunctionType, types.ModuleType)):
        return id(value)
    if isinstance(value, dict):
        return id(value), [(key, _trace(each, depth - 1)) for key, each in value.items()]
    if isinstance(value, (list, tuple, collections.deque)):
        return id(value), [_trace(each, depth - 1) for each in value]
    if isinstance(value, (set, bytearray)):
        return id(value), len(value)
    return id(value), _trace(getattr(value, "__dict__", None), depth - 1)


def _is_run_again_alone(module):
    """Whether nothing but this module is run again in backward when what it keeps is wanted (`torch.utils.checkpoint`), or nothing is.

    In a body with more in it a rank that goes past the module would count what is run again twice: with the module, and with the rest.
    """
    keeps = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if keeps is None:
        return True
    again = getattr(_closed_over(keeps[0], "frame"), "recompute_fn", None)
    body = _closed_over(again, "fn")
    while isinstance(body, functools.partial):
        body = body.func
    return module is body or module is getattr(body, "__self__", None)


def _closed_over(function, name):
    """What a function reads under this name of those around it; None if it does not."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return function.__closure__[names.index(name)].cell_contents if name in names else None


def _hooks_in(module):
    """Where hooks stand that the forward of a module would call, of the modules in it and of all."""
    names = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    inner = [getattr(each, name) for each in module.modules() if each is not module for name in names]
    return inner + [getattr(torch.nn.modules.module, f"_global{name}") for name in names]
