#!/usr/bin/env python3
"""Every axis of a plan's mesh has a role by its name, and what a plan takes from the rank: its ranks and its lattice.

Usage: axes_test.py [unittest's arguments]
"""

import contextlib
import io
import unittest

import tessera
import torch

ROLES = ("dp", "dp_replicate", "fsdp", "dp_shard", "tp", "pp")
OTHERS = (
    "cp", "ep", "sp", "data", "model", "tensor", "pipe", "pipeline", "context", "expert", "replicate", "shard", "hsdp",
    "ddp", "zero", "mp", "etp", "edp", "vpp", "batch", "world", "rank", "host", "device", "node", "dim_0", "x", "stage", "DP", "TP", "dpp", "td",
    "dp2", "tp_", "d_p", "dp_repl", "FSDP",
)
ACCEPTED = ("; accepted: dp (cuts the batch), dp_replicate (the same as dp), fsdp (cuts the batch and what is kept of each parameter), dp_shard (the same as "
            "fsdp), tp (cuts the model), pp (cuts the model into stages)")


def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))


def named(name):
    return tessera.init_device_mesh("cpu", (2,), mesh_dim_names=(name,))


ENTRANCES = {
    "parallelize, a text": lambda name: tessera.parallelize(model(), f"{name}=2"),
    "parallelize, init_device_mesh": lambda name: tessera.parallelize(model(), named(name)),
    "generate_plan, a text": lambda name: tessera.generate_plan(model(), mesh=f"{name}=2"),
    "generate_plan, init_device_mesh": lambda name: tessera.generate_plan(model(), mesh=named(name)),
    "a plan file": lambda name: tessera.Plan.from_json(
        tessera.generate_plan(model(), mesh="dp=2").json().replace('"dp=2"', f'"{name}=2"').replace('["dp"]', "[]")),
}


def refusal(enter, name):
    def body():
        try:
            enter(name)
        except ValueError as error:
            return str(error)
        return None

    return tessera.run_fake(body, 2)


class AxesTest(unittest.TestCase):
    def test_forty_names_have_a_role_or_are_refused(self):
        self.assertGreaterEqual(len(ROLES + OTHERS), 40)
        for entrance, enter in ENTRANCES.items():
            for name in ROLES + OTHERS:
                with self.subTest(entrance=entrance, name=name):
                    said = refusal(enter, name)
                    if name in ROLES:
                        self.assertIsNone(said)
                    else:
                        self.assertIn(f'the axis "{name}" of mesh {{{name}=2}}', said)
                        self.assertIn(ACCEPTED, said)

    def test_a_mesh_without_names_makes_no_plan(self):
        said = refusal(lambda _: tessera.parallelize(model(), tessera.init_device_mesh("cpu", (2,))), "")
        self.assertIn('the axis "dim_0" of mesh {dim_0=2} has no role' + ACCEPTED, said)

    def test_tensors_that_are_placed_by_hand_have_free_names(self):
        def body():
            mesh = named("rows")
            return tessera.distribute_tensor(torch.arange(6.0), mesh, [tessera.Shard(0)]).sum().item()

        self.assertEqual(tessera.run_ranks(body, 2), 15)

    def test_devices_that_do_not_work_are_refused(self):
        for device in ("cuda", "gpu", "mps", "meta"):
            with self.assertRaisesRegex(ValueError, f"device_type '{device}': ranks compute on CPUs so far; accepted: 'cpu'"):
                tessera.init_device_mesh(device, (2,), mesh_dim_names=("dp",))

    def test_without_a_mesh_data_parallelism_is_first_and_said(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            plan = tessera.run_fake(lambda: tessera.generate_plan(model()), 4)
            tessera.run_fake(lambda: tessera.generate_plan(model()), 4, rank=1)
            tessera.run_fake(lambda: tessera.generate_plan(model(), mesh="dp=4"), 4)
        self.assertEqual(repr(plan.mesh), "Mesh('dp=4')")
        self.assertEqual(said.getvalue(), "tessera: mesh {dp=4} chosen for 4 ranks, data parallelism first; another is given as the mesh\n")

    def test_the_lattice_is_said_once(self):
        def plan(**more):
            return tessera.generate_plan(torch.nn.Sequential(torch.nn.Linear(4, 100), torch.nn.Linear(100, 4)), mesh="tp=2", **more)

        def body():
            tessera.numerics("exact", "feature=4")
            self.assertEqual(plan(), told)
            self.assertEqual(plan(lattice="feature=4"), told)
            with self.assertRaisesRegex(ValueError, "lattice batch=8,sequence=1,feature=8, but this rank's numerics are exact on .*feature=4"):
                plan(lattice="feature=8")

        told = plan(lattice="feature=4")
        tessera.run_fake(body, 2)
        self.assertNotEqual(told, plan())


if __name__ == "__main__":
    unittest.main()
