#!/usr/bin/env python3
"""Optimizers on a mesh: fused ones of PyTorch in `exact`, and those of tessera.optim, have one set of bits on every layout.

Usage: optimizers_test.py [unittest's arguments]
"""

import copy
import hashlib
import tempfile
import unittest
import warnings

import tessera
import torch
from zoo import ZOO

SAMPLES = 8
LATTICE = "batch=8,feature=4"
MESHES = ("1", "dp=2", "tp=2", "dp=2,tp=2", "tp=4")


def bits(tensors):
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def whole_state(model, optimizer):
    """The parameters and all that the optimizer keeps, whole."""
    state = {f"{key} {number}": tessera.full_tensor(value) for number, kept in enumerate(optimizer.state.values()) for key, value in kept.items()
             if isinstance(value, torch.Tensor)}
    return {**state, **tessera.full_state_dict(model, rank=None)}


def train(model, batch, build, mesh, numerics="exact", steps=3):
    """What steps of the model on a mesh leave: the bits of parameters and state."""
    def on_rank():
        own = copy.deepcopy(model)
        if numerics == "exact":
            tessera.numerics("exact", LATTICE)
        tessera.parallelize(own, tessera.generate_plan(own, mesh=mesh, lattice=LATTICE if numerics == "exact" else ""))
        optimizer = build(own.parameters())
        for _ in range(steps):
            optimizer.zero_grad()
            own(**batch).loss.backward()
            optimizer.step()
        return bits(whole_state(own, optimizer))

    return tessera.run_ranks(on_rank, tessera.Mesh(mesh).size())


# Parameters with gradients that are given, in layouts that cut them in every way.
SIZES = ((7, 5), (5,), (6, 300), (513,), (4, 3, 2))
LAYOUTS = (("1", ("{}",) * 5),
           ("tp=2", ("{tp: S(0)}", "{tp: S(0)}", "{tp: S(0)}", "{tp: S(0)}", "{tp: S(1)}")),
           ("tp=3", ("{tp: S(1)}", "{}", "{tp: S(0)}", "{tp: S(0)}", "{tp: S(0)}")),
           ("dp=2,tp=2", ("{dp: S(0), tp: S(1)}", "{tp: S(0)}", "{dp: S(0), tp: S(0)}", "{dp: S(0)}", "{tp: S(2)}")))


def waves(shape, step):
    count = torch.Size(shape).numel()
    return (torch.arange(float(count), dtype=torch.float64) * step + 0.3).sin().reshape(shape).float()


def start():
    return [waves(shape, 0.37 + 0.01 * i) for i, shape in enumerate(SIZES)]


def gradients(step):
    return [waves(shape, 0.53 + 0.07 * step + 0.01 * i) for i, shape in enumerate(SIZES)]


def step_given(optimizer, parameters, steps, place=lambda tensor, i: tensor):
    for step in steps:
        for i, gradient in enumerate(gradients(step)):
            parameters[i].grad = place(gradient, i)
        optimizer.step()


def step_plain(build, steps=range(3)):
    """The parameters after steps of the optimizer on plain tensors."""
    parameters = [torch.nn.Parameter(value) for value in start()]
    step_given(build(parameters), parameters, steps)
    return [parameter.detach() for parameter in parameters]


def step_on(mesh, layouts, build, numerics, look=None, of_gradients=None):
    """The same on a mesh: the whole parameters, and what `look` finds of (optimizer, parameters) on each rank. Gradients lie as their parameters, or so."""
    def on_rank():
        tessera.numerics(numerics)
        place = lambda tensor, layout: tessera.distribute_tensor(tensor, tessera.Mesh(mesh), layout)  # noqa: E731
        parameters = [torch.nn.Parameter(place(value, layout)) for value, layout in zip(start(), layouts, strict=True)]
        optimizer = build(parameters)
        step_given(optimizer, parameters, range(3), lambda tensor, i: place(tensor, (of_gradients or layouts)[i]))
        return [tessera.full_tensor(parameter.detach()) for parameter in parameters], look(optimizer, parameters) if look else None

    return tessera.run_ranks(on_rank, tessera.Mesh(mesh).size())


class OptimizersTest(unittest.TestCase):
    def test_a_fused_optimizer_has_one_set_of_bits_in_exact(self):
        model, batch = ZOO["llama"].make().eval(), ZOO["llama"].batch(SAMPLES)
        for name, build in {"AdamW": lambda p: torch.optim.AdamW(p, 1e-3, fused=True),
                            "AdamW amsgrad": lambda p: torch.optim.AdamW(p, torch.tensor(1e-3), amsgrad=True, fused=True),
                            "Adam": lambda p: torch.optim.Adam(p, 1e-3, weight_decay=0.1, fused=True),
                            "SGD": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, dampening=0.5, fused=True),
                            "Lion": lambda p: tessera.optim.Lion(p, 1e-3, weight_decay=0.1),
                            "AdamW8bit": lambda p: tessera.optim.AdamW8bit(p, 1e-3)}.items():
            with self.subTest(optimizer=name):
                found = {mesh: train(model, batch, build, mesh) for mesh in MESHES}
                self.assertEqual(len(set(found.values())), 1, found)

    def test_a_fused_optimizer_has_the_values_of_one_device(self):
        for build in (lambda p: torch.optim.AdamW(p, 1e-2, fused=True), lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, nesterov=True, fused=True)):
            plain = step_plain(build)
            for mesh, layouts in LAYOUTS:
                for own, expected in zip(step_on(mesh, layouts, build, "exact")[0], plain, strict=True):
                    torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-6)

    def test_a_fused_optimizer_has_the_bits_of_one_device_on_stages(self):
        build = lambda p: torch.optim.AdamW(p, 1e-2, amsgrad=True, fused=True)  # noqa: E731
        plain = step_plain(build)
        first, last = "{pp: On(0)}", "{pp: On(1)}"
        layouts = (first, last, last, first, last)
        for of_gradients in (layouts, (last, last, first, "{}", last)):
            for own, expected in zip(step_on("pp=2", layouts, build, "fast", of_gradients=of_gradients)[0], plain, strict=True):
                self.assertTrue(torch.equal(own, expected), of_gradients)

    def test_what_has_no_exact_form_is_named(self):
        with self.assertRaisesRegex(RuntimeError, "fused_adagrad.*fused=False"):
            step_on(*LAYOUTS[1], lambda p: torch.optim.Adagrad(p, 1e-2, fused=True), "exact")

    def test_lion_has_the_bits_of_plain_tensors(self):
        build = lambda p: tessera.optim.Lion(p, 0.03, (0.8, 0.95), 0.1)  # noqa: E731
        plain = step_plain(build)
        for mesh, layouts in LAYOUTS:
            for numerics in ("fast", "exact"):
                with self.subTest(mesh=mesh, numerics=numerics):
                    for own, expected in zip(step_on(mesh, layouts, build, numerics)[0], plain, strict=True):
                        self.assertTrue(torch.equal(own, expected))

    def test_lion_is_its_formula(self):
        expected, averages = start(), [torch.zeros(shape) for shape in SIZES]
        for step in range(3):
            for p, m, g in zip(expected, averages, gradients(step), strict=True):
                p.mul_(1 - 0.03 * 0.1).sub_(m.mul(0.8).add(g, alpha=0.2).sign(), alpha=0.03)
                m.mul_(0.95).add_(g, alpha=0.05)
        for own, want in zip(step_plain(lambda p: tessera.optim.Lion(p, 0.03, (0.8, 0.95), 0.1)), expected, strict=True):
            torch.testing.assert_close(own, want, rtol=1e-6, atol=1e-6)
        with self.assertRaisesRegex(ValueError, "betas in"):
            tessera.optim.Lion([torch.zeros(2, requires_grad=True)], betas=(1.0, 0.9))

    def test_adamw_in_eight_bits_has_the_bits_of_plain_tensors(self):
        build = lambda p: tessera.optim.AdamW8bit(p, 0.01, weight_decay=0.1)  # noqa: E731
        plain = step_plain(build)
        for mesh, layouts in LAYOUTS:
            for numerics in ("fast", "exact"):
                with self.subTest(mesh=mesh, numerics=numerics):
                    for own, expected in zip(step_on(mesh, layouts, build, numerics)[0], plain, strict=True):
                        self.assertTrue(torch.equal(own, expected))
        for own, expected in zip(plain, step_plain(lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1)), strict=True):
            torch.testing.assert_close(own, expected, rtol=0, atol=3 * 0.01)  # no step is larger than about the rate
        with self.assertRaisesRegex(ValueError, "betas in"):
            tessera.optim.AdamW8bit([torch.zeros(2, requires_grad=True)], betas=(1.0, 0.9))

    def test_adamw_in_eight_bits_goes_on_on_another_mesh(self):
        build = lambda p: tessera.optim.AdamW8bit(p, 0.01)  # noqa: E731
        plain = step_plain(build, range(4))

        def run(mesh, layouts, steps, folder, loads):
            place = lambda tensor, i: tessera.distribute_tensor(tensor, tessera.Mesh(mesh), layouts[i])  # noqa: E731
            model = torch.nn.ParameterList([place(value, i) for i, value in enumerate(start())])
            optimizer = build(model.parameters())
            if loads:
                tessera.load(folder, model, optimizer)
            step_given(optimizer, list(model), steps, place)
            tessera.save(folder, model, optimizer, step=steps[-1] + 1)
            return [tessera.full_tensor(parameter.detach()) for parameter in model]

        for before in LAYOUTS:
            for after in LAYOUTS:
                with self.subTest(before=before[0], after=after[0]), tempfile.TemporaryDirectory() as folder:
                    tessera.run_ranks(lambda: run(*before, range(2), folder, False), tessera.Mesh(before[0]).size())
                    found = tessera.run_ranks(lambda: run(*after, range(2, 4), folder, True), tessera.Mesh(after[0]).size())
                    for own, expected in zip(found, plain, strict=True):
                        self.assertTrue(torch.equal(own, expected))

    def test_a_whole_state_dict_of_eight_bits_is_loaded_on_another_mesh(self):
        build = lambda p: tessera.optim.AdamW8bit(p, 0.01)  # noqa: E731
        plain = step_plain(build)

        def run(mesh, layouts, state=None, values=None):
            place = lambda tensor, i: tessera.distribute_tensor(tensor, tessera.Mesh(mesh), layouts[i])  # noqa: E731
            parameters = [torch.nn.Parameter(place(value, i)) for i, value in enumerate(values or start())]
            optimizer = build(parameters)
            if state:
                optimizer.load_state_dict(state)
            step_given(optimizer, parameters, [2] if state else range(2), place)
            return tessera.full_optimizer_state_dict(optimizer), [tessera.full_tensor(parameter.detach()) for parameter in parameters]

        state, values = tessera.run_ranks(lambda: run(*LAYOUTS[1]), 2)
        for mesh, layouts in LAYOUTS:
            with self.subTest(mesh=mesh):
                found = tessera.run_ranks(lambda: run(mesh, layouts, copy.deepcopy(dict(state)), values), tessera.Mesh(mesh).size())[1]
                for own, expected in zip(found, plain, strict=True):
                    self.assertTrue(torch.equal(own, expected))

    def test_a_state_dict_keeps_its_eight_bits(self):
        parameters = [torch.nn.Parameter(value) for value in start()]
        optimizer = tessera.optim.AdamW8bit(parameters, 0.01)
        step_given(optimizer, parameters, range(2))
        others = [torch.nn.Parameter(parameter.detach().clone()) for parameter in parameters]
        other = tessera.optim.AdamW8bit(others, 0.5)
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        step_given(optimizer, parameters, [2])
        step_given(other, others, [2])
        for own, expected in zip(others, parameters, strict=True):
            self.assertTrue(torch.equal(own, expected))

    def test_an_average_is_lent_saved_and_loaded(self):
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 4)
        with tempfile.TemporaryDirectory() as folder:
            def save():
                own = copy.deepcopy(model)
                tessera.parallelize(own, "tp=2")
                ema = tessera.optim.Ema(own.parameters(), 0.5)
                with torch.no_grad():
                    own.weight.zero_()
                ema.update()
                with ema.applied():
                    tessera.save(folder, own, step=1)
                    inside = tessera.full_tensor(own.weight.detach())
                return inside, tessera.full_tensor(own.weight.detach())

            def load():
                own = copy.deepcopy(model)
                tessera.parallelize(own, "dp=2")
                ema = tessera.optim.Ema(own.parameters(), 0.5)
                with ema.applied():
                    tessera.load(folder, own)
                return tessera.full_tensor(ema.averages[0]), tessera.full_tensor(own.weight.detach())

            half = model.weight.detach() / 2
            inside, outside = tessera.run_ranks(save, 2)
            self.assertTrue(torch.equal(inside, half) and not outside.any())
            loaded, own = tessera.run_ranks(load, 2)
            self.assertTrue(torch.equal(loaded, half) and torch.equal(own, model.weight.detach()))

    def test_rates_are_functions_of_the_step(self):
        rate = tessera.optim.WarmupStableDecay(warmup=4, decay=16, steps=100, floor=0.25, fall="root")
        parameter = torch.nn.Parameter(torch.zeros(2))
        optimizer = tessera.optim.Lion([parameter], 2.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        for step in range(110):
            x = (step - 84) / 16
            want = (step + 1) / 4 if step < 4 else 1 if step < 84 else 0.25 + 0.75 * (1 - x**0.5) if step < 100 else 0.25
            self.assertAlmostEqual(optimizer.param_groups[0]["lr"], 2 * want, 12)
            optimizer.step()
            schedule.step()
        self.assertEqual(tessera.optim.WarmupCosine(warmup=2, steps=10)(1), 1)
        with self.assertRaisesRegex(ValueError, "accepted: linear, root"):
            tessera.optim.WarmupStableDecay(decay=1, steps=2, fall="cosine")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    unittest.main()
