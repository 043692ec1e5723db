#!/usr/bin/env python3
"""Hashes of losses, gradients and parameters over layouts, in both numerics: what a change that moves code must leave as it is.

Usage: record.py BUILD FILE [--against FILE] [--only REGEX]

FILE gets one line of JSON for each model, numerics and layout. `--against` compares with what an earlier build left on the same processor
(in `fast` bits depend on it) and fails at the first difference.

The example programs' models run by the command line, five models of `transformers` by Python (PYTHONPATH must name the build's).
"""

import argparse
import copy
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import safetensors.torch
import tessera
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from exact_test import targets  # noqa: E402
from zoo import ZOO  # noqa: E402

SAMPLES, STEPS = 12, 3
LAYOUTS = (("1", 1), ("dp=2", 1), ("dp=3", 1), ("tp=2", 1), ("tp=4", 1), ("dp=2,tp=2", 1), ("dp=2", 3), ("dp=2,tp=2", 3))  # mesh, micro-batches
EXAMPLES = {
    "llama": {"model.kind": "llama", "model.hidden": 96, "model.kv_heads": 4},
    "gpt": {"model.kind": "gpt", "model.dropout": 0.1, "model.tie_embeddings": "true"},
}
SIZES = {"model.dim": 32, "model.layers": 2, "model.heads": 4, "data.sequence": 16, "train.batch": SAMPLES, "train.lr": 1e-3, "train.eval_batches": 1}
MODELS = ("bert", "gpt2", "llama", "qwen3", "vit")


def hash_of(*parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]


def values_of(folder):
    """Each parameter of a run's folder as its elements from low to high: whatever files call it, and whichever way round it lies in them."""
    tensors = (tensor for file in sorted(folder.glob("*.safetensors")) for tensor in safetensors.torch.load_file(file).values())
    return sorted(tensor.flatten().view(torch.int32).sort().values.numpy().tobytes() for tensor in tensors)


def run_example(program, model, numerics, mesh, accumulate):
    """Losses and gradient norms, and the values of the parameters."""
    with tempfile.TemporaryDirectory() as holder:
        folder = Path(holder)
        (folder / "text.txt").write_text("".join(f"line {i} of a text that repeats itself\n" for i in range(400)))
        (folder / "base.toml").write_text(f"[data]\nfile = \"text.txt\"\n[train]\nsteps = {STEPS}\n")
        settings = {**SIZES, **EXAMPLES[model], "train.accumulate": accumulate}
        sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        words = [program, "train", "base.toml", "--quiet", "--numerics", numerics, "--mesh", mesh, "--metrics", "m.jsonl", "--out", "run", *sets]
        subprocess.run([str(word) for word in words], check=True, cwd=folder, stdout=subprocess.DEVNULL)
        records = [json.loads(line) for line in (folder / "m.jsonl").read_text().splitlines()]
        numbers = json.dumps([(record["loss"], record["grad_norm"]) for record in records])
        return {"losses": hash_of(numbers.encode()), "parameters": hash_of(*values_of(folder / "run"))}


def bytes_of(tensors):
    return (tensors[name].contiguous().numpy().tobytes() for name in sorted(tensors))


def run_model(name, numerics, mesh, accumulate):
    batch = ZOO[name].batch(SAMPLES)

    def on_ranks():
        tessera.numerics(numerics, f"batch={SAMPLES}") if numerics == "exact" else tessera.numerics(numerics)
        model = copy.deepcopy(whole)
        options = {"lattice": f"batch={SAMPLES}"} if numerics == "exact" else {}
        tessera.parallelize(model, tessera.generate_plan(model, mesh=mesh, **options), accumulate=accumulate)
        tessera.set_step_tokens(targets(name, batch["labels"]))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        losses, gradients = [], {}
        for _ in range(STEPS):
            optimizer.zero_grad()
            for part in zip(*(value.chunk(accumulate) for value in batch.values()), strict=True):
                loss = model(**dict(zip(batch, part, strict=True))).loss
                (loss / accumulate).backward()
                losses.append(tessera.full_tensor(loss.detach()))
            gradients = {key: tessera.full_tensor(p.grad) for key, p in model.named_parameters() if p.grad is not None}
            optimizer.step()
        return torch.stack(losses), gradients, tessera.full_state_dict(model)

    whole = ZOO[name].make().eval()
    losses, gradients, parameters = tessera.run_ranks(on_ranks, tessera.Mesh(mesh).size())
    return {"losses": hash_of(losses.numpy().tobytes()), "gradients": hash_of(*bytes_of(gradients)), "parameters": hash_of(*bytes_of(parameters))}


def cells():
    for kind, names in (("example", EXAMPLES), ("transformers", MODELS)):
        for name in names:
            for numerics in ("exact", "fast"):
                for mesh, accumulate in LAYOUTS:
                    yield kind, name, numerics, mesh, accumulate


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = [json.loads(line) for line in options.against.read_text().splitlines()] if options.against else []
    earlier = {record["cell"]: record for record in known}
    differing = []
    with options.file.open("w") as file:
        for kind, name, numerics, mesh, accumulate in cells():
            cell = f"{kind} {name} {numerics} {mesh} accumulate={accumulate}"
            if not re.search(options.only, cell):
                continue
            run = (lambda: run_example(options.build.resolve() / "bin/tessera", name, numerics, mesh, accumulate)) if kind == "example" \
                else (lambda: run_model(name, numerics, mesh, accumulate))
            try:
                record = {"cell": cell, **run()}
            except (RuntimeError, subprocess.CalledProcessError) as error:
                record = {"cell": cell, "refused": str(error)[:200]}
            file.write(json.dumps(record) + "\n")
            if options.against and earlier.get(cell) != record:
                differing.append(cell)
                print(f"{cell}: {earlier.get(cell)} became {record}", flush=True)
    print(f"{len(differing)} cells differ" if options.against else f"{options.file} written")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
