"""Models on a mesh."""

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from tessera import _C
from tessera._added import Added
from tessera._arguments import named_tensors, with_tensors
from tessera._layout import mesh_of
from tessera._microbatches import StepForward
from tessera._pass_over import make_passable
from tessera._random import has_drawn_since, stream_of_rank
from tessera._ranks import ensure_rank, in_rank, rank
from tessera._recompute import Forward, OffloadedForward, modules_to_offload, modules_to_recompute
from tessera._samplers import hint_of, warn_of_same_rows

__all__ = ["deferred", "generate_plan", "is_deferred", "parallelize", "place_rows"]

T = TypeVar("T")
Model = TypeVar("Model", bound=torch.nn.Module)


def deferred(make: Callable[[], T]) -> T:
    """Runs `make` (a model's constructor) without allocating; `parallelize` then gives each rank its part of the values."""
    ensure_rank()
    with _C.Deferred():
        return make()


def is_deferred(value: torch.Tensor | torch.nn.Module) -> bool:
    """Whether the tensor, or any parameter of the module, was made by `deferred` and has no values yet."""
    tensors = value.parameters() if isinstance(value, torch.nn.Module) else [value]
    return any(map(_C.is_deferred, tensors))


def generate_plan(model: torch.nn.Module, devices: int | None = None, *, mesh: _C.Mesh | str | None = None, sequence_parallel: bool = False,
                  sharding: str = "parameters", storage_dtype: torch.dtype | None = None, compute_dtype: torch.dtype | None = None,
                  reduce_dtype: torch.dtype | None = None, recompute: str | Sequence[str] = (), recompute_keep: str | Sequence[str] = (),
                  offload: str | Sequence[str] = (), schedule: str | None = None, stages_per_rank: int = 0, vocabulary: int = 0, heads: int = 0,
                  kv_heads: int = 0, lattice: str = "") -> _C.Plan:
    """A plan from rules for `devices` ranks (all of the job, unless said otherwise), or for a mesh such as "dp=2,tp=2".

    Each axis of a mesh has a role by its name: dp (or dp_replicate) cuts the batch, fsdp (or dp_shard) the batch and what is kept of parameters,
    tp the model; others are refused. On fsdp axes `sharding` says what is cut: "state" is parameters between steps and the optimizer's state (ZeRO-1),
    "gradients" these as well (ZeRO-2), "parameters" also parameters between the operators that read them (ZeRO-3), "secondary" also, on a mesh such as
    "dp_shard=2,fsdp=4", of which a copy stays that only the last axis cuts. Without a mesh all ranks are
    dp, as far as exact numerics can cut a batch, and rank 0 says on stderr which mesh that is. Parameters are stored in `storage_dtype`; operators
    read them, and what they read beside them, in `compute_dtype`; gradients are merged over ranks in `reduce_dtype` (None: as the model has them, and
    as they are stored). Modules whose dotted names match a pattern of `recompute` ("model.layers.*") keep only their inputs for backward, and run
    again there, but for results of the operators that `recompute_keep` names ("scaled_dot_product_attention", "mm"), which are kept. What modules that
    match a pattern of `offload` save for backward lies in a file until then (`set_offload_folder`). On a pp axis, which cuts the model into stages,
    `schedule` says in which order they share a step's micro-batches ("1f1b", "zbv", ...: docs/guide/pipelines.md; parallelize's `microbatches`), and `stages_per_rank`
    how many a rank has (0: as the schedule has them). `vocabulary` cuts embedding and head over the stages, with 1 or 2 barriers of the schedule's passes for
    them (0: they are on the first stage and the last). Without a pp axis all three say nothing. Heads are read from the model where it says them. The lattice is that of `numerics("exact", ...)`; only a plan that is made before or
    elsewhere is told it. Print the plan to see what is cut, and why not.
    """
    ensure_rank()
    if not isinstance(schedule, (str, type(None))):
        raise TypeError(f"[generate_plan] schedule={schedule!r}; accepted: the name of one, \"1f1b\", or None: stages run one after the other")
    dtypes = dtype_names(storage_dtype, compute_dtype, reduce_dtype)
    blocks = [[names] if isinstance(names, str) else list(names) for names in (recompute, recompute_keep, offload)]
    plan = _C.generate_plan(model, devices, mesh_of(mesh), sequence_parallel, sharding, dtypes, blocks, (schedule or "", stages_per_rank, vocabulary), heads, kv_heads, lattice, [], [])
    if mesh is None and plan.mesh.ndim > 0 and (not in_rank() or rank() == 0):
        print(f"tessera: {plan.notes[0]}", file=sys.stderr)
    return plan


def dtype_names(storage=None, compute=None, reduce=None):
    return ["" if dtype is None else str(dtype).removeprefix("torch.") for dtype in (storage, compute, reduce)]


def parallelize(model: Model, plan: _C.Plan | _C.Mesh | str, optimizer: torch.optim.Optimizer | None = None, *, accumulate: int = 1,
                batch: str = "whole", microbatches: int = 1, keep_outputs: str | Sequence[str] = ()) -> Model:
    """Makes the model's parameters and buffers DTensors as the plan says, in place, and returns the model.

    A mesh, or text such as "dp=2,tp=2", stands for generate_plan(model, mesh=mesh).
    Tied parameters and an optimizer built before or after stay valid; give one that has taken steps, so that its state is
    placed too. Adapters that peft puts on it later are cut with their layers, as the model is called next. From now on the model's forward cuts the tensors it is given over the plan's batch axes; every rank passes the
    whole batch, which calls 1, 2, 4, 8, ... of the model compare over the ranks. With batch="local" each data rank passes its own
    rows instead, as a DistributedSampler gives them, some more than others or none; in the order of the data ranks they are the
    batch, and losses are means over all of them. A step is `accumulate` forward passes with gradients.

    With `microbatches`, or a plan with a schedule, a forward call with gradients is a whole step where the model computes its loss (returns it, or
    an output with `.loss`): it cuts its batch into so many micro-batches, runs forward and backward of each as the schedule says, and returns the step's mean
    loss, whose `backward()` deposits the gradients. They are those of the whole batch, ignored targets (-100) included, if the loss is a mean over the
    samples, or over the targets that count in cross_entropy or nll_loss. The returned output has the loss alone, and those that `keep_outputs` names: each a
    list of the micro-batches' tensors. Calls without gradients, and those of a model whose loss is computed outside of it, are ordinary forward passes; a
    warning tells of the latter. The forward runs once more for each micro-batch and stage of the rank, and may not read values of other stages.

    Collective over the plan's mesh.
    """
    ensure_rank()
    plan = plan if isinstance(plan, _C.Plan) else generate_plan(model, mesh=plan)
    recomputed, offloaded = modules_to_recompute(model, plan), modules_to_offload(model, plan)
    passes = _C.place(model, plan, accumulate, batch)
    for name, module in recomputed.items():
        module.forward = Forward(name, module, plan.recompute_keep)
    for module in offloaded.values():
        module.forward = OffloadedForward(module)
    make_passable(model, passes.plan)
    if optimizer:
        place_state_of(optimizer)
    whole = _whole_steps(model, passes.plan, accumulate, batch, microbatches, keep_outputs)
    _Forward(passes, accumulate, batch, whole).watch(model)
    return model


def _whole_steps(model, plan, accumulate, batch, microbatches, keep):
    """Has the model's forward be a whole step, if it is to be one."""
    if not isinstance(microbatches, int) or microbatches < 1 or (microbatches > 1 and accumulate > 1):
        raise ValueError(f"[parallelize] microbatches={microbatches!r}, accumulate={accumulate}; accepted: microbatches from 1 on, which cut the step's batch, or accumulate, the "
                         "passes that the program makes a step of")
    if microbatches == 1 and not plan.schedule:
        return None
    model.forward = StepForward(model, _C.WholeStep(plan, microbatches, batch), microbatches, [keep] if isinstance(keep, str) else list(keep))
    return model.forward


def place_state_of(optimizer):
    """Places what the optimizer keeps for placed parameters. Collective."""
    for parameter, state in optimizer.state.items():
        for value in state.values():
            if isinstance(value, torch.Tensor) and _C.is_dtensor(parameter):
                _C.place_state(value, parameter)


def place_rows(model: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """More rows of the batch that the placed model was given last, such as the targets of a loss that is computed outside of it, as a DTensor.

    Of a model with batch="local" they are this data rank's own: `loss = F.cross_entropy(model(x), tessera.place_rows(model, y))`. Collective over
    the plan's mesh.
    """
    passes = passes_of(model)
    if len(passes) != 1:
        raise ValueError(f"[place_rows] {type(model).__name__} has {len(passes)} placed models in it; accepted: one that parallelize or fully_shard placed")
    return passes[0].more_rows(rows)


def passes_of(model):
    """The forward passes of the placed models that are in it."""
    return [forward.passes for forward in forwards_of(model)]


def set_micro_batches(model, count):
    """Has the next steps of the placed models that are in it be of so many passes with gradients. Not amid a step."""
    for forward in forwards_of(model):
        forward.set_micro_batches(count)


def finish_steps(model):
    """Has steps that have begun end with the passes that came. After the last backward; between two steps it does nothing."""
    for passes in passes_of(model):
        passes.finish_step()


def forwards_of(model):
    """What stands around the forward of the placed models that are in it."""
    hooks = [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]
    return [hook.__self__ for hook in hooks if isinstance(getattr(hook, "__self__", None), _Forward)]


class _Forward:
    """Stands around the root module's forward."""

    def __init__(self, passes, accumulate, batch, whole=None):
        self.passes, self.accumulate, self.batch = passes, accumulate, batch  # "whole" or "local"
        self.whole = whole  # the module's forward where calls are whole steps
        self._has_begun = False
        self._added = Added()
        self._stream = None  # of random numbers as the pass began, where what it draws is worth a warning
        self._depth = 0  # calls of the module within a call of it: a step that was redirected through its forward calls it again

    def set_micro_batches(self, count):
        if count == self.accumulate:
            return
        if self.whole:
            raise NotImplementedError(f"[parallelize] microbatches={self.whole.micro_batches}, and a trainer that gives {count} batches a step; accepted: one, of all "
                                      "of the step's samples, which is cut into micro-batches")
        step = self.passes.step
        self.passes.end()
        _C.set_check_plain(False)  # what a pass began, and only its next one would end
        self.passes, self.accumulate = _C.forward_passes(self.passes.plan, count, self.batch), count
        self.passes.step = step

    def watch(self, model):
        model.register_forward_pre_hook(self.begin, with_kwargs=True)
        model.register_forward_hook(self.end, always_call=True)

    def begin(self, module, args, kwargs):
        if self._depth > 0:
            self._depth += 1
            return args, kwargs
        self._added.place(self.passes, module)
        if self.whole and self.whole.takes(self.passes, module, args, kwargs):
            self.whole.passes = self.passes
            self._depth = 1
            return args, kwargs
        tensors = list(named_tensors(args, kwargs))
        if self.batch == "local" and not self._has_begun:
            warn_of_same_rows(self.passes.plan, [tensor for _, tensor in tensors])
        self._has_begun = True
        try:
            placed = self.passes.begin(tensors)
        except RuntimeError as error:
            if hint := hint_of(error, type(module).__name__, self.passes.plan):
                raise RuntimeError(f"{error}{hint}") from None
            raise
        self._depth = 1
        depends = self.accumulate > 1 and torch.is_grad_enabled() and _C.is_exact()  # on `accumulate`, of what a step draws
        self._stream = stream_of_rank() if depends else None
        return with_tensors((args, kwargs), iter(placed))

    def end(self, module, args, output):
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            if self.whole:
                self.whole.passes = None
            self.passes.end()
            if self._stream is not None and has_drawn_since(self._stream):
                warnings.warn(f"[parallelize] numerics exact, accumulate={self.accumulate}: this pass draws random numbers as plain PyTorch does, one micro-batch after the "
                              "other. They are the same on every mesh, and others for another `accumulate`; tessera.set_generator(\"counter\") gives a sample the same "
                              "ones in any micro-batch", stacklevel=2)
