"""The rows of a batch: which of them a data rank has, and what ranks tell each other of them."""

import dataclasses
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from tessera import _C
from tessera._layout import Shard
from tessera._ranks import is_imagined
from tessera._tensor import from_local, full_tensor


@dataclasses.dataclass(frozen=True)
class Part:
    """Part `index` of `count` of the rows of any batch, as torch.chunk cuts them: the last ones are short or empty."""

    index: int = 0
    count: int = 1

    def of(self, rows: int) -> slice:
        most = -(-rows // self.count)
        return slice(min(self.index * most, rows), min((self.index + 1) * most, rows))

    def leaves_some_empty(self, rows: int) -> bool:
        """Whether one of the parts of so many rows has none."""
        return Part(self.count - 1, self.count).of(rows).start == rows


class Ranks:
    """All ranks of a mesh; without one this rank alone."""

    def __init__(self, mesh: _C.Mesh | None = None):
        self._mesh = _C.Mesh([("rank", mesh.size())], mesh.ranks) if mesh is not None and mesh.size() > 1 else None

    def exchange(self, own: bytes) -> list[bytes]:
        """What each rank passed, in the mesh's order; in an imagined job this one alone. Collective over the mesh."""
        if self._mesh is None or is_imagined():
            return [own]
        lengths = self._gather(torch.tensor([len(own)])).flatten().tolist()
        texts = self._gather(torch.frombuffer(bytearray(own.ljust(max(1, *lengths))), dtype=torch.uint8))
        return [text.numpy().tobytes()[:length] for text, length in zip(texts, lengths, strict=True)]

    def _gather(self, own):
        return full_tensor(from_local(own[None], self._mesh, [Shard(0)]))


def rows_in(batch: Any) -> int:
    """How many rows the batch has: as its first tensor."""
    for value in _leaves(batch):
        if _has_rows(value):
            return value.shape[0]
    raise TypeError(f"[shard_dataloader] a batch that is a {type(batch).__name__} has no tensor with rows; accepted: tensors, also in tuples, lists and dicts")


def with_rows(batch: Any, rows: int, cut: Callable[[Any], Any]) -> Any:
    """The same batch with cut(value) for each tensor, array and list of texts or numbers in it that is as long as the rows."""
    if _has_rows(batch):
        return cut(batch) if batch.shape[0] == rows else batch
    if isinstance(batch, Mapping):
        values = {key: with_rows(value, rows, cut) for key, value in batch.items()}
        return values if type(batch) is dict else type(batch)(values)
    if not isinstance(batch, (list, tuple)):
        return batch
    if len(batch) == rows and all(isinstance(item, (str, bytes, int, float)) for item in batch):
        return cut(batch)
    values = [with_rows(value, rows, cut) for value in batch]
    return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)


def no_rows(value: Any) -> Any:
    """None of the value's rows, without its memory."""
    return torch.empty_like(value[:0]) if isinstance(value, torch.Tensor) else value[:0]


def mark_of(values: Any, mark: int = 0) -> int:
    """A number that differs for other values, and for others before them, whose mark is given."""
    for value in _leaves(values):
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
        mark = zlib.crc32(value.tobytes() if hasattr(value, "tobytes") else repr(value).encode(), mark)
    return mark


def _has_rows(value):
    return len(getattr(value, "shape", ())) > 0


def _leaves(value) -> Iterator[Any]:
    """The tensors, arrays, texts and numbers in it, in order."""
    if isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(item)
    elif isinstance(value, (str, bytes, int, float)) or hasattr(value, "shape"):
        yield value
