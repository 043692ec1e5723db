#!/usr/bin/env python3
"""A training step by a Python program runs the operators of a step by the C++ `Job`: the same, in the same order, with the same layouts,
redistributions and bytes.

Usage: step_trace_test.py STEP_TRACE [unittest's arguments]      (the program of step_trace.cpp)
"""

import json
import subprocess
import sys
import unittest

import tessera
import torch
from tessera import _C
from torch import nn
from torch.nn import functional as F

WORDS, SAMPLES = 16, 8
MESHES = ("dp=2", "tp=2", "dp=2,tp=2")


class Net(nn.Module):
    """That of step_trace.cpp."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 8)
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 32)
        self.down = nn.Linear(32, WORDS)

    def forward(self, ids, labels):
        scores = self.down(torch.tanh(self.up(self.norm(self.table(ids)))))
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


def make_net():
    net = Net()
    with torch.no_grad():
        for index, parameter in enumerate(net.parameters(), 1):
            parameter.copy_(torch.sin(torch.arange(parameter.numel()) * 0.1 + float(index)).view(parameter.shape))
    return net


def words(stride):
    return (torch.arange(SAMPLES * 3) * stride % WORDS).view(SAMPLES, 3)


def trace(mesh, numerics):
    """What the C++ program says of a rank, of a Python one."""
    tessera.numerics(numerics, f"batch={SAMPLES}")
    net = make_net()
    plan = tessera.generate_plan(net, mesh=mesh, lattice=f"batch={SAMPLES}")
    tessera.parallelize(net, plan)
    recorder = _C.Explain(str)  # without modules and lines, which C++ has not
    loss = net(words(5), words(7))
    loss.backward()
    recorder.stop()
    return {"plan": plan.json(), "calls": json.loads(recorder.json())["calls"], "loss": tessera.full_tensor(loss.detach()).item()}


def line(call):
    """One operator in one place with the same layouts, and how often it ran there."""
    moves = "; ".join(" ".join(str(move[key]) for key in ("argument", "from", "to", "collectives", "bytes")) for move in call["redistributions"])
    return (f"{call['phase']} of {call['module']}: {call['op']}({', '.join(call['inputs'])}) -> {', '.join(call['outputs'])}"
            f"{' moving ' if moves else ''}{moves}, {call['calls']} times")


def lines(calls):
    """In the order of first calls. Left out is how gradients and losses leave the graph: libtorch detaches a gradient that becomes a
    `.grad`, and a job the loss; a job merges both before it returns, a program when it reads them, which is no operator."""
    return [line(call) for call in calls if call["is_op"] and call["op"] != "aten::detach"]


class StepTraceTest(unittest.TestCase):
    maxDiff = None

    def test_the_same_trace_of_operators(self):
        jobs = json.loads(subprocess.run([PROGRAM, *MESHES], check=True, capture_output=True, text=True).stdout)
        self.assertEqual([(job["mesh"], job["numerics"]) for job in jobs], [(mesh, numerics) for mesh in MESHES for numerics in ("fast", "exact")])
        for job in jobs:
            here = {}
            tessera.run_ranks(lambda: here.setdefault(tessera.rank(), trace(job["mesh"], job["numerics"])), len(job["ranks"]))
            for rank, there in enumerate(job["ranks"]):
                with self.subTest(mesh=job["mesh"], numerics=job["numerics"], rank=rank):
                    self.assertEqual(there["plan"], here[rank]["plan"])
                    self.assertGreater(len(lines(there["calls"])), 20)
                    self.assertEqual(lines(there["calls"]), lines(here[rank]["calls"]))
                    self.assertEqual(there["loss"], here[rank]["loss"])


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    torch.set_num_threads(1)
    unittest.main()
