#!/usr/bin/env python3
"""A call of a model that is a whole step in micro-batches: which mean its loss is, and what is refused.

Usage: whole_step_test.py [unittest's arguments]
"""

import copy
import unittest
import warnings

import tessera
import torch
from models_test import build, furthest, gradients, results_of
from pipelined import Net, made, on_ranks, placed
from torch import nn
from torch.nn import functional as F
from wide import doubles
from zoo import ZOO


class LossTest(unittest.TestCase):
    """Which mean the step's loss is."""

    def check(self, loss_of, run, ignored):
        model, ids, labels = made(loss_of, ignored=ignored)
        want = model(ids, labels)
        want.backward()

        def body(*run):
            own = placed(copy.deepcopy(model), *run)
            own.zero_grad()
            loss = own(ids, labels)
            loss.backward()
            return loss.item(), gradients(own)

        got, parts = on_ranks(body, run)
        torch.testing.assert_close(got, want.item(), rtol=1e-12, atol=0)
        self.assertLessEqual(furthest(parts, {name: p.grad for name, p in model.named_parameters()}), 1e-12)

    def test_targets_that_count(self):
        class Next(Net):
            def forward(self, ids, labels):
                return F.cross_entropy(self.scores(ids)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

        class Log(Net):
            def forward(self, ids, labels):
                return nn.NLLLoss()(self.scores(ids).log_softmax(-1).flatten(0, 1), labels.flatten())

        class Other(Net):
            def forward(self, ids, labels):  # the words 3 are ignored
                return F.cross_entropy(self.scores(ids).flatten(0, 1), ids.flatten(), ignore_index=3)

        for kind, ignored in ((Net, 0.0), (Net, 0.4), (Next, 0.4), (Log, 0.4), (Other, 0.0)):
            for run in (("pp=2", "1f1b", 3), ("pp=2,dp=2", "1f1b", 2), ("1", "", 4)):
                with self.subTest(kind=kind.__name__, ignored=ignored, run=run):
                    self.check(kind, run, ignored)

    def test_a_model_that_takes_derivatives(self):
        """By autograd.grad, without which it has no loss; on one stage, since a schedule's forward passes go forward."""
        class Smooth(Net):
            def forward(self, ids, labels):
                x = self.table(ids).detach().requires_grad_()
                scores = self.head(torch.tanh(self.layers[0](x)))
                (slope,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
                return F.cross_entropy(scores.flatten(0, 1), labels.flatten()) + slope.square().mean() + self.scores(ids).square().mean()

        for run in (("1", "", 3), ("dp=2", "", 2), ("dp=2,tp=2", "", 1)):
            with self.subTest(run=run):
                self.check(Smooth, run, 0.0)

    def test_the_model_divides_by_what_it_is_told(self):
        """As transformers' models do, given num_items_in_batch."""
        with doubles():
            model, batch = build(ZOO["llama"], torch.float64)
            loss, want = results_of(copy.deepcopy(model), batch)
            count = int((batch["labels"][:, 1:] != -100).sum())

            def body(*run):
                own = placed(copy.deepcopy(model), *run)
                found = own(**batch, num_items_in_batch=count).loss
                found.backward()
                return found.item(), gradients(own)

            got, parts = on_ranks(body, ("pp=2", "1f1b", 3))
            self.assertLessEqual(abs(got - loss) / abs(loss), 1e-12)
            self.assertLessEqual(furthest(parts, want), 1e-12)

    def test_a_model_that_does_not_divide_by_what_it_is_told(self):
        class Deaf(Net):
            def forward(self, ids, labels, num_items_in_batch=7):
                return super().forward(ids, labels)

        model, ids, labels = made(Deaf, ignored=0.3)
        got = on_ranks(lambda *run: placed(copy.deepcopy(model), *run)(ids, labels, num_items_in_batch=7).item(), ("pp=2", "1f1b", 3))
        torch.testing.assert_close(got, model(ids, labels).item(), rtol=1e-12, atol=0)

    def test_a_schedule_of_one_micro_batch(self):
        for schedule in ("1f1b", "interleaved"):
            self.check(Net, ("pp=2", schedule, 1), 0.3)

    def test_a_loss_outside_of_the_model(self):
        model, ids, labels = made()

        def steps(own):
            for _ in range(2):
                loss = F.cross_entropy(own(ids), labels.flatten())
                loss.backward()
            return loss.item(), {name: tessera.full_tensor(p.grad) for name, p in own.named_parameters()}

        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            got, parts = on_ranks(lambda *run: steps(placed(copy.deepcopy(model), *run)), ("pp=2", "1f1b", 4))
        notes = [note for note in told if "Net does not return a loss, so all forwards run, then all backwards" in str(note.message)]
        self.assertEqual((len(notes), notes[0].filename), (2, __file__))  # once on each rank
        loss, want = steps(model)
        torch.testing.assert_close(got, loss, rtol=1e-12, atol=0)
        self.assertLessEqual(furthest(parts, want), 1e-12)


class HooksTest(unittest.TestCase):
    """Whoever waits for a parameter's gradient hears of the step's, once."""

    def check(self, listen):
        model, ids, labels = made()
        names = [name for name, _ in model.named_parameters()]

        def body(*run):
            own = placed(copy.deepcopy(model), *run)
            heard = []
            kept = [listen(p, lambda gradient, name=name: heard.append((name, gradient is not None))) for name, p in own.named_parameters()]
            own(ids, labels).backward()
            return sorted(heard), len(kept)

        for run in (("pp=2", "1f1b", 3), ("1", "", 2), ("fsdp=2", "", 1)):
            with self.subTest(run=run):
                self.assertEqual(on_ranks(body, run), (sorted((name, True) for name in names), len(names)))

    def test_of_the_tensor(self):
        self.check(lambda parameter, hear: parameter.register_hook(hear))

    def test_behind_the_sum(self):
        self.check(lambda parameter, hear: parameter.register_post_accumulate_grad_hook(lambda p: hear(p.grad)))

    def test_of_the_node(self):
        def listen(parameter, hear):
            node = torch.autograd.graph.get_gradient_edge(parameter).node
            node.register_prehook(lambda gradients: hear(gradients[0]))
            return node

        self.check(listen)


class RefusalTest(unittest.TestCase):
    def refused(self, kind, *inside, ignored=0.0, run=("pp=2", "1f1b", 4), **options):
        """What the first rank's error says, or another's that it was woken by."""
        model, ids, labels = made(kind, *inside, ignored=ignored)

        def body(*run):
            placed(model if run[0] == "1" else copy.deepcopy(model), *run, **options)(ids, labels).backward()

        with self.assertRaises(Exception) as raised:
            tessera.run_ranks(lambda: body(*run), tessera.Mesh(run[0]).size(), deadline=60)
        return f"{type(raised.exception).__name__}: {raised.exception}"

    def test_a_value_that_another_stage_has(self):
        for read in (lambda x: x.sum().item(), lambda x: x.tolist(), lambda x: x[x > 0]):
            def inside(index, x, read=read):
                if index == 1:
                    read(x)
                return x

            told = self.refused(Net, inside)
            self.assertRegex(told, r"\[(item -> _local_scalar_dense|full_tensor|index -> nonzero)\] reads a value of another stage, by a broadcast over pp, inside of a pipeline's schedule \(rank \d, micro-batch 0\)")
            self.assertRegex(told, r"in (.*/)?whole_step_test\.py:\d+, `for read in \(lambda x")

    def test_a_value_of_the_batch_is_read(self):
        def inside(index, x):
            return x * (1 + torch.arange(3).sum().item())

        model, ids, labels = made(Net, inside)
        got = on_ranks(lambda *run: placed(copy.deepcopy(model), *run)(ids, labels).item(), ("pp=2", "1f1b", 4))
        torch.testing.assert_close(got, model(ids, labels).item(), rtol=1e-12, atol=0)

    def test_an_exception_inside_of_a_stage(self):
        for rank in (0, 1):
            passes = []

            def inside(index, x, rank=rank, passes=passes):
                if torch.is_grad_enabled() and tessera.rank() == rank and index == 2:
                    passes.append(index)
                    if len(passes) == 3:
                        raise ValueError("on purpose")
                return x

            self.assertEqual(self.refused(Net, inside), "ValueError: on purpose")

    def test_a_step_that_throws_on_every_rank(self):
        """Is as if it had not been, wherever its ranks were."""
        def trained(*run):
            calls = 0

            def inside(index, x):
                nonlocal calls
                calls += index == 2 and torch.is_grad_enabled()
                if calls == 3 and step == 3:
                    raise ValueError("on purpose")
                return x

            model, ids, labels = made(Net, inside)
            placed(model, *run, optimizer := torch.optim.SGD(model.parameters(), 0.1))
            losses = []
            for step in range(6):  # noqa: B007
                calls = 0
                try:
                    loss = model(ids, labels)
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                except ValueError as error:
                    losses.append(str(error))
                optimizer.zero_grad()
            return losses

        want = on_ranks(trained, ("1", "", 4))
        self.assertEqual(want[3], "on purpose")
        for run in (("pp=2", "1f1b", 4), ("pp=4", "zb-h1", 4), ("pp=2", "zbv", 4)):
            with self.subTest(run=run):
                self.assertEqual(on_ranks(trained, run), want)

    def test_nan(self):
        def inside(index, x):
            return x * float("nan") if index == 1 else x

        model, ids, labels = made(Net, inside)
        self.assertTrue(on_ranks(lambda *run: placed(copy.deepcopy(model), *run)(ids, labels).isnan().item(), ("pp=2", "1f1b", 4)))

        def found(*run):
            with tessera.find_nan():
                placed(copy.deepcopy(model), *run)(ids, labels)

        with self.assertRaisesRegex(RuntimeError, r"\[find_nan\] aten::\w+ gave NaN on rank 1 \(.*layers\.2\.0 at .*pipelined\.py:\d+\)"):
            on_ranks(found, ("pp=2", "1f1b", 4))

    def test_means_of_which_no_weight_is_known(self):
        class Masked(Net):
            def forward(self, ids, labels):
                each = F.cross_entropy(self.scores(ids).flatten(0, 1), labels.flatten(), reduction="none")
                return each.sum() / (labels != -100).sum()

        class Weighted(Net):
            def forward(self, ids, labels):
                return F.cross_entropy(self.scores(ids).flatten(0, 1), labels.flatten(), self.head.bias.detach().abs())

        class Strange(Net):
            def forward(self, ids, labels):
                return F.cross_entropy(self.scores(ids).flatten(0, 1), labels.flip(1).flatten())

        class Two(Net):
            def forward(self, ids, labels):
                scores = self.scores(ids).flatten(0, 1)
                return F.cross_entropy(scores, labels.flatten()) + F.cross_entropy(scores, ids.flatten())

        class Written(Net):
            def forward(self, ids, labels):
                labels[:, 1] = -100
                return F.cross_entropy(self.scores(ids).flatten(0, 1), labels.flatten())

        for kind, why in ((Masked, "`argument 1` has targets to ignore"), (Weighted, "weights of classes"), (Strange, "none of the step's batch"),
                          (Written, "the program wrote since the step began"), (Two, "two mean losses of one model")):
            with self.subTest(kind=kind.__name__):
                self.assertRegex(self.refused(kind, ignored=0.4), why)

    def test_a_micro_batch_without_a_target_that_counts(self):
        """Its mean is 0 / 0 in `fast`; in `exact` it is a share of the step's."""
        model, ids, labels = made()
        labels[6:] = -100
        want = model(ids, labels).item()

        def body(numerics):
            tessera.numerics(numerics, "batch=7")
            return placed(copy.deepcopy(model), "pp=2", "1f1b", 4)(ids, labels).item()

        with self.assertRaisesRegex(RuntimeError, "all targets of samples from 6 on are ignored"):
            tessera.run_ranks(lambda: body("fast"), 2)
        torch.testing.assert_close(tessera.run_ranks(lambda: body("exact"), 2), want, rtol=1e-12, atol=0)

    def test_batch_norm(self):
        class Normed(Net):
            def __init__(self):
                super().__init__()
                self.norm = nn.BatchNorm1d(16)

            def forward(self, ids, labels):
                return F.cross_entropy(self.norm(self.scores(ids).flatten(0, 1)), labels.flatten())

        self.assertRegex(self.refused(Normed), r"`norm` \(BatchNorm1d\) takes the statistics of each micro-batch")

    def test_a_graph_of_gradients(self):
        """Of a step's, which were made with its loss; of one pass there is one, on stages too."""
        ways = {"grad": lambda loss, parameters: torch.autograd.grad(loss, parameters, create_graph=True),
                "backward": lambda loss, parameters: (loss.backward(create_graph=True), [parameter.grad for parameter in parameters])[1]}
        with doubles(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a cycle that `backward` makes
            model, ids, labels = made(Net)

            def penalty(way, *run):
                own = copy.deepcopy(model) if not run else placed(copy.deepcopy(model), *run)
                squares = sum(gradient.square().sum() for gradient in ways[way](own(ids, labels), list(own.parameters())))
                for parameter in own.parameters():
                    parameter.grad = None
                squares.backward()
                return sum(tessera.full_tensor(parameter.grad).abs().sum().item() for parameter in own.parameters() if parameter.grad is not None)

            for way in ways:
                want = penalty(way)
                self.assertGreater(want, 0)
                torch.testing.assert_close(on_ranks(lambda *run, way=way: penalty(way, *run), ("pp=2", None, 1)), want, rtol=1e-10, atol=0)
                for run in (("pp=2", "1f1b", 4), ("dp=2", None, 4)):
                    with self.assertRaisesRegex(NotImplementedError, "create_graph from the loss of a step, "):
                        on_ranks(lambda *run, way=way: penalty(way, *run), run)

    def test_settings(self):
        self.assertRegex(self.refused(Net, accumulate=2), "microbatches=4, accumulate=2; accepted")
        self.assertRegex(self.refused(Net, run=("pp=2", "1f1b", 0)), "microbatches=0")
        self.assertRegex(self.refused(Net, run=("pp=2", "1f1b", 2.5)), "microbatches=2.5")
        self.assertRegex(self.refused(Net, run=("pp=2", "1f2b", 2)), "1f2b")
        self.assertRegex(self.refused(Net, run=("pp=2", 4, 2)), "schedule=4; accepted")
        self.assertRegex(self.refused(Net, keep_outputs="logits"), "`logits` of Tensor is no tensor|`logits` of DTensor is no tensor")

    def test_the_plan_says_its_schedule(self):
        def body():
            plan = tessera.generate_plan(Net(), mesh="pp=2", schedule="interleaved", stages_per_rank=2)
            return plan.schedule, plan.stages_per_rank, tessera.Plan.from_json(plan.json()) == plan, '"schedule": "interleaved"' in plan.json()

        self.assertEqual(tessera.run_ranks(body, 2), ("interleaved", 2, True, True))


if __name__ == "__main__":
    unittest.main()
