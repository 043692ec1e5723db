"""The ways in which a program waits for other ranks, and the error that each gives when one of them does not come."""

import tessera
import torch


class Summed(torch.autograd.Function):
    """Its backward reads a value."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * gradient.exp().sum().item()


def rows():
    return tessera.distribute_tensor(torch.arange(24.0).reshape(4, 6) / 7, tessera.Mesh("tp=2"), tessera.Shard(0))


def loss_of(function):
    x = rows().requires_grad_()
    return function(x).square().sum()


def clipping():
    layer = tessera.parallelize(torch.nn.Linear(6, 6), "tp=2")
    layer(torch.ones(2, 6)).square().sum().backward()
    return lambda: torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)


def written():
    x, plain = rows(), torch.zeros(4, 6)
    return lambda: plain.copy_(x)


# Name: what every rank does before, which gives the call that waits.
WAYS = {
    "forward": lambda: (lambda x: lambda: x.softmax(0))(rows()),
    "backward": lambda: loss_of(lambda x: x.softmax(0)).backward,
    "backward of a function in Python": lambda: loss_of(Summed.apply).backward,
    "full_tensor": lambda: rows().full_tensor,
    "redistribute": lambda: (lambda x: lambda: x.redistribute("{tp: S(1)}"))(rows()),
    "item": lambda: (lambda x: x.item)(rows().sum()),
    "numpy": lambda: rows().numpy,
    "a list of tensors": lambda: (lambda x: lambda: torch._foreach_norm([x, x])[0].item())(rows()),
    "clip_grad_norm_": clipping,
    "a write into a plain tensor": written,
    "full_state_dict": lambda: (lambda model: lambda: tessera.full_state_dict(model))(tessera.parallelize(torch.nn.Linear(6, 6), "tp=2")),
}


def outcome(wait):
    """(type, rank, message) of what the call raises."""
    try:
        wait()
    except Exception as error:
        return type(error), getattr(error, "rank", None), str(error)
    return None, None, "no error"
