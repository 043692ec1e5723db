#!/usr/bin/env python3
"""torch.distributed.checkpoint on DTensors of processes: saved on one mesh, loaded on another and by plain PyTorch, bit for bit; and files of plain
PyTorch.

Usage: checkpoint_test.py [unittest's arguments]
"""

import os
import tempfile
import unittest
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
import warm_python

PROGRAM = Path(__file__).parent / "checkpoint_program.py"
SIZES = {"even": (8, 6), "uneven": (5, 3), "short": (3, 2), "blocks": (12, 4), "both": (12, 8), "nested": (12, 4), "all": (4, 3), "owner": (4, 3),
         "none": (0, 4), "scalar": ()}


def values():
    return {name: (torch.arange(float(torch.Size(sizes).numel())).reshape(sizes) + len(name)).sin() for name, sizes in SIZES.items()}


def trained():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 8))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    x = torch.arange(32.0).reshape(4, 8).sin()
    (model(x) - x).square().mean().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


class CheckpointTest(unittest.TestCase):
    def test_processes(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            dcp.save(values(), checkpoint_id=folder / "plain")
            torch.save(trained(), folder / "plain.pt")
            done = warm_python.torchrun(4, [PROGRAM, folder], timeout=400, env={**os.environ, "TORCH_DISTRIBUTED_DEBUG": "OFF"})
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.split(), ["refused", "layouts", "plain", "training", "later", "whole"], done.stdout + done.stderr)
            self.check_by_plain_pytorch(folder / "layouts")
            self.assertEqual(str(torch.load(folder / "ranks.pt", weights_only=True)["optimizer"]["state"]), str(trained()["optimizer"]["state"]))

    def check_by_plain_pytorch(self, folder):
        found = {name: torch.zeros(sizes) for name, sizes in SIZES.items()}
        dcp.load(found, checkpoint_id=folder)
        for name, value in values().items():
            self.assertTrue(torch.equal(found[name], value), name)
        metadata = dcp.FileSystemReader(folder).read_metadata()
        written = [(index.fqn, index.offset) for index in metadata.storage_data]
        self.assertEqual(len(written), len(set(written)))
        for name, about in metadata.state_dict_metadata.items():  # each element once, whoever holds copies
            self.assertEqual(sum(chunk.sizes.numel() for chunk in about.chunks), values()[name].numel(), name)
            self.assertEqual(len(about.chunks), sum(fqn == name for fqn, _ in written), name)
        self.assertEqual(len(metadata.state_dict_metadata["both"].chunks), 3 * 2 * 2 * 2)  # three blocks by two, on two ranks each
        self.assertEqual(len(metadata.state_dict_metadata["all"].chunks), 1)


if __name__ == "__main__":
    warm_python.begin()
    warnings.simplefilter("ignore")
    unittest.main()
