#!/usr/bin/env python3
"""Modules of other stages, past which ranks of a schedule go: what they compute is what it is when every micro-batch walks them, bit for bit; a module
that does more than its results say is walked.

Usage: pass_over_test.py [unittest's arguments]; with TESSERA_FULL=1 on more layouts.
"""

import collections
import itertools
import json
import os
import types
import unittest

import tessera
import torch
import warm_python
from pipelined import on_ranks
from sampling import sampled
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

RUNS = (("pp=2", "1f1b", 4), ("pp=2", "zbv", 4), ("pp=4", "1f1b", 4), ("pp=2", "interleaved", 4), ("pp=2,dp=2", "1f1b", 4), ("pp=2,tp=2", "zbv", 4),
        ("pp=2,fsdp=2", "1f1b", 4), ("pp=2,dp=2,tp=2", "gpipe", 4), ("pp=2", "v-half", 4), ("pp=2", "v-min", 4), ("pp=2", "1f1b-v", 4), ("pp=2", "dualpipe-v", 4),
        ("pp=4", "zb-h1", 6), ("pp=4", "zb-h2", 6))
STEPS = 5
KNOWN = 2  # from this step on: in the first a body is looked at, in the second it is told who reads what, it is tried out and walked between marks
EVERY = ["**"]


def as_it_is(block, x):
    return x


class Block(nn.Module):
    """`inside` is given the block and its input, and gives what the block goes on with. `recalls` makes of a memory what is added."""

    def __init__(self, inside, recalls):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.inside, self.recalls = inside, recalls

    def forward(self, x, memory=None, scale=1.0):
        y = self.inside(self, x)
        y = y if memory is None else y + self.recalls(self, memory)
        return x + self.down(torch.tanh(self.up(self.norm(y)))) * scale


class Net(nn.Module):
    """Its blocks read what the first one gave, or a parameter of its own, if it remembers; or it draws between the first two, which every rank does, what it adds at the end.
    `skipped` are blocks beside which their input goes on, `tied` those that have one weight."""

    def __init__(self, inside, remembers=False, draws=False, recalls=as_it_is, skipped=(), tied=()):
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(Block(inside, recalls) for _ in range(8))
        self.head = nn.Linear(8, 16)
        self.remembers, self.draws, self.skipped = remembers, draws, skipped
        for block in tied[1:]:
            self.blocks[block].up.weight = self.blocks[tied[0]].up.weight

    def forward(self, ids, labels):
        x = self.table(ids)
        memory, drawn = None, 0
        for index, block in enumerate(self.blocks):
            x = block(x, memory=memory, scale=0.5) + (x * 0.5 if index in self.skipped else 0)
            memory = (self.table.weight if self.remembers == "parameter" else x) if self.remembers and index == 0 else memory
            drawn = torch.rand_like(ids, dtype=x.dtype).unsqueeze(-1) if self.draws and index == 0 else drawn
        return F.cross_entropy((self.head(x) * (1 + drawn)).flatten(0, 1), labels.flatten())


class Checkpointed(Net):
    """So many blocks are run again together in backward."""

    def __init__(self, inside, together):
        super().__init__(inside)
        self.together = together

    def forward(self, ids, labels):
        x = self.table(ids)
        for first in range(0, len(self.blocks), self.together):
            body = self.blocks[first] if self.together == 1 else nn.Sequential(*self.blocks[first:first + self.together])
            x = checkpoint(body, x, use_reentrant=False)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class PassOverTest(unittest.TestCase):
    def trained(self, run, always=(), inside=as_it_is, rows=8, change=lambda model: None, net=Net, **options):
        """Losses and parameters after some steps; and of each rank and step how often each block ran."""
        def body(mesh, schedule, microbatches):
            torch.set_num_threads(1)
            tessera.manual_seed(3)
            torch.manual_seed(0)
            counts = collections.Counter()

            def counted(block, x):
                counts[names[block]] += 1
                return inside(block, x)

            model = net(counted, **options)
            names = {block: index for index, block in enumerate(model.blocks)}
            ids, labels = torch.randint(16, (2, rows, 5))
            plan = tessera.generate_plan(model, mesh=mesh, schedule=schedule).json()
            plan = plan.replace('"keep_gathered_bytes"', f'"always_walked": {json.dumps(always)},\n  "keep_gathered_bytes"')
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            tessera.parallelize(model, tessera.Plan.from_json(plan), optimizer, microbatches=microbatches)
            change(model)
            losses, seen, sent = [], [], []
            for _ in range(STEPS):
                counts.clear()
                before = tessera.ledger()["total_bytes"]
                loss = model(ids, labels)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
                seen.append(dict(counts))
                sent.append(tessera.ledger()["total_bytes"] - before)
            every.append((tessera.rank(), seen))
            self.sent[tessera.rank()] = sent
            return losses, {key: value.clone() for key, value in tessera.full_state_dict(model, rank=None).items()}

        every, self.sent = [], {}
        losses, state = on_ranks(body, run)
        return losses, state, dict(every)

    def check(self, run=("pp=2", "1f1b", 4), **options):
        """The counts of what runs as it is to: the numbers are those of walks of everything."""
        losses, state, counts = self.trained(run, **options)
        want, parts, walked = self.trained(run, EVERY, **options)
        self.assertEqual(losses, want)
        self.assertEqual([key for key in state if not torch.equal(state[key], parts[key])], [])
        return counts, walked

    def test_same_bits(self):
        for run in RUNS if os.environ.get("TESSERA_FULL") else RUNS[:1] + tuple(sampled(RUNS[1:], 2)):
            with self.subTest(run=run):
                counts, walked = self.check(run)
                self.assertLess(sum(counts[0][-1].values()), sum(walked[0][-1].values()))

    def test_once_a_step(self):
        counts, walked = self.check()
        # The block that reads what rank 0 sends is among them, and the one whose gradient comes from rank 1.
        own, others = dict.fromkeys(range(4), 4), dict.fromkeys(range(4, 8), 1)
        self.assertEqual(counts[0][KNOWN:], [own | others] * (STEPS - KNOWN))
        own, others = dict.fromkeys(range(4, 8), 4), dict.fromkeys(range(4), 1)
        self.assertEqual(counts[1][KNOWN:], [own | others] * (STEPS - KNOWN))
        self.assertEqual(walked[0][KNOWN:], [dict.fromkeys(range(8), 4)] * (STEPS - KNOWN))

    def check_walked(self, **options):
        counts, walked = self.check(**options)
        self.assertEqual(counts[0], walked[0])

    def test_what_is_run_again_in_backward(self):
        """A module is, alone; of several in one body all are, when what the last one kept is wanted: they are walked."""
        counts, walked = self.check(net=Checkpointed, together=1)
        self.assertLess(sum(counts[0][-1].values()), sum(walked[0][-1].values()))
        for run in (("pp=2", "1f1b", 4), ("pp=4", "zb-h1", 6)):
            with self.subTest(run=run):
                self.check_walked(run=run, net=Checkpointed, together=2)

    def test_what_keeps_count_is_walked(self):
        def counting(block, x):
            block.calls = getattr(block, "calls", 0) + 1
            return x

        def listing(block, x):
            block.__dict__.setdefault("seen", []).append(x.shape)
            return x

        for inside in (counting, listing):
            with self.subTest(inside=inside.__name__):
                self.check_walked(inside=inside)

    def test_what_has_hooks_inside_is_walked(self):
        def change(model):
            for block in model.blocks:
                block.up.register_forward_hook(lambda module, args, result: None)

        self.check_walked(change=change)

    def test_what_writes_to_its_input_is_walked(self):
        self.check_walked(inside=lambda block, x: x.mul_(1.5))

    def test_what_gives_objects_is_walked(self):
        def change(model):
            for block in model.blocks:
                passable, forward = block.forward, block.forward.forward
                passable.forward = lambda *args, forward=forward, **kwargs: types.SimpleNamespace(value=forward(*args, **kwargs))
                block.forward = lambda *args, passable=passable, **kwargs: passable(*args, **kwargs).value

        losses, _, counts = self.trained(RUNS[0], change=change)
        want, _, walked = self.trained(RUNS[0], EVERY)
        self.assertEqual(losses, want)
        self.assertEqual(counts[0], walked[0])

    def test_micro_batches_of_other_sizes(self):
        self.check(("pp=2", "1f1b", 3), rows=7)

    def test_values_that_several_stages_read(self):
        for run in (("pp=4", "1f1b", 4), ("pp=2", "zbv", 4)):
            with self.subTest(run=run):
                self.check(run, remembers=True)

    def check_passed(self, **options):
        """Each module of the other stage runs once a step, the one that reads what this stage gave as well."""
        counts, _ = self.check(**options)
        self.assertEqual([[step[block] for block in range(4, 8)] for step in counts[0][KNOWN:]], [[1] * 4] * (STEPS - KNOWN))
        self.assertEqual([[step[block] for block in range(4)] for step in counts[1][KNOWN:]], [[1] * 4] * (STEPS - KNOWN))

    def test_what_computes_before_it_reads_a_parameter(self):
        """It is given its input on its own stage, and computes there: one value is sent, and one gradient back, instead of two."""
        def normed(block, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

        self.check_passed(inside=normed)
        self.trained(RUNS[0], inside=normed)
        value = 8 * 5 * 8 * 4  # bytes
        for sent in self.sent.values():
            self.assertGreaterEqual(sent[0] - sent[KNOWN], value)

    def test_what_has_not_all_gradients_of_what_it_reads_is_walked(self):
        """Nobody else is: of what goes beside a block, and of a weight that two share, they would be added up in another order."""
        counts, _ = self.check(skipped=(1, 6), tied=(2, 5))
        self.assertEqual([step[block] for step in counts[0][KNOWN:] for block in range(4, 8)], [1, 4, 4, 1] * (STEPS - KNOWN))
        self.assertEqual([step[block] for step in counts[1][KNOWN:] for block in range(4)], [1, 4, 4, 1] * (STEPS - KNOWN))

    def test_values_of_which_several_are_sent(self):
        """The memory beside what goes through the blocks, which all of them read."""
        for recalls in (lambda block, memory: block.down(torch.tanh(block.up(memory))), lambda block, memory: memory * 2):
            self.check_walked(remembers=True, recalls=recalls)

    def test_a_parameter_that_modules_of_other_stages_are_given(self):
        for run in (("pp=2", "1f1b", 4), ("pp=2", "zbv", 4), ("pp=2,fsdp=2", "1f1b", 4)):
            with self.subTest(run=run):
                self.check(run, remembers="parameter", recalls=lambda block, memory: memory.t().mean(1))

    def test_a_module_that_writes_to_its_input_in_later_steps(self):
        def inside(block, x, turns=collections.defaultdict(itertools.count)):
            return x.mul_(1.5) if next(turns[block]) == 10 else x

        with self.assertRaisesRegex(RuntimeError, "writes to its input.*always_walked"):
            self.trained(("pp=2", "1f1b", 4), inside=inside)
        self.trained(("pp=2", "1f1b", 4), EVERY, inside=inside)

    def test_dropout(self):
        def dropping(block, x):
            return F.dropout(x, 0.3)

        def other(model):
            tessera.set_generator("counter")

        self.check_walked(inside=dropping)  # from PyTorch's own stream
        counts, walked = self.check(inside=dropping, change=other)
        self.assertLess(sum(counts[0][-1].values()), sum(walked[0][-1].values()))

    def test_what_is_drawn_between_modules(self):
        """From PyTorch's own stream it is another program in each step, whose place in the stream is a number of its calls."""
        for generator in ("stock", "counter"):
            with self.subTest(generator=generator):
                counts, walked = self.check(draws=True, change=lambda model, generator=generator: tessera.set_generator(generator))
                self.assertEqual(sum(counts[1][-1].values()) < sum(walked[1][-1].values()), generator == "counter")

    def test_exact_walks_everything(self):
        def change(model):
            tessera.numerics("exact", "batch=8")

        self.check_walked(change=change)

    def test_a_module_that_is_not_the_same_in_each_micro_batch(self):
        """Is refused where nothing but its calls tell; walked, it is right."""
        def inside(block, x, turns=collections.defaultdict(itertools.count)):
            return x * 1 if next(turns[block]) % 3 == 0 else x

        with self.assertRaisesRegex(RuntimeError, "always_walked"):
            self.trained(("pp=2", "1f1b", 4), inside=inside)
        self.trained(("pp=2", "1f1b", 4), EVERY, inside=inside)


if __name__ == "__main__":
    warm_python.begin()
    unittest.main()
