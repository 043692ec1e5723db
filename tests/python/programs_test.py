#!/usr/bin/env python3
"""Small programs of many kinds, unchanged but for `parallelize`: losses, norms and sums of some steps are those of one device.

Usage: programs_test.py [unittest's arguments]
"""

import unittest

import tessera
import torch
from programs import PROGRAMS

MESHES = ("dp=2", "tp=2", "fsdp=2", "dp=2,tp=2")


class ProgramsTest(unittest.TestCase):
    def test_on_meshes(self):
        for name, run in PROGRAMS.items():
            torch.manual_seed(0)
            want = run(lambda model: model)
            for mesh in MESHES:
                with self.subTest(program=name, mesh=mesh):
                    torch.manual_seed(0)
                    got = tessera.run_ranks(lambda run=run, mesh=mesh: run(lambda model: tessera.parallelize(model, mesh)), tessera.Mesh(mesh).size())
                    for one, other in zip(want, got, strict=True):
                        self.assertLessEqual(abs(one - other), 1e-4 * (abs(one) + 1e-2), (want, got))


if __name__ == "__main__":
    unittest.main()
