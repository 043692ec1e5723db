#!/usr/bin/env python3
"""`transformers` loads what was trained here, straight from the run and from each of its checkpoints, and the other way round.

Usage: hugging_face_test.py TESSERA RUN_LOGITS      (the program; run_logits.cpp)
"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import torch
    from safetensors import safe_open
    from tokenizers import Tokenizer
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

RUN_LOGITS = Path(sys.argv.pop(2)).resolve()
PROGRAM = Path(sys.argv.pop(1)).resolve()
TOKENIZERS = Path(__file__).resolve().parents[1] / "unit/data/tokenizers"
MODELS = {  # and the same with the output head tied to the embedding
    "llama": {"model.kind": "llama", "model.hidden": 96, "model.kv_heads": 2, "model.rope_theta": 5000.0},
    "gpt": {"model.kind": "gpt", "model.dropout": 0.1},
}
SIZES = {"model.dim": 32, "model.layers": 2, "model.heads": 4, "model.norm_eps": 1e-4, "data.sequence": 16, "train.batch": 8, "train.lr": 1e-2,
         "train.eval_batches": 1}


class HuggingFace(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.folder = Path(holder.name)
        (cls.folder / "text.txt").write_text("".join(f"line {i} of a text that repeats itself\n" for i in range(400)))
        (cls.folder / "base.toml").write_text('[data]\nfile = "text.txt"\n[train]\nsteps = 6\n')

    def tessera(self, *words):
        done = subprocess.run([str(word) for word in (PROGRAM, *words)], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def train(self, name, settings, *words):
        sets = [word for key, value in {**SIZES, **settings}.items() for word in ("--set", f"{key}={value}")]
        self.tessera("train", "base.toml", "--quiet", "--out", name, *words, *sets)
        return self.folder / name

    def logits(self, run):
        """Tokens, and what the model here makes of them."""
        path = self.folder / "logits.safetensors"
        subprocess.run([RUN_LOGITS, run, path], check=True)
        with safe_open(path, "pt") as file:
            return file.get_tensor("tokens"), file.get_tensor("logits")

    def assert_same_model(self, folder, run):
        model = AutoModelForCausalLM.from_pretrained(folder)
        self.assertFalse(model.training)
        tokens, expected = self.logits(run)
        with torch.no_grad():
            found = model(tokens).logits
        distance = (found - expected).abs().max().item()
        self.assertLessEqual(distance, 1e-5 * max(1, expected.abs().max().item()), folder)
        self.assertGreater(expected.std().item(), 0.05)  # it learned something that could be mistaken

    def test_loads_runs_and_checkpoints(self):
        for kind, settings in MODELS.items():
            for tied in ("true", "false"):
                with self.subTest(kind=kind, tied=tied):
                    run = self.train(f"{kind}_{tied}", {**settings, "model.tie_embeddings": tied}, "--mesh", "dp=2,tp=2", "--save-every", "3")
                    newest = run / "checkpoints/step_000006"
                    for folder in (run, newest):
                        self.assert_same_model(folder, run)
                    self.tessera("ckpt", "export-hf", run, self.folder / f"{run.name}_hf")
                    self.assert_same_model(self.folder / f"{run.name}_hf", run)
                    files = list(run.rglob("*.safetensors"))
                    self.assertGreater(len(files), 16)  # the run's, 4 + 4 of each of two checkpoints
                    for path in files:
                        with safe_open(path, "pt") as file:
                            self.assertGreater(sum(file.get_tensor(name).numel() for name in file.keys()), 0, path)

    def test_what_it_saves_is_trained_here(self):
        """A model that transformers made and saved: imported, loaded on a mesh, it has the same logits and is saved with the same bits."""
        for kind, settings in MODELS.items():
            for tied in ("true", "false"):
                with self.subTest(kind=kind, tied=tied):
                    like = self.train(f"like_{kind}_{tied}", {**settings, "model.tie_embeddings": tied})
                    torch.manual_seed(3)
                    config = AutoConfig.from_pretrained(like, initializer_range=0.3)
                    made = AutoModelForCausalLM.from_config(config)
                    with torch.no_grad():
                        for parameter in made.parameters():
                            parameter.add_(0.1 * torch.randn_like(parameter))  # biases and norms too
                    saved = self.folder / f"made_{kind}_{tied}"
                    made.save_pretrained(saved, max_shard_size="40KB")
                    self.assertTrue((saved / "model.safetensors.index.json").exists())
                    imported = self.folder / f"imported_{kind}_{tied}"
                    self.tessera("ckpt", "import-hf", saved, imported)
                    run = self.train(f"again_{kind}_{tied}", {**settings, "model.tie_embeddings": tied, "train.lr": 1e-30}, "--mesh", "dp=2,tp=2",
                                     "--steps", "1", "--init-from", imported)
                    tokens, found = self.logits(run)
                    with torch.no_grad():
                        expected = made.eval()(tokens).logits
                    self.assertLessEqual((found - expected).abs().max().item(), 1e-5 * max(1, expected.abs().max().item()))
                    again = AutoModelForCausalLM.from_pretrained(run).state_dict()
                    for name, value in made.state_dict().items():
                        self.assertTrue(torch.equal(again[name], value), name)

    def test_the_tokenizer_goes_along(self):
        run = self.train("tokens", {**MODELS["llama"], "data.tokenizer": TOKENIZERS / "gpt2.json"}, "--save-every", "6", "--mesh", "tp=2")
        text = "line 7 of a text"
        of_file = Tokenizer.from_file(str(TOKENIZERS / "gpt2.json"))  # which puts a space in front
        for folder in (run, run / "checkpoints/step_000006"):
            tokenizer = AutoTokenizer.from_pretrained(folder)
            ids = tokenizer(text)["input_ids"]
            self.assertEqual(ids, of_file.encode(text).ids)
            self.assertEqual(tokenizer.decode(ids), " " + text)
            self.assertEqual(tokenizer.eos_token, "<|endoftext|>")
            self.assertEqual(AutoConfig.from_pretrained(folder).eos_token_id, tokenizer.eos_token_id)

    def test_the_first_files_of_gpt2(self):
        """They lack `transformer.` in front of every name, and have masks among the parameters."""
        run = self.train("short", {**MODELS["gpt"], "model.tie_embeddings": "true"})
        from safetensors.torch import load_file, save_file
        state = {name.removeprefix("transformer."): value for name, value in load_file(run / "model.safetensors").items()}
        state["h.0.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
        folder = self.folder / "first"
        folder.mkdir()
        save_file(state, folder / "model.safetensors")
        (folder / "config.json").write_text((run / "config.json").read_text())
        self.tessera("ckpt", "import-hf", folder, self.folder / "first_in")
        self.tessera("ckpt", "export-hf", self.folder / "first_in", self.folder / "first_out")
        self.assertEqual({name: value.tolist() for name, value in load_file(self.folder / "first_out/model.safetensors").items()},
                         {name: value.tolist() for name, value in load_file(run / "model.safetensors").items()})


if __name__ == "__main__":
    unittest.main()
