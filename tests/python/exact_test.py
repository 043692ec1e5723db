#!/usr/bin/env python3
"""Exact numerics: an unmodified model's losses, gradients and parameters have the same bits on every layout and in any number
of micro-batches. And what a step sends, against its closed form.

Usage: exact_test.py [unittest's arguments]
"""

import copy
import hashlib
import itertools
import json
import unittest
import warnings
from types import SimpleNamespace

import tessera
import torch
from sampling import sampled
from torch import nn
from zoo import ZOO, tf

SAMPLES = 12
LATTICE = "batch=12"
LAYOUTS = [("1", 1), ("tp=2", 1), ("dp=2", 1), ("dp=3", 1), ("dp=2,tp=2", 1), ("1", 3), ("dp=2", 3)]  # mesh, micro-batches
WHOLE_STEPS = [layout for layout in LAYOUTS if layout[1] == 1]
CAUSAL = ("gpt2", "llama", "qwen3")  # predict all tokens but the first


class Encoder(nn.Module):
    """Torch's own layer, which puts positions before samples inside."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, x, labels):
        return SimpleNamespace(loss=nn.functional.cross_entropy(self.head(self.layer(x)).mean(1), labels))


def bits(tensors):
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def targets(name, labels):
    """How many count in the loss."""
    return int(((labels[:, 1:] if name in CAUSAL else labels) != -100).sum())


def train(name, model, batch, mesh, accumulate, change=lambda plan: plan):
    """Two steps: the bits of all micro-batches' losses, of the gradients and of the parameters."""
    tessera.numerics("exact", LATTICE)
    tessera.parallelize(model, change(tessera.generate_plan(model, mesh=mesh, lattice=LATTICE)), accumulate=accumulate)
    tessera.set_step_tokens(targets(name, batch["labels"]))
    is_half = next(model.parameters()).dtype == torch.float16  # where 1e-8 is nothing
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, eps=1e-4 if is_half else 1e-8)
    seen = []
    for _ in range(2):
        optimizer.zero_grad()
        for part in zip(*(value.chunk(accumulate) for value in batch.values()), strict=True):
            loss = model(**dict(zip(batch, part, strict=True))).loss
            (loss / accumulate).backward()
        if accumulate == 1:
            seen.append(bits({"loss": tessera.full_tensor(loss.detach())}))
        gradients = {key: tessera.full_tensor(p.grad) for key, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        seen += [bits(gradients), bits(tessera.full_state_dict(model))]
    return seen


def gradients(model, batch):
    model(**batch).loss.backward()
    return {key: tessera.full_tensor(p.grad) for key, p in model.named_parameters() if p.grad is not None}


class ExactTest(unittest.TestCase):
    def check_values(self, model, batch, rtol=1e-3, atol=1e-5):
        """The gradients are torch's, but for rounding."""
        def on_ranks():
            tessera.numerics("exact", LATTICE)
            exact = copy.deepcopy(model)
            tessera.parallelize(exact, tessera.generate_plan(exact, mesh="dp=2,tp=2", lattice=LATTICE))
            return gradients(exact, batch)

        found = tessera.run_ranks(on_ranks, 4)
        plain = copy.deepcopy(model)
        plain(**batch).loss.backward()
        for key, parameter in plain.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(found[key], parameter.grad, rtol=rtol, atol=atol, msg=lambda text, key=key: f"{key}: {text}")

    def compare(self, name):
        self.compare_model(name, ZOO[name].make().eval(), ZOO[name].batch(SAMPLES), LAYOUTS)

    def compare_model(self, name, model, batch, layouts, **tolerance):
        self.check_values(model, batch, **tolerance)
        answers = {}
        for mesh, accumulate in layouts[:1] + sampled(layouts[1:], 2, f"{name} {next(model.parameters()).dtype}"):
            with self.subTest(mesh=mesh, accumulate=accumulate):
                got = tessera.run_ranks(lambda: train(name, copy.deepcopy(model), batch, mesh, accumulate), tessera.Mesh(mesh).size())
                whole = answers.setdefault("1", got)
                self.assertEqual(got, whole if accumulate == 1 else [whole[i] for i in (1, 2, 4, 5)])  # a part's loss is no step's

    def test_llama(self):
        self.compare("llama")

    def test_gpt2(self):
        self.compare("gpt2")

    def test_in_16_bits(self):
        for name in ("gpt2", "llama"):
            for dtype in (torch.bfloat16, torch.float16):
                with self.subTest(model=name, dtype=dtype):
                    # Both round each operator's result, in other places: a few of the last bits of the largest terms.
                    spacing = torch.finfo(dtype).eps
                    self.compare_model(name, ZOO[name].make().eval().to(dtype), ZOO[name].batch(SAMPLES), LAYOUTS, rtol=16 * spacing, atol=spacing)

    def test_llama_of_fewer_key_heads_than_ranks(self):
        """No cut between its heads falls between leaves: attention stays whole, as the plan says."""
        sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 3}
        torch.manual_seed(0)
        model = tf.LlamaForCausalLM(tf.LlamaConfig(vocab_size=99, **sizes)).eval()
        ids = torch.arange(SAMPLES * 7).reshape(SAMPLES, 7) % 99
        self.compare_model("llama", model, {"input_ids": ids, "labels": ids}, [("1", 1)] + [(f"tp={ranks}", 1) for ranks in (2, 3, 4, 5, 6, 8)])
        plan = tessera.run_fake(lambda: tessera.generate_plan(model, mesh="tp=4", lattice=LATTICE), 4)
        self.assertTrue(any("6 query and 3 key/value heads for 4 ranks: this attention stays whole" in note for note in plan.notes), plan.notes)

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

    def test_vit(self):
        self.compare("vit")

    def test_whisper(self):
        self.compare("whisper")

    def test_resnet(self):
        """Batch norm in training sees the step's samples at once; in evaluation they may come in micro-batches."""
        batch = ZOO["resnet"].batch(SAMPLES)
        self.compare_model("resnet", ZOO["resnet"].make().train(), batch, WHOLE_STEPS)
        self.compare_model("resnet", ZOO["resnet"].make().eval(), batch, LAYOUTS)

    def test_transformer_encoder_layer(self):
        torch.manual_seed(0)
        batch = dict(x=torch.randn(SAMPLES, 3, 32), labels=torch.randint(0, 5, (SAMPLES,)))
        self.compare_model("encoder", Encoder(), batch, LAYOUTS)

    def test_rows_that_lost_their_samples(self):
        """x[ids] of a batch says of no row which sample it is: one micro-batch has one order of sums, several have none."""
        class Lookup(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.linspace(-1, 1, 40).reshape(8, 5).double())

            def forward(self, x, y):
                ids = torch.tensor([i % (len(x) - 1) for i in reversed(range(len(x)))])
                return nn.functional.cross_entropy(x[ids] @ self.weight, y[ids], reduction="sum")

        x, y = torch.arange(96.0).sin().reshape(SAMPLES, 8).double(), torch.arange(SAMPLES) % 5

        def gradient(mesh, accumulate):
            def body():
                tessera.numerics("exact", LATTICE)
                model = Lookup()
                tessera.parallelize(model, tessera.generate_plan(model, mesh=mesh, lattice=LATTICE), accumulate=accumulate)
                for part in zip(x.chunk(accumulate), y.chunk(accumulate), strict=True):
                    model(*part).backward()
                return tessera.full_tensor(model.weight.grad)

            return tessera.run_ranks(body, tessera.Mesh(mesh).size())

        for mesh in ("dp=2", "tp=2"):
            self.assertTrue(torch.equal(gradient(mesh, 1), gradient("1", 1)), mesh)
        for mesh in ("1", "dp=2"):
            with self.subTest(mesh=mesh), self.assertRaisesRegex(RuntimeError, "a gradient lost its samples"):
                gradient(mesh, 2)

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


class DimsOfOneElementTest(unittest.TestCase):
    """Cut, one rank has the element and the others nothing."""

    SIZES = ((1,), (1, 1), (1, 8), (8, 1), (1, 1, 6), (2, 1, 6), (6, 1, 2))

    @staticmethod
    def calls(ndim):
        for count in range(1, ndim + 1):
            for dims in itertools.combinations(range(ndim), count):
                yield lambda x, dims=dims: x.sum(dims)
                yield lambda x, dims=dims: x.mean(dims, keepdim=True)
                yield lambda x, dims=dims: torch.linalg.vector_norm(x, dim=dims)
        if ndim == 2:
            yield from (lambda x: x @ x.mT, lambda x: x.mT @ x)

    def test_sums_on_every_rank(self):
        def body():
            tessera.numerics("exact")
            mesh = tessera.Mesh(f"tp={tessera.world_size()}")
            for sizes in self.SIZES:
                plain = torch.arange(1.0, 1 + torch.Size(sizes).numel()).reshape(sizes)  # whose sums are exact in any order
                for dim, call in itertools.product(range(len(sizes)), self.calls(len(sizes))):
                    found = tessera.full_tensor(call(tessera.distribute_tensor(plain, mesh, [tessera.Shard(dim)])))
                    assert torch.allclose(found, call(plain), rtol=1e-6, atol=0), (sizes, dim, tessera.rank(), found, call(plain))

        for ranks in (2, 3):
            tessera.run_ranks(body, ranks)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    unittest.main()
