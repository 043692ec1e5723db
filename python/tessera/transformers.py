"""`transformers.Trainer` on a mesh: a script changes the import, and names the mesh.

    from tessera.transformers import Trainer                                 # instead of: from transformers import Trainer
    trainer = Trainer(model, args, train_dataset=rows, mesh="dp=2,tp=2")     # the rest of the script stays

The Trainer is told of one device, which takes the whole batch; tessera shards underneath. docs/guide/trainers.md has the rest.
"""

import copy
import os
import shutil
from pathlib import Path

import torch
import transformers
from transformers.trainer import SCHEDULER_NAME, TRAINING_ARGS_NAME, _is_peft_model

from tessera import _C
from tessera._checkpoint import load, program_state, restore_program_state, save
from tessera._files_of_others import is_run
from tessera._one_device import optimizer_in, tell_of_one_device
from tessera._parallel import passes_of, set_micro_batches
from tessera._ranks import in_rank
from tessera._run import set_step_tokens
from tessera._tensor import full_tensor
from tessera._trainers import begin, place, whole
from tessera._whole_state import full_state_dict

__all__ = ["Sharded", "Trainer"]

# Arguments of a Trainer that are refused: why, and what is accepted.
_REFUSED = {
    "deepspeed": ("another library would shard the model", 'mesh="fsdp=4"'),
    "fsdp": ("another library would shard the model", 'mesh="fsdp=4"'),
    "parallelism_config": ("another library would shard the model", 'mesh="dp=2,tp=2"'),
    "torch_compile": ("DTensors run eagerly", "torch_compile=False"),
    "jit_mode_eval": ("DTensors run eagerly", "jit_mode_eval=False"),
    "fp16": ("a loss scaler on CPUs is not there", "bf16=True, or a plan with compute_dtype"),
    "auto_find_batch_size": ("one rank may be out of memory where others are not", "a per_device_train_batch_size that fits"),
}


class Sharded:
    """Before a Trainer in a class's bases, it runs that one on a mesh: `class MyTrainer(Sharded, Seq2SeqTrainer)`.

    Takes the Trainer's arguments and four more. `mesh` is a mesh, text such as "dp=2,tp=2", or a plan; without it all ranks cut the batch. `numerics`
    and `lattice` are those of tessera.numerics. `generator` is that of tessera.set_generator: with "stock", the default, masks and the model that
    `model_init` makes are those of one device. Batch sizes are those of the whole job, as on one device, and every rank is given every row. Where
    the program has no ranks, it is the Trainer alone. What needs all ranks (train, evaluate, predict, save_model) every rank calls.
    """

    def __init__(self, *args, mesh: "_C.Mesh | _C.Plan | str | None" = None, numerics: str | None = None, lattice: str = "", generator: str = "stock",
                 **kwargs) -> None:
        begin("Trainer", mesh, numerics, lattice, generator)
        self._mesh, self._loaded_program, self._saves_all = mesh, None, False
        super().__init__(*args, **kwargs)
        if self.model_init is None:
            self._place(self.model, self.optimizer)

    # --- one device

    def create_accelerator_and_postprocess(self) -> None:
        """The Trainer's, which is told of one device."""
        if in_rank():
            _verify(self.args, self.model)
            self.args = _for_one_device(self.args)
        super().create_accelerator_and_postprocess()
        if in_rank():
            self.accelerator.dataloader_config.dispatch_batches = False  # no rank reads for others
            self.accelerator.device_placement = False  # a placed model is where it belongs

    def _move_model_to_device(self, model, device):
        if not (in_rank() and passes_of(model)):
            super()._move_model_to_device(model, device)

    def _place(self, model, optimizer=None):
        place(model, self._mesh, optimizer, self.args.gradient_accumulation_steps)

    def call_model_init(self, trial=None) -> torch.nn.Module:
        """The Trainer's, of a model on the mesh."""
        model = super().call_model_init(trial)
        self._place(model)
        return model

    def _get_dataloader(self, *args, **kwargs):
        state = self.args.distributed_state
        process, state.process_index = state.process_index, 0 if in_rank() else state.process_index  # workers are seeded by it
        try:
            return super()._get_dataloader(*args, **kwargs)
        finally:
            state.process_index = process

    # --- steps

    def get_batch_samples(self, *args, **kwargs) -> tuple:
        """The Trainer's. The last step of an epoch may have fewer micro-batches."""
        samples, items = super().get_batch_samples(*args, **kwargs)
        if in_rank() and samples:
            set_micro_batches(self.model, len(samples))
        return samples, items

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """The Trainer's, of targets that were counted."""
        if not in_rank() or num_items_in_batch is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        set_step_tokens(int(num_items_in_batch))
        try:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        finally:
            set_step_tokens(0)

    def training_step(self, *args, **kwargs) -> torch.Tensor:
        """The Trainer's, whose loss is a plain tensor."""
        return full_tensor(super().training_step(*args, **kwargs))

    def prediction_step(self, *args, **kwargs) -> tuple:
        """The Trainer's, whose loss, logits and labels are plain tensors, whole on every rank."""
        return whole(super().prediction_step(*args, **kwargs))

    def hyperparameter_search(self, *args, **kwargs):
        """Refused on ranks."""
        if in_rank():
            raise NotImplementedError("[Trainer] hyperparameter_search would draw other trials on each rank; accepted: one job a trial")
        return super().hyperparameter_search(*args, **kwargs)

    # --- files

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """The Trainer's: rank 0 gathers whole parameters one by one and writes, the others wait. Collective."""
        folder = self.args.output_dir if output_dir is None else output_dir
        if not in_rank():
            super().save_model(output_dir, _internal_call)
        elif self._saves_all:
            self._save_all(folder)
        else:
            self._save_whole(folder)
            if self.args.push_to_hub and not _internal_call:
                self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save_whole(self, folder):
        if _is_peft_model(self.model):
            self._save_adapters(folder)
            if self.args.should_save:
                self._save_beside(folder)
        else:
            whole = full_state_dict(self.model)
            if self.args.should_save:
                self._save(folder, state_dict=whole)
        _C.barrier()

    def _save_adapters(self, folder):
        """Gathers them alone. transformers 5 has no argument for other files than safetensors."""
        self.model.save_pretrained(folder, safe_serialization=getattr(self.args, "save_safetensors", True))

    def _save_all(self, folder):
        """Model, optimizer and random numbers, by all ranks, in a checkpoint of tessera that is in `folder`: there when it is whole."""
        parent, name = os.path.split(folder)
        unfinished = os.path.join(parent, f"saving-{name}")
        if self.args.should_save:
            shutil.rmtree(unfinished, ignore_errors=True)
        _C.barrier()
        step = save(unfinished, self.model, optimizer_in(self.optimizer), step=self.state.global_step)
        if _is_peft_model(self.model):
            self._save_adapters(unfinished)
        if self.args.should_save:
            if not _is_peft_model(self.model):
                _show_model(step, unfinished)
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(unfinished, folder)
            self._save_beside(folder)
        _C.barrier()

    def _save_beside(self, folder):
        """What the Trainer keeps beside a model."""
        tokenizer = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        torch.save(self.args, os.path.join(folder, TRAINING_ARGS_NAME))

    def _save_checkpoint(self, model, trial):
        self._saves_all = in_rank() and not self.args.save_only_model
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._saves_all = False
        if in_rank():
            _C.barrier()

    def _save_optimizer_and_scheduler(self, output_dir):
        if not in_rank():
            super()._save_optimizer_and_scheduler(output_dir)
        elif self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), os.path.join(output_dir, SCHEDULER_NAME))

    def _save_rng_state(self, output_dir):
        if not in_rank():  # else _save_all has
            super()._save_rng_state(output_dir)

    # --- and back

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        if not (in_rank() and is_run(resume_from_checkpoint)):  # else it is loaded with the optimizer
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint):
        if checkpoint is None or not (in_rank() and is_run(checkpoint)):
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        load(checkpoint, self.model, optimizer_in(self.optimizer))
        self._loaded_program = torch.get_rng_state(), program_state()
        self.lr_scheduler.load_state_dict(torch.load(os.path.join(checkpoint, SCHEDULER_NAME), weights_only=True))

    def _load_rng_state(self, checkpoint):
        if not in_rank():
            super()._load_rng_state(checkpoint)
        elif self._loaded_program is not None:  # else the checkpoint is of a Trainer on one device, which draws from another generator
            (stream, program), self._loaded_program = self._loaded_program, None
            torch.set_rng_state(stream)
            restore_program_state(program)


class Trainer(Sharded, transformers.Trainer):
    """transformers.Trainer on a mesh: its arguments, and those of Sharded."""


def _show_model(step, folder):
    """Gives the model's files in a checkpoint a second name in `folder`, where from_pretrained looks for them."""
    for file in Path(step).iterdir():
        if file.name.startswith("model") or file.name.endswith("config.json"):
            try:
                os.link(file, Path(folder) / file.name)
            except OSError:  # a file system without links
                shutil.copyfile(file, Path(folder) / file.name)


def _verify(args, model):
    for name, (why, instead) in _REFUSED.items():
        if getattr(args, name, None):
            raise ValueError(f"[Trainer] {name}={getattr(args, name)!r} on a mesh: {why}; accepted: {instead}")
    if args.device.type != "cpu":
        raise ValueError(f"[Trainer] the device {args.device} on a mesh of CPUs; accepted: use_cpu=True")
    if len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1:
        raise ValueError(f"[Trainer] a model that device_map has cut ({model.hf_device_map}); accepted: a model on one device, which the mesh cuts")


def _for_one_device(args):
    """The arguments, by which there is one process."""
    state = tell_of_one_device()
    if args.distributed_state.__dict__ is not state.__dict__:  # made elsewhere, for all rank threads
        args = copy.copy(args)
        args.distributed_state = state
    return args
