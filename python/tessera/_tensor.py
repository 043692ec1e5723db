"""DTensors in Python: an ordinary torch.Tensor to every operator, and to isinstance a tessera.DTensor. There is no wrapper class."""

from tessera import _C
from tessera._C import from_local as _from_local
from tessera._layout import mesh_of
from tessera._ranks import ensure_rank


class _DTensorType(type):
    def __instancecheck__(cls, value):
        return _C.is_dtensor(value)


class DTensor(metaclass=_DTensorType):
    """The type of distributed tensors, for isinstance and its static methods. Made by distribute_tensor and from_local."""

    def __new__(cls, *args, **kwargs):
        raise TypeError("tessera.DTensor has no constructor: use distribute_tensor(x, mesh, placements) or "
                        "DTensor.from_local(part, mesh, placements)")

    @staticmethod
    def from_local(local_tensor, device_mesh, placements=None, *, shape=None, run_check=False):
        """A DTensor made of the ranks' parts. `shape` is the global one; without it all parts must have one size."""
        return from_local(local_tensor, device_mesh, placements, shape=shape)


def distribute_tensor(tensor, device_mesh, placements=None):
    """A DTensor whose value is `tensor`, which every rank passes alike; each keeps its part. Moves nothing. The mesh may be text, "dp=2,tp=2"."""
    ensure_rank()
    return _C.distribute_tensor(tensor, mesh_of(device_mesh), placements)


def from_local(local_tensor, device_mesh, placements=None, *, shape=None):
    """A DTensor made of the ranks' parts. `shape` is the global one; without it all parts must have one size."""
    ensure_rank()
    return _from_local(local_tensor, mesh_of(device_mesh), placements, None if shape is None else list(shape))


def to_local(tensor):
    """This rank's part, a plain tensor that shares the DTensor's memory. Differentiable."""
    return _C.to_local(tensor)


def full_tensor(tensor):
    """The whole value as a plain tensor, the same on every rank. Collective over the mesh. Differentiable."""
    return _C.full_tensor(tensor)


def redistribute(tensor, device_mesh=None, placements=None):
    """The same value, otherwise placed. Collective over the mesh. Differentiable."""
    if placements is None and not isinstance(device_mesh, _C.Mesh):
        device_mesh, placements = None, device_mesh
    return _C.redistribute(tensor, mesh_of(device_mesh), placements)
