#!/usr/bin/env python3
"""Schedules of pipelines from Python: one call of an unmodified model is a whole step in micro-batches, with one device's numbers for the whole
batch; in `exact` its bits.

Usage: schedules_test.py [unittest's arguments]; with TESSERA_FULL=1 on more layouts.
"""

import copy
import difflib
import os
import unittest
from pathlib import Path

import tessera
import torch
import warm_python
from folders import in_folder
from models_test import build, furthest, gradients, results_of
from pipelined import Net, made, on_ranks, placed
from sampling import sampled
from torch import nn
from wide import doubles
from zoo import ZOO

FAMILIES = ("llama", "gpt2", "t5", "vit")
LATTICE = "batch=4"
ONE = ("1", "", 1)
RUNS = (("pp=2", "1f1b", 3), ("pp=2", "interleaved", 2))
MORE = (("1", "", 4), ("pp=2", "", 3), ("pp=2", "gpipe", 4), ("pp=4", "1f1b", 4), ("pp=2,dp=2", "1f1b", 2), ("pp=2,tp=2", "1f1b", 3))
PROGRAM = Path(__file__).parent / "schedules_program.py"

FAILS = """
import os
import signal
import sys
from pathlib import Path

import tessera
import torch
from pipelined import Net, made, placed

passes = []


def inside(index, x):
    if torch.is_grad_enabled() and tessera.rank() == 1 and index == 2:
        passes.append(index)
        if len(passes) == 3:
            ENDS
    return x


signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of torchrun, once a process has failed: the others are to hear of it by themselves
tessera.join(deadline=60)
model, ids, labels = made(Net, inside)
try:
    placed(model, "pp=2", "1f1b", 4)(ids, labels)
except Exception as error:
    (Path(sys.argv[1]) / f"rank{tessera.rank()}").write_text(str(error))
    raise
"""


def runs():
    return RUNS + (MORE if os.environ.get("TESSERA_FULL") else ())


def clip_in_two(parameters, most):
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    nn.utils.clip_grads_with_norm_(parameters, most, norm)
    return norm


def whole_state(model):
    return {key: value.clone() for key, value in tessera.full_state_dict(model, rank=None).items()}


def begin(name, numerics):
    """The model that each rank makes, its dropout on, and a batch; masks that do not depend on micro-batches."""
    torch.set_num_threads(1)  # in `fast` libtorch's kernels add in another order on more
    tessera.set_generator("counter")
    tessera.manual_seed(3)
    tessera.numerics(*numerics)
    model = ZOO[name].make()
    model.config.use_cache = False  # of keys and values: bodies that are recomputed are given none
    return model, ZOO[name].batch(4), torch.optim.AdamW(model.parameters(), 1e-3)


def step(model, batch, optimizer, clip=nn.utils.clip_grad_norm_, most=0.5):
    """The loop as it is without ranks: the loss and the norm that was clipped."""
    optimizer.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    norm = clip(list(model.parameters()), most)
    optimizer.step()
    seen = [loss.item(), norm.item()]
    assert seen[1] > most
    return seen


class WholeBatchTest(unittest.TestCase):
    def test_one_devices_numbers(self):
        for name in sampled(FAMILIES, 2):
            with doubles():
                model, batch = build(ZOO[name], torch.float64)
                loss, want = results_of(copy.deepcopy(model), batch)

                def body(*run, model=model, batch=batch):
                    own = placed(copy.deepcopy(model), *run)
                    found = own(**batch).loss
                    found.backward()
                    return found.item(), gradients(own)

                for run in runs():
                    with self.subTest(model=name, run=run):
                        got, parts = on_ranks(body, run)
                        self.assertLessEqual(abs(got - loss) / abs(loss), 1e-12)
                        self.assertEqual(parts.keys(), want.keys())
                        self.assertLessEqual(furthest(parts, want), 1e-12)

    def check_bits(self, name, numerics, one, runs, clip=nn.utils.clip_grad_norm_, recompute=(), vocabulary=0):
        def body(*run):
            model, batch, optimizer = begin(name, numerics)
            placed(model, *run, optimizer, recompute if run != one else (), vocabulary)
            seen = [number for _ in range(2) for number in step(model, batch, optimizer, clip)]
            return seen, whole_state(model)

        want, state = on_ranks(body, one)
        for run in runs:
            with self.subTest(model=name, numerics=numerics, run=run):
                got, parts = on_ranks(body, run)
                self.assertEqual(got, want)
                self.assertEqual([key for key in state if not torch.equal(parts[key], state[key])], [])

    def test_exact_has_the_bits_of_one_rank_and_one_batch(self):
        for name in sampled(FAMILIES, 2):  # micro-batches of one sample: those of ViT's class token and of T5's position bias are refused, with or without stages
            self.check_bits(name, ("exact", LATTICE), ONE, [run for run in runs() if name not in ("vit", "t5") or run[2] < 4])

    def test_recomputed_layers_of_llama(self):
        # Its norm is written out: what that makes before it reads its weight would be on the stage before.
        self.check_bits("llama", ("exact", LATTICE), ONE, [("pp=2", "1f1b", 4), ("pp=2", "zbv", 4), ("pp=2", "", 1)], recompute="model.layers.*")

    def test_a_cut_vocabulary(self):
        for name in ("llama", "gpt2"):
            for barriers in (1, 2):
                runs = [("pp=2", "1f1b", 4), ("pp=2", "v-half", 4), ("pp=2", "", 1)]
                self.check_bits(name, ("exact", LATTICE), ONE, runs, vocabulary=barriers)

    def test_a_recomputed_part_of_two_stages_is_refused_where_ranks_have_several(self):
        def body(*run):
            model, batch, optimizer = begin("llama", ("fast",))
            placed(model, *run, optimizer, "model")
            step(model, batch, optimizer)

        with self.assertRaisesRegex(RuntimeError, r"a recomputed body sends a value .* Recompute modules that lie on one stage"):
            on_ranks(body, ("pp=2", "zbv", 4))

    def test_clipping_on_four_stages(self):
        for clip in (nn.utils.clip_grad_norm_, clip_in_two):
            self.check_bits("gpt2", ("exact", LATTICE), ONE, [("pp=4", "1f1b", 4)], clip)

    def test_fast_has_the_bits_of_the_same_micro_batches(self):
        for name in sampled(("llama", "vit"), 1):
            self.check_bits(name, ("fast",), ("1", "", 3), [("pp=2", "interleaved", 3), ("pp=4", "1f1b", 3)])


class LoopTest(unittest.TestCase):
    """What stands around the steps of a loop."""

    def test_evaluation_and_generation_between_steps(self):
        def evaluated(model, batch):
            model.eval()
            with torch.no_grad():
                output = model(**batch)
            model.train()
            return output.loss.item(), tessera.full_tensor(output.logits)

        def body(*run):
            model, batch, optimizer = begin("llama", ("fast",))  # `generate` asks for what has no exact form
            placed(model, *run, optimizer)
            seen = [step(model, batch, optimizer), *evaluated(model, batch), step(model, batch, optimizer)]
            return [*seen, tessera.full_tensor(ZOO["llama"].generate(model))]

        want = on_ranks(body, ("1", "", 3))
        for run in (("pp=2", "1f1b", 3), ("pp=2", "interleaved", 3)):
            got = on_ranks(body, run)
            self.assertTrue(all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(got, want, strict=True)))

    @in_folder
    def test_checkpoints_go_on_by_another_schedule(self, folder):
        def body(*run, first=0, last=3):
            model, batch, optimizer = begin("gpt2", ("exact", LATTICE))
            placed(model, *run, optimizer)
            if first:
                tessera.load(folder / str(run[1]), model, optimizer)
            seen = [step(model, batch, optimizer) for _ in range(first, last)]
            if last < 3:
                for _, then in zip(RUNS, reversed(RUNS), strict=True):
                    tessera.save(folder / then[1], model, optimizer, step=last)
            return seen, whole_state(model)

        want, state = on_ranks(body, ONE)
        before, _ = on_ranks(lambda *run: body(*run, last=1), RUNS[0])
        for run in reversed(RUNS):
            got, parts = on_ranks(lambda *run: body(*run, first=1), run)
            self.assertEqual(before + got, want)
            self.assertEqual([key for key in state if not torch.equal(parts[key], state[key])], [])

    def test_a_copy_of_the_model_has_steps_of_its_own(self):
        def body(*run):
            model, ids, labels = made()
            model = copy.deepcopy(placed(model, *run))
            loss = model(ids, labels)
            (loss * 2).backward()
            return loss.item(), gradients(model)

        model, ids, labels = made()
        loss = model(ids, labels)
        (loss * 2).backward()
        got, parts = on_ranks(body, ("pp=2", "1f1b", 4))
        torch.testing.assert_close(got, loss.item(), rtol=1e-12, atol=0)
        self.assertLessEqual(furthest(parts, {name: p.grad for name, p in model.named_parameters()}), 1e-12)

    def test_gradients_add_and_hooks_run_once(self):
        model, ids, labels = made()
        for _ in range(2):
            model(ids, labels).backward()
        want = {name: p.grad for name, p in model.named_parameters()}

        def body(*run):
            own = placed(made()[0], *run)
            seen = []
            own.head.weight.register_hook(lambda gradient: seen.append(gradient.shape))
            for _ in range(2):
                own(ids, labels).backward()
            return len(seen), gradients(own)

        calls, parts = on_ranks(body, ("pp=2", "1f1b", 4))
        self.assertEqual(calls, 2)
        self.assertLessEqual(furthest(parts, want), 1e-12)

    def test_recomputed_layers(self):
        """Those of the loss too."""
        class Inside(nn.Module):
            def __init__(self, net):
                super().__init__()
                self.net = net

            def forward(self, ids, labels):
                return self.net(ids, labels)

        model, ids, labels = made(ignored=0.3)
        model = Inside(model)
        loss = model(ids, labels)
        loss.backward()
        want = {name: p.grad for name, p in model.named_parameters()}

        def body(mesh, schedule, microbatches, recompute):
            own = copy.deepcopy(model)
            own.zero_grad()
            tessera.parallelize(own, tessera.generate_plan(own, mesh=mesh, schedule=schedule, recompute=recompute), microbatches=microbatches)
            found = own(ids, labels)
            found.backward()
            return found.item(), gradients(own)

        for recompute in ("net.layers.*", "net"):
            with self.subTest(recompute=recompute):
                got, parts = on_ranks(lambda *run, recompute=recompute: body(*run, recompute), ("pp=2", "1f1b", 4))
                torch.testing.assert_close(got, loss.item(), rtol=1e-12, atol=0)
                self.assertLessEqual(furthest(parts, want), 1e-12)

    def test_dropout_draws_as_plain_pytorch_does(self):
        """In the order of the micro-batches, whatever the schedule; what was asked before the first step draws nothing."""
        drop = nn.Dropout(0.5)
        model, ids, labels = made(Net, lambda index, x: drop(x), samples=8)
        torch.manual_seed(5)
        loss = sum(model(*part) for part in zip(ids.chunk(4), labels.chunk(4), strict=True)) / 4
        loss.backward()
        want = {name: p.grad for name, p in model.named_parameters()}

        def body(*run):
            own = placed(copy.deepcopy(model), *run)
            own.zero_grad()
            torch.manual_seed(5)
            found = own(ids, labels)
            found.backward()
            return found.item(), gradients(own)

        for run in (("1", "", 4), ("pp=2", "1f1b", 4), ("pp=2", "interleaved", 4)):
            with self.subTest(run=run):
                got, parts = on_ranks(body, run)
                torch.testing.assert_close(got, loss.item(), rtol=1e-12, atol=0)
                self.assertLessEqual(furthest(parts, want), 1e-12)

    def test_rows_of_each_rank(self):
        model, ids, labels = made(ignored=0.3)
        loss = model(ids, labels)
        loss.backward()

        def body(*run):
            own = placed(copy.deepcopy(model), *run, batch="local")
            own.zero_grad()
            mine = slice(0, 3) if tessera.rank() % 2 == 0 else slice(3, 7)
            found = own(ids[mine], labels[mine])
            found.backward()
            return found.item(), gradients(own)

        got, parts = on_ranks(body, ("pp=2,dp=2", "1f1b", 2))
        torch.testing.assert_close(got, loss.item(), rtol=1e-12, atol=0)
        self.assertLessEqual(furthest(parts, {name: p.grad for name, p in model.named_parameters()}), 1e-12)

    def test_outputs_are_kept_if_asked_for(self):
        def body(*run):
            model, batch, _ = begin("llama", ("exact", LATTICE))
            placed(model, *run, keep_outputs="logits")
            model.eval()
            output = model(**batch)
            with torch.no_grad():
                whole = model(**batch).logits
            assert output["loss"] is output.loss is output[0] and len(output.logits) == 2 and "logits" in output and "past_key_values" not in output
            assert torch.equal(torch.cat([tessera.full_tensor(each) for each in output.logits]), tessera.full_tensor(whole))
            with self.assertRaisesRegex(AttributeError, r"`past_key_values` of a training step in micro-batches.*keep_outputs"):
                output.past_key_values
            return True

        for run in (("pp=2", "1f1b", 2), ("pp=2", "interleaved", 2)):
            self.assertTrue(on_ranks(body, run))


class ProgramTest(unittest.TestCase):
    """A program of one device, and that of a pipeline."""

    ADDED = ["+import tessera", "+    tessera.parallelize(model, tessera.generate_plan(model, mesh=sys.argv[2], schedule=sys.argv[3]), optimizer, microbatches=int(sys.argv[4]))"]

    def pipelined(self):
        lines = PROGRAM.read_text().split("\n")
        lines.insert(lines.index("import torch"), self.ADDED[0][1:])
        lines.insert(next(i for i, line in enumerate(lines) if "optimizer =" in line) + 1, self.ADDED[1][1:])
        return lines

    def test_no_line_changes(self):
        """Of model and loop; and none at all between one stage and four, which are arguments."""
        changes = [line for line in difflib.unified_diff(PROGRAM.read_text().split("\n"), self.pipelined(), "one device", "pipeline", n=0, lineterm="")
                   if line[0] in "+-" and line[:3] not in ("---", "+++")]
        self.assertEqual(changes, self.ADDED)

    @in_folder
    def test_processes(self, folder):
        self.check(warm_python.run([PROGRAM, folder], timeout=300, env=self.environment()))
        want = self.numbers_of(folder / "rank0")
        program = folder / "pipeline.py"
        program.write_text("\n".join(self.pipelined()))
        self.check(warm_python.torchrun(4, [program, folder, "pp=4", "1f1b", "3"], timeout=300, env=self.environment()))
        for rank in range(4):
            got = self.numbers_of(folder / f"rank{rank}")
            self.assertEqual([name for name, _ in got], [name for name, _ in want])
            for (name, number), (_, wanted) in zip(got, want, strict=True):
                self.assertLessEqual(abs(number / wanted - 1), 1e-9, name)  # three steps of AdamW, which divides by roots

    @in_folder
    def test_a_process_that_throws_or_ends(self, folder):
        """Inside of a stage: every rank has an error, long before its deadline."""
        for ends in ("raise ValueError('on purpose')", "os._exit(9)"):
            with self.subTest(ends=ends):
                program = folder / "fails.py"
                program.write_text(FAILS.replace("ENDS", ends))
                done = warm_python.torchrun(2, [program, folder], timeout=60, env=self.environment())
                self.assertNotEqual(done.returncode, 0)
                self.assertRegex((folder / "rank0").read_text(), r"rank 1 (has finished|failed)")
                self.assertEqual([path.name for path in sorted(folder.glob("rank*"))], ["rank0", "rank1"] if "raise" in ends else ["rank0"])
                for path in folder.glob("rank*"):
                    path.unlink()

    def environment(self):
        return {**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"}

    def check(self, done):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def numbers_of(self, path):
        return [(name, float(number)) for name, number in (line.split() for line in path.read_text().splitlines())]


if __name__ == "__main__":
    warm_python.begin()
    unittest.main()
