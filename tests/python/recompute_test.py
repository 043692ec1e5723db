#!/usr/bin/env python3
"""Recomputation of modules by pattern, of functions, and by torch.utils.checkpoint: the bits of a model that keeps everything.

Usage: recompute_test.py [unittest's arguments]
"""

import copy
import functools
import hashlib
import os
import tempfile
import unittest
import weakref

import tessera
import torch
from sampling import sampled
from torch import nn
from zoo import tf

SAMPLES, LENGTH = 8, 8
LATTICE = f"batch={SAMPLES}"


def gpt2(**config):
    return tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=16, attn_pdrop=0.1, resid_pdrop=0.1,
                                            embd_pdrop=0.1, attn_implementation="eager", **config))


def llama(**config):
    return tf.LlamaForCausalLM(tf.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                              num_key_value_heads=2, max_position_embeddings=16, attention_dropout=0.1,
                                              attn_implementation="eager", **config))


def t5(**config):
    return tf.T5ForConditionalGeneration(tf.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.1,
                                                     decoder_start_token_id=0, **config))


LAYOUTS = {gpt2: (("1", 2), ("dp=2", 2), ("fsdp=2", 1), ("fsdp=2,tp=2", 1)), llama: (("1", 1), ("fsdp=2,tp=2", 2))}  # mesh, micro-batches
FAST = (("1", 1), ("fsdp=2", 2))
BLOCKS = {gpt2: "transformer.h.*", llama: "model.layers.*", t5: "*coder.block.*"}


def seeded(make, **config):
    torch.manual_seed(0)
    return make(**{"use_cache": False, **config}).train()


def bits(tensors):
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def batch():
    return torch.randint(1, 64, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(1))


def train(make, mesh="1", accumulate=1, recompute=(), numerics="exact", change=lambda model: None, around=torch.enable_grad, keep=(), offload=()):
    """Two steps: the bits of the losses and of the gradients, the first rank's. In `exact` masks are those of `counter`, which no micro-batch changes."""
    model = seeded(make)
    change(model)

    def body():
        tessera.set_generator("counter" if numerics == "exact" else "stock")
        tessera.manual_seed(3)
        tessera.numerics(numerics, LATTICE)
        mine = copy.deepcopy(model)
        plan = tessera.generate_plan(mine, mesh=mesh, lattice=LATTICE, recompute=recompute, recompute_keep=keep, offload=offload)
        mine = copy.deepcopy(tessera.parallelize(mine, plan, accumulate=accumulate))  # the copy's blocks run again, not the first's
        ids = batch()
        tessera.set_step_tokens(SAMPLES * (LENGTH if make is t5 else LENGTH - 1))
        losses = {}
        for step in range(2):
            mine.zero_grad()
            for i, part in enumerate(ids.chunk(accumulate)):
                with around():
                    loss = mine(input_ids=part, labels=part).loss
                losses[f"{step} {i}"] = tessera.full_tensor(loss.detach())
                (loss / accumulate).backward()
        gradients = {name: tessera.full_tensor(p.grad) for name, p in mine.named_parameters() if p.grad is not None}
        return bits(losses) if accumulate == 1 else "", bits(gradients)

    return tessera.run_ranks(body, tessera.Mesh(mesh).size())


@functools.cache
def kept(make, mesh="1", accumulate=1, numerics="exact"):
    """The bits of a model that keeps everything."""
    return train(make, mesh, accumulate, numerics=numerics)


class Patterns(unittest.TestCase):
    def test_blocks_have_the_bits_of_a_model_that_keeps_everything(self):
        for make in (gpt2, llama):
            self.assertEqual(kept(make)[1], kept(make, accumulate=2)[1])
            for mesh, accumulate in sampled(LAYOUTS[make], 2):
                with self.subTest(model=make.__name__, mesh=mesh, accumulate=accumulate):
                    self.assertEqual(train(make, mesh, accumulate, [BLOCKS[make]]), kept(make, accumulate=accumulate))

    def test_fast_has_the_same_bits_on_one_layout(self):
        # T5's decoder blocks all read the encoder's result, twice each, and hand on the bias of their attention.
        for make in (gpt2, llama, t5):
            for mesh, accumulate in sampled(FAST, 1, make.__name__):
                with self.subTest(model=make.__name__, mesh=mesh, accumulate=accumulate):
                    self.assertEqual(train(make, mesh, accumulate, [BLOCKS[make]], "fast"), kept(make, mesh, accumulate, "fast"))

    def test_parts_of_blocks_and_parts_within_parts(self):
        for patterns in (["transformer.h.*.mlp"], ["transformer.h.0", "transformer.h.1.attn"], ["transformer.h.*", "transformer.h.*.*"]):
            with self.subTest(patterns=patterns):
                self.assertEqual(train(gpt2, "fsdp=2", recompute=patterns), kept(gpt2))

    def test_autocast_is_that_of_the_first_run(self):
        def around():
            return torch.autocast("cpu", torch.bfloat16)

        self.assertEqual(train(gpt2, recompute=[BLOCKS[gpt2]], numerics="fast", around=around), train(gpt2, numerics="fast", around=around))

    def test_a_plan_keeps_them(self):
        model = seeded(gpt2)
        plan = tessera.generate_plan(model, mesh="dp=2", recompute=["transformer.h.*"])
        self.assertEqual(plan.recompute, ["transformer.h.*"])
        self.assertEqual(tessera.generate_plan(model, mesh="dp=2", recompute="transformer.h.*"), plan)
        self.assertEqual(tessera.Plan.from_json(plan.json()).recompute, ["transformer.h.*"])
        self.assertNotIn("recompute", tessera.generate_plan(model, mesh="dp=2").json())

    def test_a_pattern_without_effect_is_refused(self):
        for patterns, says in ((["h.*"], r'recompute "h\.\*" matches no module of the model; accepted: .* transformer\.h\.\*'),
                               (["transformer.h"], r"`transformer.h` recomputed, and a ModuleList has no forward")):
            def body():
                tessera.parallelize(model, tessera.generate_plan(model, mesh="1", recompute=patterns))

            model = seeded(gpt2)
            with self.assertRaisesRegex(Exception, says):
                tessera.run_ranks(body, 1)

    def test_a_cache_is_refused_in_training_and_works_elsewhere(self):
        whole = seeded(gpt2, use_cache=True)

        def body():
            model = copy.deepcopy(whole)
            tessera.parallelize(model, tessera.generate_plan(model, mesh="1", recompute=["transformer.h.*"]))
            with self.assertRaisesRegex(RuntimeError, r"the forward of `transformer.h.0` changes a DynamicCache .*use_cache=False"):
                model(input_ids=batch(), labels=batch())
            model.eval()
            with torch.no_grad():
                return model.generate(batch()[:2], max_new_tokens=4, do_sample=False).tolist()

        expected = copy.deepcopy(whole).eval().generate(batch()[:2], max_new_tokens=4, do_sample=False).tolist()
        self.assertEqual(tessera.run_ranks(body, 1), expected)


    def test_running_statistics_are_refused_in_training(self):
        def body():
            model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
            tessera.parallelize(model, tessera.generate_plan(model, mesh="1", recompute=["1"]))
            with self.assertRaisesRegex(RuntimeError, r"the forward of `1` writes to its buffer `num_batches_tracked`"):
                model(torch.ones(8, 4))
            return model.eval()(torch.ones(8, 4)).requires_grad

        self.assertTrue(tessera.run_ranks(body, 1))


class Kept(unittest.TestCase):
    """Results that recomputed blocks keep."""

    NAMES = {gpt2: ["addmm", "matmul", "softmax"], llama: ["linear", "matmul"], t5: ["linear", "matmul"]}

    def test_blocks_have_the_bits_of_a_model_that_keeps_everything(self):
        for make in (gpt2, llama):
            for mesh in ("1", "fsdp=2,tp=2"):
                with self.subTest(model=make.__name__, mesh=mesh):
                    self.assertEqual(train(make, mesh, recompute=[BLOCKS[make]], keep=self.NAMES[make]), kept(make))

    def test_fast_has_the_same_bits_on_one_layout(self):
        for make in (gpt2, llama, t5):
            for mesh, accumulate in sampled(FAST, 1, make.__name__):
                with self.subTest(model=make.__name__, mesh=mesh):
                    self.assertEqual(train(make, mesh, accumulate, [BLOCKS[make]], "fast", keep=self.NAMES[make]), kept(make, mesh, accumulate, "fast"))

    def test_autocast_is_that_of_the_first_run(self):
        def around():
            return torch.autocast("cpu", torch.bfloat16)

        self.assertEqual(train(gpt2, recompute=[BLOCKS[gpt2]], numerics="fast", around=around, keep=["addmm"]), train(gpt2, numerics="fast", around=around))

    def test_a_function_keeps_what_it_is_told(self):
        def gradient(keep):
            tessera.manual_seed(3)
            x, w = (tessera.distribute_tensor(torch.randn(4, 4), tessera.Mesh("1"), "{}").requires_grad_() for _ in range(2))
            body = lambda x, w: torch.tanh(x @ w) @ w
            (body(x, w) if keep is None else tessera.recompute(body, x, w, keep=keep)).sum().backward()
            return bits({"x": tessera.full_tensor(x.grad), "w": tessera.full_tensor(w.grad)})

        whole = tessera.run_ranks(lambda: gradient(None), 1)
        for keep in ("matmul", ["aten::tanh", "matmul"]):
            self.assertEqual(tessera.run_ranks(lambda: gradient(keep), 1), whole)

    def test_what_a_plan_cannot_keep_is_refused(self):
        model = seeded(gpt2)
        plan = tessera.generate_plan(model, mesh="1", recompute="transformer.h.*", recompute_keep="addmm")
        self.assertEqual(tessera.Plan.from_json(plan.json()).recompute_keep, ["addmm"])
        for more, says in (({"recompute": "transformer.h.*", "recompute_keep": "admm"}, 'keep "admm": no operator is called so; did you mean "addmm"'),
                           ({"recompute": "transformer.h.*", "recompute_keep": "relu_"}, "gives no new tensors"),
                           ({"recompute_keep": "addmm"}, "has no effect where nothing is recomputed")):
            with self.assertRaisesRegex(ValueError, says):
                tessera.generate_plan(model, mesh="1", **more)
        written = tessera.Plan.from_json(plan.json().replace("addmm", "admm"))
        with self.assertRaisesRegex(Exception, "no operator is called so"):
            tessera.run_ranks(lambda: tessera.parallelize(copy.deepcopy(model), written), 1)

    def test_results_that_are_written_to(self):
        def gradient(write, keep):
            x = tessera.distribute_tensor(torch.arange(4.0).reshape(2, 2), tessera.Mesh("1"), "{}").requires_grad_()
            tessera.recompute(lambda x: write(x @ x).sin(), x, keep=keep).sum().backward()
            return tessera.full_tensor(x.grad).tolist()

        def twice(h):
            h *= 2
            return h

        def by_part(h):
            tessera.to_local(h.detach()).mul_(2)
            return h

        self.assertEqual(tessera.run_ranks(lambda: gradient(twice, "matmul"), 1), tessera.run_ranks(lambda: gradient(twice, ()), 1))
        with self.assertRaisesRegex(Exception, "is kept for the second run, and was written to through a plain tensor"):
            tessera.run_ranks(lambda: gradient(by_part, "matmul"), 1)


class Offloaded(unittest.TestCase):
    """What blocks save, in a file until backward."""

    def test_blocks_have_the_bits_of_a_model_in_memory(self):
        for make in (gpt2, llama):
            for numerics, mesh in (("exact", "1"), ("exact", "fsdp=2,tp=2"), ("fast", "fsdp=2")):
                with self.subTest(model=make.__name__, mesh=mesh, numerics=numerics):
                    whole = kept(make, mesh, numerics=numerics)
                    self.assertEqual(train(make, mesh, numerics=numerics, offload=[BLOCKS[make]]), whole)
                    self.assertEqual(train(make, mesh, numerics=numerics, recompute=[BLOCKS[make]], keep=["linear"] if make is llama else ["addmm"], offload=BLOCKS[make]), whole)

    def test_what_is_saved_is_in_the_file_until_backward(self):
        def body():
            with tempfile.TemporaryDirectory() as folder:
                tessera.set_offload_folder(folder)
                model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)))
                tessera.parallelize(model, tessera.generate_plan(model, mesh="1", offload="*"))
                loss = model(torch.ones(64, 64)).sum()
                held = tessera._C.offloaded_bytes(), os.listdir(folder)
                loss.backward()
                return held, tessera._C.offloaded_bytes()

        # Of each block the result of tanh, which the next one reads: the last one's stays for what follows. The input may be a copy.
        (held, names), left = tessera.run_ranks(body, 1)
        self.assertEqual((names, left), ([], 0))
        self.assertIn(held, (3 * 64 * 64 * 4, 4 * 64 * 64 * 4))

    def test_what_the_program_holds_stays(self):
        def body():
            x = torch.arange(64.0 * 64).reshape(64, 64)
            numbers, expected = x.numpy(), x.clone()
            w = tessera.distribute_tensor(torch.ones(64, 64), tessera.Mesh("1"), "{}").requires_grad_()
            given = tessera.from_local(x, tessera.Mesh("1"), "{}")
            tessera.offload(lambda x: (x * w).tanh(), given).sum().backward()
            return (numbers == expected.numpy()).all() and numbers.ctypes.data == x.data_ptr()

        self.assertTrue(tessera.run_ranks(body, 1))

    def test_what_does_not_go_is_named(self):
        model = seeded(gpt2)
        with self.assertRaisesRegex(ValueError, r'offload "h\.\*" matches no module'):
            tessera.generate_plan(model, mesh="1", offload="h.*")
        with self.assertRaisesRegex(Exception, 'cannot make a file in "/nowhere"'):
            tessera.run_ranks(lambda: tessera.set_offload_folder("/nowhere"), 1)


class Checkpoint(unittest.TestCase):
    """torch.utils.checkpoint, as models of transformers call it."""

    def test_gradient_checkpointing_enable_has_the_bits_of_one_device(self):
        def enable(model):
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

        for make in (gpt2, llama):
            for mesh, accumulate in sampled(LAYOUTS[make], 2, "checkpoint"):
                with self.subTest(model=make.__name__, mesh=mesh, accumulate=accumulate):
                    self.assertEqual(train(make, mesh, accumulate, change=enable), kept(make, accumulate=accumulate))

    def test_both_together_are_refused(self):
        def enable(model):
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

        with self.assertRaisesRegex(RuntimeError, r"`transformer.h.0` .* by the plan and by gradient_checkpointing_enable"):
            train(gpt2, recompute=["transformer.h.*"], change=enable)


class Functions(unittest.TestCase):
    @staticmethod
    def gradients(again, body, mesh="1"):
        def run():
            tessera.manual_seed(3)
            x, y = (tessera.distribute_tensor(torch.randn(4, 6), tessera.Mesh(mesh), "{}").requires_grad_() for _ in range(2))
            model = nn.Linear(6, 6)
            tessera.parallelize(model, mesh)
            result = tessera.recompute(body, x, {"y": (y, 2)}, model=model) if again else body(x, {"y": (y, 2)}, model=model)
            (result["h"][0].sum() + result["square"].sum()).backward()
            return result["name"], bits({str(i): tessera.full_tensor(t.grad) for i, t in enumerate((x, y, model.weight, model.bias))})

        return tessera.run_ranks(run, tessera.Mesh(mesh).size())

    def test_nested_values_go_in_and_come_out(self):
        def body(x, more, model):
            y, times = more["y"]
            h = torch.dropout(torch.tanh(torch.nn.functional.linear(x, model.weight, model.bias)), 0.5, True) * y
            return {"h": [h * times, (h > 0)], "square": h.square(), "name": "same"}

        kept = self.gradients(False, body)
        self.assertEqual(self.gradients(True, body), kept)
        self.assertEqual(kept[0], "same")

    def test_an_error_of_the_second_run_reaches_the_program(self):
        runs = []

        def body(x):
            runs.append(x)
            if len(runs) == 2:
                raise KeyError("second")
            return x * x

        def run():
            x = tessera.distribute_tensor(torch.ones(2), tessera.Mesh("1"), "{}").requires_grad_()
            with self.assertRaisesRegex(KeyError, "second"):
                tessera.recompute(body, x).sum().backward()

        tessera.run_ranks(run, 1)

    def test_nothing_is_kept_of_the_first_run(self):
        class Marked(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.mark = Mark()
                marks.append(weakref.ref(ctx.mark))
                return x * 2

            @staticmethod
            def backward(ctx, gradient):
                return gradient * 2

        class Mark:
            pass

        marks = []

        def run():
            x = tessera.distribute_tensor(torch.ones(2), tessera.Mesh("1"), "{}").requires_grad_()
            kept = Marked.apply(x)
            result = tessera.recompute(lambda x: {"y": Marked.apply(x)}, x)["y"]
            alive = [mark() is not None for mark in marks]
            (kept + result).sum().backward()
            return alive, tessera.full_tensor(x.grad).tolist()

        self.assertEqual(tessera.run_ranks(run, 1), ([True, False], [4.0, 4.0]))

    def test_a_module_under_two_names_runs_again_once(self):
        runs = []

        class Noted(nn.Linear):
            def forward(self, x):
                runs.append(x)
                return super().forward(x)

        def run():
            block = Noted(4, 4)
            model = nn.ModuleDict({"a": block, "b": block})
            tessera.parallelize(model, tessera.generate_plan(model, mesh="1", recompute=["*"]))
            x = tessera.distribute_tensor(torch.ones(2, 4), tessera.Mesh("1"), "{}")
            model["a"](x).sum().backward()

        tessera.run_ranks(run, 1)
        self.assertEqual(len(runs), 2)

    def test_nothing_runs_again_without_gradients(self):
        runs = []

        def run():
            x = tessera.distribute_tensor(torch.ones(2), tessera.Mesh("1"), "{}").requires_grad_()
            with torch.no_grad():
                return tessera.recompute(lambda x: runs.append(x) or x * 2, x).requires_grad

        self.assertFalse(tessera.run_ranks(run, 1))
        self.assertEqual(len(runs), 1)


if __name__ == "__main__":
    unittest.main()
