#!/usr/bin/env python3
"""The operators that give wrong numbers without a word in PyTorch 2.13's DTensor: here right, or refused by name.

Every operand in every placement (replicated, each dim cut, partial sums), on 2 and on 3 ranks, with sizes that do not divide
and parts that are empty: the value and every gradient of one device, on every rank. A sixth of them, drawn anew; all with
TESSERA_FULL=1. Prints the counts, which docs/measured/python.md keeps.

Usage: silently_wrong_test.py [unittest's arguments]
"""

import collections
import itertools
import math
import re
import unittest

import tessera
import torch
import torch.nn.functional as F
from sampling import sampled

WORLDS = (2, 3)
DEADLINE = 20.0

# What the ranks hold of a partial sum, as parts of its value. They add up to one, exactly.
WEIGHTS = {2: (1.5, -0.5), 3: (0.5, -0.25, 0.75)}


class Case:
    """One call: `call(*operands)`. Operands that require gradients have theirs compared too."""

    def __init__(self, call, *operands):
        self.call, self.operands = call, operands

    def fresh(self):
        return [x.detach().clone().requires_grad_(x.requires_grad) for x in self.operands]


def numbers(*sizes):
    return torch.randn(sizes, dtype=torch.float64).requires_grad_()


def parts(*sizes):
    """Numbers between 0 and 1."""
    return torch.rand(sizes, dtype=torch.float64).mul(0.8).add(0.1).requires_grad_()


def signs(*sizes):
    return torch.randn(sizes, dtype=torch.float64).sign()


def below(limit, *sizes):
    return torch.randint(limit, sizes)


def ties(*sizes):
    """Numbers whose largest and whose least occur more than once, in parts of different ranks."""
    return torch.randint(-2, 3, sizes).double().requires_grad_()


def masked(*sizes):
    """Numbers with rows of minus infinity."""
    x = torch.randn(sizes, dtype=torch.float64)
    x[..., 1, :] = -math.inf
    return x.requires_grad_()


def call(function, *args, **options):
    """The function of tensors alone."""
    return lambda *operands: function(*operands, *args, **options)


def losses(function, target, **options):
    """A loss of an input and a target, under every reduction."""
    for reduction in ("mean", "sum", "none"):
        for sizes in ((), (5,), (5, 3)):
            yield Case(call(function, reduction=reduction, **options), parts(*sizes), target(*sizes))


def weighted_losses(function):
    """The losses of probabilities, which take weights."""
    yield from losses(function, parts)
    for reduction in ("mean", "sum", "none"):
        yield Case(lambda x, y, w, how=reduction: function(x, y, w, reduction=how), parts(5, 3), parts(5, 3), parts(5, 3).detach())


def convolutions(function, *shapes, **options):
    """Convolutions of (input, weight), each with and without a batch dim. A bias where `bias` says its length."""
    bias = options.pop("bias", None)
    operands = [numbers(*shapes[1])] + ([numbers(bias)] if bias else [])
    for image in (shapes[0], shapes[0][1:]):
        yield Case(call(function, **options), numbers(*image), *operands)


def linear_losses(**options):
    """Of class numbers."""
    loss = lambda x, w, y, *bias: F.linear_cross_entropy(x, w, y, linear_bias=bias[0] if bias else None, **options)
    yield Case(loss, numbers(5, 3), numbers(4, 3), below(4, 5))
    yield Case(loss, numbers(5, 3), numbers(4, 3), below(4, 5), numbers(4))
    yield Case(loss, numbers(3), numbers(4, 3), below(4))


def whole_linear_losses():
    for reduction in ("mean", "sum", "none"):
        yield from linear_losses(reduction=reduction)
        yield Case(call(F.linear_cross_entropy, reduction=reduction), numbers(5, 3), numbers(4, 3), parts(5, 4))


def scatters(function):
    for dim in (0, 1, -1):
        index = torch.stack([torch.randperm(5) for _ in range(5)], -1 if dim == 0 else 0)
        yield Case(lambda x, i, y, dim=dim: function(x, dim, i, y), numbers(7, 5), index, numbers(5, 5))
        yield Case(lambda x, i, y, dim=dim: function(x, dim, i, y), numbers(7, 5), index[:3, :2].clone(), numbers(3, 2))
    yield Case(lambda x, i, y: function(x, 0, i, y), numbers(), below(1), numbers())


def norms(function, orders):
    for order in orders:
        yield Case(call(function, order), numbers(5, 3))
        yield Case(call(function, order), ties(5, 3))
        yield Case(call(function, order, 1), numbers(5, 3))
        yield Case(call(function, order, -1, True), ties(5, 3))
        yield Case(call(function, order), numbers())


def chunked_linear_losses():
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=2)
    for reduction in ("mean", "sum"):
        yield from linear_losses(reduction=reduction, options=options)


VARIANTS = {
    "_safe_softmax": lambda: [
        Case(call(torch.ops.aten._safe_softmax.default, dim), make(5, 3, 2)) for dim in (0, 1, -1) for make in (numbers, masked)],
    "adaptive_avg_pool2d": lambda: [
        Case(call(F.adaptive_avg_pool2d, size), numbers(*sizes))
        for size in ((3, 5), (None, 5), (5, None), 1, 4) for sizes in ((2, 3, 7, 4), (3, 7, 4))],
    "addcdiv": lambda: [
        Case(call(torch.addcdiv, value=value), numbers(*a), numbers(*b), parts(*c))
        for value in (1, 3.14) for a, b, c in (((5, 3), (5, 3), (5, 3)), ((5, 3), (5, 1), (1, 3)), ((5, 3), (), ()), ((), (5, 3), (3,)))],
    "amax": lambda: [
        Case(call(torch.amax, **options), make(*sizes))
        for make in (numbers, ties) for sizes, options in (
            ((5, 3), {}), ((5, 3), {"dim": 0}), ((5, 3), {"dim": -1, "keepdim": True}), ((5, 3), {"dim": (0, 1)}),
            ((3, 2, 1, 2), {"dim": (0, -1), "keepdim": True}), ((2,), {}), ((), {}))],
    "binary_cross_entropy": lambda: weighted_losses(F.binary_cross_entropy),
    "binary_cross_entropy_with_logits": lambda: weighted_losses(F.binary_cross_entropy_with_logits),
    "conv1d": lambda: [
        *convolutions(F.conv1d, (2, 3, 7), (4, 3, 3), bias=4, stride=2, padding=2),
        *convolutions(F.conv1d, (1, 4, 7), (6, 2, 3), bias=6, groups=2, dilation=2, padding="same"),
        *convolutions(F.conv1d, (3, 3, 5), (1, 3, 3))],
    "conv2d": lambda: [
        *convolutions(F.conv2d, (2, 3, 5, 4), (4, 3, 3, 3), bias=4, stride=2, padding=(2, 1)),
        *convolutions(F.conv2d, (1, 4, 5, 5), (4, 1, 3, 2), bias=4, groups=4, padding="same"),
        *convolutions(F.conv2d, (3, 2, 4, 3), (3, 2, 2, 2))],
    "conv3d": lambda: [
        *convolutions(F.conv3d, (2, 3, 4, 3, 3), (2, 3, 2, 2, 2), bias=2, stride=2, padding=1),
        *convolutions(F.conv3d, (1, 2, 3, 4, 5), (2, 1, 1, 2, 3), groups=2, padding="same")],
    "conv_transpose1d": lambda: [
        *convolutions(F.conv_transpose1d, (2, 3, 4), (3, 4, 3), bias=4, stride=2, padding=2, output_padding=1),
        *convolutions(F.conv_transpose1d, (1, 4, 5), (4, 3, 3), bias=6, groups=2, dilation=2)],
    "conv_transpose2d": lambda: [
        *convolutions(F.conv_transpose2d, (2, 3, 4, 4), (3, 4, 3, 3), bias=4, stride=2, padding=2, output_padding=1),
        *convolutions(F.conv_transpose2d, (1, 4, 3, 5), (4, 1, 3, 2), groups=4)],
    "conv_transpose3d": lambda: [
        *convolutions(F.conv_transpose3d, (2, 3, 2, 3, 2), (3, 2, 2, 2, 2), bias=2, stride=2, padding=1, output_padding=1),
        *convolutions(F.conv_transpose3d, (1, 2, 3, 3, 3), (2, 1, 2, 2, 2), groups=2)],
    "cosine_embedding_loss": lambda: [
        Case(call(F.cosine_embedding_loss, margin=0.2, reduction=reduction), numbers(*sizes), numbers(*sizes), signs(*sizes[:-1]))
        for reduction in ("mean", "sum", "none") for sizes in ((5, 3), (5,))],
    "huber_loss": lambda: [*losses(F.huber_loss, numbers), *losses(F.huber_loss, numbers, delta=0.3)],
    "lerp": lambda: [
        *(Case(call(torch.lerp, 0.4), numbers(*a), numbers(*b)) for a, b in (((5, 3), (5, 3)), ((5, 3), (3,)), ((5, 3), ()), ((5, 1), (5, 3)))),
        *(Case(torch.lerp, numbers(*a), numbers(*b), parts(*c))
          for a, b, c in (((5, 3), (5, 3), (5, 3)), ((5, 3), (5, 1), (3,)), ((3,), (2, 5, 3), (5, 3))))],
    "linalg.vector_norm": lambda: [
        *norms(torch.linalg.vector_norm, (0, 0.9, 1, 2, 4, -2.1, math.inf, -math.inf)),
        *(Case(call(torch.linalg.vector_norm, order, dim), ties(3, 2, 1, 2)) for order in (2, math.inf) for dim in ((0, 1), (), (0, -1)))],
    "linear_cross_entropy": whole_linear_losses,
    "linear_cross_entropy.chunked": chunked_linear_losses,
    "logcumsumexp": lambda: [
        Case(call(torch.logcumsumexp, dim), numbers(*sizes)) for sizes, dim in (((5, 3, 2), 0), ((5, 3, 2), 1), ((5, 3, 2), -1), ((), 0))],
    "mse_loss": lambda: [*losses(F.mse_loss, numbers), Case(F.mse_loss, numbers(5, 3, 2), numbers(5, 3, 2))],
    "norm.inf": lambda: norms(torch.norm, (math.inf, -math.inf)),
    "scatter": lambda: [*scatters(torch.scatter), Case(lambda x, i: torch.scatter(x, 0, i, 2.5), numbers(5, 3), below(5, 2, 3))],
    "scatter_add": lambda: scatters(torch.scatter_add),
    "select": lambda: [
        Case(call(torch.select, dim, index), numbers(*sizes))
        for sizes, dim, index in (((5, 3, 2), 1, 2), ((5, 3, 2), -1, 1), ((5, 3, 2), -1, -1), ((5, 3), -1, 2), ((5, 3), 0, -1), ((5,), 0, 2))],
    "smooth_l1_loss": lambda: [*losses(F.smooth_l1_loss, numbers), *losses(F.smooth_l1_loss, numbers, beta=0.3)],
    "soft_margin_loss": lambda: losses(F.soft_margin_loss, signs),
    "squeeze_copy": lambda: [
        *(Case(torch.squeeze_copy, numbers(*sizes)) for sizes in ((5, 1, 3, 1), (1, 1), ())),
        *(Case(call(torch.squeeze_copy, dim), numbers(5, 1, 3, 1)) for dim in (1, 2, -1, -2, -3, (1, -1)))],
}


def empty_parts():
    """Fewer rows than ranks: such a part raises on its rank in PyTorch, while the others wait."""
    for function in (torch.amax, torch.amin, torch.softmax, torch.cumsum, torch.logsumexp, torch.sum):
        for sizes in ((1,), (2,), (1, 3), (2, 1)):
            yield Case(call(function, 0), numbers(*sizes))


def part_of(value, rank, ranks):
    """What `rank` holds of a partial sum that is `value`: of integers, parts that no index may be mistaken for."""
    if not value.is_floating_point():
        return value - 1000 * (ranks - 1) if rank == 0 else torch.full_like(value, 1000)
    spread = torch.where(value.isinf(), 0.0, value) * WEIGHTS[ranks][rank]
    return torch.where(value.isinf(), value, spread) if rank == 0 else spread


def place(value, mesh, placement):
    if isinstance(placement, tessera.Partial):
        placed = tessera.from_local(part_of(value.detach(), tessera.rank(), mesh.size()), mesh, [placement])
    else:
        placed = tessera.distribute_tensor(value.detach(), mesh, [placement])
    return placed.detach().requires_grad_(value.requires_grad)


def whole(value):
    return value.full_tensor() if isinstance(value, tessera.DTensor) else value


def results(case, operands):
    """The whole output of the call, and the whole gradients of its operands."""
    output = whole(case.call(*operands))
    output.mul(torch.arange(output.numel(), dtype=output.dtype).cos().reshape(output.shape)).sum().backward()
    return [output.detach(), *(None if x.grad is None else whole(x.grad) for x in operands)]


def difference(got, want):
    """How the results of a call differ, empty if they do not."""
    for what, a, b in zip(("the output", "gradient 0", "gradient 1", "gradient 2", "gradient 3"), got, want):
        if (a is None) != (b is None):
            return f"{what} is missing on one side"
        if a is not None and (a.shape != b.shape or a.dtype != b.dtype):
            return f"{what} is {a.dtype}{tuple(a.shape)} instead of {b.dtype}{tuple(b.shape)}"
        if a is not None and not torch.allclose(a, b, rtol=1e-9, atol=1e-10, equal_nan=True):
            return f"{what} is off by {(a - b).abs().max().item():.3g}"
    return ""


def is_refusal(outcome):
    """An error that begins with the operator's name, and not one about ranks that waited for each other."""
    named = isinstance(outcome, Exception) and re.match(r"\[(?:aten::)?(\w+)", str(outcome))
    return bool(named) and not isinstance(outcome, tessera.CommError) and hasattr(torch.ops.aten, named.group(1))


def first_line(outcome):
    return str(outcome).partition("\n")[0]


def outcome_of(case, placements, ranks, want):
    """right, refused or wrong; and why."""
    outcomes = [None] * ranks

    def body():
        mesh = tessera.init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
        try:
            operands = [place(x, mesh, placement) for x, placement in zip(case.operands, placements)]
            outcomes[tessera.rank()] = difference(results(case, operands), want)
        except Exception as error:
            outcomes[tessera.rank()] = error

    tessera.run_ranks(body, ranks, deadline=DEADLINE)
    if all(outcome == "" for outcome in outcomes):
        return "right", ""
    if all(map(is_refusal, outcomes)):
        return "refused", first_line(outcomes[0])
    return "wrong", "; ".join(f"rank {rank}: {first_line(outcome)}" for rank, outcome in enumerate(outcomes) if outcome != "")


class SilentlyWrongTest(unittest.TestCase):
    counts, refusals = {}, {}

    def check(self, name, make_cases):
        counts = self.counts.setdefault(name, collections.Counter())
        torch.manual_seed(0)
        cases = list(make_cases())
        for number, case in enumerate(sampled(cases, -(-len(cases) // 3), name)):
            want = results(case, case.fresh())
            kinds = [[tessera.Replicate(), *map(tessera.Shard, range(x.dim())), tessera.Partial()] for x in case.operands]
            every = list(itertools.product(WORLDS, itertools.product(*kinds)))
            for ranks, placements in sampled(every, -(-len(every) // 2), f"{name} {number}"):
                verdict, why = outcome_of(case, placements, ranks, want)
                counts[verdict] += 1
                if verdict == "refused":
                    self.refusals.setdefault(name, why)
                operands = ", ".join(f"{tuple(x.shape)} {p}" for x, p in zip(case.operands, placements))
                with self.subTest(operands=operands, ranks=ranks):
                    self.assertNotEqual(verdict, "wrong", why)

    def test_empty_parts(self):
        self.check("empty parts", empty_parts)

    def test_flattened_axes_keep_every_row(self):
        """Two axes on one dim are as their flattened axis is, also where it does not divide."""
        split, rows_of_ranks = tessera.Mesh("dp=2,tp=3"), {}
        flat = split.flatten(["dp", "tp"], "all")

        def body(x):
            two, one = tessera.distribute_tensor(x, split, [tessera.Shard(0)] * 2), tessera.distribute_tensor(x, flat, [tessera.Shard(0)])
            rows_of_ranks[tessera.rank()] = one.to_local().size(0)
            for value in (two, two.redistribute(flat, [tessera.Shard(0)]), one.redistribute(split, [tessera.Shard(0)] * 2),
                          one.redistribute(split, [tessera.Shard(1), tessera.Shard(0)])):
                self.assertTrue(torch.equal(value.full_tensor(), x), repr(value))
                self.assertTrue(torch.equal(value.flatten().sum(0).full_tensor(), x.sum()), repr(value))

        for rows in range(1, 14):
            x = torch.arange(rows * 2.0).reshape(rows, 2)
            tessera.run_ranks(lambda: body(x), split.size(), deadline=DEADLINE)
            self.assertEqual(sum(rows_of_ranks.values()), rows)

    @classmethod
    def tearDownClass(cls):
        print(f"\n{'variant':34}{'right':>8}{'refused':>8}{'wrong':>8}")
        for name, counts in cls.counts.items():
            print(f"{name:34}" + "".join(f"{counts[kind]:8}" for kind in ("right", "refused", "wrong")))
        for name, why in cls.refusals.items():
            print(f"{name}, refused for example: {why}")


def add_test(name, make_cases):
    setattr(SilentlyWrongTest, "test_" + name.replace(".", "_").lstrip("_"), lambda self: self.check(name, make_cases))


for variant, cases_of_variant in VARIANTS.items():
    add_test(variant, cases_of_variant)

if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
