"""Training a small GPT-2 of transformers that ends, is loaded and goes on: what resume_test.py runs as rank threads and, started by torchrun, as
processes. A program prints what it saw, as JSON, on rank 0.

Usage: resume_program.py RUN...     RUN: the fields of Run as JSON; one after the other, in one job
"""

import dataclasses
import hashlib
import json
import sys
import warnings

import tessera
import torch
from zoo import tf

SAMPLES, LENGTH, VOCABULARY = 12, 8, 64
LATTICE = "batch=12,sequence=1,feature=4"


@dataclasses.dataclass
class Run:
    """Steps [first, last) on a mesh, each in so many micro-batches."""
    mesh: str
    first: int
    last: int
    load: str = ""
    save: str = ""
    micro: int = 1
    numerics: str = "exact"
    seed: int = 7
    optimizer: str = "AdamW"
    allows_other_sums: bool = False
    lattice: str = LATTICE
    in_slices: bool = False


def make_model():
    torch.manual_seed(0)
    config = tf.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=16, bos_token_id=1, eos_token_id=2)
    return tf.GPT2LMHeadModel(config).train()  # a tied head, dropout of 0.1


def make_optimizer(name, parameters):
    return {"AdamW": lambda: torch.optim.AdamW(parameters, 1e-2), "SGD": lambda: torch.optim.SGD(parameters, 1e-2, momentum=0.9)}[name]()


def batch_of(step):
    return torch.randint(0, VOCABULARY, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(100 + step))


def digest(value):
    """Of a state's values, names and numbers alike."""
    if isinstance(value, torch.Tensor):
        return hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()[:16]
    if isinstance(value, dict):
        return {str(key): digest(item) for key, item in value.items()}
    return [digest(item) for item in value] if isinstance(value, (list, tuple)) else value


def train_step(model, optimizer, step, micro):
    """The losses of the micro-batches, as hexadecimal texts."""
    optimizer.zero_grad()
    losses = []
    for part in batch_of(step).chunk(micro):
        loss = model(input_ids=part, labels=part).loss
        (loss / micro).backward()
        losses.append(tessera.full_tensor(loss.detach()).item().hex())
    optimizer.step()
    return losses


def train(run):
    """What one program saw: losses, what is left in parameters and moments, and the next random numbers."""
    torch.manual_seed(run.seed)
    if run.numerics == "exact":
        tessera.numerics("exact", run.lattice)
        tessera.set_generator("counter")  # whose masks no micro-batch changes
    else:
        tessera.numerics("fast")
    tessera.set_step_tokens(SAMPLES * (LENGTH - 1))
    torch.manual_seed(0)
    model = make_model()
    torch.manual_seed(run.seed)
    lattice = run.lattice if run.numerics == "exact" else ""
    tessera.parallelize(model, tessera.generate_plan(model, mesh=run.mesh, lattice=lattice), accumulate=run.micro)
    optimizer = make_optimizer(run.optimizer, model.parameters())
    if run.load:
        loaded = tessera.load(run.load, model, optimizer, allows_other_sums=run.allows_other_sums)
        assert (loaded.step, loaded) == (run.first, {"note": ["said", 0.5]}), (loaded.step, loaded)
    losses = [train_step(model, optimizer, step, run.micro) for step in range(run.first, run.last)]
    if run.save:
        tessera.save(run.save, model, optimizer, step=run.last, extra={"note": ["said", 0.5]}, in_slices=run.in_slices)
    draws = torch.rand(8)
    return {"losses": losses, "model": digest(tessera.full_state_dict(model, rank=None)),
            "optimizer": digest(tessera.full_optimizer_state_dict(optimizer, rank=None)), "draws": digest(draws)}


def main(*runs):
    warnings.simplefilter("ignore")
    for text in runs:
        seen = train(Run(**json.loads(text)))
        if tessera.rank() == 0:
            print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
