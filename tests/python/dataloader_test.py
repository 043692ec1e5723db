#!/usr/bin/env python3
"""Loaders of which each data rank is given its own rows: every row is read once a data coordinate, the tail too; losses, gradients and parameters have
the bits of the whole batch on every rank; a run goes on with the very next row on another mesh.

Usage: dataloader_test.py [unittest's arguments]
"""

import collections
import itertools
import json
import pickle
import tempfile
import unittest
import warnings
from pathlib import Path

import tessera
import torch
import warm_python
from dataloader_program import MESHES, Counted, Stream, data_coordinate, digest, make_model, ranks_of, train
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, WeightedRandomSampler

DEADLINE = 30.0
PROGRAM = Path(__file__).parent / "dataloader_program.py"


def run_on(mesh, body):
    return tessera.run_ranks(body, ranks_of(mesh), deadline=DEADLINE)


def on_each(mesh, body):
    """What the body returned on each rank."""
    return tessera.run_ranks(body, ranks_of(mesh), results="all", deadline=DEADLINE)


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
        """Of a generator of the loader's, of the default one, of weights; in several epochs."""
        def plain(make):
            torch.manual_seed(5)
            loader = make(Counted(13))
            return [samples_in(loader) for _ in range(3)]

        def body(make, mesh):
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
                done = warm_python.torchrun(ranks_of(mesh), [PROGRAM, mesh], timeout=600)
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


class Pair(collections.namedtuple("Pair", "x label")):
    pass


def as_dict(samples):
    x, labels = zip(*samples, strict=True)
    return {"x": torch.stack(x), "more": {"label": torch.tensor(labels), "name": [str(label) for label in labels]}}


def padded(samples):
    """To the longest sample, whose first number says how long it is."""
    most = max(1 + int(x[0]) % 4 for x, _ in samples)
    return torch.stack([x[:most] for x, _ in samples]), torch.tensor([label for _, label in samples])


class WaysTest(unittest.TestCase):
    """Workers, collate functions, kinds of batches, streams, and loaders that are no DataLoader."""

    def whole(self, mesh, make, **options):
        """The batches of all data coordinates put together, twice over."""
        def body():
            loader = tessera.shard_dataloader(make(), mesh, **options)
            return data_coordinate(mesh), [samples_in(loader) for _ in range(2)]

        parts = dict(on_each(mesh, body))
        return [[sum(rows, []) for rows in zip(*epochs, strict=True)] for epochs in zip(*(parts[i] for i in sorted(parts)), strict=True)]

    def check(self, make, meshes=("1", "dp=3", "dp=2,tp=2"), **options):
        torch.manual_seed(1)
        want = [samples_in(make()) for _ in range(2)]
        for mesh in meshes:
            with self.subTest(mesh=mesh, **options):
                self.assertEqual(self.whole(mesh, make, **options), want)

    def test_workers(self):
        """Forked, and as many as there may be; what they are given can be pickled, for those that are spawned."""
        self.check(lambda: loader_of(Counted(13), 6, num_workers=2), ("dp=2",))
        self.check(lambda: loader_of(Stream(13), 4, num_workers=2), ("dp=2",))
        self.check(lambda: loader_of(Counted(13), 6, num_workers=1, persistent_workers=True, prefetch_factor=4), ("1",))
        for data in (Counted(4), Stream(4)):
            collate = run_on("dp=2", lambda data=data: tessera.shard_dataloader(loader_of(data, 4), "dp=2")._batches.loader.collate_fn)
            self.assertIs(pickle.loads(pickle.dumps(collate)).collate, torch.utils.data.default_collate)

    def test_workers_of_a_second_epoch_end_well(self):
        """In a rank thread, whose first workers made Python's `threading` know it: those of a plain loader too."""
        def body():
            codes = []
            for _ in range(2):
                iterator = iter(loader_of(Counted(2), 1, num_workers=1))
                list(iterator)
                codes += [worker.exitcode for worker in iterator._workers]
            return codes

        self.assertEqual(run_on("1", body), [0, 0])

    def test_streams_and_other_iterables(self):
        for make in (lambda: loader_of(Stream(13), 4), lambda: loader_of(Stream(13), 5, drop_last=True), lambda: list(loader_of(Counted(9), 4)), lambda: loader_of(list(loader_of(Counted(9), 4)), None)):
            self.check(make)
        self.check(lambda: loader_of(Stream(13), 4), reads="all")
        self.check(lambda: loader_of(Counted(13), 4), reads="all")

    def test_a_stream_collates_own_rows_alone(self):
        def body():
            collated = []

            def collate(samples):
                collated.append(len(samples))
                return torch.utils.data.default_collate(samples)

            return [len(x) for x, _ in tessera.shard_dataloader(loader_of(Stream(9), 4, collate_fn=collate), "dp=2")], collated

        self.assertEqual(on_each("dp=2", body), [([2, 2, 1], [2, 2, 1]), ([2, 2, 0], [2, 2])])

    def test_kinds_of_batches(self):
        """Dicts, named tuples, one tensor, texts: the rows of each rank, and none of a rank without rows, in the dtypes and sizes of the others."""
        collates = {"dict": as_dict, "tuple": lambda samples: Pair(*torch.utils.data.default_collate(samples)),
                    "tensor": lambda samples: torch.stack([x for x, _ in samples])}
        for name, collate in collates.items():
            for reads in ("own", "all"):
                def body(collate=collate, reads=reads):
                    return list(tessera.shard_dataloader(loader_of(Counted(5), 4, collate_fn=collate), "dp=4", reads=reads))

                with self.subTest(batch=name, reads=reads):
                    for rank, (first, last) in enumerate(on_each("dp=4", body)):
                        for batch, samples in ((first, [rank]), (last, [4] if rank == 0 else [])):
                            want = collate([Counted(5)[i] for i in samples or [0]])
                            self.assertIs(type(batch), type(want))
                            x, labels, texts = {"dict": lambda b: (b["x"], b["more"]["label"], b["more"]["name"]), "tuple": lambda b: (*b, None),
                                                "tensor": lambda b: (b, None, None)}[name](batch)
                            self.assertEqual((list(x.shape), x[:, 0].tolist()), ([len(samples), 5], samples))
                            self.assertTrue(labels is None or labels.dtype == torch.int64 and labels.tolist() == [i % 3 for i in samples])
                            self.assertTrue(texts is None or texts == [str(i % 3) for i in samples])

    def test_a_collate_function_that_sees_the_whole_batch(self):
        def body(reads):
            loader = tessera.shard_dataloader(loader_of(Counted(12), 4, collate_fn=padded), "dp=2", reads=reads)
            return [list(x.shape) for x, _ in loader]

        self.assertEqual(on_each("dp=2", lambda: body("own")), [[[2, 2]] * 3, [[2, 4]] * 3])
        self.assertEqual(on_each("dp=2", lambda: body("all")), [[[2, 4]] * 3] * 2)

    def test_attributes_and_length(self):
        def body():
            data = Counted(13)
            loader = tessera.shard_dataloader(loader_of(data, 4), "dp=2")
            return len(loader), loader.batch_size, loader.dataset is data, loader.num_workers, hasattr(loader, "nothing"), tessera.shard_dataloader(loader, "dp=2") is loader

        self.assertEqual(run_on("dp=2", body), (4, 4, True, 0, False, True))

    def test_a_program_without_ranks(self):
        loader = tessera.shard_dataloader(loader_of(Counted(5), 4), torch.nn.Linear(2, 2))
        self.assertEqual(samples_in(loader), [[0, 1, 2, 3], [4]])

    def test_an_imagined_job(self):
        def body():
            return samples_in(tessera.shard_dataloader(loader_of(Counted(9), 4, shuffle=True), "dp=4", seed=1))

        order = torch.randperm(9, generator=torch.Generator().manual_seed(1)).tolist()
        self.assertEqual(tessera.run_fake(body, 4, rank=0), [[order[0]], [order[4]], [order[8]]])
        with self.assertRaisesRegex(RuntimeError, r"\[shard_dataloader\] a batch of 1 rows leaves rank 1 of an imagined job without any"):
            tessera.run_fake(body, 4, rank=1)


class StateTest(unittest.TestCase):
    """Where a loader stands: JSON, the same on all ranks, from which any mesh goes on."""

    def state_after(self, mesh, make, batches, **options):
        def body():
            loader = tessera.shard_dataloader(make(), mesh, **options)
            list(itertools.islice(itertools.chain(loader, loader), batches))
            return json.loads(json.dumps(loader.state_dict()))

        states = on_each(mesh, body)
        self.assertTrue(all(state == states[0] for state in states))
        return states[0]

    def test_all_kinds_of_loaders_go_on(self):
        makes = {"generator": lambda: loader_of(Counted(13), 4, shuffle=True, generator=torch.Generator().manual_seed(8)),
                 "stream": lambda: loader_of(Stream(13), 4), "list": lambda: list(loader_of(Counted(13), 4))}
        for name, make in makes.items():
            both = make()
            want = samples_in(both) + samples_in(both)
            for batches in (1, 3, 4, 5, 8):
                with self.subTest(loader=name, batches=batches):
                    state = self.state_after("dp=3", make, batches)

                    def body(state=state, make=make):
                        loader = tessera.shard_dataloader(make(), "dp=2,tp=2")
                        loader.load_state_dict(state)
                        return data_coordinate("dp=2,tp=2"), sum((samples_in(loader) for _ in range(loader.epoch, 2)), [])

                    parts = dict(on_each("dp=2,tp=2", body))
                    self.assertEqual([sum(rows, []) for rows in zip(parts[0], parts[1], strict=True)], want[batches:])

    def test_batches_before_are_not_read(self):
        state = self.state_after("dp=2", lambda: loader_of(Counted(24), 4), 4)

        def body():
            data = Counted(24)
            loader = tessera.shard_dataloader(loader_of(data, 4), "dp=2")
            loader.load_state_dict(state)
            list(loader)
            return data.reads

        self.assertEqual(on_each("dp=2", body), [[16, 17, 20, 21], [18, 19, 22, 23]])

    def test_a_pass_that_is_left_and_epochs_that_are_set(self):
        def body():
            loader = tessera.shard_dataloader(loader_of(Counted(8), 4, shuffle=True), "dp=2", seed=0)
            seen = []
            for epoch in (0, 1, 1, None, 5, None):
                if epoch is not None:
                    loader.set_epoch(epoch)
                next(iter(loader))
                seen.append((loader.epoch, loader.batch))
            list(loader)
            return seen, loader.epoch, loader.batch

        self.assertEqual(run_on("dp=2", body), ([(0, 1), (1, 1), (1, 1), (2, 1), (5, 1), (6, 1)], 8, 0))

    def test_an_epoch_that_is_set_goes_on(self):
        state = self.state_after("dp=2", lambda: loader_of(Counted(8), 2, shuffle=True), 6, seed=0)

        def body():
            loader = tessera.shard_dataloader(loader_of(Counted(8), 2, shuffle=True), "tp=2", seed=0)
            loader.load_state_dict(state)
            seen = []
            for epoch in range(loader.epoch, 3):
                loader.set_epoch(epoch)
                seen.append(sum(samples_in(loader), []))
            return seen

        orders = [torch.randperm(8, generator=torch.Generator().manual_seed(epoch)).tolist() for epoch in range(3)]
        self.assertEqual(run_on("tp=2", body), [orders[1][4:], orders[2]])

    def test_a_state_that_does_not_fit_is_told(self):
        state = self.state_after("dp=2", lambda: loader_of(Counted(24), 4, shuffle=True), 4, seed=0)
        for data, size, seed in ((Counted(24), 6, 0), (Counted(25), 4, 0), (Counted(8), 4, 0)):
            def body(data=data, size=size, seed=seed):
                loader = tessera.shard_dataloader(loader_of(data, size, shuffle=True), "dp=2", seed=seed)
                loader.load_state_dict(state)
                next(iter(loader))

            with self.assertRaisesRegex(RuntimeError, r"\[shard_dataloader\] the (first 4 batches of the epoch are not those|epoch has 2 batches, and 4 were)"):
                run_on("dp=2", body)

    def test_what_a_state_of_sharded_samplers_is_for(self):
        def loader(replicas):
            data = Counted(8)
            return lambda: loader_of(data, 2, sampler=DistributedSampler(data, replicas, tessera.rank()))

        state = self.state_parts("dp=2", loader(2))
        run_on("dp=2", lambda: tessera.shard_dataloader(loader(2)(), "dp=2").load_state_dict(state))
        with self.assertRaisesRegex(ValueError, r"in 2 parts by its sampler, for one that is in 4; accepted: the same number, or a loader without a DistributedSampler"):
            run_on("dp=4", lambda: tessera.shard_dataloader(loader(4)(), "dp=4").load_state_dict(state))

    def state_parts(self, mesh, make):
        return run_on(mesh, lambda: tessera.shard_dataloader(make(), mesh).state_dict())


class RefusalTest(unittest.TestCase):
    def refusal(self, mesh, body, kind=RuntimeError):
        with self.assertRaises(kind) as caught:
            run_on(mesh, body)
        return str(caught.exception)

    def sampled(self, replicas, coordinate):
        data = Counted(12)
        return loader_of(data, 2, sampler=DistributedSampler(data, replicas, coordinate, shuffle=False))

    def test_a_distributed_sampler_is_passed_through(self):
        def body():
            model = tessera.parallelize(make_model(), "dp=2,tp=2", batch="local")
            coordinate = data_coordinate("dp=2,tp=2")
            loader = tessera.shard_dataloader(self.sampled(2, coordinate), model)
            for x, labels in loader:
                model(x, labels).backward()
            return coordinate, loader.dataset.reads

        for coordinate, reads in on_each("dp=2,tp=2", body):
            self.assertEqual(reads, list(range(coordinate, 12, 2)))

    def test_a_distributed_sampler_of_other_parts_is_refused(self):
        error = self.refusal("dp=2,tp=2", lambda: tessera.shard_dataloader(self.sampled(4, tessera.rank()), "dp=2,tp=2"), ValueError)
        self.assertRegex(error, r"\[shard_dataloader\] the loader is cut already: by its DistributedSampler it gives this rank the rows of data rank \d of 4, and on "
                                r"Mesh\('dp=2,tp=2'\) it is \d of 2 \(rank \d\); accepted: the loader without that, or with num_replicas=2, rank=\d")
        error = self.refusal("dp=2", lambda: tessera.shard_dataloader(tessera.shard_dataloader(loader_of(Counted(8)), "dp=2"), "tp=2"), ValueError)
        self.assertIn("by shard_dataloader it gives this rank the rows of data rank", error)

    def train(self, mesh, batch, loader):
        def body():
            model = tessera.parallelize(make_model(), mesh, batch=batch)
            for x, labels in loader():
                seen.append(tessera.rank())
                model(x, labels).backward()

        seen = []
        return self.refusal(mesh, body), seen

    def test_scripts_with_a_distributed_sampler_are_refused_at_the_first_batch(self):
        for mesh, batch, replicas, says in (
                ("dp=2", "whole", 2, r"part \d of 2, and Net takes whole batches: leave the sampler out, or write tessera.parallelize\(model, plan, batch=\"local\"\)"),
                ("tp=2", "whole", 2, r"part \d of 2, and Net takes whole batches: leave the sampler out$"),
                ("dp=2,tp=2", "local", 4, r"part \d of 4: leave the sampler out and write loader = tessera.shard_dataloader\(loader, model\)")):
            with self.subTest(mesh=mesh, batch=batch):
                error, seen = self.train(mesh, batch, lambda replicas=replicas: self.sampled(replicas, tessera.rank()))
                self.assertRegex(error, r"^\[forward\] .*A DistributedSampler gives this rank " + says)
                self.assertEqual(sorted(seen), list(range(ranks_of(mesh))))
        error = self.refusal("dp=2", lambda: DistributedSampler(Counted(8)))
        self.assertIn("[DistributedSampler] its parts are those of torch.distributed's process group", error)

    def test_other_lengths_name_reads_all(self):
        error, _ = self.train("dp=2", "local", lambda: tessera.shard_dataloader(loader_of(Counted(12), 4, collate_fn=padded), "dp=2"))
        self.assertIn('tessera.shard_dataloader(loader, model, reads="all")', error)

    def test_models_that_take_whole_batches(self):
        for place, says in ((lambda: tessera.parallelize(make_model(), "dp=2"), "Net takes whole batches; accepted: a model that tessera.parallelize(model, plan, batch=\"local\")"),
                            (make_model, "Net is not placed on a mesh; accepted: ")):
            self.assertIn("[shard_dataloader] " + says, self.refusal("dp=2", lambda place=place: tessera.shard_dataloader(loader_of(Counted(8)), place()), ValueError))

    def test_words(self):
        self.assertIn('reads=\'rows\'; accepted: "own"', self.refusal("1", lambda: tessera.shard_dataloader(loader_of(Counted(8)), "1", reads="rows"), ValueError))
        self.assertIn("in_order=False", self.refusal("1", lambda: tessera.shard_dataloader(loader_of(Counted(8), num_workers=1, in_order=False), "1"), ValueError))
        self.assertIn("has no tensor with rows", self.refusal("1", lambda: list(tessera.shard_dataloader([object()], "1")), TypeError))

    def test_ranks_with_other_orders_are_told(self):
        class Own(torch.utils.data.Sampler):
            def __iter__(self):
                return iter(range(8) if tessera.rank() < 2 else range(7, -1, -1))

        error = self.refusal("dp=2,tp=2", lambda: list(tessera.shard_dataloader(loader_of(Counted(8), 4, sampler=Own()), "dp=2,tp=2")))
        self.assertRegex(error, r"\[shard_dataloader\] the loader gives other batches on ranks 2, 3 of the mesh than on rank 0: they differ at batch 1 of epoch 0")
        error = self.refusal("dp=2", lambda: list(tessera.shard_dataloader([torch.full((4, 2), float(tessera.rank()))], "dp=2")))
        self.assertIn("other batches on ranks 1 of the mesh", error)

    def test_random_numbers_of_rows_that_one_rank_reads(self):
        class Noisy(Counted):
            def __getitem__(self, index):
                x, label = super().__getitem__(index)
                return torch.cat([x[:1], x[1:] + torch.rand(4)]), label

        def body(mesh, **options):
            def of_rank():
                torch.manual_seed(0)
                batches = [x for x, _ in tessera.shard_dataloader(loader_of(Noisy(8), 4, **options.get("loader", {})), mesh, reads=options.get("reads", "own"))]
                return batches, torch.rand(3)
            return of_rank

        self.assertIn('accepted: reads="all", which draws those of one device', self.refusal("dp=2", body("dp=2")))
        torch.manual_seed(0)
        want = [x for x, _ in loader_of(Noisy(8), 4)], torch.rand(3)
        for rank, (batches, after) in enumerate(on_each("dp=2", body("dp=2", reads="all"))):
            for batch, expected in zip(batches, want[0], strict=True):
                self.assertTrue(torch.equal(batch, expected[2 * rank:2 * rank + 2]))
            self.assertTrue(torch.equal(after, want[1]))
        for batches, after in on_each("tp=2", body("tp=2")):
            self.assertTrue(torch.equal(torch.stack(batches), torch.stack(want[0])) and torch.equal(after, want[1]))
        first, second = on_each("dp=2", body("dp=2", loader={"num_workers": 1}))
        self.assertTrue(torch.equal(first[1], second[1]))
        self.assertFalse(torch.equal(first[0][0][:, 1:] - Counted(8)[0][0][1:], second[0][0][:, 1:] - Counted(8)[2][0][1:]))

    def test_a_loader_that_is_not_sharded_is_told(self):
        def body(loader):
            model = tessera.parallelize(make_model(), "dp=2", batch="local")
            for x, labels in loader():
                model(x, labels).backward()

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run_on("dp=2", lambda: body(lambda: loader_of(Counted(8))))
        self.assertEqual([str(each.message)[:71] for each in caught], ["[forward] all 2 data ranks passed the same rows, and with batch=\"local\""])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run_on("dp=2", lambda: body(lambda: tessera.shard_dataloader(loader_of(Counted(8)), "dp=2")))
            run_on("tp=2", lambda: train("tp=2", 4, 4))

if __name__ == "__main__":
    warm_python.begin()
    unittest.main()
