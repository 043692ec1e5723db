"""Training with a sharded loader: what dataloader_test.py runs as rank threads and, started by torchrun, as processes. A program prints, on rank 0, the
digest of what it saw.

Usage: dataloader_program.py MESH
"""

import hashlib
import json
import sys

import tessera
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

MESHES = ("1", "dp=2", "dp=3", "dp=4", "dp=2,tp=2", "fsdp=2")
LATTICE = "batch=12,sequence=1,feature=4"


def ranks_of(mesh):
    return tessera.Mesh(mesh).size()


def data_coordinate(mesh):
    """Of the calling rank: replicas slowest."""
    mesh, index = tessera.Mesh(mesh), 0
    for axis in ("dp", "fsdp"):
        if axis in mesh.mesh_dim_names:
            index = index * mesh.size(axis) + mesh.get_local_rank(axis)
    return index


def sample_of(index):
    """Whose first column is its number."""
    values = torch.randn(5, generator=torch.Generator().manual_seed(index))
    values[0] = index
    return values, index % 3


class Counted(Dataset):
    """Keeps which samples were read."""

    def __init__(self, rows):
        self.rows, self.reads = rows, []

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        self.reads.append(index)
        return sample_of(index)


class Stream(IterableDataset):
    """Its workers take turns."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return map(sample_of, range(first, self.rows, step))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(5, 8), torch.nn.Linear(8, 3)

    def forward(self, x, labels):
        hidden = torch.nn.functional.dropout(torch.tanh(self.up(x)), 0.25)
        return torch.nn.functional.cross_entropy(self.down(hidden), labels)


def make_model():
    model = Net()
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return model


def gathered(samples, mesh):
    """The samples of all data coordinates, in their order."""
    own = torch.full((16,), -1)
    own[:len(samples)] = torch.tensor(samples, dtype=torch.long)
    ranks = tessera.Mesh([("rank", ranks_of(mesh))])
    by_rank = tessera.full_tensor(tessera.from_local(own[None], ranks, [tessera.Shard(0)]))
    coordinates = tessera.full_tensor(tessera.from_local(torch.tensor([data_coordinate(mesh)]), ranks, [tessera.Shard(0)])).tolist()
    firsts = [coordinates.index(i) for i in range(max(coordinates) + 1)]
    return [sample for i in firsts for sample in by_rank[i].tolist() if sample >= 0]


def train(mesh, rows, batch_size, whole=False, steps=0, save="", load="", seed=5):
    """Two epochs, or so many steps: of each step the samples, loss and gradients, as texts; and the parameters. `whole`: with the plain loader."""
    tessera.manual_seed(seed)
    tessera.numerics("exact", LATTICE)
    plan = tessera.generate_plan(make_model(), mesh=mesh, lattice=LATTICE)
    model = tessera.parallelize(make_model(), plan, batch="whole" if whole else "local")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    loader = DataLoader(Counted(rows), batch_size, shuffle=True, generator=torch.Generator().manual_seed(3))
    if not whole:
        loader = tessera.shard_dataloader(loader, model)
    taken = 0
    if load:
        loaded = tessera.load(load, model, optimizer)
        loader.load_state_dict(loaded["data"])
        taken = loaded.step
    seen = {"samples": [], "losses": []}
    for _ in range(0 if whole else loader.epoch, 2):
        for x, labels in loader:
            optimizer.zero_grad()
            loss = model(x, labels)
            loss.backward()
            seen["samples"].append(gathered(x[:, 0].long().tolist(), mesh))
            seen["losses"].append(digest([tessera.full_tensor(loss.detach()), *(tessera.full_tensor(p.grad) for p in model.parameters())]))
            optimizer.step()
            taken += 1
            if save and taken == steps:
                tessera.save(save, model, optimizer, step=taken, extra={"data": loader.state_dict()})
                return seen
    seen["parameters"] = digest([tessera.full_tensor(p.detach()) for p in model.parameters()])
    return seen


def digest(value):
    """Of tensors their bits; of what a program saw its JSON."""
    text = b"".join(x.contiguous().numpy().tobytes() for x in value) if isinstance(value, list) else json.dumps(value).encode()
    return hashlib.sha256(text).hexdigest()[:16]


def main(mesh):
    seen = train(mesh, 13, 6)
    if tessera.rank() == 0:
        print(digest(seen), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
