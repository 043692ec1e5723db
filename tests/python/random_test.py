#!/usr/bin/env python3
"""Random numbers of Python programs: the same in every layout, other ones in every pass, and plain libtorch's where asked for.

Usage: random_test.py [unittest's arguments], under torchrun RUN...: the fields of Draws as JSON
"""

import dataclasses
import json
import os
import sys
import tempfile
import unittest
import warnings

import sampling
import tessera
import torch
import warm_python
import zoo
from runs import lines_of, run_given
from transformers import AutoModelForCausalLM

LAYOUTS = {"tp=1": 1, "tp=2": 2, "dp=3": 3, "dp=2,tp=2": 4}
IDS = torch.randint(3, 99, (3, 7), generator=zoo.gen())
SAMPLING = ({}, {"top_k": 9, "temperature": 2.0}, {"top_p": 0.8}, {"num_beams": 2})


def whole(value):
    return tessera.full_tensor(value) if isinstance(value, tessera.DTensor) else value


def sampled(model, **options):
    return model.eval().generate(IDS, do_sample=True, max_new_tokens=8, pad_token_id=0, **options)[:, IDS.shape[1]:]


@dataclasses.dataclass
class Draws:
    mesh: str
    is_uneven: bool = False  # a rank draws once more before ranks are there


def draws(run):
    """A model that is made before ranks are there, the loss of a pass with a mask, and what comes next."""
    torch.manual_seed(9)
    if run.is_uneven and os.environ["RANK"] == "1":
        torch.rand(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).double()
    if tessera.in_rank() or "RANK" in os.environ:
        tessera.parallelize(model, run.mesh)
    loss = whole(model(torch.linspace(0, 1, 32, dtype=torch.float64).reshape(4, 8)).square().mean()).item()
    return [round(loss, 12), torch.rand(3).tolist()]


class RandomTest(unittest.TestCase):
    def alike(self, body):
        """What body(mesh) returns, which is the same in every layout."""
        results = {mesh: tessera.run_ranks(lambda: whole(body(mesh)), ranks) for mesh, ranks in LAYOUTS.items()}
        for mesh, found in results.items():
            self.assertTrue(torch.equal(found, results["tp=1"]), mesh)
        return results["tp=1"]

    def test_sampled_text(self):
        for options in sampling.sampled(SAMPLING, 2, "alike"):
            def text(mesh):
                tessera.manual_seed(3)
                return sampled(tessera.parallelize(zoo.ZOO["gpt2"].make(), mesh), **options)

            with self.subTest(**options):
                drawn = self.alike(text)
                self.assertGreater(len(drawn.unique()), 4)  # not one token again and again

    def test_numbers_are_those_of_plain_torch(self):
        def numbers(distribute):
            torch.manual_seed(7)
            x = distribute(torch.rand(6, 8))
            model = torch.nn.Linear(8, 4)
            draws = [torch.nn.functional.dropout(x, 0.5), torch.randn_like(x), torch.multinomial(x, 3), torch.poisson(x), model.weight, model.bias]
            return [whole(value.detach()) for value in draws]

        def on_mesh(mesh):
            return numbers(lambda value: tessera.distribute_tensor(value, tessera.Mesh(mesh), "{}" if mesh == "dp=3" else f"{{{mesh[:2]}: S(1)}}"))

        expected = numbers(lambda value: value)
        for mesh, ranks in LAYOUTS.items():
            for found, value in zip(tessera.run_ranks(lambda: on_mesh(mesh), ranks), expected, strict=True):
                self.assertTrue(torch.equal(found, value), mesh)

    def test_stock_text_is_that_of_plain_torch(self):
        for options in sampling.sampled(SAMPLING, 2, "stock"):
            def text(mesh):
                model = zoo.ZOO["gpt2"].make().double()
                if mesh:
                    tessera.parallelize(model, mesh)
                torch.manual_seed(5)
                return sampled(model, **options)

            with self.subTest(**options):
                expected = text("")
                for mesh, ranks in LAYOUTS.items():
                    self.assertTrue(torch.equal(tessera.run_ranks(lambda: whole(text(mesh)), ranks), expected), mesh)

    def test_ranks_go_on_with_the_stream_of_the_program(self):
        run = Draws("dp=2,tp=2")
        expected = draws(run)
        self.assertEqual(tessera.run_ranks(lambda: draws(run), 4), expected)
        torch.manual_seed(4)
        before = torch.get_rng_state()
        found = tessera.run_ranks(lambda: torch.rand(3), 2)
        self.assertTrue(torch.equal(torch.get_rng_state(), before))  # the program's own stays
        self.assertTrue(torch.equal(found, torch.rand(3)))
        self.assertEqual([json.loads(line) for line in lines_of(__file__, run, timeout=120)], [expected])

    def test_processes_that_drew_differently_are_told_so(self):
        with self.assertRaisesRegex(AssertionError, "DivergenceError"):
            lines_of(__file__, Draws("dp=2", is_uneven=True), timeout=120)

    def test_a_state_of_plain_torch_goes_on_in_a_rank(self):
        torch.manual_seed(11)
        torch.rand(7)
        state = torch.get_rng_state()

        def after(generator):
            tessera.set_generator(generator)
            torch.rand(2)
            torch.set_rng_state(state)
            return torch.rand(5)

        found = tessera.run_ranks(lambda: after("stock"), 2)
        self.assertTrue(torch.equal(found, torch.rand(5)))
        with self.assertRaisesRegex(RuntimeError, "no state of a rank's generator"):
            tessera.run_ranks(lambda: after("counter"), 2)

    def test_exact_warns_where_masks_depend_on_micro_batches(self):
        def warned(generator, numerics, accumulate, rate, has_gradients=True):
            def body():
                tessera.set_generator(generator)
                tessera.numerics(numerics)
                model = tessera.parallelize(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(rate)), "dp=1", accumulate=accumulate)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    for _ in range(accumulate):
                        with torch.set_grad_enabled(has_gradients):
                            loss = model(torch.ones(8, 8)).sum()
                        if has_gradients:
                            loss.backward()
                return [str(one.message) for one in caught]
            return tessera.run_ranks(body, 1)

        self.assertRegex(warned("stock", "exact", 2, 0.5)[0], "accumulate=2: this pass draws random numbers .* others for another `accumulate`")
        for quiet in (("counter", "exact", 2, 0.5), ("stock", "fast", 2, 0.5), ("stock", "exact", 1, 0.5), ("stock", "exact", 2, 0.0), ("stock", "exact", 2, 0.5, False)):
            self.assertEqual(warned(*quiet), [], quiet)

    def test_an_unknown_generator(self):
        with self.assertRaisesRegex(RuntimeError, '"philox"; accepted: "counter" and "stock"'):
            tessera.run_ranks(lambda: tessera.set_generator("philox"), 1)

    def test_every_pass_draws_its_own(self):
        x = torch.ones(6, 8)

        def masks(mesh):
            tessera.manual_seed(1)
            model = tessera.parallelize(torch.nn.Sequential(torch.nn.Identity(), torch.nn.Dropout(0.5)), mesh)
            passes = [model(x)]
            with torch.no_grad():
                passes += [model(x), model(x)]
            passes.append(model(x))
            with torch.no_grad():
                passes.append(model(x))
            return torch.stack([whole(value) for value in passes])

        drawn = self.alike(masks)
        for i in range(len(drawn)):
            for j in range(i):
                self.assertFalse(torch.equal(drawn[i], drawn[j]), (i, j))

    def test_models_are_loaded_on_rank_threads(self):
        model = zoo.ZOO["gpt2"].make()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)

            def load():
                loaded = AutoModelForCausalLM.from_pretrained(folder)
                assert loaded.lm_head.weight is loaded.transformer.wte.weight
                other = torch.nn.Linear(2, 2)
                assert (other.weight.device.type, other.weight.dtype) == ("cpu", torch.float32), other.weight
                return tessera.full_state_dict(tessera.parallelize(loaded, "tp=4"))

            for _ in range(5):
                for name, value in tessera.run_ranks(load, 4).items():
                    self.assertTrue(torch.equal(value, model.state_dict()[name]), name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        run_given(draws, Draws)
        sys.exit()
    warm_python.begin()
    unittest.main()
