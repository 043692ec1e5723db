#!/usr/bin/env python3
"""Fully sharded parameters of unmodified models: one device's loss and gradients in `fast`, one rank's bits in `exact`, what a rank keeps.

Usage: sharded_test.py [unittest's arguments]
"""

import copy
import unittest

import tessera
import torch
from models_test import SAMPLES, build, furthest, gradients, results_of
from wide import doubles
from zoo import ZOO

LAYOUTS = ("fsdp=2", "fsdp=4", "dp=2,fsdp=2", "fsdp=2,tp=2")
SHARDINGS = ("parameters", "gradients", "state")
LATTICE = "batch=8"


def ranks_of(layout):
    return tessera.Mesh(layout).size()


def own_bytes(tensors):
    return sum(tessera.to_local(tensor).nbytes for tensor in tensors)


class ShardedTest(unittest.TestCase):
    def check_fast(self, name, layouts):
        with doubles():
            model, batch = build(ZOO[name], torch.float64)
            loss, want = results_of(copy.deepcopy(model), batch)
            for layout, sharding in layouts:
                def body(layout=layout, sharding=sharding):
                    own = copy.deepcopy(model)
                    tessera.parallelize(own, tessera.generate_plan(own, mesh=layout, sharding=sharding))
                    found = own(**batch).loss
                    found.backward()
                    return tessera.full_tensor(found.detach()).item(), gradients(own)
                with self.subTest(model=name, layout=layout, sharding=sharding):
                    got, parts = tessera.run_ranks(body, ranks_of(layout))
                    self.assertLessEqual(abs(got - loss) / abs(loss), 1e-12)
                    self.assertEqual(parts.keys(), want.keys())
                    self.assertLessEqual(furthest(parts, want), 1e-12)

    def test_one_devices_numbers(self):
        for name in ("llama", "gpt2", "bert", "t5"):
            self.check_fast(name, [(layout, "parameters") for layout in LAYOUTS])
        self.check_fast("gpt2", [("fsdp=2", "gradients"), ("fsdp=2,tp=2", "state")])

    def test_one_ranks_bits(self):
        def train(layout, sharding):
            tessera.manual_seed(3)
            tessera.numerics("exact", LATTICE)
            torch.manual_seed(3)
            model = ZOO["gpt2"].make()
            batch = ZOO["gpt2"].batch(2 * SAMPLES)
            optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
            tessera.parallelize(model, tessera.generate_plan(model, mesh=layout, sharding=sharding), optimizer)
            seen = []
            for _ in range(3):
                optimizer.zero_grad()
                loss = model(**batch).loss
                loss.backward()
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                seen += [tessera.full_tensor(loss.detach()).item(), tessera.full_tensor(norm).item()]
            whole = tessera.full_state_dict(model, rank=None)
            return seen, {name: value.clone() for name, value in whole.items()}

        want, parameters = tessera.run_ranks(lambda: train("1", "parameters"), 1)
        for layout in LAYOUTS:
            for sharding in SHARDINGS if layout == "fsdp=2" else ("parameters",):
                with self.subTest(layout=layout, sharding=sharding):
                    got, values = tessera.run_ranks(lambda layout=layout, sharding=sharding: train(layout, sharding), ranks_of(layout))
                    self.assertEqual(got, want)
                    self.assertTrue(all(torch.equal(values[name], value) for name, value in parameters.items()))

    def test_frozen_parameters_are_gathered_and_have_no_gradient(self):
        model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.ReLU(), torch.nn.Linear(10, 3)).double()
        model[0].requires_grad_(False)
        x = torch.arange(24.0, dtype=torch.float64).reshape(4, 6).sin()

        def body():
            own = tessera.parallelize(copy.deepcopy(model), "fsdp=2")
            own(x).square().sum().backward()
            return [p.grad is None or tessera.full_tensor(p.grad) for p in own.parameters()]

        model(x).square().sum().backward()
        for got, parameter in zip(tessera.run_ranks(body, 2), model.parameters(), strict=True):
            if parameter.grad is None:
                self.assertIs(got, True)
            else:
                torch.testing.assert_close(got, parameter.grad, rtol=1e-12, atol=1e-12)

    def test_gradients_of_a_group_wherever_they_are_heard_of(self):
        """Added up over passes, with a parameter that is not used, hooks of both kinds, and by torch.autograd.grad."""
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.down = torch.nn.Linear(6, 10), torch.nn.Linear(10, 3)
                self.layers = torch.nn.ModuleList([torch.nn.ModuleDict({"used": self.up, "other": self.down, "unused": torch.nn.Linear(3, 3)})])

            def forward(self, x):
                return self.down(self.up(x).relu())

        torch.manual_seed(0)
        plain = Model().double()
        x = torch.arange(24.0, dtype=torch.float64).reshape(4, 6).sin()

        def run(model, full):
            seen, heard = [], []
            for _ in range(2):
                model(x).square().sum().backward()
            seen += [None if p.grad is None else full(p.grad) for p in model.parameters()]
            seen += [full(g) for g in torch.autograd.grad(model(x).square().sum(), [model.up.weight, model.down.bias])]
            model.zero_grad()
            model.up.weight.register_hook(lambda g: heard.append(full(g)))
            model.down.weight.register_post_accumulate_grad_hook(lambda p: heard.append(full(p.grad)))
            model(x).square().sum().backward()
            return seen + heard + [None if p.grad is None else full(p.grad) for p in model.parameters()]

        want = run(copy.deepcopy(plain), torch.clone)
        for layout in ("fsdp=2", "fsdp=3", "dp=2,fsdp=2"):
            with self.subTest(layout=layout):
                got = tessera.run_ranks(lambda layout=layout: run(tessera.parallelize(copy.deepcopy(plain), layout), tessera.full_tensor), ranks_of(layout))
                self.assertEqual([value is None for value in got], [value is None for value in want])
                for value, expected in zip(got, want, strict=True):
                    if value is not None:
                        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)

    def test_evaluation_and_generated_tokens_are_one_devices(self):
        model, batch = ZOO["llama"].make().eval(), ZOO["llama"].batch(SAMPLES)
        prompt = batch["input_ids"][:, :5]

        def run(own):
            with torch.no_grad():
                return own(**batch).loss, own.generate(prompt, max_new_tokens=6, do_sample=False)

        def body():
            loss, tokens = run(tessera.parallelize(copy.deepcopy(model), "fsdp=2"))
            return tessera.full_tensor(loss), tessera.full_tensor(tokens)

        (got, tokens), (loss, want) = tessera.run_ranks(body, 2), run(model)
        torch.testing.assert_close(got, loss, rtol=1e-5, atol=1e-5)
        self.assertTrue(torch.equal(tokens, want))

    def test_a_rank_keeps_its_share(self):
        def body():
            model = tessera.deferred(ZOO["llama"].make)
            optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
            tessera.parallelize(model, "fsdp=4", optimizer)
            model(**ZOO["llama"].batch(SAMPLES)).loss.backward()
            optimizer.step()
            parameters = list(model.parameters())
            moments = [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
            rows = sum(4 * p[0].numel() if p.dim() > 1 else 4 for p in parameters)
            whole = sum(4 * p.numel() for p in parameters)
            return [own_bytes(parameters), own_bytes(p.grad for p in parameters), own_bytes(moments) / 2, whole, rows]

        *own, whole, rows = tessera.run_ranks(body, 4)
        for found in own:
            self.assertLessEqual(found, whole / 4 + rows)


if __name__ == "__main__":
    unittest.main()
