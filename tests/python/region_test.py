#!/usr/bin/env python3
"""Inside the forward of a parallelized model: operators on plain tensors alone, inference mode, views whose part must be copied.

Usage: region_test.py [unittest's arguments]
"""

import copy
import unittest
import warnings

import tessera
import torch
from tessera._parallel import passes_of
from torch import nn
from torch.nn import functional as F

LAYOUTS = ("tp=2", "dp=2", "dp=2,tp=2")


def on_ranks(layout, model, body):
    """What `body(model)` gives on the first rank, with a copy of the model on the mesh."""
    def on_rank():
        mine = copy.deepcopy(model)
        tessera.parallelize(mine, tessera.generate_plan(mine, mesh=layout))
        return body(mine)

    return tessera.run_ranks(on_rank, tessera.Mesh(layout).size())


class Calls(nn.Module):
    """Runs `inside` in its forward."""

    def __init__(self, inside):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.inside = inside

    def forward(self, x):
        return self.linear(x), self.inside()


def plain_operators():
    torch.manual_seed(0)
    table, ids = torch.randn(6, 4), torch.tensor([1, 2, 0, 1, 3, 2])
    gram = table.T @ table
    log_probs, targets = torch.randn(5, 2, 4).log_softmax(-1), torch.tensor([[1, 2], [2, 3]])
    lengths, target_lengths = torch.tensor([5, 5]), torch.tensor([2, 2])
    return {
        "repeat": lambda: table.repeat(3, 1, 1),
        "tile": lambda: table.tile(1, 2),
        "bincount": lambda: torch.bincount(ids),
        "histc": lambda: torch.histc(table),
        "svdvals": lambda: torch.linalg.svdvals(table),
        "eigvalsh": lambda: torch.linalg.eigvalsh(gram),
        "pinv": lambda: torch.linalg.pinv(table),
        "lstsq": lambda: torch.linalg.lstsq(table, table).solution,
        "matrix_rank": lambda: torch.linalg.matrix_rank(table),
        "ctc_loss": lambda: F.ctc_loss(log_probs, targets, lengths, target_lengths),
        "ctc_loss of ints": lambda: F.ctc_loss(log_probs, targets, [5, 5], [2, 2]),
        "one_hot": lambda: F.one_hot(ids),
        "quantile": lambda: table.quantile(0.3),
        "nanquantile": lambda: table.nanquantile(torch.tensor([0.3, 0.9]), 0),
        "cov": lambda: torch.cov(table),
        "vander": lambda: torch.vander(table[0]),
    }


class PlainOperatorTest(unittest.TestCase):
    def test_are_those_of_one_device(self):
        for name, call in plain_operators().items():
            with self.subTest(name):
                def body(model):
                    made = model(torch.randn(2, 4))[1]
                    return isinstance(made, tessera.DTensor), tessera.full_tensor(made)

                is_dtensor, got = on_ranks("tp=2", Calls(call), body)
                self.assertFalse(is_dtensor)
                torch.testing.assert_close(got, call(), rtol=1e-5, atol=1e-6)  # LAPACK's last bits depend on where its memory lies

    def test_factories_of_the_program_give_dtensors(self):
        factories = {"zeros": lambda: torch.zeros(3), "arange": lambda: torch.arange(3), "randn": lambda: torch.randn(3),
                     "empty": lambda: torch.empty(3)}
        for name, call in factories.items():
            with self.subTest(name):
                made = on_ranks("tp=2", Calls(call), lambda model: isinstance(model(torch.randn(2, 4))[1], tessera.DTensor))
                self.assertTrue(made)

    def test_copies_of_plain_tensors(self):
        """Which copy a storage, as a metric does that keeps its value."""
        table = torch.arange(6.0)
        copied = on_ranks("dp=2", Calls(lambda: copy.deepcopy(table)), lambda model: model(torch.ones(4, 4))[1])
        self.assertFalse(isinstance(copied, tessera.DTensor))
        torch.testing.assert_close(copied, table)
        self.assertNotEqual(copied.data_ptr(), table.data_ptr())

    def test_a_composite_of_dtensors(self):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))

        def one_hot(model):
            return F.one_hot(model(x)[0].argmax(-1), 4)

        model = Calls(lambda: None)
        got = on_ranks("dp=2", model, lambda mine: tessera.full_tensor(one_hot(mine)))
        self.assertTrue(torch.equal(got, one_hot(model)))


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4))


class Writes(nn.Module):
    """Views of parameters and of what was made inside, and writes through them."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 8)

    def forward(self, x):
        y = self.linear(x)
        y[:, :2] = 0
        y.view(-1, 2, 4)[:, 0].add_(1)
        kept = torch.zeros(x.shape[0], 8)
        kept[:, 2:5] = y[:, 2:5]
        return kept + x @ self.linear.weight.t() + self.linear.weight.view(-1)[0] + self.linear.bias.detach()[:1]


class InferenceModeTest(unittest.TestCase):
    def compare(self, model):
        torch.manual_seed(1)
        x = torch.randn(4, 6)
        with torch.inference_mode():
            want = model(x)

        def body(mine):
            with torch.inference_mode():
                made = mine(x)
                self.assertTrue(made.is_inference())
                got = tessera.full_tensor(made)
            mine(x).sum().backward()  # the parameters are as they were
            self.assertTrue(all(p.grad is not None for p in mine.parameters()))
            return got

        for layout in ("dp=1", *LAYOUTS):
            with self.subTest(layout=layout):
                torch.testing.assert_close(on_ranks(layout, model, body), want)

    def test_linear(self):
        self.compare(nn.Linear(6, 4))

    def test_layers(self):
        self.compare(small())

    def test_views_and_writes(self):
        self.compare(Writes())

    def test_a_view_is_as_its_base(self):
        def on_rank():
            mesh = tessera.Mesh("tp=2")
            normal = tessera.distribute_tensor(torch.randn(4, 6), mesh, "{tp: S(0)}")
            with torch.inference_mode():
                made = normal + 1
                views = [normal.t(), normal.view(2, 12), normal[0], normal.detach(), *normal.split(2)]
                normal.view(2, 12)[0].fill_(3)
            inference_views = [made.t(), made.view(2, 12), made[0], made.detach()]
            self.assertEqual(tessera.full_tensor(normal)[0, 0].item(), 3)
            return [v.is_inference() for v in views], [v.is_inference() for v in inference_views]

        inside, outside = tessera.run_ranks(on_rank, 2)
        self.assertEqual(inside, [False] * len(inside))
        self.assertEqual(outside, [True] * len(outside))


class CallsItself(nn.Module):
    """Its forward is called within a call of it, as a trainer does that sends its step through the module's forward."""

    def __init__(self):
        super().__init__()
        self.linear, self.drop, self.outer = nn.Linear(4, 4), nn.Dropout(0.5), True

    def forward(self, x, weights):
        if self.outer:
            self.outer = False
            try:
                return (self(x, weights) * weights).sum()
            finally:
                self.outer = True
        return self.drop(self.linear(x)) * weights


class CallsItselfTest(unittest.TestCase):
    def test_is_one_pass(self):
        """The batch is cut once, and the masks are those of one pass."""
        def train(model):
            torch.manual_seed(3)
            model.train()
            losses = []
            for _ in range(3):
                loss = model(torch.arange(24.0).reshape(6, 4), torch.arange(6.0).unsqueeze(1))
                loss.backward()
                losses.append(loss.item())
            return torch.tensor(losses), tessera.full_tensor(model.linear.weight.grad), passes_of(model)[0].step

        torch.manual_seed(0)
        model = CallsItself()
        one, *others = (on_ranks(layout, model, train) for layout in ("1", *LAYOUTS))
        for other in others:
            torch.testing.assert_close(other, one)
            self.assertEqual(other[2], 3)


class CrossAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = nn.TransformerDecoderLayer(12, 4, 24, dropout=0.0, batch_first=True)

    def forward(self, x, memory):
        return self.decoder(x, memory).square().mean()


class CrossAttentionTest(unittest.TestCase):
    def compare(self, model, forward):
        torch.manual_seed(1)
        x, memory = torch.randn(4, 7, 12), torch.randn(4, 7, 12)

        def gradients(mine):
            loss = forward(mine, x, memory)
            loss.backward()
            return loss.item(), {name: tessera.full_tensor(p.grad) for name, p in mine.named_parameters()}

        want, gradients_want = gradients(copy.deepcopy(model))
        for layout in LAYOUTS:
            with self.subTest(layout=layout):
                loss, got = on_ranks(layout, model, gradients)
                self.assertAlmostEqual(loss, want, places=5)
                torch.testing.assert_close(got, gradients_want, rtol=1e-4, atol=1e-6)

    def test_of_a_decoder_layer(self):
        torch.manual_seed(0)
        self.compare(CrossAttention(), lambda model, x, memory: model(x, memory))

    def test_of_a_transformer(self):
        torch.manual_seed(0)
        model = nn.Transformer(12, 4, 1, 1, 24, dropout=0.0, batch_first=True)
        self.compare(model, lambda model, x, memory: model(memory, x).square().mean())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    unittest.main()
