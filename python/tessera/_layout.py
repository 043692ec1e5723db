"""Meshes and placements, under the names of torch.distributed.tensor."""

from tessera import _C
from tessera._ranks import ensure_rank


class _OfKind(type):
    """isinstance(p, Shard) is true for every placement of that kind."""

    def __instancecheck__(cls, value):
        return isinstance(value, _C.Placement) and value.kind in cls._kinds


class Shard(metaclass=_OfKind):
    """`dim` is cut over the ranks of a mesh axis, as torch.chunk cuts, on multiples of `unit` elements."""

    _kinds = ("shard", "interleaved shard", "ragged shard", "spanning shard")

    def __new__(cls, dim, *, unit=1, order=-1):
        return _C.shard(dim, unit, order, 1)


class InterleavedShard(metaclass=_OfKind):
    """`dim` is `blocks` blocks of one size, each of which is cut as Shard cuts: the fused rows of Q, K and V are three."""

    _kinds = ("interleaved shard",)

    def __new__(cls, dim, blocks, *, unit=1, order=-1):
        return _C.shard(dim, unit, order, blocks)


class RaggedShard(metaclass=_OfKind):
    """The dim in `dims`, or the leading dims `(0, 1, ...)` taken together as one, is cut at given places: the rank at coordinate i of the axis
    holds `sizes[i]` elements of it, which may be 0. Of several dims a rank's part has the sizes `(1, ..., sizes[i], rest)`."""

    _kinds = ("ragged shard", "spanning shard")

    def __new__(cls, dims, sizes, *, order=-1, blocks=1):
        return _C.ragged_shard(dims, sizes, order, blocks)


class Replicate(metaclass=_OfKind):
    """Every rank of a mesh axis holds the whole tensor."""

    _kinds = ("replicate",)

    def __new__(cls):
        return _C.replicate()


class Partial(metaclass=_OfKind):
    """The value is the combination (sum, max, min, prod, avg) over the ranks of a mesh axis."""

    _kinds = ("partial",)

    def __new__(cls, reduce_op="sum"):
        return _C.partial(reduce_op)


class On(metaclass=_OfKind):
    """The rank at `coordinate` of a mesh axis holds the whole tensor; the others hold nothing. Operators on it run there.

    `stage` says which of a pipeline's stages it is, where a rank has several."""

    _kinds = ("on",)

    def __new__(cls, coordinate, stage=None):
        return _C.on(coordinate, stage)


DeviceMesh = _C.Mesh


def mesh_of(given):
    """The mesh of text, "dp=2,tp=2", or this one; None for None."""
    if given is None or isinstance(given, _C.Mesh):
        return given
    if not isinstance(given, str):
        raise TypeError(f"[mesh] {given!r}; accepted: text with the axes and their sizes, \"pp=2,dp=2\", or a tessera.Mesh")
    return _C.Mesh(given)


def init_device_mesh(device_type, mesh_shape, *, mesh_dim_names=None):
    """The mesh of ranks 0, 1, ... in the given shape, the last axis varying fastest. Axes without names are dim_0, dim_1, ...

    Names are free for tensors that a program places itself. A mesh that is given to `generate_plan` or `parallelize` has axes of the names
    that plans know ("dp", "tp"), and others are refused there. `device_type` is "cpu", the only kind of ranks so far.
    """
    if device_type != "cpu":
        raise ValueError(f"[init_device_mesh] device_type {device_type!r}: ranks compute on CPUs so far; accepted: 'cpu'")
    ensure_rank()
    names = mesh_dim_names or [f"dim_{i}" for i in range(len(mesh_shape))]
    return _C.Mesh(list(zip(names, mesh_shape, strict=True)))
