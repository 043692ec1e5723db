"""A loop of the shape of accelerate's examples: on one device, and with two lines changed on any mesh. accelerator_test.py runs it in every way.

Usage: accelerator_program.py RUN...     RUN: the fields of Run as JSON; one after the other, in one job. Rank 0 prints what each saw, as JSON
"""

import dataclasses

import accelerate
import torch
from runs import run_given
from tessera.accelerate import Accelerator
from torch.nn import functional
from torch.utils.data import DataLoader

CLASSES = 3


@dataclasses.dataclass
class Run:
    """One run of the loop. Without a mesh it is accelerate alone."""
    out: str
    mesh: str = ""
    numerics: str = "fast"
    lattice: str = ""
    resume: str = ""    # a folder of save_state
    rows: int = 40
    accumulate: int = 2
    precision: str = "no"
    dtype: str = "float32"
    dropout: float = 0.2
    shuffle: bool = True
    epochs: int = 2


class Net(torch.nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.up, self.norm, self.down = torch.nn.Linear(6, 24), torch.nn.LayerNorm(24), torch.nn.Linear(24, CLASSES)
        self.drop = torch.nn.Dropout(dropout)

    def forward(self, x):
        return self.down(self.drop(self.norm(torch.tanh(self.up(x)))))


class Counted:
    """An object of the program that is saved along."""
    def __init__(self):
        self.seen = 0

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def rows_of(count, seed, dtype):
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return list(zip(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long(), strict=True))


def main(run):
    options = {"cpu": True, "gradient_accumulation_steps": run.accumulate, "mixed_precision": run.precision}
    if run.mesh:
        accelerator = Accelerator(**options, mesh=run.mesh, numerics=run.numerics, lattice=run.lattice)
    else:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # of an earlier run's precision
        accelerator = accelerate.Accelerator(**options)
    torch.manual_seed(0)
    dtype = getattr(torch, run.dtype)
    model = Net(run.dropout).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    train, held_out = DataLoader(rows_of(run.rows, 1, dtype), batch_size=4, shuffle=run.shuffle), DataLoader(rows_of(13, 2, dtype), batch_size=5)
    model, optimizer, train, held_out, schedule = accelerator.prepare(model, optimizer, train, held_out, schedule)
    counted, log, first = Counted(), [], 0
    accelerator.register_for_checkpointing(counted)
    if run.resume:
        accelerator.load_state(run.resume)
        first = 1
    for epoch in range(first, run.epochs):
        train.set_epoch(epoch)
        model.train()
        for x, y in train:
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
                    log.append({"epoch": epoch, "loss": accelerator.gather(loss.detach()).item(), "norm": norm.item(), "lr": schedule.get_last_lr()[0]})
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            counted.seen += len(x)
        log.append({"epoch": epoch, "seen": counted.seen, "accuracy": right(accelerator, model, held_out) / 13})
        accelerator.save_state(f"{run.out}/epoch_{epoch}")
    accelerator.wait_for_everyone()
    accelerator.save_model(model, f"{run.out}/model")
    return log


def right(accelerator, model, loader):
    """How many rows of the loader are."""
    model.eval()
    count = 0
    for x, y in loader:
        with torch.no_grad():
            guess = model(x).argmax(-1)
        guess, y = accelerator.gather_for_metrics((guess, y))
        count += (guess == y).sum().item()
    return count


if __name__ == "__main__":
    run_given(main, Run)
