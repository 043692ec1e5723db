#!/usr/bin/env python3
"""Adapters of peft, on models that are placed with them and on models that were placed before: one device's losses and gradients, initial values that no
layout changes, the same merged weights, and files that peft opens without tessera.

Usage: adapters_test.py [unittest's arguments]      TESSERA_FULL=1: every method on every model and mesh
"""

import copy
import importlib.util
import itertools
import os
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

if importlib.util.find_spec("peft") is None:
    print("skipped: peft is not installed (requirements.txt)")
    sys.exit(77)

import peft
import tessera
import torch
from sampling import sampled
from wide import doubles
from zoo import ZOO, tf

TARGETS = {"llama": ["q_proj", "v_proj", "down_proj"], "gpt2": ["c_attn", "c_proj"], "t5": ["q", "v", "wo"],
           "vit": ["query", "value", "dense"] if tf.__version__ < "5" else ["q_proj", "v_proj", "fc2"]}
TASKS = {"llama": "CAUSAL_LM", "gpt2": "CAUSAL_LM", "t5": "SEQ_2_SEQ_LM", "vit": None}
PROMPTS = {"prefix": peft.PrefixTuningConfig, "prompt": peft.PromptTuningConfig, "p-tuning": peft.PromptEncoderConfig}
METHODS = ("lora", "all-linear", "dora", "ia3", *PROMPTS)
MERGED = ("lora", "all-linear", "dora", "ia3")
MESHES = ("tp=2", "dp=2,tp=2", "fsdp=2")

OPENS = """
import sys
import peft, torch
import transformers as tf
base, *adapters = sys.argv[1:]
for adapter in adapters:
    model = peft.PeftModel.from_pretrained(tf.AutoModelForCausalLM.from_pretrained(base, dtype="auto"), adapter)
    print(repr(model(input_ids=torch.arange(3, 11).unsqueeze(0)).logits.double().square().sum().item()))
assert "tessera" not in sys.modules
"""


def cells():
    every = itertools.product(TARGETS, METHODS, MESHES)
    return sampled([cell for cell in every if not (cell[0] == "vit" and cell[1] in PROMPTS)], 5)  # peft has none for it


def config_of(name, method):
    order = {"fan_in_fan_out": True} if name == "gpt2" and method not in PROMPTS else {}
    if method == "ia3":
        return peft.IA3Config(target_modules=TARGETS[name], feedforward_modules=TARGETS[name][-1:], **order)
    if method in PROMPTS:
        return PROMPTS[method](task_type=TASKS[name], num_virtual_tokens=3)
    targets = "all-linear" if method == "all-linear" else TARGETS[name]
    return peft.LoraConfig(r=4, target_modules=targets, task_type=TASKS[name], use_dora=method == "dora", **order)


def with_adapters(base, name, method):
    torch.manual_seed(7)
    return peft.get_peft_model(base, config_of(name, method)).to(next(base.parameters()).dtype).eval()


def adapters_of(model):
    return {name: tessera.full_tensor(p.detach()).clone() for name, p in model.named_parameters() if p.requires_grad}


def train(model, batch):
    """Losses of three steps, and the gradients of the last."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    gradients = {name: tessera.full_tensor(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    return torch.tensor(losses, dtype=torch.float64), gradients


class Cell:
    """A model and a method on one device, and how it goes there."""

    def __init__(self, name, method):
        self.name, self.method = name, method
        self.batch = {key: value.double() if value.is_floating_point() else value for key, value in ZOO[name].batch(4).items()}
        self.base = ZOO[name].make().double().eval()
        self.whole = with_adapters(copy.deepcopy(self.base), name, method)
        self.initial = adapters_of(self.whole)
        self.wanted = self.ends(copy.deepcopy(self.whole))

    def ends(self, model):
        """What training gives, and the weights that it is merged to."""
        return *train(model, self.batch), tessera.full_state_dict(model.merge_and_unload(), rank=None) if self.method in MERGED else {}

    def on_ranks(self, mesh, adds_first, numerics="fast", **lattice):
        def body():
            tessera.numerics(numerics, **lattice)
            if adds_first:
                model = tessera.parallelize(copy.deepcopy(self.whole), mesh)
            else:
                model = with_adapters(tessera.parallelize(copy.deepcopy(self.base), mesh), self.name, self.method)
            return adapters_of(model), self.ends(model)

        return tessera.run_ranks(body, tessera.Mesh(mesh).size())


class AdaptersTest(unittest.TestCase):
    def test_are_those_of_one_device(self):
        with doubles():
            for (name, method), meshes in itertools.groupby(sorted(cells()), lambda cell: cell[:2]):
                cell = Cell(name, method)
                for (_, _, mesh), adds_first in itertools.product(list(meshes), (True, False)):
                    with self.subTest(model=name, method=method, mesh=mesh, adds_first=adds_first):
                        initial, ends = cell.on_ranks(mesh, adds_first)
                        self.check_initial(initial, cell, adds_first)
                        torch.testing.assert_close(ends, cell.wanted, rtol=1e-12, atol=1e-12)

    def check_initial(self, initial, cell, adds_first):
        for name, value in cell.initial.items():
            if "magnitude" in name and not adds_first:  # DoRA's are norms of the base's rows: sums, whose last digit may depend on a layout in `fast`
                torch.testing.assert_close(initial[name], value, rtol=1e-14, atol=0)
            else:
                self.assertTrue(torch.equal(initial[name], value), name)

    def test_exact(self):
        """One hash in float32, whenever adapters were added; DoRA's initial values too, which are of the placed base where it came first."""
        for method in sampled(("lora", "dora"), 1):
            with self.subTest(method=method):
                cell = Cell("llama", method)
                cell.base, cell.whole = cell.base.float(), cell.whole.float()
                runs = [(mesh, adds_first) for mesh in ("1", "dp=2,tp=2", "fsdp=2") for adds_first in (True, False)]
                seen = {run: cell.on_ranks(*run, "exact", lattice="batch=4") for run in runs}
                for (mesh, adds_first), own in seen.items():
                    torch.testing.assert_close(own, seen["1", adds_first or method == "lora"], rtol=0, atol=0)

    def test_are_cut_with_their_layers(self):
        """Added before or after, by a plan that was made before they were there, or as a second one beside the first."""
        def body(mesh, way):
            model = ZOO["llama"].make().eval()
            if way == "before":
                model = tessera.parallelize(with_adapters(model, "llama", "lora"), mesh)
            elif way == "plan of the base":
                plan = tessera.Plan.from_json(tessera.generate_plan(model, mesh=mesh, recompute="model.layers.*").json())
                model = tessera.parallelize(with_adapters(model, "llama", "lora"), plan)
                recomputed.append(sum(type(module.forward).__module__ == "tessera._recompute" for module in model.modules()))
            else:
                model = with_adapters(tessera.parallelize(model, mesh), "llama", "lora")
            if way == "second":
                model.add_adapter("second", config_of("llama", "lora"))
                model.set_adapter("second")
            losses, _ = train(model, {**ZOO["llama"].batch(4), "use_cache": False})
            own = [p for p in model.parameters() if p.requires_grad]
            layouts = {name.partition("layers.")[2].replace("second", "default"): str(p.placements) for name, p in model.named_parameters()
                       if p.requires_grad and "layers.1" in name}
            return losses, layouts, sum(tessera.to_local(p).numel() for p in own), sum(p.numel() for p in own)

        wanted = {"q_proj.lora_A": "(R, R)", "q_proj.lora_B": "(R, S(0;16))", "v_proj.lora_A": "(R, R)", "v_proj.lora_B": "(R, S(0;8))",
                  "down_proj.lora_A": "(R, S(1))", "down_proj.lora_B": "(R, R)"}
        recomputed = []
        for way in ("before", "after", "second", "plan of the base"):
            with self.subTest(way=way):
                losses, layouts, *_ = tessera.run_ranks(body, 4, args=("dp=2,tp=2", way))
                self.assertEqual({".".join(name.split(".")[2:4]): layout for name, layout in layouts.items()}, wanted)
                of_ranks = tessera.run_ranks(body, 2, args=("fsdp=2", way), results="all")
                self.assertEqual(sum(held for *_, held, _ in of_ranks), of_ranks[0][3])
                torch.testing.assert_close(of_ranks[0][0], losses, rtol=1e-5, atol=0)
        self.assertEqual(set(recomputed), {2})

    def test_optimizer_that_comes_before_they_are_placed(self):
        """It has state already, from a run on one device."""
        batch = ZOO["llama"].batch(4)
        base = ZOO["llama"].make().eval()

        def made(mesh):
            model = with_adapters(tessera.parallelize(copy.deepcopy(base), mesh) if mesh else copy.deepcopy(base), "llama", "lora")
            return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)

        def step(model, optimizer):
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()

        def go_on(model, optimizer):
            return torch.tensor([step(model, optimizer) for _ in range(2)])

        def body(mesh):
            model, optimizer = made(mesh)
            peft.set_peft_model_state_dict(model, values)
            optimizer.load_state_dict(copy.deepcopy(state))
            return go_on(model, optimizer)

        model, optimizer = made("")
        for _ in range(2):
            step(model, optimizer)
        state, values = copy.deepcopy(optimizer.state_dict()), {name: value.clone() for name, value in peft.get_peft_model_state_dict(model).items()}
        wanted = go_on(model, optimizer)
        for mesh in ("dp=2,tp=2", "fsdp=2"):
            torch.testing.assert_close(tessera.run_ranks(body, tessera.Mesh(mesh).size(), args=(mesh,)), wanted, rtol=1e-5, atol=0)

    def test_files_open_without_tessera(self):
        def body(mesh, folder):
            model = tessera.parallelize(with_adapters(ZOO["llama"].make().eval(), "llama", "lora"), mesh)
            train(model, ZOO["llama"].batch(4))
            model.save_pretrained(folder)

        with tempfile.TemporaryDirectory() as holder:
            base = Path(holder) / "base"
            ZOO["llama"].make().eval().save_pretrained(base)
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            folders = [Path(holder) / mesh for mesh in ("1", "dp=2,tp=2", "fsdp=2")]
            for folder in folders:
                tessera.run_ranks(lambda folder=folder: body(folder.name, folder), tessera.Mesh(folder.name).size())
            done = subprocess.run([sys.executable, "-c", OPENS, base, *folders], capture_output=True, text=True, env=environment, timeout=200)
            self.assertEqual(done.returncode, 0, done.stderr)
            one, *others = map(float, done.stdout.split())
            for folder, value in zip(folders[1:], others, strict=True):
                self.assertLess(abs(value / one - 1), 1e-5, folder.name)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    unittest.main()
