#!/usr/bin/env python3
"""Pipeline stages of unmodified transformers, without a schedule: one device's loss and gradients in `fast`, one rank's bits in `exact`.

Usage: pipeline_test.py [unittest's arguments]; with TESSERA_FULL=1 on more layouts.
"""

import copy
import os
import unittest

import tessera
import torch
from models_test import build, furthest, gradients, results_of
from wide import doubles
from zoo import ZOO

FAMILIES = ("llama", "gpt2", "t5", "vit")
LATTICE = "batch=4"
LAYOUTS = ("pp=4", "pp=2,tp=2")
MORE = ("pp=2", "pp=2,dp=2", "tp=2,pp=2", "pp=2,dp=2,tp=2")


def layouts():
    return LAYOUTS + (MORE if os.environ.get("TESSERA_FULL") else ())


def ranks_of(layout):
    return tessera.Mesh(layout).size()


def train(name, layout, numerics=("exact", LATTICE), clip=0.5):
    """Losses, norms and the whole state after steps whose clipping bites, with dropout, of a model that each rank makes."""
    torch.set_num_threads(1)  # in `fast` libtorch's kernels add in another order on more
    tessera.manual_seed(3)
    tessera.numerics(*numerics)
    model, batch = ZOO[name].make(), ZOO[name].batch(4)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    tessera.parallelize(model, tessera.generate_plan(model, mesh=layout), optimizer)
    seen = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        seen += [tessera.full_tensor(loss.detach()).item(), tessera.full_tensor(norm).item()]
        assert seen[-1] > clip
    return seen, {key: value.clone() for key, value in tessera.full_state_dict(model, rank=None).items()}


class PipelineTest(unittest.TestCase):
    def test_one_devices_numbers(self):
        for name in FAMILIES:
            with doubles():
                model, batch = build(ZOO[name], torch.float64)
                loss, want = results_of(copy.deepcopy(model), batch)

                def body(layout):
                    own = copy.deepcopy(model)
                    tessera.parallelize(own, tessera.generate_plan(own, mesh=layout))
                    found = own(**batch).loss
                    found.backward()
                    return tessera.full_tensor(found.detach()).item(), gradients(own)

                for layout in layouts():
                    with self.subTest(model=name, layout=layout):
                        got, parts = tessera.run_ranks(lambda layout=layout: body(layout), ranks_of(layout))
                        self.assertLessEqual(abs(got - loss) / abs(loss), 1e-12)
                        self.assertEqual(parts.keys(), want.keys())
                        self.assertLessEqual(furthest(parts, want), 1e-12)

    def test_one_ranks_bits(self):
        for name in FAMILIES:
            want, state = tessera.run_ranks(lambda name=name: train(name, "1"), 1)
            for layout in layouts():
                with self.subTest(model=name, layout=layout):
                    got, parts = tessera.run_ranks(lambda name=name, layout=layout: train(name, layout), ranks_of(layout))
                    self.assertEqual(got, want)
                    self.assertEqual([key for key in state if not torch.equal(parts[key], state[key])], [])

    def test_fast_has_one_devices_bits(self):
        for name in ("llama", "vit"):
            want, state = tessera.run_ranks(lambda name=name: train(name, "1", ("fast",)), 1)
            got, parts = tessera.run_ranks(lambda name=name: train(name, "pp=4", ("fast",)), 4)
            self.assertEqual(got, want)
            self.assertEqual([key for key in state if not torch.equal(parts[key], state[key])], [])

    def test_parameters_and_moments_are_on_their_stage(self):
        def body():
            model = ZOO["gpt2"].make()
            optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
            tessera.parallelize(model, tessera.generate_plan(model, mesh="pp=2"), optimizer)
            model(**ZOO["gpt2"].batch(4)).loss.backward()
            optimizer.step()
            own = {}
            for name, parameter in model.named_parameters():
                stage = parameter.placements[0].coordinate
                holds = tessera.rank() == stage
                for tensor in (parameter, parameter.grad, optimizer.state[parameter]["exp_avg"]):
                    assert (tessera.to_local(tensor).numel() > 0) == holds, (name, stage, tensor.shape)
                own[name] = stage
            return own

        stages = tessera.run_ranks(body, 2)
        self.assertEqual(stages["transformer.wte.weight"], 0)  # tied to the head
        self.assertEqual(stages["transformer.ln_f.weight"], 1)
        self.assertEqual(set(stages.values()), {0, 1})


if __name__ == "__main__":
    unittest.main()
