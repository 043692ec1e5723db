#!/usr/bin/env python3
"""Gradient accumulation: the loop of plain PyTorch, (loss / k).backward() k times and one step, means in both numerics what it
means there; the loop without the division is not run in silence.

Usage: accumulation_test.py [unittest's arguments]
"""

import copy
import hashlib
import itertools
import unittest
import warnings

import tessera
import torch
from sampling import sampled
from torch import nn
from torch.nn import functional as F

SAMPLES = 12
LATTICE = "batch=12"
MESHES = ("1", "dp=2", "tp=2", "dp=2,tp=2")
PARTS = (1, 2, 3, 4)


class Net(nn.Module):
    """Words in, scores out; its loss is a cross entropy of all of them."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 32)
        self.down = nn.Linear(32, 16)

    def scores(self, ids):
        return self.down(torch.tanh(self.up(self.norm(self.table(ids)))))

    def forward(self, ids, labels=None):
        scores = self.scores(ids)
        return scores if labels is None else F.cross_entropy(scores.flatten(0, 1), labels.flatten())


def inside(model, ids, labels):
    return model(ids, labels)


def outside(model, ids, labels):
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())


def mean(model, ids, labels):
    return model(ids).square().mean()


def mean_of_dims(model, ids, labels):
    return model(ids).square().mean((0, 1, 2))


def squares(model, ids, labels):
    return F.mse_loss(model(ids), labels.unsqueeze(-1) / 16.0 + ids.new_zeros(16).double())


def absolutes(model, ids, labels):
    return F.l1_loss(model(ids), labels.unsqueeze(-1) / 16.0 + ids.new_zeros(16).double())


def two(model, ids, labels):
    """Two losses of one pass, the second with a weight that is a power of two."""
    scores = model(ids)
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten()) + 0.25 * scores.square().mean()


def weighted(model, ids, labels):
    """As mixtures of experts weigh what balances them."""
    scores = model(ids)
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten()) + 0.01 * scores.square().mean()


def smoothed(model, ids, labels):
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), label_smoothing=0.1)


LOSSES = (inside, outside, mean, mean_of_dims, squares, absolutes, two)
MORE_IN_FAST = (weighted, smoothed,
                lambda model, ids, labels: F.smooth_l1_loss(model(ids), labels.unsqueeze(-1) / 16.0 + ids.new_zeros(16).double()),
                lambda model, ids, labels: F.binary_cross_entropy_with_logits(model(ids), F.one_hot(labels, 16).double()))


def make():
    torch.manual_seed(0)
    return Net().double(), torch.randint(16, (SAMPLES, 5)), torch.randint(16, (SAMPLES, 5))


def loop(model, ids, labels, loss_of, parts, scaled=lambda loss, parts: loss / parts):
    """One step: the mean of the printed losses, and the gradients."""
    printed = []
    for part in zip(ids.chunk(parts), labels.chunk(parts), strict=True):
        loss = loss_of(model, *part)
        scaled(loss, parts).backward()
        printed.append(loss.item())
    return printed, {name: p.grad for name, p in model.named_parameters()}


def on_mesh(mesh, loss_of, parts, accumulate, numerics, **options):
    """The same loop of the same script on every rank: the first rank's answer, gradients whole."""
    model, ids, labels = make()

    def body():
        tessera.numerics(numerics, LATTICE)
        mine = copy.deepcopy(model)
        plan = tessera.generate_plan(mine, mesh=mesh, lattice=LATTICE)
        tessera.parallelize(mine, plan, **({} if accumulate is None else {"accumulate": accumulate}))
        printed, gradients = loop(mine, ids, labels, loss_of, parts, **options)
        return printed, {name: tessera.full_tensor(gradient) for name, gradient in gradients.items()}

    return tessera.run_ranks(body, tessera.Mesh(mesh).size())


def undivided(loss, parts):
    return loss


def bits(gradients):
    digest = hashlib.sha256()
    for name in sorted(gradients):
        digest.update(gradients[name].contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


class AccumulationTest(unittest.TestCase):
    def check(self, loss_of, numerics, mesh, parts, accumulate):
        """The script's printed losses and gradients are those of plain PyTorch; gives the bits of the gradients."""
        model, ids, labels = make()
        wanted_losses, wanted = loop(model, ids, labels, loss_of, parts)
        printed, gradients = on_mesh(mesh, loss_of, parts, accumulate, numerics)
        torch.testing.assert_close(printed, wanted_losses, rtol=1e-12, atol=1e-12)
        for name, gradient in wanted.items():
            torch.testing.assert_close(gradients[name], gradient, rtol=1e-12, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")
        return bits(gradients)

    def test_fast(self):
        for loss_of in (*LOSSES, *MORE_IN_FAST):
            for mesh, parts in sampled(itertools.product(MESHES, PARTS), 4, loss_of.__name__):
                for accumulate in (parts, None) if loss_of is inside else (parts,):
                    with self.subTest(loss=loss_of.__name__, mesh=mesh, parts=parts, accumulate=accumulate), warnings.catch_warnings():
                        warnings.simplefilter("error")
                        self.check(loss_of, "fast", mesh, parts, accumulate)

    def test_exact_has_one_hash(self):
        for loss_of in LOSSES:
            seen = set()
            for mesh, parts in [("1", 1), *sampled(itertools.product(MESHES, PARTS), 5, loss_of.__name__)]:
                with self.subTest(loss=loss_of.__name__, mesh=mesh, parts=parts):
                    seen.add(self.check(loss_of, "exact", mesh, parts, parts))
            self.assertEqual(len(seen), 1, f"{loss_of.__name__}: {seen}")

    def test_exact_without_accumulate_names_it(self):
        for mesh, parts in sampled(itertools.product(MESHES, PARTS[1:]), 4):
            with self.subTest(mesh=mesh, parts=parts), self.assertRaisesRegex(RuntimeError, r"accumulate=k"):
                on_mesh(mesh, inside, parts, None, "exact")

    def test_a_loop_that_does_not_divide_is_refused_in_exact(self):
        for loss_of in LOSSES:
            for parts in sampled(PARTS[1:], 1, loss_of.__name__):
                with self.subTest(loss=loss_of.__name__, parts=parts), self.assertRaisesRegex(RuntimeError, rf"\(loss / {parts}\)\.backward\(\)"):
                    on_mesh("dp=2", loss_of, parts, parts, "exact", scaled=undivided)

    def test_a_loop_that_does_not_divide_is_warned_of_in_fast(self):
        for loss_of in (inside, outside, mean, mean_of_dims, squares, absolutes, two, *MORE_IN_FAST[1:]):
            for parts in sampled(PARTS[1:], 1, loss_of.__name__):
                with self.subTest(loss=loss_of.__name__, parts=parts), warnings.catch_warnings(record=True) as told:
                    warnings.simplefilter("always")
                    _, gradients = on_mesh("tp=2", loss_of, parts, parts, "fast", scaled=undivided)
                    self.assertEqual(sum(f"Write (loss / {parts}).backward()" in str(each.message) for each in told), 2)  # once on each rank
                    model, ids, labels = make()
                    _, wanted = loop(model, ids, labels, loss_of, parts, undivided)
                    torch.testing.assert_close(gradients, wanted, rtol=1e-12, atol=1e-12)

    def test_without_accumulate_fast_is_plain_pytorch(self):
        """A loop that sums its means, and says nothing of a step, is told nothing."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _, gradients = on_mesh("dp=2", inside, 3, None, "fast", scaled=undivided)
        torch.testing.assert_close(gradients, loop(*make(), inside, 3, undivided)[1], rtol=1e-12, atol=1e-12)

    def test_weighted_losses_in_exact(self):
        """Right in 2 and 4 micro-batches, refused in 3."""
        seen = {self.check(weighted, "exact", mesh, parts, parts) for mesh in MESHES for parts in (1, 2, 4)}
        self.assertEqual(len(seen), 1)
        with self.assertRaisesRegex(RuntimeError, "of which no exact whole is known"):
            on_mesh("1", weighted, 3, 3, "exact")

    def test_ignored_targets(self):
        """The step's mean over the targets that count, once their number is known."""
        model, ids, labels = make()
        labels[torch.rand(labels.shape) < 0.3] = -100
        wanted = loop(copy.deepcopy(model), ids, labels, inside, 1)[1]

        def on_ranks(mesh, parts, tokens):
            def body():
                tessera.numerics("exact", LATTICE)
                mine = tessera.parallelize(copy.deepcopy(model), tessera.generate_plan(model, mesh=mesh, lattice=LATTICE), accumulate=parts)
                if tokens:
                    tessera.set_step_tokens(tokens)
                return {name: tessera.full_tensor(gradient) for name, gradient in loop(mine, ids, labels, inside, parts)[1].items()}

            return tessera.run_ranks(body, tessera.Mesh(mesh).size())

        seen = set()
        for mesh in MESHES:
            for parts in PARTS:
                gradients = on_ranks(mesh, parts, int((labels != -100).sum()))
                torch.testing.assert_close(gradients, wanted, rtol=1e-12, atol=1e-12)
                seen.add(bits(gradients))
        self.assertEqual(len(seen), 1)
        with self.assertRaisesRegex(RuntimeError, r"tessera\.set_step_tokens\(n\)"):
            on_ranks("1", 3, None)

    def test_step_tokens_are_a_number(self):
        with self.assertRaisesRegex(RuntimeError, "a step of -1 tokens"):
            tessera.run_ranks(lambda: tessera.set_step_tokens(-1), 1)

    def test_two_models_with_steps_of_their_own(self):
        """A teacher that is asked between a student's micro-batches does not change what those are."""
        model, ids, labels = make()

        def on_ranks(mesh, parts):
            def body():
                tessera.numerics("exact", LATTICE)
                student, teacher = (tessera.parallelize(copy.deepcopy(model), tessera.generate_plan(model, mesh=mesh, lattice=LATTICE), accumulate=k) for k in (parts, 1))

                def distilled(student, ids, labels):
                    scores = student(ids)
                    return F.mse_loss(scores, teacher(ids).detach() + 1) + F.cross_entropy(scores.flatten(0, 1), labels.flatten())

                return {name: tessera.full_tensor(gradient) for name, gradient in loop(student, ids, labels, distilled, parts)[1].items()}

            return tessera.run_ranks(body, tessera.Mesh(mesh).size())

        self.assertEqual(len({bits(on_ranks(mesh, parts)) for mesh in MESHES for parts in PARTS}), 1)


class RecomputeClip(torch.autograd.Function):
    """A program's own, with a name like ours: no linear function of the gradient."""

    @staticmethod
    def forward(ctx, weight):
        return weight * 1.0

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-1e-3, 1e-3)


class NamesTest(unittest.TestCase):
    def test_a_function_of_the_program_may_be_called_recompute(self):
        """It computes a derivative, which in exact must not see some of the step's samples only."""
        def body():
            tessera.numerics("exact", LATTICE)
            model, ids, labels = make()
            tessera.parallelize(model, tessera.generate_plan(model, mesh="1", lattice=LATTICE), accumulate=2)
            for part in zip(ids.chunk(2), labels.chunk(2), strict=True):
                scores = F.linear(model(part[0]), RecomputeClip.apply(model.down.weight).t()[:16, :16])
                (F.cross_entropy(scores.flatten(0, 1), part[1].flatten()) / 2).backward()

        with self.assertRaisesRegex(RuntimeError, "a derivative reads the gradient of 6 of the step's 12 samples"):
            tessera.run_ranks(body, 1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
