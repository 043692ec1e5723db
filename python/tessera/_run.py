"""How the operators of this rank run: seeds, order of sums, redistributions."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from tessera import _C, _random as _random
from tessera._ranks import ensure_rank


def manual_seed(seed: int) -> None:
    """Seeds this rank's generator; every rank must give the same seed."""
    ensure_rank()
    _C.manual_seed(seed)


def set_generator(kind: str) -> None:
    """Chooses where this rank's random numbers come from; every rank must choose the same.

    "stock", the default: the numbers of plain libtorch, after the same torch.manual_seed and the same draws, at the price of walking the whole stream
    on every rank. "counter": a value depends on the seed and on its place in the program alone, so that micro-batches change none.
    """
    ensure_rank()
    _C.set_generator(kind)


@contextlib.contextmanager
def _mode(name: str) -> Iterator[None]:
    ensure_rank()
    before = _C.set_mode(name)
    try:
        yield
    finally:
        _C.set_mode(before)


def implicit() -> contextlib.AbstractContextManager[None]:
    """With it, operators redistribute their operands as they need (the default)."""
    return _mode("implicit")


def explicit(warn: bool = False) -> contextlib.AbstractContextManager[None]:
    """With it, a redistribution that the program did not write raises (or warns), and says the line to write."""
    return _mode("warn" if warn else "explicit")


def numerics(kind: str, lattice: str = "") -> None:
    """Chooses how sums are made on this rank from now on: "exact" gives every layout the same bits, "fast" is the default.

    `lattice` is where exact sums may be cut, "batch=8,sequence=1,feature=8" unless said otherwise.
    """
    ensure_rank()
    _C.set_numerics(kind, lattice)


def set_step_tokens(tokens: int) -> None:
    """Says how many targets count in the mean loss of the following steps, on this rank, in exact numerics.

    Needed where some targets are ignored (-100) and a step has several micro-batches. 0: all of them count.
    """
    ensure_rank()
    _C.set_step_tokens(tokens)


def ledger() -> dict[str, Any]:
    """What this rank has sent so far, by axis, collective and operator: a dict."""
    ensure_rank()
    return json.loads(_C.ledger())
