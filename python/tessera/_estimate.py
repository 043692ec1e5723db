"""What a step takes and sends on a mesh of any size, without its ranks."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tessera import _C
from tessera._ranks import run_fake
from tessera._run import ledger

__all__ = ["RankEstimate", "estimate"]


@dataclasses.dataclass(frozen=True)
class RankEstimate:
    """Of one rank, in bytes of tensors; docs/guide/estimate.md says what is not seen."""

    rank: int
    parameters: int  # its parts, between the steps
    gradients: int  # when backward has ended
    optimizer: int  # its state
    pass_peak: int  # the most in forward and backward of the second step; all that lives counts
    update_peak: int  # the most in its update
    start_peak: int  # the most before it: the model is made, and the optimizer its state
    sent: list[dict[str, Any]]  # in that step, by axis, collective and operator, with `calls` and `bytes`

    @property
    def peak(self) -> int:
        return max(self.pass_peak, self.update_peak, self.start_peak)

    @property
    def bytes_sent(self) -> int:
        return sum(entry["bytes"] for entry in self.sent)

    @property
    def messages(self) -> int:
        return sum(entry["calls"] for entry in self.sent)


def _loss_of(model, batch):
    return model(**batch).loss


def estimate(setup: Callable[[], tuple[torch.nn.Module, torch.optim.Optimizer, Mapping[str, Any]]], ranks: int, *, rank: int = 0, accumulate: int = 1,
             loss: Callable[[torch.nn.Module, Any], torch.Tensor] = _loss_of) -> RankEstimate:
    """What `rank` of a job of `ranks` takes and sends in a step, found on the calling thread without the others:

        def setup():
            model = tessera.deferred(lambda: AutoModelForCausalLM.from_config(config))
            tessera.parallelize(model, "fsdp=64,tp=8")
            return model, torch.optim.AdamW(model.parameters(), 1e-4), {"input_ids": ids, "labels": ids}

        print(tessera.estimate(setup, 512).peak)

    `setup` is the program up to its loop; what it returns takes two steps, of which the second counts: `accumulate` times `loss(model, batch)`, over
    `accumulate`, and backward, the optimizer's update, zero_grad. Tensors that are made meanwhile have sizes and no values, and take hardly any memory.
    """
    return run_fake(lambda: _of_rank(setup, rank, accumulate, loss), ranks, rank=rank)


def _of_rank(setup, rank, accumulate, loss):
    imagined = _C.Imagined()
    try:
        model, optimizer, batch = setup()

        def run_passes():
            for _ in range(accumulate):
                value = loss(model, batch)
                if not isinstance(value, torch.Tensor):
                    raise TypeError(f"[estimate] the loss is of type {type(value).__name__}; accepted: a tensor (without `loss=` it is model(**batch).loss, for which "
                                    "models of transformers want labels in the batch)")
                (value / accumulate if accumulate > 1 else value).backward()

        run_passes()
        _update(optimizer)
        start_peak = _peak(imagined)
        before = ledger()["entries"]
        run_passes()
        pass_peak = _peak(imagined)
        gradients = _C.bytes_of_parts([p.grad for p in model.parameters() if p.grad is not None])
        _update(optimizer)
        state = [value for values in optimizer.state.values() for value in values.values() if isinstance(value, torch.Tensor)]
        return RankEstimate(rank, _C.bytes_of_parts(list(model.parameters())), gradients, _C.bytes_of_parts(state), pass_peak, imagined.peak(), start_peak,
                            _since(before, ledger()["entries"]))
    finally:
        del imagined


def _update(optimizer):
    optimizer.step()
    optimizer.zero_grad()


def _peak(imagined):
    """Since the last time."""
    peak = imagined.peak()
    imagined.reset_peak()
    return peak


def _since(before, entries):
    def place(entry):
        return entry["axis"], entry["collective"], entry["op"]

    earlier = {place(entry): entry for entry in before}
    zero = {"calls": 0, "bytes": 0}
    later = [{**entry, **{key: entry[key] - earlier.get(place(entry), zero)[key] for key in zero}} for entry in entries]
    return [entry for entry in later if entry["calls"]]
