#!/usr/bin/env python3
"""A model's and an optimizer's whole state, and the files of others: torch.save, save_pretrained of transformers and of peft. What ranks
hold meanwhile is counted.

Usage: whole_state_test.py LIBRARY [unittest's arguments]     LIBRARY: test_counting of the build
"""

import copy
import ctypes
import importlib.util
import inspect
import io
import json
import pickle
import sys
import tempfile
import unittest
import warnings
from unittest import mock

import tessera
import torch
import torch.distributed.checkpoint as dcp
from folders import in_folder
from zoo import tf, tokens

counting = ctypes.CDLL(sys.argv.pop(1))
WIDTH, LAYERS = 512, 6
TENSOR = WIDTH * WIDTH * 4  # bytes
SMALL = 65536  # bytes of scratch memory
BLOCK = 4 * 2**20  # of a checkpoint's files, read and checked at once


class Tied(torch.nn.Module):
    """A reader whose head is its embedding, with a fused product, an odd width and what is no parameter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.middle, self.head = torch.nn.Embedding(30, 8), torch.nn.Linear(8, 7), torch.nn.Linear(8, 30, bias=False)
        self.back, self.norm = torch.nn.Linear(7, 8), torch.nn.BatchNorm1d(8)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.norm(self.back(self.middle(self.embed(x)).tanh())))

    def get_extra_state(self):
        return {"epoch": 3}

    def set_extra_state(self, state):
        assert state == {"epoch": 3}


def wide():
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def same(test, got, want):
    test.assertEqual(list(got), list(want))
    for key, value in want.items():
        if isinstance(value, torch.Tensor):
            test.assertNotIsInstance(got[key], tessera.DTensor, key)
            test.assertTrue(torch.equal(got[key], value), key)


def bytes_of(rank, work):
    """What `rank` held more at most while `work` ran, and holds more afterwards; with the result."""
    before = counting.live_bytes(rank)
    counting.reset_peak_bytes(rank)
    result = work()
    return counting.peak_bytes(rank) - before, counting.live_bytes(rank) - before, result


class FilesOfTorchTest(unittest.TestCase):
    @in_folder
    def test_torch_save_writes_once_what_plain_pytorch_reads(self, folder):
        reference = Tied()
        torch.save(reference.state_dict(), folder / "plain.pt")

        def body():
            model = tessera.parallelize(copy.deepcopy(reference), "dp=2,tp=2")
            state = tessera.full_state_dict(model, rank=1)
            torch.save(state, folder / "model.pt")
            torch.save({"model": state, "step": [7]}, folder / "nested.pt")
            states[tessera.rank()] = state

        states = {}
        tessera.run_ranks(body, 4)
        self.assertEqual([len(states[rank]) > 0 for rank in range(4)], [False, True, False, False])
        self.assertIs(states[1]["embed.weight"], states[1]["head.weight"])
        for saved in (torch.load(folder / "model.pt", weights_only=True), torch.load(folder / "nested.pt", weights_only=True)["model"]):
            same(self, saved, reference.state_dict())
            self.assertEqual(saved["embed.weight"].data_ptr(), saved["head.weight"].data_ptr())
            self.assertEqual(saved._metadata, reference.state_dict()._metadata)
            Tied().load_state_dict(saved)
        self.assertLess(abs((folder / "model.pt").stat().st_size - (folder / "plain.pt").stat().st_size), 200)

    def test_what_the_other_ranks_have(self):
        def body():
            model = tessera.parallelize(torch.nn.Linear(4, 4), "tp=2")
            state, other = tessera.full_state_dict(model), tessera.full_state_dict(model, rank=1)
            with self.assertRaisesRegex(ValueError, r"whole states of ranks \['0', '1'\] in one file"):
                torch.save([state, other], io.BytesIO())
            with self.assertRaisesRegex(ValueError, r"rank 2 of 2; accepted: None, or one of 0 to 1"):
                tessera.full_state_dict(model, rank=2)
            if tessera.rank() == 0:
                return sorted(state), sorted(copy.deepcopy(state)), type(pickle.loads(pickle.dumps(state))).__name__
            for elsewhere in (state, state.copy(), copy.copy(state), copy.deepcopy(state)):
                with self.assertRaisesRegex(KeyError, "the whole state is on rank 0 alone; with rank=None every rank has it"):
                    elsewhere["weight"]
                with self.assertRaisesRegex(TypeError, r"torch\.save\(state, path\)"):
                    pickle.dumps(elsewhere)
                file = io.BytesIO()
                torch.save(elsewhere, file)
                self.assertEqual(file.getvalue(), b"")

        self.assertEqual(tessera.run_ranks(body, 2), (["bias", "weight"], ["bias", "weight"], "OrderedDict"))
        same(self, tessera.full_state_dict(Tied()), Tied().state_dict())  # without ranks

    @in_folder
    def test_a_plain_file_into_a_model_on_a_mesh(self, folder):
        reference = Tied()
        torch.save(reference.state_dict(), folder / "plain.pt")

        def body(options):
            model = Tied()
            with torch.no_grad():
                for value in (*model.parameters(), *model.buffers()):
                    value.zero_()
            tessera.parallelize(model, "dp=2,tp=2")
            before = {key: (id(value), value.placements) for key, value in model.named_parameters()}
            model.load_state_dict(torch.load(folder / "plain.pt", mmap=True), **options)
            self.assertEqual({key: (id(value), value.placements) for key, value in model.named_parameters()}, before)
            self.assertIs(model.head.weight, model.embed.weight)
            self.assertIsInstance(model.norm.running_var, tessera.DTensor)
            return tessera.full_state_dict(model)

        for options in ({}, {"assign": True}):
            same(self, tessera.run_ranks(lambda: body(options), 4), reference.state_dict())

    @in_folder
    def test_an_optimizer_goes_from_one_mesh_to_another_by_a_file(self, folder):
        ids = torch.arange(24).reshape(24) % 30

        def steps(model, optimizer, count):
            for _ in range(count):
                optimizer.zero_grad()
                model(ids).square().mean().backward()
                optimizer.step()

        def start(mesh, path):
            model = tessera.parallelize(Tied().eval(), mesh)
            optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
            steps(model, optimizer, 2)
            torch.save({"model": tessera.full_state_dict(model), "optimizer": tessera.full_optimizer_state_dict(optimizer)}, path)
            steps(model, optimizer, 2)
            return tessera.full_state_dict(model)

        def go_on(mesh, path):
            model = tessera.parallelize(Tied().eval(), mesh)
            optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
            saved = torch.load(path, weights_only=True, mmap=True)
            model.load_state_dict(saved["model"]), optimizer.load_state_dict(saved["optimizer"])
            steps(model, optimizer, 2)
            return tessera.full_state_dict(model)

        want = tessera.run_ranks(lambda: start("dp=2,tp=2", folder / "run.pt"), 4)
        got = tessera.run_ranks(lambda: go_on("tp=3", folder / "run.pt"), 3)
        for key, value in want.items():
            if isinstance(value, torch.Tensor):
                self.assertTrue(torch.allclose(got[key], value, rtol=1e-4, atol=1e-5), key)


class MemoryTest(unittest.TestCase):
    def on_ranks(self, body):
        """What body(model, its Adam after a step) returns on each of four ranks."""
        def on_rank():
            model = tessera.parallelize(wide(), "tp=4")
            optimizer = torch.optim.Adam(model.parameters(), 1e-2)
            model(torch.ones(2, WIDTH)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            return body(model, optimizer)

        return tessera.run_ranks(on_rank, 4, results="all")

    def test_whole_states_are_on_the_rank_that_asked(self):
        def states(model, optimizer):
            rank = tessera.rank()
            return (bytes_of(rank, lambda: tessera.full_state_dict(model, rank=2))[:2],
                    bytes_of(rank, lambda: tessera.full_optimizer_state_dict(optimizer, rank=2))[:2])

        for rank, (of_model, of_optimizer) in enumerate(self.on_ranks(states)):
            for (peak, kept), tensors in ((of_model, LAYERS), (of_optimizer, 2 * LAYERS)):
                with self.subTest(rank=rank, tensors=tensors, peak=peak / TENSOR, kept=kept / TENSOR):
                    self.assertLessEqual(peak, (tensors + 1 if rank == 2 else 1) * TENSOR + SMALL)
                    self.assertLessEqual(kept, (tensors if rank == 2 else 0) * TENSOR + SMALL)
                    if rank == 2:
                        self.assertGreaterEqual(peak, tensors * TENSOR)  # the count sees them

    def test_whole_states_are_loaded_part_by_part(self):
        reference = wide()
        optimizer = torch.optim.Adam(reference.parameters(), 1e-2)
        reference(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        weights, narrow = reference.state_dict(), optimizer.state_dict()
        doubles = copy.deepcopy(narrow)
        for state in doubles["state"].values():
            state.update(exp_avg=state["exp_avg"].double(), exp_avg_sq=state["exp_avg_sq"].double())

        def load(model, mine):
            rank = tessera.rank()
            mine.state.clear()
            return (bytes_of(rank, lambda: model.load_state_dict(weights))[:2], bytes_of(rank, lambda: model.load_state_dict(weights, assign=True))[:2],
                    bytes_of(rank, lambda: mine.load_state_dict(narrow))[:2], mine.state.clear(), bytes_of(rank, lambda: mine.load_state_dict(doubles))[:2])

        for rank, (model, assigned, moments, _, cast) in enumerate(self.on_ranks(load)):
            for (peak, kept), parts in ((model, 0), (assigned, 0), (moments, 2 * LAYERS / 4), (cast, 2 * LAYERS / 4)):
                with self.subTest(rank=rank, parts=parts, peak=peak / TENSOR, kept=kept / TENSOR):
                    self.assertLessEqual(peak, (parts + 1) * TENSOR + SMALL)
                    self.assertLessEqual(abs(kept - parts * TENSOR), SMALL)


    @in_folder
    def test_a_save_allocates_no_more_than_one_tensor(self, folder):
        """What it copies lies in memory that is kept for the next one: tests/launch/checkpoint_test measures the process."""
        def save(model, optimizer):
            rank = tessera.rank()
            return [bytes_of(rank, lambda: tessera.save(folder, model, optimizer, step=step, in_slices=step == 1))[:2] for step in (0, 1)]

        for rank, sizes in enumerate(self.on_ranks(save)):
            for (peak, kept), gathered in zip(sizes, (1, 0)):  # what is sent of a tensor, and it; or slices
                with self.subTest(rank=rank, gathered=gathered, peak=peak / TENSOR):
                    self.assertLessEqual(peak, 2 * gathered * TENSOR + SMALL)
                    self.assertLessEqual(kept, SMALL)

    @in_folder
    def test_a_checkpoint_is_loaded_block_by_block(self, folder):
        def load(model, mine):
            rank = tessera.rank()
            tessera.save(folder, model, mine, step=1)
            mine.state.clear()
            return bytes_of(rank, lambda: tessera.load(folder, model, mine))[:2]

        for rank, (peak, kept) in enumerate(self.on_ranks(load)):
            with self.subTest(rank=rank, peak=peak / TENSOR, kept=kept / TENSOR):
                moments = 2 * LAYERS / 4  # new ones; what is read lies in memory that is kept until all blocks were checked
                self.assertLessEqual(peak, moments * TENSOR + 6 * BLOCK + SMALL)  # five blocks, and what is sent of one
                self.assertLessEqual(abs(kept - moments * TENSOR), SMALL)

    @in_folder
    def test_a_file_is_loaded_tensor_by_tensor(self, folder):
        reference = wide()
        optimizer = torch.optim.Adam(reference.parameters(), 1e-2)
        reference(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        torch.save({"model": reference.state_dict(), "optimizer": optimizer.state_dict()}, folder / "run.pt")
        dcp.save({"model": reference.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=folder / "run", no_dist=True)
        tessera.save(folder / "model.safetensors", reference)

        def load(model, mine):
            rank, sizes = tessera.rank(), []
            for name in ("run.pt", "run", "model.safetensors"):
                mine.state.clear()
                sizes.append(bytes_of(rank, lambda: tessera.load(folder / name, model, *([] if "model" in name else [mine])))[:2])
            return sizes

        for rank, sizes in enumerate(self.on_ranks(load)):
            for name, (peak, kept), moments in zip(("run.pt", "run", "model.safetensors"), sizes, (2 * LAYERS / 4, 2 * LAYERS / 4, 0)):
                with self.subTest(rank=rank, file=name, peak=peak / TENSOR, kept=kept / TENSOR):
                    beside = LAYERS / 4 + moments  # parts that were read, until all were
                    self.assertLessEqual(peak, (moments + beside + 2) * TENSOR + SMALL)
                    self.assertLessEqual(abs(kept - moments * TENSOR), SMALL)


class PretrainedTest(unittest.TestCase):
    def model(self, kind):
        torch.manual_seed(0)
        if kind == "gpt2":  # tied
            return tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64))
        return tf.LlamaForCausalLM(tf.LlamaConfig(vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4))

    def check(self, folder, kind, **options):
        reference = self.model(kind)

        def body():
            model = tessera.parallelize(copy.deepcopy(reference), "dp=2,tp=2")
            model.save_pretrained(folder, **options)
            self.assertTrue((folder / "config.json").exists())  # on every rank
            self.assertTrue([*folder.glob("*model*")])

        tessera.run_ranks(body, 4)
        loaded = type(reference).from_pretrained(folder)
        same(self, loaded.state_dict(), reference.state_dict())
        with torch.no_grad():
            ids = tokens(2)["input_ids"]
            self.assertTrue(torch.equal(loaded.eval()(ids).logits, reference.eval()(ids).logits))
        return sorted(path.name for path in folder.iterdir())

    @in_folder
    def test_transformers(self, folder):
        self.assertEqual(self.check(folder / "gpt2", "gpt2"), ["config.json", "generation_config.json", "model.safetensors"])
        self.assertIn("model.safetensors.index.json", self.check(folder / "llama", "llama", max_shard_size="20KB"))
        if "safe_serialization" in inspect.signature(tf.PreTrainedModel.save_pretrained).parameters:  # not in transformers 5
            self.assertIn("pytorch_model.bin", self.check(folder / "bin", "gpt2", safe_serialization=False))

    @in_folder
    def test_with_a_state_of_the_programs_own(self, folder):
        reference = self.model("llama")

        def body():
            model = tessera.parallelize(copy.deepcopy(reference), "tp=2")
            model.save_pretrained(folder / "parts", state_dict=model.state_dict())
            state = tessera.full_state_dict(model, rank=1)
            model.save_pretrained(folder / "whole", state_dict=state)  # by rank 1
            if tessera.rank() == 1:
                model.save_pretrained(folder / "alone", state_dict=state)

        tessera.run_ranks(body, 2)
        for name in ("parts", "whole", "alone"):
            same(self, tf.LlamaForCausalLM.from_pretrained(folder / name).state_dict(), reference.state_dict())

    @in_folder
    def test_a_failed_write_is_an_error_on_every_rank(self, folder):
        def body():
            model = tessera.parallelize(self.model("llama"), "tp=2")
            try:
                model.save_pretrained(folder)
            except Exception as error:
                errors[tessera.rank()] = type(error)
                raise

        def fail(*args, **kwargs):
            raise OSError("the disk is full")

        errors = {}
        with self.assertRaisesRegex(OSError, "the disk is full"), mock.patch("transformers.modeling_utils.safe_save_file", fail):
            tessera.run_ranks(body, 2)
        self.assertEqual(errors, {0: OSError, 1: tessera.RankFailed})

    @unittest.skipUnless(importlib.util.find_spec("peft"), "peft is not installed")
    @in_folder
    def test_peft(self, folder):
        import peft

        reference = peft.get_peft_model(self.model("llama"), peft.LoraConfig(target_modules=["q_proj", "down_proj"], r=4, init_lora_weights=False))

        def body():
            model = tessera.parallelize(copy.deepcopy(reference), "dp=2,tp=2")
            model.save_pretrained(folder / "adapter")
            self.assertTrue((folder / "adapter" / "adapter_config.json").exists())
            peft.PeftModel.save_pretrained(model, folder / "old", safe_serialization=False)

        tessera.run_ranks(body, 4)
        for name in ("adapter", "old"):
            loaded = peft.PeftModel.from_pretrained(self.model("llama"), folder / name)
            same(self, loaded.state_dict(), reference.state_dict())
        self.assertEqual(json.loads((folder / "adapter" / "adapter_config.json").read_text())["r"], 4)


class RefusedTest(unittest.TestCase):
    def test_pickles_say_what_to_write(self):
        def body():
            model = tessera.parallelize(Tied(), "tp=2")
            optimizer = torch.optim.SGD(model.parameters(), 1e-2)
            for value in (model.embed.weight, model.state_dict(), optimizer):
                with self.assertRaisesRegex(TypeError, r"torch\.save\(tessera\.full_optimizer_state_dict\(optimizer\), path\)"):
                    torch.save(value, io.BytesIO())

        tessera.run_ranks(body, 2)

    def test_distributed_checkpoints_want_processes(self):
        from torch.distributed.checkpoint.api import CheckpointException

        names = ("__create_write_items__", "__create_chunk_list__", "__get_tensor_shard__")
        self.assertFalse(any(hasattr(torch.ones(2), name) for name in names))

        def body():
            self.assertFalse(any(hasattr(torch.ones(2), name) for name in names))
            model = tessera.parallelize(torch.nn.Linear(4, 4), "tp=2")
            with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(CheckpointException, r"tessera\.save\(run, model, optimizer, step=n\) and tessera\.load"):
                dcp.save(model.state_dict(), checkpoint_id=folder, no_dist=True)

        tessera.run_ranks(body, 2)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    unittest.main()
