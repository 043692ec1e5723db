"""Loaders of which each data rank is given its own rows."""

import base64
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from tessera import _C
from tessera._batches import Generators, batches_of, parts_of
from tessera._fully_shard import place_asked
from tessera._layout import mesh_of
from tessera._parallel import forwards_of
from tessera._ranks import ensure_rank, in_rank, rank
from tessera._rows import Part, Ranks, no_rows, with_rows

__all__ = ["ShardedDataLoader", "shard_dataloader"]


def shard_dataloader(loader: Iterable[Any], on: torch.nn.Module | _C.Plan | _C.Mesh | str, *, seed: int | None = None,
                     reads: str = "own") -> "ShardedDataLoader":
    """The loader, of whose batches each data rank is given its own rows, as a model with batch="local" takes them.

    The loader is that of one device, a DataLoader or any iterable of batches: its batches are those of the whole job, as many and in the same order on
    every mesh, the last, short one too. `on` is the model, after parallelize or fully_shard, or its plan or mesh; a program that is no rank has all rows.

    Of a dataset with indices a rank reads its own rows alone. A stream (an IterableDataset) is iterated by every rank, which collates its own rows
    alone; of other iterables each takes its rows of whole batches. Ranks of one data coordinate (tp) read the same rows. With reads="all" every
    rank reads and collates whole batches: for collate functions that see more than a row (they pad to the longest), or draw random numbers.

    What shuffles draws from a copy of the loader's own generator, or a seed as PyTorch draws it from the default one; rank 0's is taken. With `seed`
    the order of epoch e is that of torch.Generator().manual_seed(seed + e), as a DistributedSampler's. At batches 1, 2, 4, 8, ... ranks
    compare the order so far. A loader that gives this data rank its rows already, by a DistributedSampler, is passed through; one that gives it other
    rows is refused. Collective over the mesh, and so is iterating.
    """
    ensure_rank()
    part, mesh = _part_on(on)
    if reads not in ("own", "all"):
        raise ValueError(f'[shard_dataloader] reads={reads!r}; accepted: "own", this rank\'s rows alone, and "all", whole batches')
    if seed is not None and (not isinstance(seed, int) or seed < 0):
        raise ValueError(f"[shard_dataloader] seed={seed!r}; accepted: a number from 0 on, the same on every rank")
    if isinstance(loader, ShardedDataLoader):
        loader.verify_part(part, mesh)
        return loader
    if isinstance(loader, DataLoader) and not getattr(loader, "in_order", True):
        raise ValueError("[shard_dataloader] a DataLoader with in_order=False gives batches as workers are done; accepted: in_order=True")
    return ShardedDataLoader(loader, part, mesh, seed, reads)


def _part_on(on):
    """Which rows this rank has of batches for `on`, and its mesh."""
    if not in_rank():
        return Part(), None
    if isinstance(on, torch.nn.Module):
        place_asked(on)
        forwards = forwards_of(on)
        if len(forwards) != 1 or forwards[0].batch != "local":
            wrong = "is not placed on a mesh" if not forwards else "takes whole batches" if len(forwards) == 1 else "has several placed models in it"
            raise ValueError(f"[shard_dataloader] {type(on).__name__} {wrong}; accepted: a model that tessera.parallelize(model, plan, batch=\"local\") or "
                             "fully_shard placed, or its plan")
        on = forwards[0].passes.plan
    if not isinstance(on, _C.Plan):
        on = _C.generate_plan(torch.nn.Identity(), None, mesh_of(on), False, "parameters", ["", "", ""], [[], [], []], ("", 0, 0), 0, 0, "", [], [])
    index, count = 0, 1
    for axis in on.batch_axes:
        index, count = index * on.mesh.size(axis) + on.mesh.get_local_rank(axis), count * on.mesh.size(axis)
    return Part(index, count), on.mesh


class ShardedDataLoader:
    """What shard_dataloader gives: iterates over this rank's rows of each batch; has the loader's length and attributes.

    Each iteration is an epoch; the first one after load_state_dict goes on in the saved one. The rank's own thread uses it.
    """

    def __init__(self, loader, part, mesh, seed, reads):
        self._loader, self._part, self._ranks = loader, part, Ranks(mesh)
        self._cut = _cut_of(loader)
        if self._cut:
            self.verify_part(part, mesh, *self._cut)
        self._generators = Generators(loader, seed)
        self._batches = batches_of(loader, Part() if self._cut else part, reads, self._generators)
        self._epoch = self._batch = self._given = 0
        self._start = None  # of the epoch that is under way: the state of what shuffles, the seed of workers
        self._goes_on = False

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to, from 0 on."""
        return self._epoch

    @property
    def batch(self) -> int:
        """How many batches of that epoch were given."""
        return self._batch

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        self._begin()
        for rows, batch in self._batches.after(self._batch, self._mark):
            self._batch, self._mark = self._batch + 1, self._batches.mark
            self._compare()
            yield self._with_empty(rows, batch)
        self._epoch, self._batch, self._start = self._epoch + 1, 0, None

    def _begin(self):
        """Begins the next epoch, or goes on in that of a loaded state."""
        if not self._goes_on:
            if self._start is not None:  # one was left
                self._epoch += 1
            of_workers = self._generators.draw(self._epoch)
            message = of_workers.to_bytes(8, "little") + self._generators.order.get_state().numpy().tobytes()
            first = self._ranks.exchange(message)[0]
            self._start = {"order": base64.b64encode(first[8:]).decode(), "workers": int.from_bytes(first[:8], "little")}
            self._batch = self._mark = 0
        self._goes_on = False
        self._generators.begin(_state_of(self._start["order"]), self._start["workers"] + self._batches.first_seed)

    def _compare(self):
        """Finds ranks whose batches are others, at batches 1, 2, 4, ... of the loader."""
        self._given += 1
        if self._cut or self._given & (self._given - 1):
            return
        marks = self._ranks.exchange(self._mark.to_bytes(8, "little"))
        if others := [str(i) for i, mark in enumerate(marks) if mark != marks[0]]:
            raise RuntimeError(f"[shard_dataloader] the loader gives other batches on ranks {', '.join(others)} of the mesh than on rank 0: they differ at batch "
                               f"{self._batch} of epoch {self._epoch} or before (rank {rank()}); accepted: the same data on all ranks, in an order that follows from "
                               "the sampler's generator, from seed= or set_epoch; a loader's own rows by a DistributedSampler; of webdataset, nodesplitter=None")

    def _with_empty(self, rows, batch):
        """The batch; on a rank without rows one of none, like that of the first rank."""
        if self._cut or not self._batches.reads_own or not self._part.leaves_some_empty(rows):
            return batch
        own = pickle.dumps(with_rows(batch, self._part.of(rows).stop, no_rows)) if self._part.index == 0 else b""
        first = self._ranks.exchange(own)[0]
        if batch is None and not first:
            raise RuntimeError(f"[shard_dataloader] a batch of {rows} rows leaves rank {rank()} of an imagined job without any, and nobody there says what none are like; "
                               "accepted: a row for each data rank")
        return pickle.loads(first) if batch is None else batch

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch; samplers and datasets that have a set_epoch are told. In that of a loaded state it goes on."""
        if not self._goes_on or epoch != self._epoch:
            self._epoch, self._batch, self._start, self._goes_on = epoch, 0, None, False
        self._tell_epoch()

    def _tell_epoch(self):
        for part in parts_of(self._batches.loader):
            if hasattr(part, "set_epoch"):
                part.set_epoch(self._epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: a value for tessera.save(..., extra={"data": loader.state_dict()}), the same on all ranks and meshes."""
        state = self._generators.order.get_state().numpy().tobytes()
        return {"epoch": self._epoch, "batch": self._batch, "mark": self._mark if self._batch else 0,
                "start": self._start or {"order": base64.b64encode(state).decode(), "workers": None}, "parts": self._part.count if self._cut else 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on after the batch that was given last when the state was taken, on whatever mesh: with the next iteration."""
        parts = self._part.count if self._cut else 1
        if state["parts"] != parts:
            raise ValueError(f"[shard_dataloader] a state of a loader that is in {state['parts']} parts by its sampler, for one that is in {parts}; accepted: the "
                             "same number, or a loader without a DistributedSampler from the beginning")
        self._epoch, self._batch, self._mark = state["epoch"], state["batch"], state["mark"]
        self._goes_on = state["start"]["workers"] is not None
        self._start = state["start"] if self._goes_on else None
        self._generators.order.set_state(_state_of(state["start"]["order"]))
        self._tell_epoch()

    def verify_part(self, part, mesh, own=None, by="shard_dataloader"):
        """Throws unless the rows that the loader gives this rank, of part `own`, are those of part `part`."""
        own = own or self._part
        if own != part:
            raise ValueError(f"[shard_dataloader] the loader is cut already: by {by} it gives this rank the rows of data rank {own.index} of {own.count}, and on "
                             f"{mesh or 'one device'} it is {part.index} of {part.count} (rank {rank()}); accepted: the loader without that, or with num_replicas={part.count}, "
                             f"rank={part.index}")


def _state_of(text):
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def _cut_of(loader):
    """The part of the rows that a loader's sampler or dataset gives this rank, and what gives it; None if they are all."""
    for each in parts_of(loader):
        for names in (("rank", "num_replicas"), ("process_index", "num_processes"), ("rank", "world_size")):
            own = [getattr(each, name, None) for name in names]
            if all(isinstance(number, int) for number in own) and own[1] > 1:
                return Part(*own), f"its {type(each).__name__}"
    return None
