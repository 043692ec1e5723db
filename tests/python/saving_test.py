#!/usr/bin/env python3
"""tessera.save, start_save and load: what every optimizer of torch.optim keeps, programs that are no rank, values of the program's own, and what
is refused before anything changes.

Usage: saving_test.py [unittest's arguments]
"""

import json
import os
import random
import time
import unittest
import warnings

import tessera
import torch
from folders import in_folder
from state_test import OPTIMIZERS, make, train

MESH = "dp=2,tp=2"
ALL = {**OPTIMIZERS, "SGD without momentum": lambda p: torch.optim.SGD(p, 1e-2), "Adam of a tensor": lambda p: torch.optim.Adam(p, torch.tensor(1e-2)),
       "LBFGS": lambda p: torch.optim.LBFGS(p, 1e-2, max_iter=2)}

if hasattr(torch.optim, "Muon"):  # of matrices alone
    ALL["Muon"] = lambda p: torch.optim.Muon([parameter for parameter in p if parameter.dim() == 2], 1e-2)


def steps(model, optimizer, count):
    """As state_test's, also of optimizers that ask for the loss."""
    if not isinstance(optimizer, torch.optim.LBFGS):
        return train(model, optimizer, count)
    x = torch.arange(32.0, dtype=torch.float64).reshape(4, 8).sin()

    def loss():
        optimizer.zero_grad()
        value = (model(x) - x).square().mean()
        value.backward()
        return value

    for _ in range(count):
        optimizer.step(loss)


def start(mesh, build=ALL["AdamW"]):
    """The model on the mesh (None: on no mesh) and its optimizer, which has taken no step."""
    model = make()
    if mesh:
        tessera.parallelize(model, mesh)
    return model, build(model.parameters())


def whole(model, optimizer):
    """Every bit of both, as texts of plain values."""
    return ({name: value.tolist() for name, value in tessera.full_state_dict(model, rank=None).items()},
            plain(dict(tessera.full_optimizer_state_dict(optimizer, rank=None))))


def plain(value):
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def parts(model, optimizer):
    """What this rank holds of both."""
    own = [value.to_local() if isinstance(value, tessera.DTensor) else value for value in model.state_dict().values()]
    kept = [value.to_local() if isinstance(value, tessera.DTensor) else value for state in optimizer.state.values() for value in state.values()]
    return plain([own, kept]), [{key: plain(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def on(mesh, body):
    return tessera.run_ranks(body, tessera.Mesh(mesh).size())


class OptimizersTest(unittest.TestCase):
    @in_folder
    def test_each_goes_on_as_if_it_had_not_ended(self, folder):
        for name, build in ALL.items():
            with self.subTest(optimizer=name):
                run = folder / name.replace(" ", "_")

                def first():
                    model, optimizer = start(MESH, build)
                    steps(model, optimizer, 2)
                    tessera.save(run, model, optimizer, step=2)
                    saved = whole(model, optimizer)
                    steps(model, optimizer, 2)
                    return saved, whole(model, optimizer)

                def second(mesh, count, warm=0):
                    model, optimizer = start(mesh, build)
                    steps(model, optimizer, warm)
                    self.assertEqual(tessera.load(run, model, optimizer).step, 2)
                    self.check_layouts(model, optimizer)
                    steps(model, optimizer, count)
                    return whole(model, optimizer)

                saved, later = on(MESH, first)
                self.assertEqual(on(MESH, lambda: second(MESH, 2)), later)
                self.assertEqual(on(MESH, lambda: second(MESH, 2, warm=1)), later)  # of a program that has taken steps
                self.assertEqual(on("tp=3", lambda: second("tp=3", 0)), saved)
                self.assertEqual(second(None, 0), saved)  # in a program that is no rank

    def check_layouts(self, model, optimizer):
        for parameter in model.parameters():
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape and isinstance(parameter, tessera.DTensor):
                    self.assertEqual(value.placements, parameter.placements, key)
                    self.assertEqual(value.dtype, parameter.dtype, key)

    @in_folder
    def test_moments_of_other_dtypes_stay_what_they_are(self, folder):
        """A moment in another dtype than its parameter, which load_state_dict() would cast."""
        def body(fill):
            model, optimizer = start("tp=2")
            steps(model, optimizer, 1)
            for state in optimizer.state.values():
                state["exp_avg"] = state["exp_avg"].to(torch.bfloat16 if fill else torch.float64)
            if fill:
                tessera.save(folder, model, optimizer, step=1)
            else:
                tessera.load(folder, model, optimizer)
            return whole(model, optimizer), {str(state["exp_avg"].dtype) for state in optimizer.state.values()}

        saved = on("tp=2", lambda: body(True))
        self.assertEqual(saved[1], {"torch.bfloat16"})
        self.assertEqual(on("tp=2", lambda: body(False)), saved)

    @in_folder
    def test_half_frozen_models_and_groups(self, folder):
        def build(frozen=(0,), rates=(1e-2, 1e-3), order=(0, 2)):
            model = make()
            for index in frozen:
                model[index].requires_grad_(False)
            tessera.parallelize(model, "dp=2")
            return model, torch.optim.AdamW([{"params": list(model[index].parameters()), "lr": rate} for index, rate in zip(order, rates)])

        def first():
            model, optimizer = build()
            steps(model, optimizer, 2)
            tessera.save(folder, model, optimizer, step=2)
            return whole(model, optimizer)

        def second():
            model, optimizer = build(rates=(5.0, 5.0))
            tessera.load(folder, model, optimizer)
            self.assertEqual([group["lr"] for group in optimizer.param_groups], [1e-2, 1e-3])
            self.assertEqual(len(optimizer.state), 2)  # what is frozen has none
            return whole(model, optimizer)

        def other_groups(says, make_both):
            with self.assertRaisesRegex(RuntimeError, says):
                on("dp=2", lambda: tessera.load(folder, *make_both()))

        def in_one_group():
            model = tessera.parallelize(make(), "dp=2")
            return model, torch.optim.AdamW(model.parameters())

        self.assertEqual(on("dp=2", first), on("dp=2", second))
        other_groups(r"other groups of parameters: 0\.weight where the optimizer has 2\.weight", lambda: build(order=(2, 0)))
        other_groups(r"the end of a group where the optimizer has 2\.weight", in_one_group)


class ProgramsTest(unittest.TestCase):
    @in_folder
    def test_a_program_that_is_no_rank(self, folder):
        """Its checkpoints go to a mesh and back; random numbers go on."""
        model, optimizer = start(None)
        steps(model, optimizer, 2)
        saving = tessera.start_save(folder, model, optimizer, step=2, extra={"epoch": 3})
        saved, next_numbers = whole(model, optimizer), (torch.rand(3).tolist(), random.random())
        steps(model, optimizer, 1)  # changes nothing of what was copied
        saving.check()
        saving.finish()
        self.assertEqual(saving.folder, str(folder / "step_000002"))
        self.assertFalse(tessera.in_rank())
        other, others = start(None)
        loaded = tessera.load(folder, other, others)
        self.assertEqual((loaded.step, loaded, loaded.folder), (2, {"epoch": 3}, saving.folder))
        self.assertEqual(whole(other, others), saved)
        self.assertEqual((torch.rand(3).tolist(), random.random()), next_numbers)

        def on_mesh(generator="stock", **options):
            tessera.set_generator(generator)
            model, optimizer = start(MESH)
            tessera.load(folder, model, optimizer, **options)
            tessera.save(folder / f"on {generator}", model, optimizer, step=3)
            return whole(model, optimizer), torch.rand(3).tolist()

        self.assertEqual(on(MESH, on_mesh), (saved, next_numbers[0]))
        with self.assertRaisesRegex(RuntimeError, r"generator stock, the job has counter; accepted: the same \(set_generator\), or allows_other_sums"):
            on(MESH, lambda: on_mesh("counter"))
        self.assertEqual(on(MESH, lambda: on_mesh("counter", allows_other_sums=True))[0], saved)
        other, others = start(None)
        self.assertEqual(tessera.load(folder / "on stock", other, others).step, 3)
        self.assertEqual(whole(other, others), saved)

    @in_folder
    def test_random_numbers_go_on(self, folder):
        def body(kind, load):
            tessera.set_generator(kind)
            torch.manual_seed(1 + load)
            model, optimizer = start("dp=3" if load else "tp=2")
            torch.rand(5)
            if load:
                steps(model, optimizer, 1)
                tessera.load(folder / kind, model, optimizer)
            else:
                tessera.save(folder / kind, model, optimizer, step=1)
            return torch.rand(4).tolist(), torch.initial_seed()

        for kind in ("stock", "counter"):
            with self.subTest(generator=kind):
                want = on("tp=2", lambda: body(kind, False))
                self.assertEqual(on("dp=3", lambda: body(kind, True)), want)

    @in_folder
    def test_what_is_kept_along(self, folder):
        class Counting(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 4)
                self.seen = 0
                self.register_buffer("mean", torch.zeros(4))
                self.register_buffer("scratch", torch.zeros(4), persistent=False)

            def get_extra_state(self):
                return {"seen": self.seen}

            def set_extra_state(self, state):
                self.seen = state["seen"]

        extra = {"epoch": 3, "text": "é", "nested": {"list": [1, 2.5, None, True]}}

        def body():
            model = torch.nn.Sequential(Counting(), torch.nn.Linear(4, 4))
            model[0].seen = 5
            model[0].mean += 1
            model[0].scratch += 2
            tessera.parallelize(model, "dp=2")
            tessera.save(folder, model, step=1, extra=extra)
            other = torch.nn.Sequential(Counting(), torch.nn.Linear(4, 4))
            tessera.parallelize(other, "dp=2")
            self.assertEqual(tessera.load(folder, other), extra)
            self.assertEqual(other[0].seen, 5)
            self.assertEqual(tessera.full_tensor(other[0].mean).tolist(), [1.0] * 4)
            self.assertEqual(tessera.full_tensor(other[0].scratch).tolist(), [0.0] * 4)
            index = json.loads((folder / "step_000001" / "model.safetensors.index.json").read_text())
            self.assertEqual(sorted(index["weight_map"]), ["0.layer.bias", "0.layer.weight", "0.mean", "1.bias", "1.weight"])

        on("dp=2", body)

    @in_folder
    def test_checkpoints_that_stay(self, folder):
        def body():
            model, optimizer = start("tp=2")
            for step in range(4):
                saving = tessera.start_save(folder, model, optimizer, step=step, keep=2)
                steps(model, optimizer, 1)
                saving.finish()
            return tessera.load(folder, model).folder

        self.assertEqual(on("tp=2", body), str(folder / "step_000003"))
        self.assertEqual(sorted(path.name for path in folder.iterdir()), ["step_000002", "step_000003"])


class RefusedTest(unittest.TestCase):
    """Each says what is wrong, and model and optimizer are as before on every rank."""

    def check(self, says, call, kind=RuntimeError, mesh="dp=2"):
        """`call` of a model and its optimizer, in a job of its own, which the error ends."""
        changed = []

        def body():
            model, optimizer = start(mesh)
            steps(model, optimizer, 1)
            before = parts(model, optimizer)
            try:
                call(model, optimizer)
            finally:
                changed.extend([tessera.rank()] if parts(model, optimizer) != before else [])

        with self.subTest(says=says):
            with self.assertRaisesRegex(kind, says):
                on(mesh, body)
            self.assertEqual(changed, [])

    @in_folder
    def test_what_does_not_fit(self, folder):
        def save():
            model, optimizer = start("dp=2")
            steps(model, optimizer, 1)
            tessera.save(folder / "run", model, optimizer, step=1)
            tessera.save(folder / "alone", model, step=1)

        def load_other(build, with_optimizer=False):
            def load(model, optimizer):
                other = tessera.parallelize(build(), "dp=2")
                tessera.load(folder / "run", other, *([torch.optim.AdamW(other.parameters())] if with_optimizer else []))
            return load

        def deeper():
            return torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 9), torch.nn.Linear(9, 8)).double()

        on("dp=2", save)
        self.check(r"missing: 3\.bias, 3\.weight; 1 extra: count; 2 misshapen: 2\.bias is float64\[8\], wanted float64\[9\].*nothing was changed", load_other(deeper))
        self.check(r"2 missing: 3\.bias, 3\.weight; ", load_other(deeper, with_optimizer=True))
        self.check(r"misshapen: 0\.bias is float64\[12\], wanted float32\[12\]", load_other(lambda: make().float()))
        self.check("the state of AdamW, the optimizer is SGD", lambda m, o: tessera.load(folder / "run", m, torch.optim.SGD(m.parameters(), 1e-2)))
        self.check("was saved without an optimizer", lambda m, o: tessera.load(folder / "alone", m, o))
        self.check("none of the model's", lambda m, o: tessera.load(folder / "run", m, torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))])), ValueError)
        self.check("none of the model's", lambda m, o: tessera.save(folder / "new", m, torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))]), step=2), ValueError)
        self.assertFalse((folder / "new").exists())

    @in_folder
    def test_places(self, folder):
        (folder / "empty").mkdir()
        (folder / "file").write_text("no checkpoint")
        (folder / "file.safetensors").write_text("no checkpoint")
        self.check("cannot list .*none", lambda m, o: tessera.load(folder / "none", m, o))
        self.check("has no whole checkpoint; accepted: the folder of a run", lambda m, o: tessera.load(folder / "empty", m, o))
        self.check("gives its header", lambda m, o: tessera.load(folder / "file.safetensors", m))
        self.check("weights_only|Weights only", lambda m, o: tessera.load(folder / "file", m), Exception)
        self.check("file", lambda m, o: tessera.save(folder / "file", m, step=1))
        self.check("file/such.*Not a directory", lambda m, o: tessera.save(folder / "file" / "such", m, step=1))

    @in_folder
    def test_a_step_is_saved_once(self, folder):
        def save(model, optimizer):
            tessera.save(folder, model, optimizer, step=1)

        on("dp=2", lambda: save(*start("dp=2")))
        files = {path.name: path.read_bytes() for path in (folder / "step_000001").iterdir()}
        self.check("step_000001", save)
        self.assertEqual({path.name: path.read_bytes() for path in (folder / "step_000001").iterdir()}, files)

    @in_folder
    def test_a_damaged_checkpoint(self, folder):
        on("dp=2", lambda: tessera.save(folder, start("dp=2")[0], step=1))
        part = next((folder / "step_000001").glob("model-*.safetensors"))
        content = bytearray(part.read_bytes())
        content[-5] ^= 4
        part.write_bytes(content)
        self.check(f"{part.name}.*damaged", lambda m, o: tessera.load(folder, m))

    @in_folder
    def test_a_program_goes_on_with_another_checkpoint(self, folder):
        """Damage is an error on every rank, after which the job is what it was."""
        def save():
            model, optimizer = start("dp=2")
            tessera.save(folder, model, optimizer, step=1)
            steps(model, optimizer, 1)
            tessera.save(folder, model, optimizer, step=2)

        def load():
            model, optimizer = start("dp=2")
            with self.assertRaisesRegex(RuntimeError, "step_000002.*damaged"):
                tessera.load(folder, model, optimizer)
            return tessera.load(folder / "step_000001", model, optimizer).step

        on("dp=2", save)
        part = next((folder / "step_000002").glob("model-*.safetensors"))
        content = bytearray(part.read_bytes())
        content[-5] ^= 4
        part.write_bytes(content)
        self.assertEqual(on("dp=2", load), 1)

    @in_folder
    def test_what_killed_saves_left(self, folder):
        run = folder / "a" / "run"
        self.assertEqual(on("dp=2", lambda: tessera.remove_unfinished(run)), [])
        on("dp=2", lambda: tessera.save(run, start("dp=2")[0], step=1))
        on("dp=2", lambda: tessera.save(run, start("dp=2")[0], step=2))
        self.check("that step is saved there already", lambda m, o: tessera.save(run, m, step=2))
        (run / "step_000002" / "manifest.json").unlink()
        self.check("is claimed by save .*remove_unfinished", lambda m, o: tessera.save(run, m, step=2))
        self.assertEqual(on("dp=2", lambda: tessera.remove_unfinished(run)), [str(run / "step_000002")])
        on("dp=2", lambda: tessera.save(run, start("dp=2")[0], step=2))
        self.assertEqual(tessera.remove_unfinished(run), [])
        self.assertEqual(on("dp=2", lambda: tessera.load(run, start("dp=2")[0]).step), 2)

    @in_folder
    def test_a_rank_that_cannot_write_ends_the_job(self, folder):
        """Rank 0 does not wait for its receipt, for which it would have ten minutes."""
        taken = folder / "step_000001" / "model-00002-of-00002.safetensors"
        taken.mkdir(parents=True)

        def body():
            model, optimizer = start("dp=2")
            errors[tessera.rank()] = None
            try:
                tessera.start_save(folder, model, optimizer, step=1).finish()
            except Exception as error:
                errors[tessera.rank()] = type(error)
                raise

        errors, begun = {}, time.monotonic()
        with self.assertRaisesRegex(RuntimeError, f"{taken.name}.*File exists"):
            on("dp=2", body)
        self.assertLess(time.monotonic() - begun, 300)
        self.assertEqual(errors, {0: tessera.RankFailed, 1: RuntimeError})
        self.assertTrue(taken.is_dir())
        self.assertFalse((taken.parent / "manifest.json").exists())

    @in_folder
    def test_amid_a_step(self, folder):
        def save(model, optimizer):
            other = tessera.parallelize(make(), "dp=2", accumulate=2)
            other(torch.ones(4, 8, dtype=torch.float64)).sum().backward()
            tessera.save(folder, other, step=1)

        self.check("1 of the 2 micro-batches of a step have passed", save)

    @in_folder
    def test_values_and_steps(self, folder):
        def refused(says, **options):
            with self.assertRaisesRegex((TypeError, ValueError), says):
                tessera.save(folder, make(), **options)

        refused(r"step=None; accepted: how many steps were taken", step=None)
        refused(r"step=-1", step=-1)
        refused(r"the extra value 'it' cannot be kept: Object of type set is not JSON serializable", step=1, extra={"it": {1}})
        refused(r"the extra value 'it' cannot be kept: Out of range float values", step=1, extra={"it": float("nan")})
        refused(r"an extra value called 'job'", step=1, extra={"job": 1})
        with self.assertRaisesRegex(ValueError, "is one file of a model alone"):
            tessera.save(folder / "model.safetensors", make(), step=1)
        self.assertEqual(list(folder.iterdir()), [])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    unittest.main()
