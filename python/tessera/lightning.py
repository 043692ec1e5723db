"""A strategy of Lightning that runs its Trainer on a mesh.

    from tessera.lightning import Strategy
    trainer = pytorch_lightning.Trainer(accelerator="cpu", devices=1, strategy=Strategy("dp=2,tp=2"))     # the rest of the script stays

Lightning is told of one device, which takes the whole batch; the strategy places the module on the mesh. docs/guide/lightning.md has the rest.
"""

import functools
import os
import shutil
from pathlib import Path

import torch
from lightning_utilities.core.rank_zero import rank_zero_only
from pytorch_lightning.strategies import SingleDeviceStrategy
from pytorch_lightning.trainer.states import TrainerFn

from tessera import _C
from tessera._checkpoint import load, save
from tessera._parallel import passes_of, set_micro_batches
from tessera._ranks import in_rank, rank
from tessera._trainers import begin, given_by, place, whole

__all__ = ["Strategy"]

REST = "lightning.pt"  # what Lightning keeps beside modules and optimizers


class Strategy(SingleDeviceStrategy):
    """For pytorch_lightning.Trainer(accelerator="cpu", devices=1, strategy=...).

    `mesh` is a mesh, text such as "dp=2,tp=2", or a plan; without it all ranks cut the batch. `numerics` and `lattice` are those of tessera.numerics.
    `generator` is that of tessera.set_generator: with "stock", the default, random numbers are those of one device. Batch sizes are those of the whole
    job, as on one device, and every rank is given every row. Where the program has no ranks, it is one device's strategy.
    """

    strategy_name = "tessera"

    def __init__(self, mesh: "_C.Mesh | _C.Plan | str | None" = None, *, numerics: str | None = None, lattice: str = "", generator: str = "stock") -> None:
        super().__init__(device="cpu")
        begin("Strategy", mesh, numerics, lattice, generator)
        self._mesh, self._loaded = mesh, None
        if in_rank():
            self.global_rank = self.local_rank = rank()
            rank_zero_only.rank = _RankOfThread() if _C.in_rank_thread() else rank()

    @property
    def is_global_zero(self) -> bool:
        """Whether this rank writes files and lines."""
        return self.global_rank == 0

    # --- the module

    def model_to_device(self) -> None:
        """Lightning's, of a module that is not placed yet."""
        if not passes_of(self.model):
            super().model_to_device()

    def _setup_model(self, model):
        if in_rank() and not passes_of(model):
            place(model, self._mesh, None, self._accumulates())
            model.log = _plainly(model.log)
        return model

    def teardown(self) -> None:
        """Lightning's; the module stays where it is."""
        module, self._lightning_module = self._lightning_module, None if in_rank() else self._lightning_module
        try:
            super().teardown()
        finally:
            self._lightning_module = module

    # --- steps

    def on_train_batch_start(self, batch, batch_idx: int) -> None:
        """An epoch's last step may have fewer passes."""
        steps, batches = self._accumulates(), self.lightning_module.trainer.num_training_batches
        if in_rank() and batch_idx % steps == 0:
            set_micro_batches(self.lightning_module, int(min(steps, batches - batch_idx)))

    def training_step(self, *args, **kwargs):
        """Lightning's, as one call of the module, which cuts the batch."""
        return self._step("training_step", self.precision_plugin.train_step_context, args, kwargs)

    def validation_step(self, *args, **kwargs):
        """Lightning's, as one call of the module, which cuts the batch."""
        return whole(self._step("validation_step", self.precision_plugin.val_step_context, args, kwargs))

    def test_step(self, *args, **kwargs):
        """Lightning's, as one call of the module, which cuts the batch."""
        return whole(self._step("test_step", self.precision_plugin.test_step_context, args, kwargs))

    def predict_step(self, *args, **kwargs):
        """Lightning's, as one call of the module, which cuts the batch."""
        return whole(self._step("predict_step", self.precision_plugin.predict_step_context, args, kwargs))

    def _step(self, name, context, args, kwargs):
        with context():
            return self._forward_redirection(self.lightning_module, self.lightning_module, name, *args, **kwargs)

    def _accumulates(self):
        return self.lightning_module.trainer.accumulate_grad_batches

    # --- ranks

    def reduce(self, tensor, *args, **kwargs):
        """Lightning's: every value is that of the whole batch already, and becomes a plain tensor. Collective."""
        return whole(tensor)

    def all_gather(self, tensor, group=None, sync_grads: bool = False):
        """Lightning's: every value is that of the whole batch already, and becomes a plain tensor. Collective."""
        return whole(tensor)

    def barrier(self, *args, **kwargs) -> None:
        """Lightning's. Collective."""
        if in_rank():
            _C.barrier()

    def broadcast(self, obj, src: int = 0):
        """Lightning's. Collective."""
        return given_by(src, obj) if in_rank() else obj

    # --- files

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """A module is placed before it is given values."""
        return in_rank()

    def lightning_module_state_dict(self) -> dict:
        """Lightning's; nothing on ranks, whose checkpoints hold the module apart."""
        return {} if in_rank() else super().lightning_module_state_dict()

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict:
        """Lightning's; nothing on ranks, whose checkpoints hold the optimizer apart."""
        return {} if in_rank() else super().optimizer_state(optimizer)

    def save_checkpoint(self, checkpoint: dict, filepath, storage_options=None) -> None:
        """Lightning's, as a folder: a checkpoint of tessera, and what Lightning keeps beside it. There when it is whole. Collective."""
        if not in_rank():
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        unfinished = f"{filepath}.unfinished"
        if self.is_global_zero:
            shutil.rmtree(unfinished, ignore_errors=True)
        _C.barrier()
        save(unfinished, self.lightning_module, self._optimizer(), step=checkpoint["global_step"])
        if self.is_global_zero:
            torch.save(checkpoint, os.path.join(unfinished, REST))
            shutil.rmtree(filepath, ignore_errors=True)
            os.rename(unfinished, filepath)
        _C.barrier()

    def load_checkpoint(self, checkpoint_path, weights_only: bool | None = None) -> dict:
        """Lightning's; of a folder that was saved on any mesh, or a file that Lightning saved on one device."""
        self._loaded = Path(checkpoint_path) if in_rank() and Path(checkpoint_path).is_dir() else None
        return super().load_checkpoint(self._loaded / REST if self._loaded else checkpoint_path, False if self._loaded else weights_only)

    def load_model_state_dict(self, checkpoint: dict, strict: bool = True) -> None:
        """Lightning's. Collective."""
        if self._loaded is None:
            super().load_model_state_dict(checkpoint, strict)
        else:
            fits = self.lightning_module.trainer.state.fn == TrainerFn.FITTING
            load(self._loaded, self.lightning_module, self._optimizer() if fits else None)

    def load_optimizer_state_dict(self, checkpoint: dict) -> None:
        """Lightning's. Collective."""
        if self._loaded is None:  # else it was loaded with the module
            super().load_optimizer_state_dict(checkpoint)

    def _optimizer(self):
        if len(self.optimizers) > 1:
            raise ValueError(f"[Strategy] a checkpoint of {len(self.optimizers)} optimizers; accepted: one with groups of parameters")
        return next(iter(self.optimizers), None)


def _plainly(log):
    """LightningModule.log of whole, plain values, amid a step too. Collective."""
    @functools.wraps(log)
    def logged(name, value, *args, **kwargs):
        value = whole(value)
        with _C.PlainScope():
            log(name, value, *args, **kwargs)

    return logged


@functools.total_ordering
class _RankOfThread:
    """Stands for the rank of the thread that asks, for 0 outside of ranks."""

    def __int__(self):
        return _C.rank() if _C.in_rank() else 0

    def __eq__(self, other):
        return int(self) == other

    def __lt__(self, other):
        return int(self) < other

    __hash__ = None
