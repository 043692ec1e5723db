#!/usr/bin/env python3
"""Files of other programs, loaded onto a mesh by tessera.load: torch.save, torch.distributed.checkpoint, transformers, safetensors.

Usage: others_test.py [unittest's arguments]
"""

import unittest
import warnings

import tessera
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from folders import in_folder
from zoo import tf

from saving_test import ALL, make, on, plain, start, steps, whole

MESHES = ("tp=2", "dp=2,tp=2", "tp=3")


def trained(build=ALL["AdamW"], count=2):
    """In plain PyTorch."""
    model = make()
    optimizer = build(model.parameters())
    steps(model, optimizer, count)
    return model, optimizer


def as_loaded(model, optimizer, build):
    """Every bit that plain PyTorch has once it has loaded these: it casts some sums to the parameters' dtype."""
    other = build(model.parameters())
    other.load_state_dict(optimizer.state_dict())
    return {name: value.tolist() for name, value in model.state_dict().items()}, plain(other.state_dict())


class OthersTest(unittest.TestCase):
    def setUp(self):
        self.enterContext(warnings.catch_warnings())
        warnings.simplefilter("ignore")

    def check(self, path, want, values=None, step=None, build=ALL["AdamW"], meshes=MESHES):
        """Model and optimizer on each mesh, and on none, have every bit; moments lie as their parameters."""
        def body(mesh):
            model, optimizer = start(mesh, build)
            loaded = tessera.load(path, model, optimizer)
            self.assertEqual((dict(loaded), loaded.step), (values or {}, step))
            for parameter in model.parameters() if mesh else ():
                for key, value in optimizer.state.get(parameter, {}).items():
                    if value.shape == parameter.shape:
                        self.assertEqual(value.placements, parameter.placements, key)
            return whole(model, optimizer)

        for mesh in meshes:
            with self.subTest(path=path.name, mesh=mesh):
                self.assertEqual(on(mesh, lambda: body(mesh)), want)
        self.assertEqual(body(None), want)

    @in_folder
    def test_files_of_torch_save(self, folder):
        for name, build in ALL.items():
            if name == "LBFGS":  # a row of all parameters, lists of such
                continue
            with self.subTest(optimizer=name):
                model, optimizer = trained(build)
                path = folder / f"{name}.pt"
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7, "args": {"lr": 0.5, "names": ["a"]}}, path)
                self.check(path, as_loaded(model, optimizer, build), {"step": 7, "args": {"lr": 0.5, "names": ["a"]}}, 7, build, MESHES[1:2])

    @in_folder
    def test_other_forms_of_a_state(self, folder):
        model, optimizer = trained()
        state, want = model.state_dict(), {name: value.tolist() for name, value in model.state_dict().items()}
        forms = {"bare": state, "wrapped": {f"module.{name}": value for name, value in state.items()}, "nested": {"app": {"net": state}, "epoch": 2},
                 "compiled": {"state_dict": {f"_orig_mod.{name}": value for name, value in state.items()}},
                 "with another": {"model": state, "ema": {name: value for name, value in list(state.items())[:2]}}, "old": state}
        for name, form in forms.items():
            torch.save(form, folder / name, _use_new_zipfile_serialization=name != "old")

            def body(mesh):
                other = start(mesh)[0]
                loaded = tessera.load(folder / name, other)
                self.assertEqual(loaded, {"epoch": 2} if name == "nested" else {})
                return {key: value.tolist() for key, value in tessera.full_state_dict(other, rank=None).items()}

            with self.subTest(form=name):
                self.assertEqual(on("tp=2", lambda: body("tp=2")), want)
                self.assertEqual(body(None), want)

    @in_folder
    def test_distributed_checkpoints(self, folder):
        model, optimizer = trained()
        want = as_loaded(model, optimizer, ALL["AdamW"])
        dcp.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, checkpoint_id=folder / "numbers", no_dist=True)
        self.check(folder / "numbers", want, {"epoch": 3})
        for name, flatten in (("names", False), ("flat", True)):
            states = get_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=flatten))
            dcp.save({"app": {"model": states[0], "optim": states[1]}, "step": 9}, checkpoint_id=folder / name, no_dist=True)
            self.check(folder / name, want, {"step": 9}, 9, meshes=MESHES[1:])
        dcp.save(model.state_dict(), checkpoint_id=folder / "bare", no_dist=True)
        other = make()
        tessera.load(folder / "bare", other)
        self.assertTrue(all(torch.equal(value, model.state_dict()[name]) for name, value in other.state_dict().items()))

    @in_folder
    def test_groups_by_their_order(self, folder):
        def build(parameters):
            weights = [[parameter for parameter in parameters if parameter.dim() == dims] for dims in (2, 1)]
            return torch.optim.AdamW([{"params": weights[0], "weight_decay": 0.1, "lr": 1e-3}, {"params": weights[1], "weight_decay": 0.0}])

        def as_list(parameters):
            return build(list(parameters))

        model, optimizer = trained(as_list)
        want = as_loaded(model, optimizer, as_list)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "groups.pt")
        dcp.save(dict(zip(("model", "optimizer"), get_state_dict(model, optimizer))), checkpoint_id=folder / "groups", no_dist=True)
        for path in (folder / "groups.pt", folder / "groups"):
            self.check(path, want, build=as_list, meshes=("dp=2,tp=2",))
            with self.assertRaisesRegex(RuntimeError, "2 groups of parameters, the optimizer 1; accepted: the same groups in the same order; nothing was changed"):
                tessera.load(path, *start(None))

    @in_folder
    def test_what_does_not_fit_is_refused_before_anything_changes(self, folder):
        model, optimizer = trained()
        state = model.state_dict()
        bad = {"deeper": ({**state, "3.weight": torch.ones(2)}, "1 extra: 3.weight"), "lacking": ({key: state[key] for key in list(state)[1:]}, "1 missing: "),
               "misshapen": ({**state, "0.bias": torch.ones(11).double()}, r"misshapen: 0\.bias is float64\[11\], wanted float64\[12\]"),
               "of integers": ({**state, "0.bias": torch.ones(12).int()}, r"misshapen: 0\.bias is int32\[12\]"),
               "nothing": ({"epoch": 3}, "missing: ")}
        for name, (form, says) in bad.items():
            torch.save({"model": form}, folder / name)
        torch.save({"model": state, "optimizer": torch.optim.SGD(model[0].parameters(), 1e-2).state_dict()}, folder / "part")
        bad["part"] = None, "2 parameters in group 0, the optimizer 4"
        torch.save(state, folder / "alone")
        bad["alone"] = None, "has no state of an optimizer; accepted: load"
        for name, (_, says) in bad.items():
            def body():
                other, others = start("tp=2")
                steps(other, others, 1)
                before = whole(other, others)
                with self.assertRaisesRegex(RuntimeError, says):
                    tessera.load(folder / name, other, *([others] if name in ("part", "alone") else []))
                self.assertEqual(whole(other, others), before)

            with self.subTest(file=name):
                on("tp=2", body)

    @in_folder
    def test_transformers(self, folder):
        torch.manual_seed(3)
        sizes = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        makes = {"gpt2": lambda: tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64)),  # tied
                 "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**sizes))}
        ids = torch.arange(24).reshape(2, 12)
        for kind, make_model in makes.items():
            reference = make_model().eval()
            reference.save_pretrained(folder / kind)
            reference.save_pretrained(folder / f"{kind} in shards", max_shard_size="20KB")
            reference.save_pretrained(folder / f"{kind} half", state_dict={name: value.half() for name, value in reference.state_dict().items()})
            reference.base_model.save_pretrained(folder / f"{kind} base")
            torch.save(reference.state_dict(), folder / f"{kind}.bin")

            def body(path):
                model = tessera.parallelize(make_model().eval(), "dp=2,tp=2")
                tessera.load(path, model)
                if path.name == kind:
                    tessera.save(folder / f"{kind} run", model, step=1)
                return dict(tessera.full_state_dict(model, rank=None))

            for name in (kind, f"{kind} in shards", f"{kind} half", f"{kind}.bin", *([f"{kind} base"] if kind == "gpt2" else [])):
                with self.subTest(file=name):
                    state = on("dp=2,tp=2", lambda: body(folder / name))
                    for key, value in reference.state_dict().items():
                        self.assertTrue(torch.equal(state[key], value.half().float() if "half" in name else value), key)
            loaded = tf.AutoModelForCausalLM.from_pretrained(folder / f"{kind} run" / "step_000001")
            self.assertIs(type(loaded), type(reference))
            with torch.no_grad():
                self.assertTrue(torch.equal(loaded.eval()(ids).logits, reference(ids).logits))

    @in_folder
    def test_one_file_of_safetensors(self, folder):
        model, _ = trained()
        tessera.save(folder / "plain.safetensors", model)  # by a program that is no rank

        def body():
            other = start("tp=2")[0]
            tessera.load(folder / "plain.safetensors", other)
            tessera.save(folder / "mesh.safetensors", other)

        on("tp=2", body)
        self.assertEqual((folder / "plain.safetensors").read_bytes(), (folder / "mesh.safetensors").read_bytes())
        other = make()
        tessera.load(folder / "mesh.safetensors", other)
        self.assertTrue(all(torch.equal(value, model.state_dict()[name]) for name, value in other.state_dict().items()))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    unittest.main()
