"""What stands before torch's own methods and functions, for DTensors and ranks; plain tensors and programs pass through.

What a tensor of one device answers from its storage (repr, numpy, copies, pickles) a DTensor answers here.
"""

import copy
import functools

import torch

from tessera import _C
from tessera._tensor import full_tensor, redistribute, to_local


def _replace(name, for_dtensor):
    """Has torch.Tensor's method `name` call `for_dtensor` for DTensors."""
    plain = getattr(torch.Tensor, name)

    @functools.wraps(plain)
    def method(self, *args, **kwargs):
        return for_dtensor(self, *args, **kwargs) if _C.is_dtensor(self) else plain(self, *args, **kwargs)

    setattr(torch.Tensor, name, method)


def _repr(self, *, tensor_contents=None):
    return _C.to_string(self)


def _whole(self):
    return full_tensor(self.detach())


def _deepcopy(self, memo):
    if id(self) not in memo:
        other = _C.deep_copy(self)
        memo[id(self)] = torch.nn.Parameter(other, self.requires_grad) if isinstance(self, torch.nn.Parameter) else other
    return memo[id(self)]


def _copy(self):
    return self.detach().requires_grad_(self.requires_grad) if self.is_floating_point() else self.detach()


def _new_tensor(self, data, *, dtype=None, device=None, requires_grad=False):
    return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, requires_grad=requires_grad)


def _refuse_memory(name):
    def refuse(self, *args, **kwargs):
        raise NotImplementedError(f"{name}: a DTensor ({_C.layout(self)}) has no memory of its own, only this rank's part has: call "
                                  f"x.to_local().{name}, or tessera.full_tensor(x).{name}. torch.compile, torch.export and sharing between "
                                  "processes need that memory: run the model uncompiled, and export or share full tensors. A model's "
                                  "weights are written by tessera.save(path, model), and are plain in tessera.full_state_dict(model), which "
                                  "save_pretrained takes as its state_dict")

    return refuse


def _refuse_pickle(self, protocol):
    raise TypeError(f"a DTensor ({_C.layout(self)}) cannot be pickled: it is one rank's part. Write "
                    "torch.save(tessera.full_tensor(x), path), or tessera.full_state_dict(model) for a model")


_MEMORY = ("apply_", "data_ptr", "map_", "share_memory_", "storage", "untyped_storage", "_typed_storage", "__dlpack__")


def _in_region(name):
    """Has torch's factory `name` give DTensors inside the forward of a model on a mesh, as everything there is one."""
    plain = getattr(torch, name)

    @functools.wraps(plain)
    def factory(*args, **kwargs):
        return _C.to_region(plain(*args, **kwargs))

    torch.jit._builtins._register_builtin(factory, f"aten::{name}")  # torch.jit.script knows torch's own function only
    setattr(torch, name, factory)


_FACTORIES = ("arange", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "ones", "rand", "randint", "randn", "randperm",
              "tril_indices", "triu_indices", "zeros")


def _refuse_tracing(function, *args, **kwargs):
    """torch.jit.trace inside a rank."""
    raise NotImplementedError("torch.jit.trace sees one rank's thread: DTensors run untraced. Trace the model before parallelize, outside of "
                              "a rank")


def _refuse_levels():
    """Forward-mode differentiation inside a rank thread."""
    raise NotImplementedError("forward-mode differentiation (jvp, jacfwd, hessian) keeps one level for the whole process, which rank threads "
                              "would share: run ranks as processes (torchrun), or differentiate backwards (vjp, jacrev)")


def _in_rank_threads(module, name, refuse):
    plain = getattr(module, name)

    @functools.wraps(plain)
    def function(*args, **kwargs):
        return refuse(*args, **kwargs) if _C.in_rank_thread() else plain(*args, **kwargs)

    setattr(module, name, function)


def _place_loaded():
    """Has optimizers place what they load for parameters on a mesh as these lie: a rank keeps its part alone."""
    plain = torch.optim.Optimizer.load_state_dict

    @functools.wraps(plain)
    def load_state_dict(self, state_dict):
        plain(self, state_dict)
        for parameter, state in self.state.items():
            if _C.is_dtensor(parameter):
                state.update({key: _C.placed_state(value, parameter) for key, value in state.items() if isinstance(value, torch.Tensor)})

    torch.optim.Optimizer.load_state_dict = load_state_dict


def _install():
    _replace("__repr__", _repr)
    _replace("__deepcopy__", _deepcopy)
    _replace("__reduce_ex__", _refuse_pickle)
    torch.Tensor.__copy__ = lambda self: _copy(self) if _C.is_dtensor(self) else copy._reconstruct(self, None, *self.__reduce_ex__(4))
    _replace("new_tensor", _new_tensor)
    for name in _MEMORY:
        _replace(name, _refuse_memory(name))
    _replace("numpy", lambda self, **options: _whole(self).numpy(**options))
    _replace("tolist", lambda self: _whole(self).tolist())
    torch.Tensor.to_local = to_local
    torch.Tensor.full_tensor = full_tensor
    torch.Tensor.redistribute = redistribute
    torch.Tensor.placements = property(_C.placements)
    torch.Tensor.device_mesh = property(_C.device_mesh)
    for name in _FACTORIES:
        _in_region(name)
    _in_rank_threads(torch.jit, "trace", _refuse_tracing)
    _in_rank_threads(torch.autograd.forward_ad, "enter_dual_level", _refuse_levels)
    _place_loaded()
    plain = torch.nn.Parameter.__deepcopy__
    torch.nn.Parameter.__deepcopy__ = lambda self, memo: _deepcopy(self, memo) if _C.is_dtensor(self) else plain(self, memo)


_install()
