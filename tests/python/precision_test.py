#!/usr/bin/env python3
"""Parameters that are stored in float32 and read in bfloat16: unmodified models on one rank have the bits of the same models cast to bfloat16.

Usage: precision_test.py [unittest's arguments]
"""

import copy
import unittest

import tessera
import torch
from models_test import build, furthest, gradients
from zoo import ZOO

# The gradient of a parameter is in its own dtype, and so is that of a view of it: where it is a sum of several terms (of a tied weight, of rows that are
# read more than once, of a view that was expanded), they are added there, and not in 16 bits.
SUMMED_WIDER = {
    "gpt2": ["transformer.wte.weight"],
    "bert": ["bert.embeddings.word_embeddings.weight"],
    "t5": ["shared.weight"],
    "vit": ["vit.embeddings.cls_token"],
    "whisper": ["model.decoder.embed_tokens.weight", "model.decoder.embed_positions.weight"],
}

FAMILIES = ("llama", "gpt2", "gptj", "qwen3", "bert", "t5", "vit", "whisper", "mixtral")


def cast(model, dtype):
    """The parameters alone, as they are read."""
    model = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def as_read(model, batch, dtype):
    """The cast model's first operator wants its input cast where the other's casts it: `pixel_values` beside a convolution's weight."""
    first = next(model.parameters())
    return {name: value.to(dtype) if value.is_floating_point() and first.dim() >= 3 else value for name, value in batch.items()}


def results_on_one_rank(model, batch, **dtypes):
    def body():
        own = copy.deepcopy(model)
        tessera.parallelize(own, tessera.generate_plan(own, mesh="1", **dtypes))
        loss = own(**batch).loss
        loss.backward()
        return tessera.full_tensor(loss.detach()).item(), {name: value.float() for name, value in gradients(own).items()}, {p.dtype for p in own.parameters()}

    return tessera.run_ranks(body, 1)


class PrecisionTest(unittest.TestCase):
    def test_families_have_the_bits_of_the_cast_model(self):
        for name in FAMILIES:
            with self.subTest(model=name):
                model, batch = build(ZOO[name], torch.float32)
                loss, want, _ = results_on_one_rank(cast(model, torch.bfloat16), as_read(model, batch, torch.bfloat16))
                got, parts, stored = results_on_one_rank(model, batch, compute_dtype=torch.bfloat16)
                self.assertEqual(stored, {torch.float32})
                self.assertEqual(got, loss)
                self.assertEqual(parts.keys(), want.keys())
                differ = [key for key, value in want.items() if not torch.equal(parts[key], value)]
                self.assertEqual(differ, SUMMED_WIDER.get(name, []))
                self.assertLessEqual(furthest({key: parts[key] for key in differ}, {key: want[key] for key in differ}) if differ else 0, 2**-7)

    def test_exact_has_the_bits_of_one_rank(self):
        def train(layout, sharding):
            tessera.manual_seed(3)
            tessera.numerics("exact", "batch=8")
            torch.manual_seed(3)
            model = ZOO["gpt2"].make()
            batch = ZOO["gpt2"].batch(8)
            optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
            tessera.parallelize(model, tessera.generate_plan(model, mesh=layout, sharding=sharding, compute_dtype=torch.bfloat16), optimizer)
            losses = []
            for _ in range(3):
                loss = model(**batch).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(tessera.full_tensor(loss.detach()).item())
            return losses, {name: tessera.full_tensor(p.detach()) for name, p in model.named_parameters()}

        one, parameters = tessera.run_ranks(lambda: train("1", "parameters"), 1)
        for layout, sharding in (("dp=2", "parameters"), ("fsdp=3", "parameters"), ("fsdp=2", "gradients"), ("fsdp=2,tp=2", "parameters")):
            with self.subTest(layout=layout, sharding=sharding):
                got, values = tessera.run_ranks(lambda layout=layout, sharding=sharding: train(layout, sharding), tessera.Mesh(layout).size())
                self.assertEqual(got, one)
                for name, value in parameters.items():
                    self.assertTrue(torch.equal(values[name], value), name)

    def test_a_scaler_of_torch_scales_alike_on_every_layout(self):
        def train(layout):
            tessera.manual_seed(3)
            tessera.numerics("exact", "batch=8")
            torch.manual_seed(3)
            model = torch.nn.Linear(16, 8)
            optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
            tessera.parallelize(model, tessera.generate_plan(model, mesh=layout, compute_dtype=torch.float16), optimizer)
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=2)
            x, scales = torch.arange(8.0 * 16).view(8, 16).sin(), []
            for step in range(6):
                weight = torch.full((8, 8), 1e9) if step == 2 else torch.ones(8, 8)
                loss = (model(x).float() * weight).mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                scales.append(scaler.get_scale())
            return scales, [tessera.full_tensor(p.detach()) for p in model.parameters()]

        one, values = tessera.run_ranks(lambda: train("1"), 1)
        self.assertLess(one[2], one[1])
        for layout in ("dp=2", "fsdp=2", "fsdp=3"):
            with self.subTest(layout=layout):
                scales, parameters = tessera.run_ranks(lambda layout=layout: train(layout), tessera.Mesh(layout).size())
                self.assertEqual(scales, one)
                self.assertTrue(all(torch.equal(a, b) for a, b in zip(values, parameters)))

    def test_autocast_of_parameters_in_parts(self):
        """libtorch keeps a weight's cast under a lock of all threads, and this cast waits for the other ranks, one of which may wait for the lock."""
        def train(layout):
            torch.manual_seed(3)
            model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 4))
            tessera.parallelize(model, layout)
            optimizer = torch.optim.SGD(model.parameters(), 1e-2)
            x, losses = torch.arange(48.0).view(8, 6).sin(), []
            for _ in range(30):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = model(x).float().square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            return losses

        want = tessera.run_ranks(train, 1, args=["dp=1"])
        for layout in ("fsdp=2", "fsdp=3"):
            with self.subTest(layout=layout):
                got = tessera.run_ranks(train, tessera.Mesh(layout).size(), args=[layout], deadline=20)
                self.assertLessEqual(max(abs(a - b) / b for a, b in zip(got, want, strict=True)), 2e-2)

    def test_a_model_in_sixteen_bits_is_stored_in_float32(self):
        def body():
            model = ZOO["gpt2"].make().to(torch.bfloat16)
            kept = dict(model.named_parameters())
            tessera.parallelize(model, tessera.generate_plan(model, mesh="fsdp=2", storage_dtype=torch.float32, compute_dtype=torch.bfloat16))
            optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
            model(**ZOO["gpt2"].batch(4)).loss.backward()
            optimizer.step()
            for name, parameter in model.named_parameters():
                self.assertIs(parameter, kept[name])
                self.assertEqual((parameter.dtype, parameter.grad.dtype, optimizer.state[parameter]["exp_avg"].dtype), (torch.float32,) * 3)
                self.assertEqual(tessera.to_local(parameter.detach()).dtype, torch.float32)

        tessera.run_ranks(body, 2)

    def test_a_dtype_that_is_none_is_refused(self):
        model = ZOO["gpt2"].make()
        with self.assertRaisesRegex(Exception, "dtype of computation \"int64\".*accepted: float32, float64, bfloat16, float16"):
            tessera.generate_plan(model, mesh="1", compute_dtype=torch.int64)


if __name__ == "__main__":
    unittest.main()
