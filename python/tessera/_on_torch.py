"""What stands before torch's own methods and functions, for DTensors and ranks; plain tensors and programs pass through.

What a tensor of one device answers from its storage (repr, numpy, copies, pickles) a DTensor answers here.
"""

import copy
import functools

import torch
from torch.utils import _device as torch_device

from tessera import _C, _torch_checkpoint
from tessera._tensor import full_tensor, redistribute, to_local
from tessera._whole_state import whole_states


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


def _deepcopy_plain(plain):
    """Of a plain tensor, which copies its storage: within a model's forward too."""
    @functools.wraps(plain)
    def copied(self, memo):
        if not _C.in_rank():
            return plain(self, memo)
        with _C.PlainScope():
            return plain(self, memo)

    return copied


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
                                  "weights are written by tessera.save('model.safetensors', model), and are plain in tessera.full_state_dict(model), which "
                                  "save_pretrained takes as its state_dict")

    return refuse


def _refuse_pickle(self, protocol):
    raise TypeError(f"a DTensor ({_C.layout(self)}) cannot be pickled: it is one rank's part. Write "
                    "torch.save(tessera.full_tensor(x), path); of a model torch.save(tessera.full_state_dict(model), path), of an optimizer "
                    "torch.save(tessera.full_optimizer_state_dict(optimizer), path)")


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


def _refuse_compiling():
    """Has torch.compile, which Module.compile calls, refuse a model on a mesh: it would fail to trace it in words of its own."""
    plain = torch.compile

    @functools.wraps(plain)
    def compile(model=None, **options):
        module = getattr(model, "__self__", model)  # of a method of its own
        if isinstance(module, torch.nn.Module) and any(map(_C.is_dtensor, module.parameters())):
            raise NotImplementedError(f"torch.compile: {type(module).__name__} is on a mesh, where DTensors run eagerly; accepted: the model uncompiled")
        return plain(model, **options)

    torch.compile = compile


def _without_fast_paths():
    """Has torch's attention modules call the operators that they are made of, inside a rank: those that do all at once, in evaluation, take plain memory."""
    plain = torch.backends.mha.get_fastpath_enabled
    torch.backends.mha.get_fastpath_enabled = functools.wraps(plain)(lambda: plain() and not _C.in_rank())


def _place_loaded():
    """Has optimizers place what they load for a parameter on a mesh as that lies, before they cast it: a rank keeps its part alone."""
    plain = torch.optim.Optimizer._process_value_according_to_param_policy

    @functools.wraps(plain)
    def process(param, value, *args, **kwargs):
        return plain(param, _C.placed_state(value, param) if _C.is_dtensor(param) else value, *args, **kwargs)

    torch.optim.Optimizer._process_value_according_to_param_policy = staticmethod(process)


def _load_into_parts():
    """Has modules copy what they load into parameters and buffers on a mesh, where assign=True would put whole ones in their place."""
    plain = torch.nn.Module._load_from_state_dict

    @functools.wraps(plain)
    def load(self, state_dict, prefix, local_metadata, *args, **kwargs):
        if any(map(_C.is_dtensor, (*self._parameters.values(), *self._buffers.values()))):
            local_metadata = {**local_metadata, "assign_to_params_buffers": False}
        return plain(self, state_dict, prefix, local_metadata, *args, **kwargs)

    torch.nn.Module._load_from_state_dict = load


def _cast_as_planned():
    """Has .to(dtype), .double() and their like leave what the plan says of the parameters that they cast, and refuse devices where no part may lie."""
    plain = torch.nn.Module._apply

    @functools.wraps(plain)
    def apply(self, fn, recurse=True):
        placed = [parameter for parameter in self.parameters(recurse) if _C.is_dtensor(parameter)]
        said = [_C.plan_of(parameter) for parameter in placed]
        if placed and (device := fn(torch.empty(0, dtype=placed[0].dtype)).device).type != placed[0].device.type:
            raise NotImplementedError(f"{type(self).__name__} is on a mesh of {placed[0].device.type} devices, and cannot go to {device}; accepted: another dtype; "
                                      "another device before parallelize")
        result = plain(self, fn, recurse)
        for parameter, own in zip(placed, said, strict=True):
            if own is not None:
                _C.keep_plan(parameter, own)
        return result

    torch.nn.Module._apply = apply


def _save_where_it_is():
    """Has torch.save write the whole state of a model or an optimizer on the rank that has it, and nowhere else."""
    plain = torch.save

    @functools.wraps(plain)
    def save(obj, *args, **kwargs):
        states = list(whole_states(obj))
        if len({state.holder for state in states}) > 1:
            raise ValueError(f"torch.save: whole states of ranks {sorted({str(state.holder) for state in states})} in one file; accepted: those of one "
                             "rank, full_state_dict(model, rank=k) with one k")
        return plain(obj, *args, **kwargs) if all(state.is_here for state in states) else None

    torch.save = save


def _install():
    _replace("__repr__", _repr)
    torch.Tensor.__deepcopy__ = _deepcopy_plain(torch.Tensor.__deepcopy__)
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
    for name in _torch_checkpoint.ATTRIBUTES:
        setattr(torch.Tensor, name, _torch_checkpoint.protocol(name))
    torch_device._device_constructors()  # which functions `with torch.device(...)` is for: torch keeps what they are now
    for name in _FACTORIES:
        _in_region(name)
    _in_rank_threads(torch.jit, "trace", _refuse_tracing)
    _in_rank_threads(torch.autograd.forward_ad, "enter_dual_level", _refuse_levels)
    _refuse_compiling()
    _without_fast_paths()
    _place_loaded()
    _load_into_parts()
    _cast_as_planned()
    _save_where_it_is()
    plain = torch.nn.Parameter.__deepcopy__
    torch.nn.Parameter.__deepcopy__ = lambda self, memo: _deepcopy(self, memo) if _C.is_dtensor(self) else plain(self, memo)


_install()
