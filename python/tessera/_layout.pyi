"""Shard, Replicate, Partial and On as type checkers see them: kinds of Placement."""

from collections.abc import Sequence

from tessera._C import Mesh, Placement

class Shard(Placement):
    def __init__(self, dim: int, *, unit: int = 1, order: int = -1) -> None: ...

class InterleavedShard(Placement):
    def __init__(self, dim: int, blocks: int, *, unit: int = 1, order: int = -1) -> None: ...

class RaggedShard(Placement):
    def __init__(self, dims: Sequence[int], sizes: Sequence[int], *, order: int = -1, blocks: int = 1) -> None: ...

class Replicate(Placement):
    def __init__(self) -> None: ...

class Partial(Placement):
    def __init__(self, reduce_op: str = "sum") -> None: ...

class On(Placement):
    def __init__(self, coordinate: int, stage: int | None = None) -> None: ...

DeviceMesh = Mesh

def init_device_mesh(device_type: str, mesh_shape: Sequence[int], *, mesh_dim_names: Sequence[str] | None = None) -> Mesh: ...
