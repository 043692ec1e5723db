"""Doubles that stay doubles: models ask for float32 inside (norms, rotary angles, losses), which would hide errors below 1e-7."""

import contextlib
from unittest import mock

import torch


def _wide(value):
    return torch.float64 if value is torch.float32 else value


def _widened(function):
    def call(*args, **kwargs):
        return function(*map(_wide, args), **{name: _wide(value) for name, value in kwargs.items()})

    return call


@contextlib.contextmanager
def doubles():
    """Whoever asks for float32 gets float64."""
    with (mock.patch.object(torch.Tensor, "float", torch.Tensor.double), mock.patch.object(torch.Tensor, "to", _widened(torch.Tensor.to)),
          mock.patch.object(torch.nn.functional, "softmax", _widened(torch.nn.functional.softmax)), mock.patch.object(torch, "zeros", _widened(torch.zeros))):
        yield
