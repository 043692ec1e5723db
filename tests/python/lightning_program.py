"""A script of Lightning: on one device, and with its strategy changed on any mesh. lightning_test.py runs it in every way.

Usage: lightning_program.py RUN...     RUN: the fields of Run as JSON; one after the other, in one job. Rank 0 prints what each saw, as JSON
"""

import dataclasses
import logging
import os

import pytorch_lightning
import torch
from runs import run_given
from tessera.lightning import Strategy
from torch.nn import functional
from torch.utils.data import DataLoader

logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


@dataclasses.dataclass
class Run:
    """One run of the script. Without a mesh it is Lightning alone."""
    out: str
    mesh: str = ""
    numerics: str = "fast"
    lattice: str = ""
    resume: str = ""    # a checkpoint
    rows: int = 36      # of which the last step has fewer
    precision: str = "32-true"
    dtype: str = "float32"
    dropout: float = 0.1
    shuffle: bool = True
    calls_itself: bool = True  # the steps call the module; else a part of it


class Net(pytorch_lightning.LightningModule):
    def __init__(self, run):
        super().__init__()
        self.calls_itself, self.seen, self.right = run.calls_itself, [], 0
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 24), torch.nn.Tanh(), torch.nn.Dropout(run.dropout), torch.nn.Linear(24, 3))

    def forward(self, x):
        return self.net(x)

    def _loss(self, batch):
        x, y = batch
        guess = self(x) if self.calls_itself else self.net(x)
        return functional.cross_entropy(guess, y), (guess.argmax(-1) == y).float().mean()

    def training_step(self, batch, index):
        loss, right = self._loss(batch)
        self.log("loss", loss)
        self.log_dict({"right": right, "index": float(index)})
        self.seen.append(loss.item())
        return loss

    def validation_step(self, batch, index):
        loss, right = self._loss(batch)
        self.log("held_out", loss)
        return {"right": right}

    def on_save_checkpoint(self, checkpoint):
        checkpoint["steps"] = len(self.seen)

    def on_load_checkpoint(self, checkpoint):
        self.seen = [None] * checkpoint["steps"]

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)]


def rows_of(count, seed, dtype):
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return list(zip(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long(), strict=True))


def main(run):
    strategy = Strategy(run.mesh, numerics=run.numerics, lattice=run.lattice) if run.mesh else "auto"
    torch.manual_seed(0)
    dtype = getattr(torch, run.dtype)
    module = Net(run).to(dtype)
    kept = pytorch_lightning.callbacks.ModelCheckpoint(run.out, filename="{epoch}", save_top_k=-1)
    trainer = pytorch_lightning.Trainer(accelerator="cpu", devices=1, strategy=strategy, max_epochs=2, accumulate_grad_batches=2, gradient_clip_val=0.5,
                                        precision=run.precision, callbacks=[kept], logger=pytorch_lightning.loggers.CSVLogger(run.out), log_every_n_steps=1,
                                        enable_progress_bar=False, enable_model_summary=False)
    train, held_out = DataLoader(rows_of(run.rows, 1, dtype), batch_size=4, shuffle=run.shuffle), DataLoader(rows_of(13, 2, dtype), batch_size=5)
    trainer.fit(module, train, held_out, ckpt_path=run.resume or None)
    tested = trainer.validate(module, held_out, verbose=False)
    trainer.save_checkpoint(os.path.join(run.out, "last.ckpt"))
    return {"seen": module.seen, "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()}, "tested": tested}


if __name__ == "__main__":
    run_given(main, Run)
