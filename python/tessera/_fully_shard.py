"""fully_shard, under the names of torch.distributed.fsdp: block by block, and then the model."""

import dataclasses
import functools

import torch

from tessera import _C
from tessera._layout import mesh_of
from tessera._parallel import dtype_names, parallelize
from tessera._ranks import ensure_rank, world_size

__all__ = ["FSDPModule", "MixedPrecisionPolicy", "OffloadPolicy", "fully_shard"]


@dataclasses.dataclass(frozen=True)
class MixedPrecisionPolicy:
    """Dtypes of a group's parameters: operators read them, and what they read beside them, in `param_dtype`; gradients are merged over ranks in
    `reduce_dtype`. None: as the model has them. The other two are those of PyTorch; only what they are without a word is accepted."""

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True


@dataclasses.dataclass
class OffloadPolicy:
    """Nothing is offloaded: the only policy so far."""


@dataclasses.dataclass
class _Call:
    """What fully_shard was asked for a module."""

    mesh: str | _C.Mesh
    sharding: str
    near: int  # ranks that a copy is spread over between uses; 0: not said
    dtypes: list[str]
    ignored: list[torch.nn.Parameter]
    is_placed: bool = False


def fully_shard(module: torch.nn.Module, *, mesh: "_C.Mesh | str | torch.distributed.DeviceMesh | None" = None, reshard_after_forward: bool | int = True,
                mp_policy: "MixedPrecisionPolicy | torch.distributed.fsdp.MixedPrecisionPolicy | None" = None,
                offload_policy: "OffloadPolicy | torch.distributed.fsdp.OffloadPolicy | None" = None,
                ignored_params: set[torch.nn.Parameter] | None = None) -> "FSDPModule":
    """Each rank keeps a part of the module's parameters, their gradients and the optimizer's state: FSDP2's call, for each block and then the model.

    The parameters of a block are one group, gathered together; those of the model that are in no block are gathered by modules. The model, which
    is the outermost module, is placed when it is first called, or its parameters or state are read; then its `forward` takes each data rank's own
    rows, as parallelize(..., batch="local") does, and losses are means over the rows of all ranks. `mesh` is a Mesh with an axis that shards, such as
    "fsdp=4" or "dp=2,fsdp=4", or torch's DeviceMesh of one dim, or of two, (replicate, shard); None: all ranks shard. `reshard_after_forward`: parameters
    are gathered again in the backward pass; False: they stay until the step ends; a number: they stay spread over so many ranks that follow each other, which
    gather them for each use. `ignored_params` stay whole, and their gradients are merged as
    those of any parameter. Returns the module, which is an FSDPModule from now on. The model's placing is collective over the mesh.
    """
    ensure_rank()
    if not isinstance(module, torch.nn.Module) or isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict)):
        raise ValueError(f"[fully_shard] a {type(module).__name__}; accepted: a module with a forward of its own, one a call")
    for name, part in _calls_in(module).items():
        if part.is_placed or not name:
            raise ValueError(f"[fully_shard] {type(module).__name__}: " + (f"its part `{name}` is placed already, as a model of its own, since it was called or "
                             "its parameters were read" if name else "it was passed before") + "; accepted: blocks first, each once, then the model, then its use")
    if not isinstance(reshard_after_forward, bool | int | None):
        raise ValueError(f"[fully_shard] reshard_after_forward={reshard_after_forward!r}; accepted: True, False, or a number of ranks")
    if offload_policy is not None and type(offload_policy).__name__ != "OffloadPolicy":
        raise ValueError(f"[fully_shard] offload_policy={offload_policy!r}: nothing is offloaded so far; accepted: None, OffloadPolicy()")
    near = reshard_after_forward if type(reshard_after_forward) is int else 0
    sharding = "gradients" if reshard_after_forward is False else "secondary" if near else "parameters"
    module._fully_shard_call = _Call(_mesh_that_shards(mesh), sharding, near, _dtypes_of(mp_policy), list(ignored_params or ()))
    module.__class__ = _class_of(type(module))
    return module


def _mesh_that_shards(mesh):
    if mesh is None:
        return f"fsdp={world_size()}"
    if not isinstance(mesh, _C.Mesh | str):
        ranks = mesh.mesh
        names = {1: ("fsdp",), 2: ("dp_replicate", "dp_shard")}.get(ranks.ndim)
        if names is None or mesh.device_type != "cpu":
            raise ValueError(f"[fully_shard] mesh {mesh}; accepted: a DeviceMesh of CPUs with one dim, or two: replicate, shard")
        mesh = _C.Mesh(list(zip(names, ranks.shape, strict=True)), ranks.flatten().tolist())
    if not _C.shards_parameters(mesh_of(mesh)):
        raise ValueError(f"[fully_shard] no axis of mesh {mesh} shards parameters; accepted: one with an axis named fsdp or dp_shard, such as \"fsdp=4\"")
    return mesh


def _dtypes_of(policy):
    if policy is None:
        return dtype_names()
    if policy.output_dtype is not None or not policy.cast_forward_inputs:
        raise ValueError(f"[fully_shard] {policy}: outputs stay in the dtype in which they are computed, and operators cast what they read beside "
                         "their parameters; accepted: output_dtype=None, cast_forward_inputs=True")
    return dtype_names(None, policy.param_dtype, policy.reduce_dtype)


@functools.cache
def _class_of(plain):
    """The class with FSDP2's methods. It keeps its name, which libraries write into files."""
    return type(plain.__name__, (FSDPModule, plain), {name: getattr(plain, name) for name in ("__module__", "__qualname__", "__doc__")})


def _calls_in(module):
    """What was asked for the module and those in it, by their names in it."""
    return {name: part._fully_shard_call for name, part in module.named_modules() if isinstance(part, FSDPModule)}


def place_asked(model):
    """Places the model, if fully_shard was asked to and it is not placed yet. A model without values (meta) waits for them."""
    call = model._fully_shard_call if isinstance(model, FSDPModule) else None
    if call is None or call.is_placed:
        return
    named = list(torch.nn.Module.named_parameters(model, remove_duplicate=False))
    if any(parameter.is_meta and not _C.is_deferred(parameter) for _, parameter in named):
        return
    calls = _calls_in(model)
    if len({str(each.mesh) for each in calls.values()}) > 1:
        raise ValueError(f"[fully_shard] {type(model).__name__}: its parts are on the meshes {sorted({str(each.mesh) for each in calls.values()})}; accepted: one")
    ignored = {id(parameter) for each in calls.values() for parameter in each.ignored}
    mesh = mesh_of(call.mesh)
    near = {each.near for each in calls.values() if each.near}
    if len(near) > 1:
        raise ValueError(f"[fully_shard] {type(model).__name__}: reshard_after_forward is {' and '.join(map(str, sorted(near)))} for parts of it; accepted: one number")
    mesh = _C.with_near_ranks(mesh, near.pop()) if near else mesh
    groups = [(name, each.sharding, each.dtypes) for name, each in calls.items() if name]
    plan = _C.generate_plan(model, None, mesh, False, call.sharding, call.dtypes, [[], [], []], ("", 0, 0), 0, 0, "", groups, [name for name, p in named if id(p) in ignored])
    for each in calls.values():
        each.is_placed = True
    parallelize(model, plan, batch="local")


class _Done:
    """What FSDP2's unshard gives to be waited for."""

    def wait(self):
        pass


class FSDPModule:
    """A module that was passed to fully_shard. Its methods are those of FSDP2 that say when parameters are gathered: they are hints that change no
    number, and here the plan decides, so that they do nothing. Those that would change numbers or memory are refused."""

    def __call__(self, *args, **kwargs):
        place_asked(self)
        if not self._fully_shard_call.is_placed:
            raise RuntimeError(f"[fully_shard] {type(self).__name__} is called while its parameters have no values (meta); accepted: to_empty(device=\"cpu\") and "
                               "its initialisers first, or a model from tessera.deferred")
        return super().__call__(*args, **kwargs)

    def named_parameters(self, *args, **kwargs):
        place_asked(self)
        return super().named_parameters(*args, **kwargs)

    def state_dict(self, *args, **kwargs):
        place_asked(self)
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        place_asked(self)
        return super().load_state_dict(*args, **kwargs)

    def to_empty(self, *args, **kwargs):
        """As torch.nn.Module's, and what is tied stays tied, as with FSDP2."""
        owners = {}
        for part in self.modules():
            for name, parameter in part._parameters.items():
                owners.setdefault(id(parameter), []).append((part, name))
        super().to_empty(*args, **kwargs)
        for (first, own), *others in owners.values():
            for part, name in others:
                part._parameters[name] = first._parameters[own]
        return self

    def unshard(self, async_op: bool = False):
        """Nothing: each operator gathers what it reads."""
        return _Done() if async_op else None


def _hint(name):
    def hint(self, *args, **kwargs):
        pass

    hint.__name__, hint.__doc__ = name, "Nothing: a hint of FSDP2 that changes no number."
    return hint


def _refusal(name, instead):
    def refuse(self, *args, **kwargs):
        raise NotImplementedError(f"[fully_shard] {name} is not there; accepted: {instead}")

    refuse.__name__, refuse.__doc__ = name, "Refused."
    return refuse


for _name in ("reshard", "set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch", "set_is_last_backward", "set_requires_gradient_sync",
              "set_requires_all_reduce", "set_unshard_in_backward", "set_post_optim_event", "set_allocate_memory_from_process_group_for_comm",
              "set_force_sum_reduction_for_comms"):
    setattr(FSDPModule, _name, _hint(_name))
for _name, _instead in (("set_reshard_after_forward", "reshard_after_forward of fully_shard"),
                        ("set_reshard_after_backward", "reshard_after_forward of fully_shard"),
                        ("set_all_reduce_hook", "hooks of parameters, which see merged gradients"),
                        ("set_custom_all_gather", "none"), ("set_custom_reduce_scatter", "none"),
                        ("set_reduce_scatter_divide_factor", "a loss that is divided: gradients are those of the loss of all rows"),
                        ("set_gradient_divide_factor", "a loss that is divided: gradients are those of the loss of all rows")):
    setattr(FSDPModule, _name, _refusal(_name, _instead))
