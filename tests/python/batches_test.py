#!/usr/bin/env python3
"""Ranks that are handed different batches, each its own instead of the one of all: an error that says which, where, and what to write.

Usage: batches_test.py [unittest's arguments]
"""

import unittest

import tessera
import torch

DEADLINE = 20.0


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 8), torch.nn.Linear(8, 4)

    def forward(self, x, labels=None, extra=None):
        scores = self.second(torch.tanh(self.first(x)))
        return scores if labels is None else torch.nn.functional.cross_entropy(scores, labels)


def numbers(seed, *sizes):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(seed, count):
    return torch.randint(4, (count,), generator=torch.Generator().manual_seed(seed))


def make_model():
    model = Classifier().double()
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(numbers(seed, *parameter.shape))
    return model


class BatchesTest(unittest.TestCase):
    def refusal(self, body, ranks=2, mesh="dp=2"):
        with self.assertRaises(RuntimeError) as caught:
            tessera.run_ranks(lambda: body(tessera.parallelize(make_model(), mesh)), ranks, deadline=DEADLINE)
        return str(caught.exception)

    def test_each_ranks_own_batch_is_refused(self):
        error = self.refusal(lambda model: model(numbers(0, 8, 6), labels=labels(tessera.rank(), 8)))
        self.assertIn("[forward] the ranks were given different batches: labels is Long[8] on rank 0, other values on rank 1 (rank ", error)
        self.assertIn("Accepted: the whole batch on every rank", error)
        self.assertIn("""where each data rank has its own rows (a sampler's), tessera.parallelize(..., batch="local")""", error)
        error = self.refusal(lambda model: model(numbers(tessera.rank(), 8, 6), labels(0, 8)))
        self.assertIn(": argument 0 is Double[8, 6] on rank 0, other values on rank 1 (rank ", error)
        error = self.refusal(lambda model: model(numbers(0, 8, 6), extra={"masks": [numbers(0, 8), numbers(tessera.rank(), 8)]}), ranks=4, mesh="dp=2,tp=2")
        self.assertIn(": extra['masks'][1] is Double[8] on rank 0, other values on ranks 1, 2, 3 (rank ", error)
        error = self.refusal(lambda model: model(numbers(0, 8 - tessera.rank(), 6)), mesh="tp=2")
        self.assertIn(": argument 0 is Double[8, 6] on rank 0, Double[7, 6] on rank 1 (rank ", error)
        self.assertNotIn("local", error)

    def test_gradients_of_the_batch(self):
        """A plain tensor of the batch gets its whole gradient, on every rank; so does a DTensor, and torch.func sees both."""
        def loss(model, x):
            return model(x, labels(1, 6))

        def gradients(model, make=lambda value: value):
            x = make(numbers(3, 6, 6)).requires_grad_()
            loss(model, x).backward()
            func = torch.func.grad(lambda value: loss(model, value))(make(numbers(3, 6, 6)))
            return [tessera.full_tensor(value) for value in (x.grad, func, torch.func.vjp(lambda value: loss(model, value), x.detach())[1](torch.tensor(1.0).double())[0])]

        expected = gradients(make_model())[0]
        self.assertGreater(expected.abs().min().item(), 0)
        for mesh, ranks in (("tp=2", 2), ("dp=3", 3), ("dp=2,tp=2", 4)):
            def rows(value):
                return tessera.distribute_tensor(value, tessera.Mesh(mesh), "{dp: S(0)}" if "dp" in mesh else "{}")

            for make in (lambda value: value, rows):
                for found in tessera.run_ranks(lambda: gradients(tessera.parallelize(make_model(), mesh), make), ranks, deadline=DEADLINE):
                    self.assertIsNotNone(found)
                    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)

    def test_targets_outside_of_the_model_are_compared_too(self):
        error = self.refusal(lambda model: torch.nn.functional.cross_entropy(model(numbers(0, 8, 6)), labels(tessera.rank(), 8)))
        self.assertRegex(error, r"\[cross_entropy_loss -> nll_loss_forward\] a plain operand differs between ranks: target is Long\[8\] on rank 0, other values on rank 1 \(rank ")

    def test_a_later_batch_is_found_soon(self):
        def calls(first_wrong):
            def body(model):
                for call in range(1, 2 * first_wrong + 1):
                    seen[tessera.rank()] = call
                    model(numbers(tessera.rank() if call >= first_wrong else 0, 8, 6))
            return body

        seen = {}
        for first_wrong, found in ((1, 1), (2, 2), (3, 4), (5, 8), (8, 8)):
            self.assertIn("different batches", self.refusal(calls(first_wrong)))
            self.assertEqual(seen, {0: found, 1: found})

    def test_what_is_accepted(self):
        """The whole batch on every rank, and parts with their placement: the loss and gradients of one device."""
        def train(*batch):
            model = make_model()
            if tessera.in_rank():
                tessera.parallelize(model, "dp=2,tp=2")
            results = []
            for _ in range(3):
                loss = model(*batch)
                model.zero_grad()
                loss.backward()
                results += [loss.detach(), *(p.grad for p in model.parameters())]
            return [tessera.full_tensor(x) if isinstance(x, tessera.DTensor) else x for x in results]

        def of_parts():
            mesh = tessera.Mesh("dp=2,tp=2")
            rows = slice(4 * mesh.get_local_rank("dp"), 4 * mesh.get_local_rank("dp") + 4)
            return train(*(tessera.from_local(x[rows], mesh, "{dp: S(0), tp: R}") for x in batch))

        batch = numbers(0, 8, 6), labels(0, 8)
        want = train(*batch)
        for way, got in (("whole", tessera.run_ranks(lambda: train(*batch), 4, deadline=DEADLINE)), ("parts", tessera.run_ranks(of_parts, 4, deadline=DEADLINE))):
            with self.subTest(way=way):
                for a, b in zip(got, want, strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)

    def test_calls_inside_of_torch_func(self):
        """A derivative by the parameters, while torch's transforms see every operator."""
        x = numbers(0, 8, 6)

        def body():
            model = make_model()
            if tessera.in_rank():
                tessera.parallelize(model, "tp=2")
            found = torch.func.grad(lambda parameters: torch.func.functional_call(model, parameters, (x,)).square().sum())(dict(model.named_parameters()))
            return [tessera.full_tensor(value) if tessera.in_rank() else value for value in found.values()]

        for got, want in zip(tessera.run_ranks(body, 2, deadline=DEADLINE), body(), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


if __name__ == "__main__":
    unittest.main()
