"""Saving and loading what a program trains: its model, its optimizer, the step, random numbers, and values of its own."""

import copy
import json
import os
import random
import sys
from collections.abc import Mapping

import torch

from tessera import _C
from tessera._files_of_others import load_others
from tessera._optimizer_values import StateToLoad, pack, to_json
from tessera._fully_shard import place_asked
from tessera._parallel import passes_of
from tessera._ranks import ensure_rank, forget_save, remember_save

__all__ = ["Loaded", "Saving", "load", "remove_unfinished", "save", "start_save"]

# Values of a checkpoint that are not the program's own.
_RESERVED = ("extra state", "form of parameters", "job", "optimizer", "passes", "place", "program")


class Saving:
    """A save that is under way: what is saved was copied, threads write it. Made by start_save; the rank's own thread uses it."""

    def __init__(self, handle):
        self._handle = handle
        remember_save(self)

    @property
    def folder(self) -> str:
        """The checkpoint's folder."""
        return self._handle.folder

    def check(self) -> None:
        """Raises what has failed so far on this rank. Does not wait."""
        self._handle.check()

    def finish(self) -> None:
        """Waits until all ranks have written and the checkpoint is whole; raises what failed. Collective."""
        self._handle.finish()
        forget_save(self)

    def give_up(self) -> None:
        """Waits for other ranks no longer, because the job has failed."""
        self._handle.give_up()


class Loaded(dict):
    """The values that were saved as `extra`, by name; `step`, how many steps were taken (None where a file does not say); `folder`, of the checkpoint."""

    def __init__(self, values, step, folder):
        super().__init__(values)
        self.step, self.folder = step, folder


def save(run_folder: str | os.PathLike[str], model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, *, step: int | None = None,
         extra: Mapping[str, object] | None = None, in_slices: bool = False, keep: int = 0) -> str:
    """Saves the model, what the optimizer keeps and is set to, and random numbers as step_<step> in the folder of the run; returns that folder.

    `step` is how many steps were taken. `extra` is kept along, each value as JSON. Of the run the last `keep` checkpoints stay, or all. Parameters are
    written whole, as `safetensors` and `transformers` read them, or with in_slices=True where they lie, which is faster. `load` reads it on any
    mesh. Collective; no rank holds more than one whole tensor beside what it writes.

    A path that ends in .safetensors becomes one file with the model's state alone, which rank 0 writes; it has no step.
    """
    path = os.fspath(run_folder)
    if path.endswith(".safetensors"):
        if optimizer is not None or step is not None or extra or in_slices or keep:
            raise ValueError(f'[checkpoint] "{path}" is one file of a model alone; accepted: save(path, model), or the folder of a run')
        ensure_rank()
        _C.save_gathered(path, [(name, value.detach()) for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)])
        return path
    saving = _start(path, model, optimizer, step, extra, in_slices, keep, copies=False)
    saving.finish()
    return saving.folder


def start_save(run_folder: str | os.PathLike[str], model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, *, step: int | None,
               extra: Mapping[str, object] | None = None, in_slices: bool = False, keep: int = 0) -> Saving:
    """As `save`, but returns when copies are made: the program goes on while threads write, and calls finish() in the end. Collective.

    The memory of the copies stays for the next save, as far as the system has no other use for it.
    """
    return _start(run_folder, model, optimizer, step, extra, in_slices, keep, copies=True)


def _start(run_folder, model, optimizer, step, extra, in_slices, keep, copies):
    ensure_rank()
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise ValueError(f"[checkpoint] save with step={step!r}; accepted: how many steps were taken, a number from 0 on; or a path that "
                         "ends in .safetensors, for one file of the model alone")
    place_asked(model)
    tensors = _C.persistent_tensors(model)
    values, moments = _values(model, extra or {}), []
    if optimizer is not None:
        moments, values["optimizer"] = pack(optimizer, tensors)
    return Saving(_C.start_save(os.fspath(run_folder), step, tensors, moments, values, in_slices, copies, keep, _files(model)))


def save_optimizer(run_folder, model, optimizer, step):
    """What the optimizer keeps and is set to, as step_<step> in the folder, and of the model nothing. The last one stays. Collective."""
    moments, value = pack(optimizer, _C.persistent_tensors(model))
    Saving(_C.start_save(os.fspath(run_folder), step, [], moments, {"optimizer": value}, False, False, 1, [])).finish()


def load_optimizer(folder, model, optimizer):
    """What save_optimizer wrote, on whatever mesh the model is now. Collective."""
    found = _C.open_checkpoint(os.fspath(folder), False)
    state = StateToLoad(optimizer, _C.persistent_tensors(model), found)
    _C.verify_checkpoint(found, [], state.moments, True)
    state.verify_groups()
    _C.load_checkpoint(found, [], state.moments, True)
    state.restore()


def remove_unfinished(run_folder: str | os.PathLike[str]) -> list[str]:
    """Removes what killed saves left in the folder of a run, and returns these folders; none where there is no such folder yet. Collective.

    For a program that begins: a step whose save was killed cannot be saved before. No other program may be saving there.
    """
    ensure_rank()
    return _C.remove_unfinished(os.fspath(run_folder))


def load(folder: str | os.PathLike[str], model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, *,
         allows_other_sums: bool = False) -> Loaded:
    """Makes the program what was saved, on whatever mesh it is now, and returns the values that were kept along. Collective.

    `folder` is that of a checkpoint, or of a run, whose newest whole one is taken. The optimizer, which may not have taken a step yet, is of the
    same kind with the same groups. Other names, sizes, numerics (unless allows_other_sums) and damage are refused before anything is changed.

    Read as well, model and optimizer's state: folders of torch.distributed.checkpoint, files of torch.save; the model alone: folders of
    `transformers`, files of safetensors.
    """
    ensure_rank()
    path = os.fspath(folder)
    place_asked(model)
    others = load_others(path, model, optimizer)
    return Loaded(*others, path) if others is not None else _load_own(path, model, optimizer, allows_other_sums)


def _load_own(path, model, optimizer, allows_other_sums):
    found = _C.open_checkpoint(path, allows_other_sums)
    tensors = _C.persistent_tensors(model)
    state = StateToLoad(optimizer, tensors, found) if optimizer is not None else None
    moments = state.moments if state else []
    _C.verify_checkpoint(found, tensors, moments, state is not None)
    if state:
        state.verify_groups()
    step = _C.load_checkpoint(found, tensors, moments, state is not None)
    if state:
        state.restore()
    values = {name: json.loads(text) for name, text in found.values.items()}
    _restore(model, values, step)
    return Loaded({name: value for name, value in values.items() if name not in _RESERVED}, step, found.folder)


def _values(model, extra):
    values = {}
    for name, value in extra.items():
        if not isinstance(name, str) or name in _RESERVED:
            raise ValueError(f"[checkpoint] an extra value called {name!r}; accepted: texts but {', '.join(_RESERVED)}")
        values[name] = to_json(value, f"the extra value {name!r}")
    kept = {name: value for name, value in model.state_dict(keep_vars=True).items() if not isinstance(value, torch.Tensor)}
    if kept:
        values["extra state"] = to_json(kept, f"what get_extra_state() of the model returned ({', '.join(kept)})")
    values["passes"] = to_json([passes.step for passes in passes_of(model)], "the steps of forward passes")
    values["program"] = to_json(program_state(), "Python's random state")
    return values


def _restore(model, values, step):
    for name, value in values.get("extra state", {}).items():
        model.get_submodule(name.rpartition("_extra_state")[0].rstrip(".")).set_extra_state(value)
    passes, steps = passes_of(model), values.get("passes", [])
    for each, then in zip(passes, steps if len(steps) == len(passes) else [step] * len(passes)):
        each.step = then
    if "program" in values:
        restore_program_state(values["program"])


def program_state():
    """Of the generators of Python and, if it is there, of numpy."""
    state = {"random": random.getstate()}
    if numpy := sys.modules.get("numpy"):
        kind, words, *rest = numpy.random.get_state()
        state["numpy"] = [str(kind), words.tolist(), *rest]
    return state


def restore_program_state(state):
    """Sets them so; those of rank threads, which have one of each together, rank 0 does. Collective."""
    if not (_C.in_rank_thread() and _C.rank() > 0):
        version, words, gauss = state["random"]
        random.setstate((version, tuple(words), gauss))
        if "numpy" in state and (numpy := sys.modules.get("numpy")):
            numpy.random.set_state(tuple(state["numpy"]))
    if _C.in_rank():
        _C.barrier()


def _files(model):
    """What from_pretrained of transformers reads beside the tensors."""
    library = sys.modules.get("transformers.modeling_utils")
    if not library or not isinstance(model, library.PreTrainedModel):
        return []
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    files = [("config.json", config.to_json_string())]
    generation = getattr(model, "generation_config", None)
    return files + ([("generation_config.json", generation.to_json_string())] if generation else [])
