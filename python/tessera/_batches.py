"""Where a sharded loader's batches come from: what a rank reads of them, in which order, from which batch on."""

import collections
import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from tessera._rows import Part, mark_of, rows_in, with_rows


def batches_of(loader: Iterable[Any], part: Part, reads: str, generators: "Generators") -> "Indexed | Streamed | Whole":
    """The batches of a loader, of which a rank is given a part."""
    if not isinstance(loader, DataLoader):
        return Whole(loader, part)
    indexed = not isinstance(loader.dataset, torch.utils.data.IterableDataset)
    if loader.batch_sampler is None:
        sampler = {"sampler": with_generator(loader.sampler, generators.order)} if indexed else {}
        return Whole(_like(loader, generators, batch_size=None, collate_fn=loader.collate_fn, **sampler), part)
    if indexed:
        return Indexed(loader, part, reads, generators)
    if reads == "all":
        return Whole(_like(loader, generators, batch_size=loader.batch_size, drop_last=loader.drop_last, collate_fn=loader.collate_fn), part)
    return Streamed(loader, part, generators)


class Generators:
    """What a DataLoader draws from, one's own: `order` for what shuffles, `workers` for the seeds of its workers."""

    def __init__(self, loader: Iterable[Any], seed: int | None):
        samplers = [part for part in parts_of(loader, ("batch_sampler", "sampler"))[1:] if hasattr(part, "generator")]
        given = [part.generator for part in (*samplers, loader) if isinstance(getattr(part, "generator", None), torch.Generator)]
        self.order, self.workers = torch.Generator(), torch.Generator()
        if given:
            self.order.set_state(given[0].get_state())
        self._seed, self._is_loader, self._has_one = seed, isinstance(loader, DataLoader), getattr(loader, "generator", None) is not None
        self._draws_seed = bool(samplers) and not given

    def draw(self, epoch: int) -> int:
        """Draws what an epoch begins with, in the order in which a DataLoader does: a seed for workers, which is returned, and the state of `order`."""
        if self._seed is not None:
            self.order.manual_seed(self._seed + epoch)
            return self._seed + epoch
        of_workers = _drawn(self.order if self._has_one else None) if self._is_loader else 0
        if self._draws_seed:
            self.order.manual_seed(_drawn(None))
        return of_workers

    def begin(self, order: torch.Tensor, of_workers: int) -> None:
        """An epoch begins."""
        self.order.set_state(order)
        self.workers.manual_seed(of_workers)


def _drawn(generator):
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def with_generator(sampler: Any, generator: torch.Generator) -> Any:
    """The sampler, or a copy where it, or one that it draws from, has a generator: then with this one."""
    inner = getattr(sampler, "sampler", None)
    changed = {"generator": generator} if hasattr(sampler, "generator") else {}
    if inner is not None and (other := with_generator(inner, generator)) is not inner:
        changed["sampler"] = other
    if changed:
        sampler = copy.copy(sampler)
        for name, value in changed.items():
            setattr(sampler, name, value)
    return sampler


def parts_of(loader: Any, names: Sequence[str] = ("batch_sampler", "sampler", "dataset", "_distributed")) -> list[Any]:
    """The loader, first, and what it is made of: samplers, datasets, how `datasets` splits them, and these of each."""
    found, rest = [], [loader]
    while rest:
        part = rest.pop()
        if part is not None and not any(part is each for each in found):
            found.append(part)
            rest += [vars(part).get(name) for name in names if hasattr(part, "__dict__")]
    return found


def _like(loader, generators, **changed):
    """A DataLoader with the settings of another one but for these."""
    return DataLoader(loader.dataset, num_workers=loader.num_workers, pin_memory=loader.pin_memory, timeout=loader.timeout,
                      worker_init_fn=loader.worker_init_fn, multiprocessing_context=loader.multiprocessing_context, prefetch_factor=loader.prefetch_factor,
                      persistent_workers=loader.persistent_workers, generator=generators.workers, **changed)


class _Order:
    """The order of an epoch's batches so far: a number, `mark`."""

    def __init__(self, skip: int, expected: int):
        self.skip, self.expected, self.mark, self.number = skip, expected, 0, 0

    def passes(self, values) -> bool:
        """Counts one more batch; whether it comes after those that were given in an earlier run."""
        self.number, self.mark = self.number + 1, mark_of(values, self.mark)
        if self.number == self.skip and self.mark != self.expected:
            raise RuntimeError(f"[shard_dataloader] the first {self.skip} batches of the epoch are not those that were given when the state was saved; accepted: the "
                               "same data in batches of the same size, and a sampler whose order follows from its generator, or from set_epoch")
        return self.number > self.skip

    def end(self) -> None:
        if self.number < self.skip:
            raise RuntimeError(f"[shard_dataloader] the epoch has {self.number} batches, and {self.skip} were given when the state was saved; accepted: the same data "
                               "in batches of the same size")


class _Lists:
    """A batch sampler: a part of each list of indices that another one gives."""

    def __init__(self, sampler, part, guard):
        self.sampler, self.part, self.guard = sampler, part, guard
        self.order, self.given = _Order(0, 0), collections.deque()

    def __iter__(self):
        for indices in map(list, self.sampler):
            if self.order.passes(repr(indices)):
                self.given.append((len(indices), self.order.mark))
                self.guard.watch()
                yield indices[self.part.of(len(indices))]
        self.order.end()

    def __len__(self):
        return len(self.sampler)


class _Guard:
    """Finds rows that a rank reads and collates alone, and that draw random numbers of the job."""

    def __init__(self, is_needed):
        self.is_needed, self.state = is_needed, None

    def watch(self):
        if self.is_needed:
            self.state = torch.get_rng_state()

    def verify(self):
        if self.is_needed and not torch.equal(self.state, torch.get_rng_state()):
            raise RuntimeError("[shard_dataloader] the dataset or its collate function draws random numbers from the rank's generator, as many as this rank has "
                               'rows: ranks would not agree on those that come next; accepted: reads="all", which draws those of one device; num_workers=1 or '
                               "more, whose numbers are their own; a torch.Generator of the dataset's")


class _Collate:
    """A collate function for the samples of one rank, which may be none."""

    def __init__(self, collate, guard):
        self.collate, self.guard = collate, guard

    def __call__(self, samples):
        batch = self.collate(samples) if samples else None
        self.guard.verify()
        return batch


class _CollatePart(_Collate):
    """... of whole batches' samples: gives how many these are, what tells the batch from others, and the batch."""

    def __init__(self, collate, guard, part):
        super().__init__(collate, guard)
        self.part = part

    def __call__(self, samples):
        self.guard.watch()
        return len(samples), mark_of([samples[0], samples[-1]]), super().__call__(samples[self.part.of(len(samples))])


class Indexed:
    """Batches of a DataLoader whose dataset is indexed. Those before the first that is asked for are not read."""

    def __init__(self, loader, part, reads, generators):
        self.mark, self.reads_own, self._part = 0, reads == "own", part
        self.first_seed = part.index if self.reads_own else 0  # workers of each part draw numbers of their own
        guard = _Guard(reads == "own" and loader.num_workers == 0 and part.count > 1)
        self._lists = _Lists(with_generator(loader.batch_sampler, generators.order), Part() if reads == "all" else part, guard)
        self.loader = _like(loader, generators, batch_sampler=self._lists, collate_fn=_Collate(loader.collate_fn, guard))

    def after(self, skip: int, expected: int) -> Iterator[tuple[int, Any]]:
        """From the batch after the first `skip`, whose mark is as expected: how many rows the batch has, and this rank's; None where it has none."""
        self._lists.order = _Order(skip, expected)
        self._lists.given.clear()
        for batch in self.loader:
            rows, self.mark = self._lists.given.popleft()
            yield (rows, batch) if self.reads_own else _taken(batch, self._part)


class Streamed:
    """Batches of a DataLoader over a stream, which each rank iterates; it collates its own rows alone."""

    first_seed = 0  # a stream that shuffles gives every rank the same

    def __init__(self, loader, part, generators):
        self.mark, self.reads_own = 0, True
        guard = _Guard(loader.num_workers == 0 and part.count > 1)
        self.loader = _like(loader, generators, batch_size=loader.batch_size, drop_last=loader.drop_last, collate_fn=_CollatePart(loader.collate_fn, guard, part))

    def after(self, skip, expected):
        """As of Indexed; the batches before are read."""
        order = _Order(skip, expected)
        for rows, mark, batch in self.loader:
            if order.passes([mark]):
                self.mark = order.mark
                yield rows, batch
        order.end()


class Whole:
    """Whole batches, as any iterable gives them to each rank."""

    first_seed = 0

    def __init__(self, loader, part):
        self.mark, self.reads_own, self.loader, self._part = 0, False, loader, part

    def after(self, skip, expected):
        """As of Indexed; the batches before are read."""
        order = _Order(skip, expected)
        for batch in self.loader:
            if order.passes([rows_in(batch), with_rows(batch, rows_in(batch), lambda value: value[:1])]):
                self.mark = order.mark
                yield _taken(batch, self._part)
        order.end()


def _taken(batch, part):
    rows = rows_in(batch)
    return rows, with_rows(batch, rows, lambda value: value[part.of(rows)])
