#!/usr/bin/env python3
"""Batches of which each data rank passes its own rows: the numbers of all rows on one device, in `exact` the bits of the whole batch on every rank.

Usage: local_rows_test.py [unittest's arguments]
"""

import copy
import unittest

import tessera
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

DEADLINE = 20.0
# Of each mesh, how many of 12 rows the data coordinates pass: equal parts, uneven ones, and some without rows.
CUTS = {
    "dp=2": [(6, 6), (7, 5), (1, 11), (12, 0)],
    "dp=3": [(4, 4, 4), (5, 0, 7)],
    "tp=2": [(12,)],
    "dp=2,tp=2": [(6, 6), (4, 8)],
    "fsdp=2": [(6, 6), (5, 7), (0, 12)],
    "dp=2,fsdp=2": [(3, 3, 3, 3), (4, 2, 1, 5)],
    "fsdp=2,dp=2": [(3, 3, 3, 3), (4, 4, 4, 0)],
    "dp=2,tp=2,fsdp=2": [(2, 3, 4, 3)],
}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.up, self.down = torch.nn.Embedding(11, 8), torch.nn.Linear(8, 16), torch.nn.Linear(16, 5)
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, ids, labels=None, weights=None):
        hidden = torch.nn.functional.dropout(torch.tanh(self.up(self.table(ids))), 0.25 if weights is None else 0.0)
        scores = self.down(hidden.mean(1)) * self.scale
        return scores if labels is None else torch.nn.functional.cross_entropy(scores, labels, weights)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def make_model():
    model = Net().double()
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator(seed), dtype=torch.float64))
    return model


def batch_of(step, rows=12):
    return torch.randint(11, (rows, 5), generator=generator(step)), torch.randint(5, (rows,), generator=generator(step + 100))


def data_coordinate(mesh):
    """Of the calling rank: replicas slowest, whatever the order of the mesh."""
    index = 0
    for axis in ("dp", "fsdp"):
        if axis in mesh.mesh_dim_names:
            index = index * mesh.size(axis) + mesh.get_local_rank(axis)
    return index


def own_rows(batch, mesh, counts):
    index = data_coordinate(tessera.Mesh(mesh))
    begin = sum(counts[:index])
    return [value[begin:begin + counts[index]] for value in batch]


def ranks_of(mesh):
    return tessera.Mesh(mesh).size()


class LocalRowsTest(unittest.TestCase):
    def run_on(self, mesh, body):
        return tessera.run_ranks(body, ranks_of(mesh), deadline=DEADLINE)

    def refusal(self, mesh, body, **options):
        with self.assertRaises(RuntimeError) as caught:
            self.run_on(mesh, lambda: body(tessera.parallelize(make_model(), mesh, batch=options.get("batch", "local"))))
        return str(caught.exception)

    def test_one_devices_numbers(self):
        weights = torch.tensor([1.0, 2.0, 0.5, 1.5, 0.7], dtype=torch.float64)  # as long as some ranks' rows

        def train(model, rows, full):
            optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
            losses = []
            for step in range(3):
                optimizer.zero_grad()
                loss = model(*rows(batch_of(step)), weights=weights)
                loss.backward()
                optimizer.step()
                losses.append(full(loss.detach()))
            with torch.no_grad():
                losses.append(full(model(*rows(batch_of(3)), weights=weights)))
            return torch.stack(losses), [full(parameter.detach()) for parameter in model.parameters()]

        losses, parameters = train(make_model(), lambda batch: batch, torch.clone)
        for mesh, cuts in CUTS.items():
            for counts in cuts:
                with self.subTest(mesh=mesh, counts=counts):
                    got, values = self.run_on(mesh, lambda mesh=mesh, counts=counts: train(
                        tessera.parallelize(make_model(), mesh, batch="local"), lambda batch: own_rows(batch, mesh, counts), tessera.full_tensor))
                    torch.testing.assert_close(got, losses, rtol=1e-12, atol=1e-12)
                    for value, expected in zip(values, parameters, strict=True):
                        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-11)

    def test_bits_of_the_whole_batch(self):
        """With dropout, in leaves of two rows of which some ranks pass halves, in steps of one pass and of two."""
        def train(mesh, passes, rows, batch):
            tessera.manual_seed(5)
            tessera.numerics("exact", "batch=6")
            model = tessera.parallelize(make_model().float(), mesh, accumulate=passes, batch=batch)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            seen = []
            for step in range(2):
                optimizer.zero_grad()
                ids, labels = batch_of(step, 12 * passes)
                for part in zip(ids.chunk(passes), labels.chunk(passes)):
                    (model(*rows(part)) / passes).backward()
                seen += [tessera.full_tensor(parameter.grad) for parameter in model.parameters()]
                optimizer.step()
            return seen + [tessera.full_tensor(parameter.detach()) for parameter in model.parameters()]

        for passes in (1, 2):
            want = self.run_on("1", lambda passes=passes: train("1", passes, lambda batch: batch, "whole"))
            for mesh, cuts in CUTS.items():
                for counts in cuts[1:3] or cuts:
                    with self.subTest(mesh=mesh, counts=counts, passes=passes):
                        got = self.run_on(mesh, lambda mesh=mesh, counts=counts, passes=passes: train(mesh, passes, lambda batch: own_rows(batch, mesh, counts), "local"))
                        self.assertTrue(all(torch.equal(a, b) for a, b in zip(got, want, strict=True)))

    def test_equal_parts_do_not_move(self):
        """A pass costs one exchange of a few numbers; rows that are another rank's move, and no others."""
        def sent(mesh, counts):
            def body():
                model = tessera.parallelize(make_model(), mesh, batch="local")
                with torch.no_grad():
                    for step in range(3):
                        before = sum(entry["bytes"] for entry in tessera.ledger()["entries"] if entry["op"] == "redistribute")
                        model(own_rows(batch_of(step), mesh, counts)[0])
                    after = sum(entry["bytes"] for entry in tessera.ledger()["entries"] if entry["op"] == "redistribute")
                return after - before
            return self.run_on(mesh, body)

        self.assertEqual(sent("dp=2", (6, 6)), 0)
        self.assertEqual(sent("dp=3", (4, 4, 4)), 0)
        self.assertGreater(sent("dp=2", (7, 5)), 0)
        self.assertLessEqual(sent("dp=2", (7, 5)), 2 * 5 * 8)

    def test_a_sampler_of_each_data_rank(self):
        """Every sample is read once by each rank of its data coordinate, the tail too; the loop is PyTorch's."""
        class Counted(Dataset):
            def __init__(self):
                self.reads = []

            def __len__(self):
                return 26

            def __getitem__(self, index):
                self.reads.append(index)
                ids, labels = batch_of(index, 1)
                return ids[0], labels[0]

        class Tail(DistributedSampler):
            """Without the samples that it repeats."""

            def __iter__(self):
                return iter(range(self.rank, len(self.dataset), self.num_replicas))

        def body():
            mesh, data = tessera.Mesh("dp=3,tp=2"), Counted()
            model = tessera.parallelize(make_model(), mesh, batch="local")
            loader = DataLoader(data, 3, sampler=Tail(data, num_replicas=3, rank=mesh.get_local_rank("dp"), shuffle=False))
            losses = [tessera.full_tensor(model(ids, labels, weights=torch.ones(5).double()).detach()).item() for ids, labels in loader]
            reads[tessera.rank()] = data.reads
            return losses

        reads = {}
        losses = self.run_on("dp=3,tp=2", body)
        self.assertEqual(reads[0], reads[1])
        self.assertEqual(sorted(reads[0] + reads[2] + reads[4]), list(range(26)))
        self.assertEqual(len(losses), 3)
        plain, data = make_model(), Counted()
        for step, loss in enumerate(losses):
            samples = [rank + 3 * place for rank in range(3) for place in range(3 * step, 3 * step + 3) if rank + 3 * place < 26]
            ids, labels = (torch.stack(values) for values in zip(*(data[index] for index in samples), strict=True))
            self.assertAlmostEqual(loss, plain(ids, labels, weights=torch.ones(5).double()).item(), delta=1e-12)

    def test_targets_outside_of_the_model_and_gradients_of_the_batch(self):
        class Scores(torch.nn.Linear):
            pass

        torch.manual_seed(0)
        plain, x, y = Scores(6, 4).double(), torch.randn(8, 6).double(), torch.randint(4, (8,))

        def run(model, x, place, full):
            x = x.clone().requires_grad_()
            torch.nn.functional.cross_entropy(model(x), place(model, y)).backward()
            return x.grad, [full(parameter.grad) for parameter in model.parameters()]

        gradient, want = run(copy.deepcopy(plain), x, lambda model, value: value, torch.clone)
        for counts in ((4, 4), (5, 3), (8, 0)):
            def body(counts=counts):
                rows = slice(0, counts[0]) if tessera.rank() == 0 else slice(counts[0], 8)
                own, found = run(tessera.parallelize(copy.deepcopy(plain), "dp=2", batch="local"), x[rows],
                                 lambda model, value: tessera.place_rows(model, value[rows]), tessera.full_tensor)
                parts[tessera.rank()] = own
                return found

            parts = {}
            with self.subTest(counts=counts):
                for value, expected in zip(self.run_on("dp=2", body), want, strict=True):
                    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)
                torch.testing.assert_close(torch.cat([parts[0], parts[1]]), gradient, rtol=1e-12, atol=1e-14)

    def test_an_imagined_job(self):
        """Whose other ranks pass as many rows as this one."""
        def body():
            model = tessera.parallelize(make_model(), "dp=4", batch="local")
            with torch.no_grad():
                return model(batch_of(0, 3)[0]).shape

        self.assertEqual(tessera.run_fake(body, 4, rank=2), (12, 5))

    def test_what_makes_no_batch_is_refused(self):
        def ids(rows, length=5, seed=0):
            return torch.randint(11, (rows, length), generator=generator(seed))

        error = self.refusal("dp=2", lambda model: model(ids(2, 5 + tessera.rank())))
        self.assertIn("[forward] the ranks' own rows are no rows of one batch: they differ in more than the number of rows: argument 0 is Long[2, 5] on rank 0, "
                      "Long[2, 6] on rank 1 (rank ", error)
        self.assertIn("pad them to one length", error)
        error = self.refusal("dp=2", lambda model: model(ids(2), labels=torch.zeros(2 + tessera.rank(), dtype=torch.long)))
        self.assertIn("neither as many rows as the first on every rank nor the same number on all: labels is Long[2] on rank 0, Long[3] on rank 1", error)
        error = self.refusal("dp=2,tp=2", lambda model: model(ids(2 + tessera.rank() % 2)))
        self.assertIn("have other rows on ranks of one data coordinate: argument 0 is Long[2, 5] on ranks 0, 2, Long[3, 5] on ranks 1, 3", error)
        error = self.refusal("dp=2,tp=2", lambda model: model(ids(2, seed=tessera.rank())))
        self.assertIn("[forward] ranks of one data coordinate were given different rows: argument 0 is Long[2, 5] on rank ", error)
        self.assertIn("give a sampler these coordinates, not the rank", error)
        error = self.refusal("dp=2", lambda model: model(ids(2), torch.zeros(2, dtype=torch.long), weights=torch.full((5,), 1.0 + tessera.rank()).double()))
        self.assertIn("[forward] tensors that are no rows of the batch differ between ranks: weights is Double[5] on rank 0, other values on rank 1", error)
        error = self.refusal("dp=2", lambda model: model(ids(1)) - torch.full((1, 5), float(tessera.rank())))
        self.assertIn("a plain operand differs between ranks: other is Float[1, 5] on rank 0, other values on rank 1", error)
        self.assertIn("tessera.place_rows(model, rows)", error)

    def test_refusals_say_what_to_write(self):
        error = self.refusal("dp=2", lambda model: model(torch.full((2, 5), tessera.rank())), batch="whole")
        self.assertIn("""where each data rank has its own rows (a sampler's), tessera.parallelize(..., batch="local")""", error)
        with self.assertRaisesRegex(ValueError, r"batch \"mine\"; accepted: \"whole\", the same rows on every rank, and \"local\", each data rank's own"):
            self.run_on("dp=2", lambda: tessera.parallelize(make_model(), "dp=2", batch="mine"))
        with self.assertRaisesRegex(ValueError, r"\[place_rows\] Net has 0 placed models in it"):
            self.run_on("1", lambda: tessera.place_rows(make_model(), torch.zeros(2)))


if __name__ == "__main__":
    unittest.main()
