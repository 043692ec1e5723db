#!/usr/bin/env python3
"""Random numbers of Python programs: the same in every layout, other ones in every pass, and plain libtorch's where asked for.

Usage: random_test.py [unittest's arguments]
"""

import tempfile
import unittest

import tessera
import torch
import zoo
from transformers import AutoModelForCausalLM

LAYOUTS = {"tp=1": 1, "tp=2": 2, "dp=3": 3, "dp=2,tp=2": 4}
IDS = torch.randint(3, 99, (3, 7), generator=zoo.gen())
SAMPLING = ({}, {"top_k": 9, "temperature": 2.0}, {"top_p": 0.8}, {"num_beams": 2})


def whole(value):
    return tessera.full_tensor(value) if isinstance(value, tessera.DTensor) else value


def sampled(model, **options):
    return model.eval().generate(IDS, do_sample=True, max_new_tokens=12, pad_token_id=0, **options)[:, IDS.shape[1]:]


class RandomTest(unittest.TestCase):
    def alike(self, body):
        """What body(mesh) returns, which is the same in every layout."""
        results = {mesh: tessera.run_ranks(lambda: whole(body(mesh)), ranks) for mesh, ranks in LAYOUTS.items()}
        for mesh, found in results.items():
            self.assertTrue(torch.equal(found, results["tp=1"]), mesh)
        return results["tp=1"]

    def test_sampled_text(self):
        for options in SAMPLING:
            def text(mesh):
                tessera.manual_seed(3)
                return sampled(tessera.parallelize(zoo.ZOO["gpt2"].make(), mesh), **options)

            with self.subTest(**options):
                drawn = self.alike(text)
                self.assertGreater(len(drawn.unique()), 4)  # not one token again and again

    def test_stock_numbers_are_those_of_plain_torch(self):
        def numbers(distribute):
            torch.manual_seed(7)
            x = distribute(torch.rand(6, 8))
            model = torch.nn.Linear(8, 4)
            draws = [torch.nn.functional.dropout(x, 0.5), torch.randn_like(x), torch.multinomial(x, 3), torch.poisson(x), model.weight, model.bias]
            return [whole(value.detach()) for value in draws]

        def stock(mesh):
            tessera.set_generator("stock")
            return numbers(lambda value: tessera.distribute_tensor(value, tessera.Mesh(mesh), "{}" if mesh == "dp=3" else f"{{{mesh[:2]}: S(1)}}"))

        expected = numbers(lambda value: value)
        for mesh, ranks in LAYOUTS.items():
            for found, value in zip(tessera.run_ranks(lambda: stock(mesh), ranks), expected, strict=True):
                self.assertTrue(torch.equal(found, value), mesh)

    def test_stock_text_is_that_of_plain_torch(self):
        for options in SAMPLING:
            def text(mesh):
                if mesh:
                    tessera.set_generator("stock")
                model = zoo.ZOO["gpt2"].make().double()
                if mesh:
                    tessera.parallelize(model, mesh)
                torch.manual_seed(5)
                return sampled(model, **options)

            with self.subTest(**options):
                expected = text("")
                for mesh, ranks in LAYOUTS.items():
                    self.assertTrue(torch.equal(tessera.run_ranks(lambda: whole(text(mesh)), ranks), expected), mesh)

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
    unittest.main()
