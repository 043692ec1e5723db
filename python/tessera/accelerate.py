"""`accelerate.Accelerator` on a mesh: a script changes the import, and names the mesh.

    from tessera.accelerate import Accelerator           # instead of: from accelerate import Accelerator
    accelerator = Accelerator(mesh="dp=2,tp=2")          # the rest of the script stays

accelerate is told of one device, which takes the whole batch; `prepare` places models on the mesh. docs/guide/accelerate.md has the rest.
"""

import contextlib
import os
import shutil
from pathlib import Path

import accelerate
import torch
from accelerate.state import PartialState

from tessera import _C
from tessera._checkpoint import load, save
from tessera._one_device import optimizer_in, tell_of_one_device
from tessera._parallel import passes_of, set_micro_batches
from tessera._ranks import in_rank, rank
from tessera._trainers import begin, place, sum_of_ranks, whole
from tessera._whole_state import full_state_dict

__all__ = ["Accelerator"]

# Arguments, and what `accelerate launch` puts into the environment for them, by which another library would run the model.
_OTHERS = {
    "deepspeed_plugin": "ACCELERATE_USE_DEEPSPEED", "deepspeed_plugins": "", "fsdp_plugin": "ACCELERATE_USE_FSDP", "torch_tp_plugin": "",
    "megatron_lm_plugin": "ACCELERATE_USE_MEGATRON_LM", "parallelism_config": "ACCELERATE_USE_PARALLELISM_CONFIG", "dynamo_backend": "", "dynamo_plugin": "",
}


class Accelerator(accelerate.Accelerator):
    """accelerate.Accelerator on a mesh.

    Takes its arguments by keyword, and four more. `mesh` is a mesh, text such as "dp=2,tp=2", or a plan; without it all ranks cut the batch.
    `numerics` and `lattice` are those of tessera.numerics. `generator` is that of tessera.set_generator: with "stock", the default, random numbers are
    those of one device. Batch sizes are those of the whole job, as on one device, and loaders give every rank every row. Where the program has no
    ranks, it is the Accelerator alone. What needs all ranks (steps, save_state, load_state, save_model, get_state_dict) every rank calls.
    """

    def __init__(self, *, mesh: "_C.Mesh | _C.Plan | str | None" = None, numerics: str | None = None, lattice: str = "", generator: str = "stock",
                 **kwargs) -> None:
        if _C.is_launched():
            PartialState(cpu=True)  # a launched program's process group is the job's
        begin("Accelerator", mesh, numerics, lattice, generator)
        self._mesh, self._passed = mesh, {}  # passes since a loader began
        if in_rank():
            _verify(kwargs)
            tell_of_one_device()
            kwargs |= {"device_placement": False, "cpu": True}
        super().__init__(**kwargs)
        if in_rank():
            self.dataloader_config.dispatch_batches = False  # no rank reads for others

    def prepare(self, *args, device_placement=None):
        """accelerate's; models become DTensors on the mesh, in place, and what optimizers keep of them."""
        for model in args if in_rank() else ():
            if isinstance(model, torch.nn.Module):
                optimizers = [optimizer for optimizer in args if isinstance(optimizer, torch.optim.Optimizer) and _is_of(optimizer, model)]
                place(model, self._mesh, next(iter(optimizers), None), self.gradient_accumulation_steps)
        return super().prepare(*args, device_placement=device_placement)

    def prepare_model(self, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False) -> torch.nn.Module:
        """accelerate's; the model's parameters become DTensors on the mesh, in place."""
        if not evaluation_mode:
            place(model, self._mesh, None, self.gradient_accumulation_steps)
        return super().prepare_model(model, device_placement, evaluation_mode)

    def prepare_data_loader(self, *args, **kwargs) -> torch.utils.data.DataLoader:
        """accelerate's."""
        loader = super().prepare_data_loader(*args, **kwargs)
        begin_loader = loader.begin

        def begin_anew():
            self._passed[loader] = 0
            begin_loader()

        loader.begin = begin_anew
        return loader

    def _do_sync(self):
        """Before a pass of `accumulate`: a step that the end of its loader cuts short has fewer passes."""
        loader, steps = self.gradient_state.active_dataloader, self.gradient_state.num_steps
        if in_rank() and loader is not None and self.gradient_state.sync_with_dataloader:
            passed = self._passed.get(loader, 0)
            if self.step % steps == 0:
                for model in self._models:
                    set_micro_batches(model, max(1, min(steps, _left(loader, passed, steps))))
            self._passed[loader] = passed + 1
        super()._do_sync()

    # --- values

    def gather(self, tensor):
        """accelerate's: every value is that of the whole batch already, and becomes a plain tensor. Collective."""
        return whole(super().gather(tensor))

    def reduce(self, tensor, reduction: str = "sum", scale: float = 1.0):
        """accelerate's: every value is that of the whole batch already, and becomes a plain tensor. Collective."""
        return whole(super().reduce(tensor, reduction, scale))

    def check_trigger(self) -> bool:
        """accelerate's: whether any rank has called set_trigger. Collective."""
        if in_rank():
            self.flag_tensor = sum_of_ranks(torch.tensor(0) if self.flag_tensor is None else self.flag_tensor)
        return super().check_trigger()

    # --- ranks

    def wait_for_everyone(self) -> None:
        """accelerate's. Collective."""
        _C.barrier() if in_rank() else super().wait_for_everyone()

    @contextlib.contextmanager
    def main_process_first(self):
        """accelerate's: the block runs on rank 0 before it does on the others. Collective."""
        if in_rank() and rank() > 0:
            _C.barrier()
        yield
        if in_rank() and rank() == 0:
            _C.barrier()

    def local_main_process_first(self):
        """main_process_first."""
        return self.main_process_first()

    # --- files

    def get_state_dict(self, model: torch.nn.Module, unwrap: bool = True) -> dict:
        """accelerate's: whole and plain on rank 0, nothing on the others. Collective."""
        return full_state_dict(self.unwrap_model(model)) if in_rank() else super().get_state_dict(model, unwrap)

    def save_state(self, output_dir: str | None = None, safe_serialization: bool = True, **kwargs) -> str:
        """accelerate's; models and their optimizers are checkpoints of tessera in the folder, model_0 and so on. Collective."""
        if not in_rank():
            return super().save_state(output_dir, safe_serialization, **kwargs)
        folder = self._folder_to_save(output_dir)
        with self._apart():
            super().save_state(output_dir, safe_serialization, **kwargs)
        for i, model in enumerate(self._models):
            step = passes_of(model)[0].step
            if rank() == 0:
                shutil.rmtree(folder / f"model_{i}" / f"step_{step:06}", ignore_errors=True)
            _C.barrier()
            save(folder / f"model_{i}", self.unwrap_model(model), self._optimizer_of(model), step=step, extra={"accumulated": self.step}, keep=1)
        return str(folder)

    def load_state(self, input_dir: str | None = None, load_kwargs: dict | None = None, **kwargs) -> None:
        """accelerate's, of a folder that was saved on any mesh, or without ranks. Collective."""
        folder = self._folder_to_load(input_dir) if in_rank() else None
        has_models = folder is not None and (folder / "model_0").is_dir()
        with self._apart() if has_models else contextlib.nullcontext(), self._as_rank_0():
            super().load_state(input_dir, load_kwargs, **kwargs)
        if not has_models:
            return
        for i, model in enumerate(self._models):
            loaded = load(folder / f"model_{i}", self.unwrap_model(model), self._optimizer_of(model))
            self.step = loaded["accumulated"]

    def save_model(self, model: torch.nn.Module, save_directory: str | os.PathLike[str], *args, **kwargs) -> None:
        """accelerate's: rank 0 gathers whole parameters one by one and writes. Collective."""
        super().save_model(model, save_directory, *args, **kwargs)
        self.wait_for_everyone()

    def register_save_state_pre_hook(self, hook):
        """Refused on ranks."""
        return self._hook("register_save_state_pre_hook") or super().register_save_state_pre_hook(hook)

    def register_load_state_pre_hook(self, hook):
        """Refused on ranks."""
        return self._hook("register_load_state_pre_hook") or super().register_load_state_pre_hook(hook)

    def _hook(self, name):
        if in_rank():
            raise NotImplementedError(f"[Accelerator] {name} on a mesh: models are not written as accelerate writes them; accepted: register_for_checkpointing")

    @contextlib.contextmanager
    def _apart(self):
        """Accelerate writes and reads the rest: schedules, positions of loaders, the program's own objects."""
        kept, self._models, self._optimizers = (self._models, self._optimizers), [], []
        try:
            yield
        finally:
            self._models, self._optimizers = kept

    @contextlib.contextmanager
    def _as_rank_0(self):
        """Whose random numbers are those of one device."""
        index, self.state.process_index = self.state.process_index, 0 if in_rank() else self.state.process_index
        try:
            yield
        finally:
            self.state.process_index = index

    def _optimizer_of(self, model):
        found = [optimizer for optimizer in map(optimizer_in, self._optimizers) if _is_of(optimizer, model)]
        if len(found) > 1:
            raise ValueError(f"[Accelerator] {type(model).__name__} has {len(found)} optimizers; accepted: one with groups of parameters")
        return next(iter(found), None)

    def _folder_to_save(self, output_dir):
        if self.project_configuration.automatic_checkpoint_naming:
            return Path(self.project_dir) / "checkpoints" / f"checkpoint_{self.save_iteration}"
        return Path(output_dir).expanduser()

    def _folder_to_load(self, input_dir):
        if input_dir is not None:
            return Path(input_dir).expanduser()
        if not self.project_configuration.automatic_checkpoint_naming:
            return None
        return max((Path(self.project_dir) / "checkpoints").iterdir(), key=lambda folder: int(folder.name.rpartition("_")[2]))


def _verify(arguments):
    for name, variable in _OTHERS.items():
        if arguments.get(name) is not None or os.environ.get(variable, "false").lower() in ("1", "true"):
            raise ValueError(f'[Accelerator] {name} on a mesh: another library would run the model; accepted: mesh="dp=2,tp=2", mesh="fsdp=4"')


def _is_of(optimizer, model):
    held = {id(parameter) for parameter in model.parameters()}
    return any(id(parameter) in held for group in optimizer.param_groups for parameter in group["params"])


def _left(loader, passed, unknown):
    """How many batches come, with the one that is there."""
    try:
        return len(loader) - passed
    except TypeError:  # a stream
        return unknown
