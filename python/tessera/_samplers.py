"""Loaders whose rows are not those that a model takes: what tells so names them, torch's DistributedSampler above all."""

import functools
import threading
import warnings
import weakref

import torch
from torch.utils.data import DistributedSampler

from tessera import _C
from tessera._rows import Ranks, mark_of

_of_thread = threading.local()  # the sampler that its rank iterated last


def hint_of(error: RuntimeError, model: str, plan: _C.Plan) -> str:
    """What to write instead, where an error of a forward pass comes from a loader that is for another kind of model; else nothing."""
    text, sampler = str(error), getattr(_of_thread, "sampler", lambda: None)()
    if type(error) is not RuntimeError or not text.startswith("[forward]"):  # the others' are quoted in those of ranks that waited for them
        return ""
    if "differ in more than the number of rows" in text:
        return '; of a collate function that pads to the longest row, tessera.shard_dataloader(loader, model, reads="all")'
    if sampler is None or sampler.num_replicas == 1:
        return ""
    part = f". A DistributedSampler gives this rank part {sampler.rank} of {sampler.num_replicas}"
    if "the ranks were given different batches" in text:
        local = ', or write tessera.parallelize(model, plan, batch="local")' if plan.batch_axes else ""
        return f"{part}, and {model} takes whole batches: leave the sampler out{local}"
    if "ranks of one data coordinate" in text:
        return f"{part}: leave the sampler out and write loader = tessera.shard_dataloader(loader, model)"
    return ""


def warn_of_same_rows(plan: _C.Plan, tensors: list[torch.Tensor]) -> None:
    """Warns where all data ranks pass the same as their own rows. Collective over the plan's mesh."""
    parts = 1
    for axis in plan.batch_axes:
        parts *= plan.mesh.size(axis)
    plain = [tensor for tensor in tensors if not _C.is_dtensor(tensor) and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)]
    if parts == 1 or not plain:
        return
    marks = Ranks(plan.mesh).exchange(mark_of(plain).to_bytes(4, "little"))
    if len(marks) > 1 and len(set(marks)) == 1 and _C.rank() == 0:
        warnings.warn(f'[forward] all {parts} data ranks passed the same rows, and with batch="local" each of them counts: accepted: loader = '
                      'tessera.shard_dataloader(loader, model), of which each has its own; or batch="whole"', stacklevel=3)


def _install():
    plain_init, plain_iter = DistributedSampler.__init__, DistributedSampler.__iter__

    @functools.wraps(plain_init)
    def init(self, dataset, num_replicas=None, rank=None, *args, **kwargs):
        if (num_replicas is None or rank is None) and _C.in_rank() and not torch.distributed.is_initialized():
            raise RuntimeError("[DistributedSampler] its parts are those of torch.distributed's process group, which this rank's job has not; accepted: no "
                               'sampler, and tessera.shard_dataloader(loader, model) after parallelize(..., batch="local"); or num_replicas and rank, the number '
                               "of data ranks and which of them this is")
        plain_init(self, dataset, num_replicas, rank, *args, **kwargs)

    @functools.wraps(plain_iter)
    def iterate(self):
        _of_thread.sampler = weakref.ref(self)
        return plain_iter(self)

    DistributedSampler.__init__, DistributedSampler.__iter__ = init, iterate


_install()
