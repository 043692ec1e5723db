"""DTensors for torch.distributed.checkpoint, by its own protocol: it asks tensors for their write items, chunks and shards."""

import functools

import torch

from tessera import _C

ATTRIBUTES = ("__create_write_items__", "__create_chunk_list__", "__get_tensor_shard__")


def protocol(name):
    """The attribute of DTensors; plain tensors lack it, as hasattr says."""
    of_parts = getattr(Parts, name)

    def attribute(tensor):
        if not _C.is_dtensor(tensor):
            raise AttributeError(f"a plain tensor has no `{name}`: it is no tessera.DTensor")
        return functools.partial(_asked, of_parts, tensor)

    return property(attribute)


def _asked(of_parts, tensor, *args):
    _verify_ranks()
    return of_parts(Parts(tensor), *args)


def _verify_ranks():
    if _C.in_rank_thread():
        raise NotImplementedError("torch.distributed.checkpoint takes a process for a rank, and these ranks are threads of one. Write "
                                  "tessera.save(run, model, optimizer, step=n) and tessera.load(run, model, optimizer), or torch.save(tessera.full_state_dict(model), path); or "
                                  "run ranks as processes (torchrun)")
    c10d = torch.distributed
    if _C.world_size() > 1 and not (c10d.is_initialized() and c10d.get_world_size() == _C.world_size()):
        raise RuntimeError(f"torch.distributed.checkpoint does not know of the {_C.world_size()} ranks of this job. Call "
                           'torch.distributed.init_process_group("gloo") first, at the start of the program')


class Parts:
    """What this rank has of a DTensor, as torch.distributed.checkpoint speaks of it."""

    def __init__(self, tensor):
        self.size = tensor.size()
        self.chunks = {torch.Size(offsets): part for offsets, part in _C.chunks(tensor)}

    def copied(self):
        """These values, whatever happens to the tensor. As a tensor, where only tensors are taken."""
        self.chunks = {offsets: part.clone() for offsets, part in self.chunks.items()}
        tensor = torch.empty(0).as_subclass(_Copied)
        tensor.parts = self
        return tensor

    def __create_write_items__(self, name, _):
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        return [WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.SHARD,
                          tensor_data=TensorWriteData(chunk, TensorProperties.create_from_tensor(self.chunks[chunk.offsets]), self.size))
                for chunk in self.__create_chunk_list__()]

    def __create_chunk_list__(self):
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [ChunkStorageMetadata(offsets, part.size()) for offsets, part in self.chunks.items()]

    def __get_tensor_shard__(self, index):
        return self.chunks[index.offset]


class _Copied(torch.Tensor):
    """What async_save writes later."""

    def __create_write_items__(self, *args):
        return self.parts.__create_write_items__(*args)

    def __get_tensor_shard__(self, index):
        return self.parts.__get_tensor_shard__(index)


def stage_parts(module):
    """Has async_save copy the parts of DTensors before it returns."""
    plain = module.StateDictStager._offload_tensor

    @functools.wraps(plain)
    def offload(self, x, memo, non_blocking=False):
        if not _C.is_dtensor(x):
            return plain(self, x, memo, non_blocking=non_blocking)
        _verify_ranks()
        return memo.setdefault(id(x), Parts(x).copied())

    module.StateDictStager._offload_tensor = offload
