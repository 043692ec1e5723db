#!/usr/bin/env python3
"""Programs that do something between the modules of a pipeline, or change from step to step: under schedules they have one rank's bits.

Usage: between_modules_test.py [unittest's arguments]
"""

import types
import unittest

import tessera
import torch
import warm_python
from torch import nn
from torch.nn import functional as F

WIDTH, STEPS, CHANGES = 16, 6, 4
RUNS = (("pp=2", "1f1b"), ("pp=4", "1f1b"), ("pp=2", "interleaved"), ("pp=2", "zbv"))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


class Pair(Block):
    """Its second part reads what the first one gave, and what that one was given."""

    def __init__(self):
        super().__init__()
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        inner = super().forward(x)
        return inner + torch.tanh(self.second(inner + torch.sigmoid(x)))


class Split(Block):
    """Reads halves of a parameter."""

    def __init__(self):
        super().__init__()
        self.both = nn.Parameter(torch.randn(2 * WIDTH, WIDTH) * 0.2)

    def forward(self, x):
        a, b = self.both.split([WIDTH, WIDTH])
        return x + torch.tanh(self.linear(x) + F.linear(x, a) + F.linear(x * 0.5, b))


class Turned(Block):
    """Reads its input as it lies otherwise in memory."""

    def forward(self, x):
        return x + torch.tanh(self.linear(x.transpose(0, 1))).transpose(0, 1)


class Recurrent(Block):
    """Its result becomes a view of itself (`transpose_`)."""

    def __init__(self):
        super().__init__()
        self.recurrent = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return super().forward(self.recurrent(x)[0])


class Asking(Block):
    """Asks whether it is given one tensor twice."""

    def forward(self, x, other):
        return super().forward(x * 0.5 if other is x else x)


class Listing(Block):
    """Changes a list of its caller's."""

    def forward(self, x, seen):
        seen.append(len(seen))
        return super().forward(x) * len(seen)


class Counting(Block):
    """Keeps count in an object of its own."""

    def __init__(self):
        super().__init__()
        self.state = types.SimpleNamespace(calls=0)

    def forward(self, x):
        self.state.calls += 1
        return super().forward(x) / (1 + self.state.calls % 3)


class Net(nn.Module):
    """`body` is given the blocks and what goes through them; `steps` the step and the model, before each."""

    def __init__(self, body, block):
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(4))
        self.head = nn.Linear(WIDTH, WIDTH)
        self.body, self.is_changed = body, False

    def forward(self, x, y):
        return self.body(self, self.blocks, x, y)


def loss_of(model, x, y):
    return (model.head(x) - y).square().mean()


def through(blocks, x):
    for block in blocks:
        x = block(x)
    return x


def in_turn(model, blocks, x, y):
    return loss_of(model, through(blocks, x), y)


def trained(mesh, schedule, body, block, before, sizes, prepare):
    def on_rank():
        torch.manual_seed(0)
        model = Net(body, block)
        prepare(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        tessera.parallelize(model, tessera.generate_plan(model, mesh=mesh, schedule=schedule), optimizer, microbatches=4)
        losses = []
        for step in range(STEPS):
            before(step, model)
            loss = model(*torch.randn(2, *sizes, generator=torch.Generator().manual_seed(step)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, {name: value.clone() for name, value in tessera.full_state_dict(model).items()}

    return tessera.run_ranks(on_rank, tessera.Mesh(mesh).size())


def change(step, model):
    model.is_changed = step >= CHANGES


class BetweenModulesTest(unittest.TestCase):
    def check(self, body=in_turn, block=Block, before=lambda step, model: None, runs=RUNS, sizes=(8, WIDTH, WIDTH), reference="1", prepare=lambda model: None):
        losses, values = trained(reference, "", body, block, before, sizes, prepare)
        for mesh, schedule in runs:
            with self.subTest(mesh=mesh, schedule=schedule):
                got, of_stages = trained(mesh, schedule, body, block, before, sizes, prepare)
                self.assertEqual(got, losses)
                self.assertEqual([name for name in values if not torch.equal(values[name], of_stages[name])], [])

    def test_a_value_that_a_module_reads_and_an_operator(self):
        def skipped(model, blocks, x, y):
            value = blocks[1](blocks[0](x))
            return loss_of(model, blocks[3](blocks[2](value) + value * 0.5), y)

        def beside(model, blocks, x, y):
            for block in blocks:
                x = block(x) + x * 0.5
            return loss_of(model, x, y)

        def behind(model, blocks, x, y):
            x = blocks[1](blocks[0](x))
            return loss_of(model, blocks[3](x * 0.5 + blocks[2](x)), y)

        for body in (skipped, beside, behind):
            self.check(body)
        self.check(beside, runs=[("pp=4", "zb-h1")])

    def test_what_a_module_is_given(self):
        """One tensor twice is one; a list is its caller's, too."""
        def same(model, blocks, x, y):
            for block in blocks:
                x = block(x, x)
            return loss_of(model, x, y)

        def listed(model, blocks, x, y):
            seen = []
            for block in blocks:
                x = block(x, seen=seen)
            return loss_of(model, x, y)

        for body, block in ((same, Asking), (listed, Listing)):
            self.check(body, block, runs=[("pp=2", "1f1b"), ("pp=2", "zbv")])

    def test_a_module_that_counts_in_an_object(self):
        self.check(block=Counting, runs=[("pp=2", "1f1b")])

    def test_a_parameter_of_another_stage(self):
        """Its gradient is made on the last stage and goes to its own, at once."""
        def close(model, blocks, x, y):
            return in_turn(model, blocks, x, y) + (blocks[0].linear.bias - blocks[3].linear.bias).square().mean()

        def scaled(model, blocks, x, y):
            for block in blocks:
                x = block(x) + torch.sin(blocks[0].linear.bias) * torch.tanh(block.linear.bias)
            return loss_of(model, x, y)

        for body in (close, scaled):
            self.check(body, runs=[("pp=4", "1f1b"), ("pp=4", "zb-h1"), ("pp=2", "zbv"), ("pp=4", "zbv")])

    def test_a_weight_of_two_modules(self):
        """A value that is older than the weight goes to it: fetched to where the value is, the weight would go back."""
        def older(model, blocks, x, y):
            value = blocks[0](x)
            return loss_of(model, through(blocks[1:], value) + F.linear(value, model.head.tied) * 0.1, y)

        for first in (1, 2, 3):
            def tie(model, first=first):
                model.head.tied = model.blocks[first].linear.weight

            self.check(older, prepare=tie, runs=[("pp=2", "interleaved"), ("pp=2", "zbv"), ("pp=4", "zb-h1"), ("pp=4", "zbv")])

    def test_a_penalty_on_all_parameters_at_once(self):
        """Views of parameters are read in the walks of stages that did not make them."""
        def penalised(model, blocks, x, y):
            return in_turn(model, blocks, x, y) + 0.01 * torch.cat([parameter.flatten() for parameter in model.parameters()]).norm()

        self.check(penalised, runs=[("pp=4", "1f1b"), ("pp=2", "interleaved"), ("pp=4", "zbv")])

    def test_terms_of_several_stages_in_exact(self):
        """Sums over samples wait, each in the walk of its stage, and are put together in one order."""
        def exact(model):
            tessera.numerics("exact")

        def means(model, blocks, x, y):
            total = y.square().mean() * 0.1
            for block in blocks:
                x = block(x)
                total = total + x.square().mean() * 0.1
            return total + loss_of(model, x, y)

        def early(model, blocks, x, y):
            first = blocks[0](x)
            return in_turn(model, blocks[1:], first, y) + first.square().mean()

        def listed(model, blocks, x, y):
            values = [x := block(x) for block in blocks]
            return loss_of(model, x, y) + sum(value.square().mean() for value in values) + 1.0

        def twice(model, blocks, x, y):
            for block in blocks:
                x = block(x) + (block.linear.bias + block.linear.bias) * 0.1
            return loss_of(model, x, y)

        def penalised(model, blocks, x, y):
            return in_turn(model, blocks, x, y) + 0.01 * sum(parameter.square().sum() for parameter in model.parameters())

        for body in (means, early, listed, twice, penalised):
            self.check(body, prepare=exact, runs=[("pp=4", "zb-h1"), ("pp=2", "interleaved"), ("pp=2", "zbv"), ("pp=4", "v-half")], sizes=(8, WIDTH))

    def test_a_choice_of_values(self):
        """Their gradients are written into zeros that no stage has."""
        def chosen(model, blocks, x, y):
            for block in blocks:
                x = block(x)
                x = x - x.max(-1, keepdim=True).values + x.topk(3, -1).values.sum(-1, keepdim=True)
            return loss_of(model, x, y)

        self.check(chosen, runs=[("pp=2", ""), ("pp=2", "1f1b"), ("pp=2", "zbv")])

    def test_gradients_that_are_zeros(self):
        def rounded(model, blocks, x, y):
            for block in blocks:
                x = block(x)
                x = x + x.sign()
            return loss_of(model, x, y)

        self.check(rounded, runs=[("pp=2", ""), ("pp=2", "1f1b")])

    def test_a_module_that_is_called_twice(self):
        def early(model, blocks, x, y):
            x = blocks[2](blocks[1](blocks[0](x)))
            return loss_of(model, x, y) * 0.1 + loss_of(model, blocks[3](x), y)

        def twice(model, blocks, x, y):
            x = blocks[0](x + blocks[0](x)) * 0.5
            for block in blocks[1:]:
                x = Block.forward(block, x)
            return loss_of(model, x, y)

        self.check(early)
        self.check(twice, Pair, runs=[("pp=2", "1f1b"), ("pp=4", "zb-h1")], sizes=(8, WIDTH))

    def test_with_parts_over_another_axis(self):
        """Gradients that are sums over `tp`, read on two stages; weights read twice, whose gradients are put off; terms of parameters that are cut otherwise."""
        def skipped(model, blocks, x, y):
            value = blocks[0](x)
            return loss_of(model, through(blocks[1:], value) + value * 0.5, y)

        def twice(model, blocks, x, y):
            return loss_of(model, blocks[-1](blocks[-1](through(blocks[:-1], x))), y)

        def summed(model, blocks, x, y):
            for block in blocks:
                x = block(x) + (blocks[0].linear.bias + block.second.bias) * 0.5
            return loss_of(model, x, y) + (blocks[0].linear.weight - blocks[3].second.weight).square().mean()

        for body, block in ((skipped, Block), (twice, Pair), (summed, Pair)):
            self.check(body, block, runs=[("pp=2,tp=2", "zb-h1"), ("pp=2,tp=2", "zbv")], sizes=(32, WIDTH), reference="tp=2")

    def test_a_program_that_changes(self):
        def helped(model, blocks, x, y):
            x = blocks[1](blocks[0](x))
            loss = in_turn(model, blocks[2:], x, y)
            return loss + x.square().mean() * 0.1 if model.is_changed else loss

        def shorter(model, blocks, x, y):
            return in_turn(model, blocks[:3] if model.is_changed else blocks, x, y)

        self.check(helped, before=change)
        self.check(shorter, before=change)

    def test_calls_that_read_other_values(self):
        def crossed(model, blocks, x, y):
            first = blocks[0](x)
            second = blocks[1](first)
            third = blocks[2](second)
            beside = (second if model.is_changed else first) * 0.5
            return loss_of(model, blocks[3](third) + beside, y)

        self.check(crossed, before=change)

    def test_a_hook_that_comes_later(self):
        def hook(step, model):
            if step == CHANGES:
                model.blocks[1].register_forward_hook(lambda module, given, result: result * 1.5)

        self.check(before=hook)

    def test_a_hook_of_a_value(self):
        def damped(model, blocks, x, y):
            for block in blocks:
                x = block(x)
                if x.requires_grad:
                    x.register_hook(lambda gradient: gradient * 0.5)
            return loss_of(model, x, y)

        self.check(damped)

    def test_parameters_that_are_thawed(self):
        def thaw(step, model):
            model.blocks[:2].requires_grad_(step >= CHANGES)

        self.check(before=thaw)

    def test_halves_of_a_parameter(self):
        self.check(block=Split, runs=[("pp=2", "1f1b"), ("pp=2", "zb-h1"), ("pp=2", "zbv")])

    def test_values_that_lie_otherwise_in_memory(self):
        self.check(block=Turned)
        self.check(block=Recurrent, runs=[("pp=2", ""), ("pp=2", "1f1b")])


if __name__ == "__main__":
    warm_python.begin()
    unittest.main()
