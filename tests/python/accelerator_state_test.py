#!/usr/bin/env python3
"""tessera.accelerate: what hooks of save_state and load_state do, several optimizers of one model, and streams whose last step is short.

Usage: accelerator_state_test.py [unittest's arguments]
"""

import importlib.util
import os
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

if importlib.util.find_spec("accelerate") is None:
    print("skipped: accelerate is not installed (requirements.txt)")
    sys.exit(77)

import accelerate
import tessera
import torch
from accelerator_program import Net, rows_of
from safetensors.torch import load_file, save_file
from tessera.accelerate import Accelerator
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset
from zoo import ZOO

EXACT = {"numerics": "exact", "lattice": "batch=4,feature=4"}
MESHES = ("dp=2", "tp=2", "dp=2,tp=2", "fsdp=2")


class Stream(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def accelerator_of(mesh, accumulate=1, **arguments):
    if mesh:
        return Accelerator(mesh=mesh, gradient_accumulation_steps=accumulate, **arguments)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    return accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate)


def on_ranks(body, mesh, *arguments):
    return tessera.run_ranks(lambda: body(mesh, *arguments), tessera.Mesh(mesh).size())


def two_optimizers(model):
    """Of the matrices, and of the rest."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    return torch.optim.SGD(matrices, 0.1, momentum=0.9), torch.optim.AdamW([p for p in model.parameters() if p.ndim < 2], 1e-2)


class AcceleratorStateTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def close(self, seen, wanted, tolerance=1e-5):
        torch.testing.assert_close(torch.tensor(seen, dtype=torch.float64), torch.tensor(wanted, dtype=torch.float64), rtol=tolerance, atol=0)

    def test_streams_whose_last_step_is_short(self):
        """35 rows by 4: nine batches, the last of three rows, in steps of 2 or 4."""
        def train(mesh, accumulate, resume=None, is_exact=False):
            accelerator = accelerator_of(mesh, accumulate, **(EXACT if is_exact else {}))
            torch.manual_seed(0)
            model, stream = Net(0.2), DataLoader(Stream(rows_of(35, 1, torch.float32)), batch_size=4)
            model, optimizer, stream = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2), stream)
            if resume:
                accelerator.load_state(resume)
            log = []
            for epoch in range(1 if resume else 0, 3):
                for x, y in stream:
                    with accelerator.accumulate(model):
                        loss = functional.cross_entropy(model(x), y)
                        accelerator.backward(loss)
                        if accelerator.sync_gradients:
                            log.append(accelerator.clip_grad_norm_(model.parameters(), 0.5).item())
                        optimizer.step()
                        optimizer.zero_grad()
                    log.append(accelerator.gather(loss.detach()).item())
                accelerator.save_state(str(self.folder / f"{mesh}-{accumulate}-{is_exact}-{epoch}"))
            return log

        for accumulate in (2, 4):
            wanted = train("", accumulate)
            for mesh in MESHES:
                with self.subTest(mesh=mesh, accumulate=accumulate):
                    self.close(on_ranks(train, mesh, accumulate), wanted)
        one = on_ranks(train, "1", 4, None, True)
        for mesh in ("dp=2,tp=2", "fsdp=2"):
            self.assertEqual(on_ranks(train, mesh, 4, None, True), one)
        resumed = on_ranks(train, "tp=2", 4, str(self.folder / "dp=2,tp=2-4-True-0"), True)
        self.assertEqual(resumed, one[-len(resumed):])
        self.assertEqual(len(resumed), 2 * (9 + 3))

    def test_several_optimizers_of_one_model(self):
        def steps(accelerator, model, optimizers, count, batches):
            log = []
            for x, y in batches[:count]:
                loss = functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                log.append(accelerator.gather(loss.detach()).item())
            return log

        def train(mesh, resume=None):
            accelerator = accelerator_of(mesh)
            torch.manual_seed(0)
            model = Net()
            optimizers = two_optimizers(model)
            x, y = (torch.stack(column) for column in zip(*rows_of(40, 1, torch.float32)))
            batches = list(zip(x.split(8), y.split(8)))
            if not resume:
                steps(accelerator, model, optimizers, 1, batches)  # both have state before they are prepared
            model, *optimizers = accelerator.prepare(model, *optimizers)
            if resume:
                accelerator.load_state(resume)
                return steps(accelerator, model, optimizers, 5, batches)
            steps(accelerator, model, optimizers, 3, batches)
            accelerator.save_state(str(self.folder / (mesh or "plain")))
            return steps(accelerator, model, optimizers, 5, batches)

        wanted = train("")
        for mesh, other in zip(MESHES, MESHES[1:] + MESHES[:1]):
            with self.subTest(mesh=mesh):
                self.close(on_ranks(train, mesh), wanted)
                self.assertEqual(sorted(p.name for p in (self.folder / mesh).iterdir() if p.is_dir()), ["model_0", "optimizer_0_1"])
                self.close(on_ranks(train, other, str(self.folder / mesh)), wanted)

    def test_optimizers_of_no_model_or_of_two(self):
        def body():
            accelerator = Accelerator(mesh="dp=2")
            ours, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
            accelerator.prepare(ours, torch.optim.SGD(ours.parameters(), 0.1), torch.optim.SGD(other.parameters(), 0.1))
            with self.assertRaisesRegex(ValueError, "SGD has parameters of 0 of the 1 prepared models, and would not be saved; accepted: optimizers of"):
                accelerator.save_state(str(self.folder / "no"))
            accelerator = Accelerator(mesh="dp=2")
            accelerator.prepare(ours, other, torch.optim.SGD([*ours.parameters(), *other.parameters()], 0.1))
            with self.assertRaisesRegex(ValueError, "SGD has parameters of 2 of the 2 prepared models"):
                accelerator.save_state(str(self.folder / "no"))

        tessera.run_ranks(body, 2)
        self.assertFalse((self.folder / "no").exists())

    def test_hooks_that_save_and_load_a_model_themselves(self):
        """As programs of diffusers do: rank 0 writes each model by save_pretrained, and takes its weights off the list."""
        batch = ZOO["llama"].batch(4)

        def train(mesh, resume=None):
            accelerator = accelerator_of(mesh)
            torch.manual_seed(0)
            model = ZOO["llama"].make().eval()
            model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3))

            def save_hook(models, weights, folder):
                if accelerator.is_main_process:
                    for each in models:
                        each.save_pretrained(os.path.join(folder, "llama"))
                        weights.pop()

            def load_hook(models, folder):
                while models:
                    models.pop().load_state_dict(type(model).from_pretrained(os.path.join(folder, "llama")).state_dict())

            accelerator.register_save_state_pre_hook(save_hook)
            handle = accelerator.register_load_state_pre_hook(load_hook)
            if resume:
                accelerator.load_state(resume)
                handle.remove()

            def step():
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                return accelerator.gather(loss.detach()).item()

            if not resume:
                step(), step()
                accelerator.save_state(str(self.folder / (mesh or "plain")))
            return [step(), step()]

        wanted = train("")
        for mesh, other in (("dp=2,tp=2", "fsdp=2"), ("fsdp=2", "tp=2")):
            with self.subTest(mesh=mesh):
                self.close(on_ranks(train, mesh), wanted)
                self.close(on_ranks(train, other, str(self.folder / mesh)), wanted)
                own, plain = (load_file(self.folder / name / "llama" / "model.safetensors") for name in (mesh, "plain"))
                torch.testing.assert_close(own, plain, rtol=1e-4, atol=1e-6)
                saved = [name for name in (self.folder / mesh / "model_0").rglob("*") if name.suffix == ".safetensors"]
                self.assertFalse([key for name in saved for key in load_file(name) if key.startswith("model.")])

    def test_hooks_that_look_on_or_change_weights(self):
        def body():
            accelerator = Accelerator(mesh="fsdp=2")
            model = torch.nn.Linear(4, 4)
            value = model.weight.detach().clone()
            model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))

            def look(models, weights, folder):
                seen.append(("save", tessera.rank(), [type(each).__name__ for each in models], [list(each) for each in weights]))
                if accelerator.is_main_process:
                    self.assertTrue(torch.equal(weights[0]["weight"], value))
                    save_file({name: each.contiguous() for name, each in weights[0].items()}, os.path.join(folder, "mine.safetensors"))

            accelerator.register_save_state_pre_hook(look)
            accelerator.register_load_state_pre_hook(lambda models, folder: seen.append(("load", tessera.rank(), len(models), Path(folder).name)))
            accelerator.save_state(str(self.folder / "looked"))
            with torch.no_grad():
                model.weight.zero_()
            accelerator.load_state(str(self.folder / "looked"))
            self.assertTrue(torch.equal(tessera.full_tensor(model.weight.detach()), value))

            def change(models, weights, folder):
                if accelerator.is_main_process:
                    weights[0]["weight"] = torch.zeros(4, 4)

            accelerator.register_save_state_pre_hook(change)
            with self.assertRaisesRegex(ValueError, "a hook of save_state put other weights in place of a model's, which would not be written; accepted: to take"):
                accelerator.save_state(str(self.folder / "changed"))

        seen = []
        tessera.run_ranks(body, 2)
        self.assertIn(("save", 0, ["Linear"], [["weight", "bias"]]), seen)
        self.assertIn(("save", 1, ["Linear"], [[]]), seen)
        self.assertEqual(sorted(entry for entry in seen if entry[0] == "load"), [("load", 0, 1, "looked"), ("load", 1, 1, "looked")])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    unittest.main()
