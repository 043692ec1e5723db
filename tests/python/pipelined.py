"""A small model on stages, its loss inside or outside of it."""

import tessera
import torch
from torch import nn
from torch.nn import functional as F


def on_ranks(body, run):
    return tessera.run_ranks(lambda: body(*run), tessera.Mesh(run[0]).size())


def placed(model, mesh, schedule, microbatches, optimizer=None, recompute=(), vocabulary=0, **options):
    plan = tessera.generate_plan(model, mesh=mesh, schedule=schedule, recompute=recompute, vocabulary=vocabulary)
    return tessera.parallelize(model, plan, optimizer, microbatches=microbatches, **options)


class Net(nn.Module):
    """Its loss inside, or its scores; `inside` is called between its layers."""

    def __init__(self, inside=lambda index, x: x):
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in range(4))
        self.head = nn.Linear(8, 16)
        self.inside = inside

    def scores(self, ids):
        x = self.table(ids)
        for index, layer in enumerate(self.layers):
            x = self.inside(index, x + layer(x))
        return self.head(x)

    def forward(self, ids, labels=None):
        scores = self.scores(ids).flatten(0, 1)
        return scores if labels is None else F.cross_entropy(scores, labels.flatten())


def made(kind=Net, *inside, ignored=0.0, samples=7):
    torch.manual_seed(0)
    model, ids, labels = kind(*inside).double(), torch.randint(16, (samples, 5)), torch.randint(16, (samples, 5))
    labels[torch.rand(labels.shape) < ignored] = -100
    return model, ids, labels
