#!/usr/bin/env python3
"""Loaders of which each data rank is given its own rows: every row is read once a data coordinate, the tail too; losses, gradients and parameters have
the bits of the whole batch on every rank; a run goes on with the very next row on another mesh.

Usage: dataloader_test.py [unittest's arguments]
"""

import itertools
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import tessera
import torch
from dataloader_program import MESHES, Counted, data_coordinate, digest, ranks_of, train
from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler

DEADLINE = 30.0
PROGRAM = Path(__file__).parent / "dataloader_program.py"


def run_on(mesh, body):
    return tessera.run_ranks(body, ranks_of(mesh), deadline=DEADLINE)


def on_each(mesh, body):
    """What the body returned on each rank."""
    results, lock = {}, threading.Lock()

    def of_rank():
        value = body()
        with lock:
            results[tessera.rank()] = value

    run_on(mesh, of_rank)
    return [results[i] for i in range(ranks_of(mesh))]


def samples_in(batches):
    """The samples of each batch; a sample's number stands in its first column."""
    return [batch[0][:, 0].tolist() for batch in batches]


def loader_of(data, batch_size=4, **options):
    return DataLoader(data, batch_size, **options)


class DataLoaderTest(unittest.TestCase):
    def check_reads(self, mesh, reads, given, order, batch_size):
        """Each rank read what it was given, once; in the order of data coordinates these are the batches of one device."""
        coordinates = on_each(mesh, lambda: data_coordinate(mesh))
        whole = [order[i:i + batch_size] for i in range(0, len(order), batch_size)]
        for rank, coordinate in enumerate(coordinates):
            self.assertEqual(reads[rank], list(itertools.chain(*given[rank])))
            first = coordinates.index(coordinate)
            self.assertEqual(given[rank], given[first])
        firsts = [coordinates.index(i) for i in range(max(coordinates) + 1)]
        self.assertEqual([list(itertools.chain(*parts)) for parts in zip(*(given[i] for i in firsts), strict=True)], whole)

    def test_every_row_is_read_once_a_data_coordinate(self):
        for mesh in (*MESHES, "dp=2,fsdp=2"):
            for rows, batch_size in ((26, 4), (9, 8), (7, 3), (2, 8), (1, 1), (24, 6)):
                with self.subTest(mesh=mesh, rows=rows, batch_size=batch_size):
                    def body(mesh=mesh, rows=rows, batch_size=batch_size):
                        data = Counted(rows)
                        loader = tessera.shard_dataloader(loader_of(data, batch_size), mesh)
                        self.assertEqual(len(loader), -(-rows // batch_size))
                        return samples_in(loader), data.reads

                    given, reads = zip(*on_each(mesh, body))
                    self.check_reads(mesh, reads, given, list(range(rows)), batch_size)

    def test_a_loader_that_repeats_a_row_is_found(self):
        """The check of the test above sees a row that is read twice, one that is left out, and one that another coordinate has too."""
        for wrong in ([[0, 1], [4, 5, 5]], [[0, 1], [4]], [[0, 1], [2, 3]], [[1, 0], [4, 5]]):
            given = [wrong, [[2, 3], [6, 7]]]
            with self.assertRaises(AssertionError):
                self.check_reads("dp=2", [list(itertools.chain(*each)) for each in given], given, list(range(8)), 4)
        with self.assertRaises(AssertionError):  # read, and not given
            self.check_reads("dp=2", [[0, 1, 9], [2, 3]], [[[0, 1]], [[2, 3]]], list(range(4)), 4)
        self.check_reads("dp=2", [[0, 1, 4, 5], [2, 3, 6, 7]], [[[0, 1], [4, 5]], [[2, 3], [6, 7]]], list(range(8)), 4)

    def test_the_order_is_that_of_one_device(self):
        """Of a generator of the loader's, of the default one (in stock), of weights; in several epochs."""
        def plain(make):
            torch.manual_seed(5)
            loader = make(Counted(13))
            return [samples_in(loader) for _ in range(3)]

        def body(make, mesh):
            tessera.set_generator("stock")
            torch.manual_seed(5)
            loader = tessera.shard_dataloader(make(Counted(13)), mesh)
            return [samples_in(loader) for _ in range(3)]

        def weights(data):
            return WeightedRandomSampler(torch.arange(1.0, 14.0), 17, generator=torch.Generator().manual_seed(3))

        makes = {"sequential": loader_of, "shuffle": lambda data: loader_of(data, shuffle=True),
                 "generator": lambda data: loader_of(data, shuffle=True, generator=torch.Generator().manual_seed(8)),
                 "sampler": lambda data: loader_of(data, sampler=RandomSampler(data, generator=torch.Generator().manual_seed(9))),
                 "replacement": lambda data: loader_of(data, sampler=RandomSampler(data, replacement=True, num_samples=40, generator=torch.Generator().manual_seed(9))),
                 "weights": lambda data: loader_of(data, sampler=weights(data), drop_last=True)}
        for name, make in makes.items():
            want = plain(make)
            for mesh in ("1", "dp=3", "dp=2,tp=2"):
                with self.subTest(loader=name, mesh=mesh):
                    seen = on_each(mesh, lambda make=make, mesh=mesh: (data_coordinate(mesh), body(make, mesh)))
                    parts = [dict(seen)[i] for i in sorted(dict(seen))]
                    self.assertEqual([[sum(rows, []) for rows in zip(*epochs, strict=True)] for epochs in zip(*parts, strict=True)], want)

    def test_the_order_of_a_seed(self):
        """Is a function of seed and epoch, whatever was drawn before."""
        def body():
            torch.rand(tessera.rank())
            loader = tessera.shard_dataloader(loader_of(Counted(11), 4, shuffle=True), "tp=2", seed=7)
            first = samples_in(loader)
            loader.set_epoch(5)
            return first, samples_in(loader), samples_in(loader), loader.epoch

        first, fifth, sixth, epoch = run_on("tp=2", body)
        for samples, number in ((first, 0), (fifth, 5), (sixth, 6)):
            self.assertEqual(sum(samples, []), torch.randperm(11, generator=torch.Generator().manual_seed(7 + number)).tolist())
        self.assertEqual(epoch, 7)

    def test_ranks_that_draw_other_numbers_have_rank_0s_order(self):
        def body():
            tessera.set_generator("stock")
            torch.rand(1 + tessera.rank())
            return samples_in(tessera.shard_dataloader(loader_of(Counted(11), 4, shuffle=True), "tp=2"))

        first, second = on_each("tp=2", body)
        self.assertEqual(first, second)

    def test_bits_of_the_whole_batch(self):
        """Losses, gradients and parameters, with dropout, tails of every length and several epochs."""
        for rows, batch_size in ((13, 6), (25, 12), (12, 4)):
            want = run_on("1", lambda rows=rows, size=batch_size: train("1", rows, size, whole=True))
            self.assertEqual(len(want["losses"]), 2 * -(-rows // batch_size))
            for mesh in MESHES:
                with self.subTest(mesh=mesh, rows=rows, batch_size=batch_size):
                    self.assertEqual(run_on(mesh, lambda mesh=mesh, rows=rows, size=batch_size: train(mesh, rows, size)), want)

    def test_bits_in_processes(self):
        want = run_on("1", lambda: train("1", 13, 6, whole=True))
        for mesh in ("dp=3", "dp=2,tp=2"):
            with self.subTest(mesh=mesh):
                done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks_of(mesh)), PROGRAM, mesh], capture_output=True,
                                      text=True, timeout=200)
                self.assertEqual((done.returncode, done.stdout.split()), (0, [digest(want)]), done.stdout + done.stderr)

    def test_going_on_at_another_degree(self):
        """With the very next row, in the middle of an epoch and between two, and the bits of a run that never ended."""
        for first, second, steps in (("dp=4", "dp=2,tp=2", 4), ("dp=2", "dp=3", 3), ("fsdp=2", "dp=4", 1), ("dp=3", "1", 2)):
            with self.subTest(first=first, second=second, steps=steps), tempfile.TemporaryDirectory() as run:
                want = run_on("1", lambda: train("1", 13, 6, whole=True))
                begun = run_on(first, lambda: train(first, 13, 6, steps=steps, save=run))
                goes_on = run_on(second, lambda: train(second, 13, 6, load=run, seed=99))
                self.assertEqual(begun["samples"] + goes_on["samples"], want["samples"])
                self.assertEqual(begun["losses"] + goes_on["losses"], want["losses"])
                self.assertEqual(goes_on["parameters"], want["parameters"])


if __name__ == "__main__":
    unittest.main()
