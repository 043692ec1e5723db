#!/usr/bin/env python3
"""Exact numerics: an unmodified model's losses, gradients and parameters have the same bits on every layout and in any number
of micro-batches. And what a step sends, against its closed form.

Usage: exact_test.py [unittest's arguments]
"""

import copy
import hashlib
import json
import unittest
import warnings

import tessera
import torch
from zoo import ZOO

SAMPLES = 12
LATTICE = "batch=12"
LAYOUTS = [("1", 1), ("tp=2", 1), ("dp=2", 1), ("dp=3", 1), ("dp=2,tp=2", 1), ("1", 3), ("dp=2", 3)]  # mesh, micro-batches


def bits(tensors):
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def targets(name, labels):
    """How many count in the loss: a causal model predicts all but the first."""
    return int(((labels if name == "bert" else labels[:, 1:]) != -100).sum())


def train(name, model, batch, mesh, accumulate, change=lambda plan: plan):
    """Two steps: the bits of all micro-batches' losses, of the gradients and of the parameters."""
    tessera.numerics("exact", LATTICE)
    tessera.parallelize(model, change(tessera.generate_plan(model, mesh=mesh, lattice=LATTICE)), accumulate=accumulate)
    tessera.set_step_tokens(targets(name, batch["labels"]))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    seen = []
    for _ in range(2):
        optimizer.zero_grad()
        for part in zip(*(value.chunk(accumulate) for value in batch.values()), strict=True):
            loss = model(**dict(zip(batch, part, strict=True))).loss
            loss.backward()
        if accumulate == 1:
            seen.append(bits({"loss": tessera.full_tensor(loss.detach())}))
        gradients = {key: tessera.full_tensor(p.grad) for key, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        seen += [bits(gradients), bits(tessera.full_state_dict(model))]
    return seen


class ExactTest(unittest.TestCase):
    def compare(self, name):
        model, batch = ZOO[name].make().eval(), ZOO[name].batch(SAMPLES)
        answers = {}
        for mesh, accumulate in LAYOUTS:
            with self.subTest(mesh=mesh, accumulate=accumulate):
                got = tessera.run_ranks(lambda: train(name, copy.deepcopy(model), batch, mesh, accumulate), tessera.Mesh(mesh).size())
                whole = answers.setdefault("1", got)
                self.assertEqual(got, whole if accumulate == 1 else [whole[i] for i in (1, 2, 4, 5)])  # a part's loss is no step's

    def test_llama(self):
        self.compare("llama")

    def test_gpt2(self):
        self.compare("gpt2")

    def test_gpt2_with_interleaved_cuts(self):
        """`exact` gathers them: the leaves of a sum are runs."""
        model, batch = ZOO["gpt2"].make().eval(), ZOO["gpt2"].batch(SAMPLES)

        def interleaved(plan):
            data = json.loads(str(plan))
            for name, dim in (("weight", 1), ("bias", 0)):
                data["parameters"].append({"pattern": f"transformer.h.*.attn.c_attn.{name}", "storage": f"{{tp: S({dim}/3;8)}}"})
            return tessera.Plan.from_json(json.dumps(data))

        got = tessera.run_ranks(lambda: train("gpt2", copy.deepcopy(model), batch, "dp=2,tp=2", 1, interleaved), 4)
        self.assertEqual(got, tessera.run_ranks(lambda: train("gpt2", copy.deepcopy(model), batch, "1", 1), 1))

    def test_bert(self):
        self.compare("bert")

    def test_qwen3(self):
        self.compare("qwen3")

    def test_two_programs_differ(self):
        model, batch = ZOO["llama"].make().eval(), ZOO["llama"].batch(SAMPLES)
        first = tessera.run_ranks(lambda: train("llama", copy.deepcopy(model), batch, "tp=2", 1), 2)
        batch["input_ids"][0, 0] += 1
        self.assertNotEqual(first, tessera.run_ranks(lambda: train("llama", copy.deepcopy(model), batch, "tp=2", 1), 2))


class LedgerTest(unittest.TestCase):
    """On tp=2 a half that is cut costs one all-reduce of its activations forward and one backward."""

    def sent(self, name):
        batch = ZOO[name].batch(4)

        def on_ranks():
            model = ZOO[name].make().eval()
            tessera.parallelize(model, tessera.generate_plan(model, mesh="tp=2"))
            before = tessera.ledger()
            model(**batch).loss.backward()
            return before, tessera.ledger()

        before, after = tessera.run_ranks(on_ranks, 2)
        self.assertEqual(before["entries"], [])
        return after["entries"], batch["input_ids"].numel()

    def check(self, name, halves):
        entries, tokens = self.sent(name)
        self.assertEqual({entry["collective"] for entry in entries}, {"all_reduce"})
        # Forward: the table of words, and each cut half. Backward: each cut half, and the head.
        activations = 2 * (1 + halves) * tokens * 32 * 4
        # The loss of cut logits: of each token the largest logit, the sum of exponentials and its own logit; and one scalar.
        losses = 3 * tokens * 4 + 4
        self.assertEqual(sum(entry["bytes"] for entry in entries), activations + losses)

    def test_llama(self):
        self.check("llama", 2 * 2)

    def test_gpt2(self):
        self.check("gpt2", 2 * 2)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    unittest.main()
