#!/usr/bin/env python3
"""tessera.accelerate: the log of accelerate on one device, over meshes, as rank threads and as processes, resumed on another mesh; in `exact` its bits.

Usage: accelerator_test.py [unittest's arguments]
"""

import importlib.util
import json
import os
import sys
import tempfile
import unittest
import warnings
from pathlib import Path
from unittest import mock

if importlib.util.find_spec("accelerate") is None:
    print("skipped: accelerate is not installed (requirements.txt)")
    sys.exit(77)

import accelerate
import tessera
import torch
import warm_python
from accelerate.utils import ProjectConfiguration
from accelerator_program import Net, Run, main, rows_of
from safetensors.torch import load_file
from tessera.accelerate import Accelerator
from runs import lines_of, on_threads

PROGRAM = Path(__file__).parent / "accelerator_program.py"
EXACT = {"numerics": "exact", "lattice": "batch=4,feature=4"}


class AcceleratorTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def run_of(self, name, **fields):
        return Run(str(self.folder / name), **fields)

    def plain(self, **fields):
        return main(self.run_of("plain", **fields))

    def by_threads(self, name, **fields):
        return on_threads(main, self.run_of(name, **fields))

    def check_log(self, seen, plain, tolerance):
        self.assertEqual([set(line) for line in seen], [set(line) for line in plain])
        for line, wanted in zip(seen, plain, strict=True):
            for name, value in wanted.items():
                self.assertLessEqual(abs(line[name] - value), tolerance * abs(value), (name, line, wanted))

    def test_the_log_of_one_device(self):
        """Whole steps, and epochs whose last step has fewer passes and fewer rows."""
        for fields, meshes in (({}, ("dp=2", "tp=2", "dp=2,tp=2", "fsdp=2")), ({"rows": 35, "accumulate": 3}, ("dp=2,tp=2",))):
            plain = self.plain(**fields)
            for mesh in meshes:
                with self.subTest(mesh=mesh, **fields):
                    self.check_log(self.by_threads(mesh, mesh=mesh, **fields), plain, 1e-5)
        plain = self.plain(dtype="float64")
        self.check_log(self.by_threads("double", mesh="dp=2,tp=2", dtype="float64"), plain, 1e-12)
        plain = self.plain(precision="bf16")
        for mesh in ("tp=2", "fsdp=2"):
            self.check_log(self.by_threads(f"bf16 on {mesh}", mesh=mesh, precision="bf16"), plain, 3e-2)

    def test_bits_of_one_rank_resumed_on_another_mesh(self):
        exact = {**EXACT, "rows": 36}
        one = self.by_threads("one", mesh="1", **exact)
        self.check_log(one, self.plain(rows=36), 1e-5)
        for mesh in ("dp=2,tp=2", "fsdp=2"):
            with self.subTest(mesh=mesh):
                self.assertEqual(self.by_threads(mesh, mesh=mesh, **exact), one)
        second = [line for line in one if line["epoch"] == 1]
        for before, mesh in (("dp=2,tp=2", "dp=4"), ("one", "tp=2"), ("fsdp=2", "1")):
            with self.subTest(before=before, mesh=mesh):
                self.assertEqual(self.by_threads(f"{before} to {mesh}", mesh=mesh, resume=str(self.folder / before / "epoch_0"), **exact), second)

    def test_ranks_leave_the_environment_alone(self):
        """By accelerate's own ways it is empty for a moment, which the threads of other ranks may see."""
        with mock.patch.object(type(os.environ), "clear", side_effect=AssertionError("the environment is emptied")):
            self.assertEqual(tessera.run_ranks(lambda: Accelerator(mesh="dp=2", gradient_accumulation_steps=3).gradient_accumulation_steps, 2), 3)

    def test_epochs_that_end_early(self):
        """By `break`, between two steps; the next one has all of its passes."""
        def body():
            accelerator = Accelerator(gradient_accumulation_steps=2, mesh="dp=2", numerics="exact", lattice="batch=4")
            torch.manual_seed(0)
            rows = torch.randn(6, 4, 6, generator=torch.Generator().manual_seed(1))
            model = Net()
            model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), torch.utils.data.DataLoader(list(rows), batch_size=None))
            passes = []
            for _ in range(2):
                for i, x in enumerate(loader):
                    with accelerator.accumulate(model):
                        accelerator.backward(model(x).square().mean())
                        optimizer.step()
                        optimizer.zero_grad()
                    passes.append((i, accelerator.sync_gradients))
                    if i == 3:
                        break
            accelerator.save_state(str(self.folder / "early"))
            return passes

        self.assertEqual(tessera.run_ranks(body, 2), 2 * [(0, False), (1, True), (2, False), (3, True)])

    def test_by_processes(self):
        exact = {**EXACT, "mesh": "dp=2"}
        threads = self.by_threads("threads", **exact)
        runs = [self.run_of("whole", **exact), self.run_of("resumed", resume=str(self.folder / "threads" / "epoch_0"), **exact)]
        whole, resumed = (json.loads(line) for line in lines_of(PROGRAM, *runs, timeout=300) if line.startswith("["))
        self.assertEqual(whole, threads)
        self.assertEqual(resumed, [line for line in threads if line["epoch"] == 1])
        launch = ["-m", "accelerate.commands.accelerate_cli", "launch"]
        text = json.dumps(vars(runs[0]))
        done = warm_python.run([*launch, "--multi_gpu", "--num_processes", "2", "--main_process_port", "0", PROGRAM, text], timeout=300)
        self.assertEqual(json.loads(done.stdout.splitlines()[-1]), threads, done.stderr)
        done = warm_python.run([*launch, "--cpu", "--num_processes", "2", PROGRAM, text], timeout=300)  # starts one
        self.assertIn("in a program without ranks; accepted: a launcher (torchrun --nproc-per-node 2", done.stderr)

    def test_files(self):
        """The model opens without tessera; what accelerate saved on one device goes on here, but for its random numbers."""
        self.by_threads("run", mesh="dp=2,tp=2")
        whole = load_file(self.folder / "run" / "model" / "model.safetensors")
        self.assertEqual({name: value.shape for name, value in whole.items()}, {name: value.shape for name, value in Net().state_dict().items()})
        self.assertEqual(os.listdir(self.folder / "run" / "epoch_1" / "model_0"), ["step_000010"])
        drawless = {"dropout": 0.0, "shuffle": False}
        plain = self.plain(**drawless)
        resumed = self.by_threads("resumed", mesh="tp=2", **drawless, resume=str(self.folder / "plain" / "epoch_0"))
        self.check_log(resumed, [line for line in plain if line["epoch"] == 1], 1e-5)

    def test_ranks(self):
        def body():
            accelerator, mine = Accelerator(), tessera.rank()
            with accelerator.main_process_first():
                order.append(mine)
            accelerator.wait_for_everyone()
            if mine == 1:
                accelerator.set_trigger()
            stops.append((accelerator.check_trigger(), accelerator.check_trigger()))
            self.assertEqual((accelerator.num_processes, accelerator.process_index, accelerator.is_main_process), (1, mine, mine == 0))

        order, stops = [], []
        tessera.run_ranks(body, 3)
        self.assertEqual((order[0], sorted(order)), (0, [0, 1, 2]))
        self.assertEqual(stops, [(True, False)] * 3)

    def test_automatic_names(self):
        def body():
            configuration = ProjectConfiguration(str(self.folder), automatic_checkpoint_naming=True, total_limit=2)
            accelerator = Accelerator(project_config=configuration)
            model = torch.nn.Linear(4, 4)
            model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
            for _ in range(3):
                accelerator.backward(model(torch.ones(2, 4)).sum())
                optimizer.step()
                optimizer.zero_grad()
                seen.append((tessera.rank(), Path(accelerator.save_state()).name, tessera.full_tensor(model.weight).sum().item()))
            optimizer.step()
            accelerator.load_state()
            return tessera.full_tensor(model.weight).sum().item()

        seen = []
        last = tessera.run_ranks(body, 2)
        self.assertEqual({entry[:2] for entry in seen}, {(mine, f"checkpoint_{i}") for mine in (0, 1) for i in range(3)})
        self.assertEqual(sorted(os.listdir(self.folder / "checkpoints")), ["checkpoint_1", "checkpoint_2"])
        self.assertEqual(last, seen[-1][2])

    def test_a_pipeline(self):
        """Placed by the script, in micro-batches: losses and norms of one device; batches that are accumulated besides are refused."""
        class Scored(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(4))

            def forward(self, x, y):
                for layer in self.layers:
                    x = layer(x).tanh()
                return torch.nn.functional.cross_entropy(x, y)

        def train(accelerator, mesh="", schedule="", microbatches=1):
            torch.manual_seed(0)
            model = Scored().double()
            if mesh:
                tessera.parallelize(model, tessera.generate_plan(model, mesh=mesh, schedule=schedule), microbatches=microbatches)
            rows = torch.utils.data.DataLoader(rows_of(20, 1, torch.float64), batch_size=4)
            model, optimizer, rows = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2), rows)
            seen = []
            for x, y in rows:
                with accelerator.accumulate(model):
                    loss = model(x, y)
                    accelerator.backward(loss)
                    norm = accelerator.clip_grad_norm_(model.parameters(), 0.5) if accelerator.sync_gradients else torch.zeros(())
                    seen += [accelerator.gather(loss.detach()).item(), norm.item()]
                    optimizer.step()
                    optimizer.zero_grad()
            return torch.tensor(seen, dtype=torch.float64)

        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # of an earlier run
        plain = train(accelerate.Accelerator(cpu=True))
        for run in (("pp=2", "1f1b", 2), ("pp=2", "interleaved", 4), ("pp=2,dp=2", "1f1b", 2)):
            with self.subTest(run=run):
                found = tessera.run_ranks(lambda run=run: train(Accelerator(mesh=run[0]), *run), tessera.Mesh(run[0]).size())
                torch.testing.assert_close(found, plain, rtol=1e-12, atol=1e-12)
        with self.assertRaisesRegex(NotImplementedError, "microbatches=2, and a trainer that gives 2 batches a step; accepted: one"):
            tessera.run_ranks(lambda: train(Accelerator(mesh="pp=2", gradient_accumulation_steps=2), "pp=2", "1f1b", 2), 2)

    def test_what_is_refused(self):
        def body():
            with self.assertRaisesRegex(ValueError, r"dynamo_backend on a mesh: another library would run the model; accepted: mesh="):
                Accelerator(dynamo_backend="inductor")

        tessera.run_ranks(body, 2)
        with self.assertRaisesRegex(ValueError, r"\[Accelerator\] .*dp=2.* in a program without ranks"):
            Accelerator(mesh="dp=2")
        Accelerator(cpu=True)  # without ranks it is accelerate's alone


if __name__ == "__main__":
    warm_python.begin()
    warnings.simplefilter("ignore")
    unittest.main()
