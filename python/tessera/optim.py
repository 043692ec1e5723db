"""Optimizers, running averages and learning rates that PyTorch lacks: on plain parameters and on DTensors of any layout, with the same bits.

docs/guide/optimizers.md says when to take which.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator

import torch

from tessera import _C
from tessera._C import WarmupCosine, WarmupStableDecay
from tessera._owned import Owned

__all__ = ["AdamW8bit", "Ema", "Lion", "Owned", "WarmupCosine", "WarmupStableDecay", "offload_state", "owned"]


class Lion(torch.optim.Optimizer):
    """The sign of a moment as the update (Chen et al. 2023), with a decay of weights that stands apart.

    Its moment lies as its parameter. A step of a group is one call; it has the same bits on every layout in both numerics. float32 and float64.
    """

    def __init__(self, params, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0, *, maximize: bool = False):
        if lr < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"[Lion] lr={lr}, betas={betas}, weight_decay={weight_decay}; accepted: lr and weight_decay of 0 or more, betas in [0, 1)")
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay, "maximize": maximize})

    @torch.no_grad()
    def step(self, closure=None):
        """One step of every parameter that has a gradient; returns what `closure` does."""
        loss = _loss_of(closure)
        for group in self.param_groups:
            parameters = _with_gradients(group)
            for parameter in parameters:
                if not self.state[parameter]:
                    self.state[parameter]["exp_avg"] = torch.zeros_like(parameter)
            _C.lion_step(parameters, [parameter.grad for parameter in parameters], [self.state[parameter]["exp_avg"] for parameter in parameters],
                         float(group["lr"]), group["betas"], group["weight_decay"], group["maximize"])
        return loss


class AdamW8bit(torch.optim.Optimizer):
    """AdamW with moments in eight bits, block by block (Dettmers et al. 2022): (2 + 8/256) bytes a parameter, over the ranks that cut it.

    Blocks of 256 lie along rows (an index of the first dim; all of a parameter of one dim); the bits are those of one rank on every layout in both
    numerics. Where a cut falls into blocks the parameter is moved there and back in each step. float32.
    """

    _CODES = ("exp_avg_codes", "exp_avg_sq_codes")
    _STATE = ("exp_avg_codes", "exp_avg_scales", "exp_avg_sq_codes", "exp_avg_sq_scales")

    def __init__(self, params, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2, *,
                 maximize: bool = False):
        if min(lr, eps, weight_decay) < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"[AdamW8bit] lr={lr}, betas={betas}, eps={eps}, weight_decay={weight_decay}; accepted: lr, eps and weight_decay of 0 or more, "
                             "betas in [0, 1)")
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "maximize": maximize})

    def __setstate__(self, state):
        super().__setstate__(state)
        for kept in self.state.values():  # torch casts what it loads to the parameter's dtype
            kept.update((key, kept[key].to(torch.uint8)) for key in self._CODES)

    @torch.no_grad()
    def step(self, closure=None):
        """One step of every parameter that has a gradient; returns what `closure` does."""
        loss = _loss_of(closure)
        for group in self.param_groups:
            parameters = _with_gradients(group)
            for parameter in parameters:
                if not self.state[parameter]:
                    self.state[parameter].update(step=0, **dict(zip(self._STATE, _C.make_state_8bit(parameter), strict=True)))
            states = [self.state[parameter] for parameter in parameters]
            _C.adamw_8bit_step(parameters, [parameter.grad for parameter in parameters], [[kept[key] for key in self._STATE] for kept in states],
                               [kept["step"] for kept in states], float(group["lr"]), group["betas"], group["eps"], group["weight_decay"], group["maximize"])
            for kept in states:
                kept["step"] += 1
        return loss


def owned(optimizer: torch.optim.Optimizer, *, over: str = "cuts") -> Owned:
    """Runs any matrix-wise optimizer (torch.optim.Muon, Adafactor, Shampoo), unmodified, on whole matrices, each at one rank.

    Before its step the gradient of each parameter goes whole to the parameter's owner; the new value comes back to the parameter's layout: 2 T (N-1)/N
    bytes where N ranks cut T. Owners are balanced by cost. Given equal gradients, the parameters have the bits that the optimizer gives plain
    tensors on one thread, in both numerics. State and a whole copy of its parameters are at the owner and nowhere else; `tessera.save` and
    `load` keep it, on any mesh. Ranks that hold the same part each step it for themselves (over="cuts"), or one does and sends the value
    (over="mesh"). Embeddings and parameters of one dim are better with AdamW: give `owned` the others.
    """
    return Owned(optimizer, over)


class Ema:
    """Keeps average = decay average + (1 - decay) parameter for each parameter, which is placed already and begins it. float32 and float64."""

    def __init__(self, parameters: Iterable[torch.Tensor], decay: float = 0.999):
        self._handle = _C.Ema(list(parameters), decay)

    @property
    def averages(self) -> list[torch.Tensor]:
        """In the order of the parameters, each of its parameter's layout."""
        return self._handle.averages

    def update(self) -> None:
        """After each step of the optimizer. No communication."""
        self._handle.update()

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Inside it the parameters have the values of their averages: to evaluate, to save, or to load into the averages."""
        self._handle.swap()
        try:
            yield
        finally:
            self._handle.swap()


def offload_state(optimizer: torch.optim.Optimizer, folder: str | os.PathLike[str]) -> None:
    """After each of its steps what the optimizer keeps goes to a file of this rank in `folder`, and takes no memory until the next.

    Any optimizer that keeps plain tensors on the CPU, or DTensors. A step reads what it needs, as the disk or the system's cache of it gives it;
    values are the same to the bit, and saving and loading are as without. The folder is there, on a disk of this machine; the file has no name and is
    gone with the process. Raises, in the step, if the disk has no room.
    """
    file = _C.StateFile(os.fspath(folder))
    optimizer.register_step_post_hook(
        lambda stepped, args, kwargs: file.keep([value for kept in stepped.state.values() for value in kept.values() if isinstance(value, torch.Tensor)]))


def _loss_of(closure):
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _with_gradients(group):
    return [parameter for parameter in group["params"] if parameter.grad is not None]
