#!/usr/bin/env python3
"""`tessera.estimate` of a Llama of transformers against the same program on ranks whose bytes are counted.

Usage: estimate_test.py LIBRARY [unittest's arguments]      LIBRARY: the counting allocator's
"""

import ctypes
import gc
import sys
import unittest
import warnings

import tessera
import torch
from zoo import ZOO

counting = ctypes.CDLL(sys.argv.pop(1))
counting.live_bytes.restype = counting.peak_bytes.restype = ctypes.c_int64

MESHES = ("tp=2", "fsdp=2", "dp=2,tp=2", "fsdp=2,tp=2")


class Program:
    """A model up to its loop, and two steps of it."""

    def __init__(self, mesh, accumulate=1, family="llama"):
        self.mesh, self.accumulate, self.family, self.ranks = mesh, accumulate, ZOO[family], tessera.Mesh(mesh).size()

    def setup(self):
        torch.manual_seed(0)
        model = tessera.deferred(self.family.make)
        tessera.parallelize(model, self.mesh, accumulate=self.accumulate)
        return model, torch.optim.AdamW(model.parameters(), 1e-3), self.family.batch(8)

    def measured(self):
        """Of rank 0 in the second step: the most in its passes and in its update, and what it sent."""
        def body():
            rank = tessera.rank()
            started = counting.live_bytes(rank)
            model, optimizer, batch = self.setup()
            peaks = []
            for step in range(2):
                sent = tessera.ledger()["total_bytes"]
                counting.reset_peak_bytes(rank)
                for _ in range(self.accumulate):
                    loss = model(**batch).loss
                    (loss / self.accumulate if self.accumulate > 1 else loss).backward()
                peaks = [counting.peak_bytes(rank) - started]
                counting.reset_peak_bytes(rank)
                optimizer.step()
                optimizer.zero_grad()
                peaks.append(counting.peak_bytes(rank) - started)
            kept = sum({(local := tessera.to_local(p)).data_ptr(): local.nbytes for p in model.parameters()}.values())
            return *peaks, tessera.ledger()["total_bytes"] - sent, kept

        gc.collect()  # of earlier runs, which would be freed in this one
        return tessera.run_ranks(body, self.ranks)


class EstimateTest(unittest.TestCase):
    def test_is_what_ranks_take_and_send(self):
        for mesh, accumulate in [*((mesh, 1) for mesh in MESHES), ("fsdp=2", 2)]:
            with self.subTest(mesh=mesh, accumulate=accumulate):
                program = Program(mesh, accumulate)
                pass_peak, update_peak, sent, kept = program.measured()
                said = tessera.estimate(program.setup, program.ranks, accumulate=accumulate)
                self.assertEqual((said.bytes_sent, said.parameters), (sent, kept))
                self.assertLess(abs(said.pass_peak / pass_peak - 1), 0.03)
                self.assertLess(abs(said.update_peak / update_peak - 1), 0.03)
                self.assertEqual(said.peak, max(said.start_peak, said.pass_peak, said.update_peak))

    def test_experts_get_tokens_alike(self):
        """How many a router really sends to each depends on values; every expert of this model gets some."""
        for mesh in ("tp=2", "fsdp=2", "dp=2,tp=2"):
            with self.subTest(mesh=mesh):
                program = Program(mesh, family="mixtral")
                pass_peak, update_peak, sent, kept = program.measured()
                said = tessera.estimate(program.setup, program.ranks)
                self.assertEqual((said.bytes_sent, said.parameters), (sent, kept))
                self.assertAlmostEqual(said.optimizer / (2 * said.parameters), 1, delta=0.01)
                self.assertLess(abs(said.pass_peak / pass_peak - 1), 0.03)
                self.assertLess(abs(said.update_peak / update_peak - 1), 0.03)

    def test_another_mesh_is_another(self):
        one, other = (tessera.estimate(Program(mesh).setup, 4) for mesh in ("dp=2,tp=2", "fsdp=4"))
        self.assertNotEqual((one.parameters, one.bytes_sent), (other.parameters, other.bytes_sent))

    def test_many_ranks(self):
        """The last of 512 has about a 512th of the parameters, of which AdamW keeps two more."""
        said = tessera.estimate(Program("fsdp=512").setup, 512, rank=511)
        first = tessera.estimate(Program("fsdp=512").setup, 512)
        self.assertLessEqual(said.parameters, first.parameters)
        self.assertLess(first.parameters, 2 * sum(p.nbytes for p in ZOO["llama"].make().parameters()) / 512)

    def test_refuses(self):
        with self.assertRaisesRegex(RuntimeError, "rank 2"):
            tessera.estimate(Program("tp=2").setup, 2, rank=2)
        with self.assertRaisesRegex(TypeError, "labels in the batch"):
            tessera.estimate(Program("tp=2").setup, 2, loss=lambda model, batch: model(input_ids=batch["input_ids"]).loss)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    unittest.main()
