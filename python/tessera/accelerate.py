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
from tessera._checkpoint import load, load_optimizer, save, save_optimizer
from tessera._one_device import optimizer_in, tell_of_one_device
from tessera._parallel import finish_steps, passes_of, place_state_of, set_micro_batches
from tessera._ranks import in_rank, rank
from tessera._save_pretrained import these_are_whole
from tessera._trainers import begin, given_by, place, sum_of_ranks, whole
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
                place(model, self._mesh, None, self.gradient_accumulation_steps)
        for optimizer in args if in_rank() else ():
            if isinstance(optimizer, torch.optim.Optimizer):
                place_state_of(optimizer)
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
        """Before a pass of `accumulate`: a step that the end of its loader cuts short has fewer passes. Of a stream that is known when it has ended."""
        loader, steps = self.gradient_state.active_dataloader, self.gradient_state.num_steps
        if in_rank() and loader is not None and self.gradient_state.sync_with_dataloader:
            passed = self._passed.get(loader, 0)
            if self.step % steps == 0:
                for model in self._models:
                    finish_steps(model)
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
        """accelerate's; models and their optimizers are checkpoints of tessera in the folder, model_0 and so on. Collective.

        Hooks see the models and whole weights, which rank 0 has. A model whose weights they take off the list is theirs to save: its optimizers are
        saved, and its parameters not.
        """
        if not in_rank():
            return super().save_state(output_dir, safe_serialization, **kwargs)
        optimizers = self._optimizers_by_model()
        folder = self._folder_to_save(output_dir)
        with self._apart("_save_model_state_pre_hook", self._run_save_hooks):
            super().save_state(output_dir, safe_serialization, **kwargs)
        for i, (model, own) in enumerate(zip(self._models, optimizers, strict=True)):
            if self.sync_gradients:
                finish_steps(model)
            step, module = max((passes.step for passes in passes_of(model)), default=0), self.unwrap_model(model)
            names = [f"model_{i}", *(f"optimizer_{i}_{k}" for k in range(1, len(own)))]
            if rank() == 0:
                for name in names:
                    shutil.rmtree(folder / name / f"step_{step:06}", ignore_errors=True)
            _C.barrier()
            if i in self._left_to_hooks:
                for name, optimizer in zip(names, own):
                    save_optimizer(folder / name, module, optimizer, step)
            else:
                save(folder / names[0], module, next(iter(own), None), step=step, extra={"accumulated": self.step}, keep=1)
                for name, optimizer in zip(names[1:], own[1:]):
                    save_optimizer(folder / name, module, optimizer, step)
        return str(folder)

    def load_state(self, input_dir: str | None = None, load_kwargs: dict | None = None, **kwargs) -> None:
        """accelerate's, of a folder that was saved on any mesh, or without ranks. Collective.

        A model that hooks take off the list is theirs to load: its optimizers are loaded, and its parameters not.
        """
        folder = self._folder_to_load(input_dir) if in_rank() else None
        is_ours = folder is not None and (any(folder.glob("model_*/")) or any(folder.glob("optimizer_*/")))
        with self._apart("_load_model_state_pre_hook", self._run_load_hooks) if is_ours else contextlib.nullcontext(), self._as_rank_0():
            super().load_state(input_dir, load_kwargs, **kwargs)
        if not is_ours:
            return
        for i, (model, own) in enumerate(zip(self._models, self._optimizers_by_model(), strict=True)):
            module, names = self.unwrap_model(model), [f"model_{i}", *(f"optimizer_{i}_{k}" for k in range(1, len(own)))]
            if i not in self._left_to_hooks:
                self.step = load(folder / names[0], module, next(iter(own), None))["accumulated"]
                names, own = names[1:], own[1:]
            for name, optimizer in zip(names, own):
                load_optimizer(folder / name, module, optimizer)

    def save_model(self, model: torch.nn.Module, save_directory: str | os.PathLike[str], *args, **kwargs) -> None:
        """accelerate's: rank 0 gathers whole parameters one by one and writes. Collective."""
        super().save_model(model, save_directory, *args, **kwargs)
        self.wait_for_everyone()

    @contextlib.contextmanager
    def _apart(self, name, run_hooks):
        """Accelerate writes and reads the rest: schedules, positions of loaders, the program's own objects. Of models and optimizers hooks alone hear."""
        kept, hooks = (self._models, self._optimizers), getattr(self, name)

        def run(*arguments):
            self._models, self._optimizers = kept
            self._left_to_hooks = run_hooks(hooks.values(), arguments[-1])
            self._models, self._optimizers = [], []

        self._models, self._optimizers, self._left_to_hooks = [], [], ()
        setattr(self, name, {0: run} if hooks else hooks)
        try:
            yield
        finally:
            self._models, self._optimizers = kept
            setattr(self, name, hooks)

    def _run_save_hooks(self, hooks, folder):
        """Which models they have saved themselves: by rank 0, which has the weights."""
        states = [full_state_dict(self.unwrap_model(model)) for model in self._models]
        before, weights = [dict(state) for state in states], list(states)
        with these_are_whole(zip(map(self.unwrap_model, self._models), states, strict=True)):
            for hook in hooks:
                hook(list(self._models), weights, folder)
        left = [i for i, state in enumerate(states) if not any(state is each for each in weights)]
        is_changed = len(weights) + len(left) != len(states) or any(
            state.keys() != was.keys() or any(state[name] is not was[name] for name in was) for state, was in zip(states, before, strict=True))
        left, is_changed = given_by(0, (left, is_changed))
        if is_changed:
            raise ValueError("[Accelerator] a hook of save_state put other weights in place of a model's, which would not be written; accepted: to take a model's "
                             "weights off the list and to save it in the hook, or to leave them as they are")
        return left

    def _run_load_hooks(self, hooks, folder):
        """Which models they have loaded themselves."""
        models = list(self._models)
        for hook in hooks:
            hook(models, folder)
        return [i for i, model in enumerate(self._models) if not any(model is each for each in models)]

    @contextlib.contextmanager
    def _as_rank_0(self):
        """Whose random numbers are those of one device."""
        index, self.state.process_index = self.state.process_index, 0 if in_rank() else self.state.process_index
        try:
            yield
        finally:
            self.state.process_index = index

    def _optimizers_by_model(self):
        found = [[] for _ in self._models]
        for optimizer in map(optimizer_in, self._optimizers):
            owners = [i for i, model in enumerate(self._models) if _is_of(optimizer, model)]
            if len(owners) != 1:
                raise ValueError(f"[Accelerator] {type(optimizer).__name__} has parameters of {len(owners)} of the {len(found)} prepared models, and would not be "
                                 "saved; accepted: optimizers of the parameters of one model that is prepared")
            found[owners[0]].append(optimizer)
        return found

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
