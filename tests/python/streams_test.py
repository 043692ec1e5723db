#!/usr/bin/env python3
"""Streams of `datasets` and `webdataset` through a sharded loader: each row once a data coordinate, in the order of one device, the tail too.

Usage: streams_test.py [unittest's arguments]
"""

import importlib.util
import itertools
import json
import os
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

if not all(map(importlib.util.find_spec, ("datasets", "webdataset"))):
    print("skipped: datasets or webdataset is not installed (requirements.txt)")
    sys.exit(77)

import datasets
import tessera
import warm_python
import webdataset
from dataloader_program import data_coordinate
from dataloader_test import on_each
from datasets.distributed import split_dataset_by_node
from runs import lines_of
from streams_program import BATCH, ROWS, Run, numbers_in, of_datasets, of_webdataset, write_shards
from torch.utils.data import DataLoader

PROGRAM = str(Path(__file__).parent / "streams_program.py")
MESHES = ("dp=2", "dp=3", "dp=2,tp=2")


def joined(mesh, by_rank):
    """Of each batch the rows of all data coordinates, one after the other. `by_rank`: each rank's coordinate and rows."""
    parts = dict(by_rank)
    return [sum(rows, []) for rows in zip(*(parts[i] for i in range(len(parts))), strict=True)]


class StreamsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        datasets.disable_progress_bars()
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.folder = holder.name
        write_shards(cls.folder)

    def rows_on(self, mesh, make, epochs=(0,), state=None):
        """Of each batch of all ranks the rows' numbers; with `state` from there on."""
        def body():
            loader = tessera.shard_dataloader(make(), mesh)
            if state:
                loader.load_state_dict(state)
                return data_coordinate(mesh), numbers_in(loader)
            rows = []
            for epoch in epochs:
                loader.set_epoch(epoch)
                rows += numbers_in(loader)
            return data_coordinate(mesh), rows

        return joined(mesh, on_each(mesh, body))

    def test_datasets(self):
        """Shuffled in a buffer, other in each epoch; with workers that take the files in turns."""
        for workers in (0, 2):
            def make(workers=workers):
                return DataLoader(of_datasets(self.folder), BATCH, num_workers=workers)

            want = []
            for epoch in range(2):
                plain = make()
                plain.dataset.set_epoch(epoch)
                want += numbers_in(plain)
            self.assertEqual([sorted(sum(want[:4], [])), sorted(sum(want[4:], []))], [list(range(ROWS))] * 2)
            self.assertNotEqual(want[:4], want[4:])
            for mesh in MESHES:
                with self.subTest(workers=workers, mesh=mesh):
                    self.assertEqual(self.rows_on(mesh, make, epochs=(0, 1)), want)

    def test_datasets_go_on_at_another_degree(self):
        def make():
            return DataLoader(of_datasets(self.folder), BATCH)

        def first():
            loader = tessera.shard_dataloader(make(), "dp=2")
            loader.set_epoch(1)
            list(itertools.islice(loader, 2))
            return json.loads(json.dumps(loader.state_dict()))

        plain = make()
        plain.dataset.set_epoch(1)
        state = on_each("dp=2", first)[0]
        for mesh in ("dp=3", "dp=2,tp=2"):
            self.assertEqual(self.rows_on(mesh, make, state=state), numbers_in(plain)[2:])

    def test_datasets_that_are_split_already(self):
        """Whole files a data coordinate: passed through where it is this rank's, else refused."""
        def loader_of(index):
            return DataLoader(split_dataset_by_node(of_datasets(self.folder, shuffles=False), rank=index, world_size=2), BATCH)

        def body():
            with self.assertRaisesRegex(ValueError, "cut already: by its DistributedConfig"):
                tessera.shard_dataloader(loader_of(1 - tessera.rank()), "dp=2")
            return numbers_in(tessera.shard_dataloader(loader_of(tessera.rank()), "dp=2"))

        both = on_each("dp=2", body)
        self.assertEqual(both, [numbers_in(loader_of(0)), numbers_in(loader_of(1))])
        self.assertEqual(sorted(sum(both[0] + both[1], [])), list(range(ROWS)))

    def test_webdataset(self):
        """As the stream of a DataLoader, in batches of its own, and as its WebLoader."""
        warnings.simplefilter("ignore", ResourceWarning)  # files that it leaves to the collector
        makes = {"rows": lambda: DataLoader(of_webdataset(self.folder), BATCH), "batches": lambda: DataLoader(of_webdataset(self.folder).batched(BATCH), None),
                 "WebLoader": lambda: webdataset.WebLoader(of_webdataset(self.folder), batch_size=BATCH)}
        for name, make in makes.items():
            want = numbers_in(make())
            self.assertEqual(sum(want, []), list(range(ROWS)))
            for mesh in MESHES:
                with self.subTest(loader=name, mesh=mesh):
                    self.assertEqual(self.rows_on(mesh, make), want)

    def test_webdataset_in_processes(self):
        """A nodesplitter gives each process files of its own, which are not a batch's rows: told."""
        whole, split = map(json.loads, lines_of(PROGRAM, *(Run("dp=2", self.folder, splits) for splits in (False, True)), timeout=120))
        self.assertEqual(joined("dp=2", enumerate(whole)), numbers_in(DataLoader(of_webdataset(self.folder), BATCH)))
        self.assertEqual(len(split), 2)
        for text in split:
            self.assertRegex(text, "gives other batches on ranks 1 of the mesh.*nodesplitter=None")


if __name__ == "__main__":
    warm_python.begin()
    unittest.main()
