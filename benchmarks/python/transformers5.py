#!/usr/bin/env python3
"""A Llama of transformers 5 on a mesh, by the sharding that transformers brings (`DistributedConfig`) and by tessera, beside the same loop on one device.

Usage: python benchmarks/python/transformers5.py [--width 64 256] [--steps 30] [--folder DIR]

Both are processes over Gloo under torchrun, one thread each, and run the same loop on the same rows; the lines in which the loop differs from one device's are counted
in this file, between `# lines` and `# end`. Prints a table: loss and gradients in float64 against one device, without dropout and with it (attention, 0.1); milliseconds
of a step in float32, the least, the two taking turns; a checkpoint after two steps, resumed on another mesh, whose next losses must be those of the run that went on,
with the milliseconds that saving and loading took, once each, on the first rank.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

LIBRARIES = ("transformers", "tessera")
MESHES = {"tp2": {"tp": 2}, "fsdp2": {"fsdp": 2}, "tp2xfsdp2": {"fsdp": 2, "tp": 2}}
OTHER = {"tp2": "fsdp2", "fsdp2": "tp2", "tp2xfsdp2": "tp2"}
ROWS, LENGTH, VOCABULARY = 8, 24, 96
ROUNDS = 3  # of timing, in turns


def config_of(width, dropout):
    import transformers
    return transformers.LlamaConfig(hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                    vocab_size=VOCABULARY, max_position_embeddings=64, attention_dropout=dropout, use_cache=False)


def batch_of(step):
    import torch
    return torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(100 + step))


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


class Plain:
    """The loop on one device."""

    def __init__(self, folder, mesh, dtype):
        import transformers
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).train()

    def rows(self, tokens):
        return tokens

    def loss(self, loss):
        return whole(loss).item()

    def whole_gradients(self):
        return {name: whole(p.grad) for name, p in self.model.named_parameters() if p.grad is not None}

    def save(self, folder, optimizer):
        import torch
        self.model.save_pretrained(folder)
        torch.save(optimizer.state_dict(), f"{folder}/optimizer.pt")

    def load(self, folder, optimizer):
        import torch
        optimizer.load_state_dict(torch.load(f"{folder}/optimizer.pt"))


class Transformers(Plain):
    def __init__(self, folder, mesh, dtype):
        import torch.distributed as dist
        import transformers
        # lines of transformers
        from transformers.distributed import DistributedConfig
        config = DistributedConfig(tp_size=mesh.get("tp", 1), fsdp_size=mesh.get("fsdp", 1))
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, distributed_config=config).train()
        # end
        self.tp, self.fsdp, self.rank = mesh.get("tp", 1), mesh.get("fsdp", 1), dist.get_rank()

    def rows(self, tokens):
        # lines of transformers, fsdp
        return tokens.chunk(self.fsdp)[self.rank // self.tp]
        # end

    def loss(self, loss):
        import torch.distributed as dist
        loss = whole(loss).detach().clone()
        # lines of transformers, fsdp
        dist.all_reduce(loss, op=dist.ReduceOp.SUM)
        loss /= dist.get_world_size()
        # end
        return loss.item()

    def save(self, folder, optimizer):
        # lines of transformers, checkpoint
        from transformers.distributed import save_optimizer_distributed
        self.model.save_pretrained(folder)
        save_optimizer_distributed(self.model, optimizer, f"{folder}/optimizer")
        # end

    def load(self, folder, optimizer):
        # lines of transformers, checkpoint
        from transformers.distributed import load_optimizer_distributed
        load_optimizer_distributed(self.model, optimizer, f"{folder}/optimizer")
        # end


class Tessera(Plain):
    def __init__(self, folder, mesh, dtype):
        super().__init__(folder, mesh, dtype)
        mesh = ",".join(f"{axis}={size}" for axis, size in mesh.items())
        # lines of tessera
        import tessera
        tessera.parallelize(self.model, mesh)
        # end

    def save(self, folder, optimizer):
        import tessera
        # lines of tessera, checkpoint
        tessera.save(folder, self.model, optimizer, step=2)
        # end

    def load(self, folder, optimizer):
        import tessera
        # lines of tessera, checkpoint
        tessera.load(folder, self.model, optimizer)
        # end


def made(library, folder, mesh, dtype=None):
    import torch
    return {"plain": Plain, "transformers": Transformers, "tessera": Tessera}[library](folder, mesh, dtype or torch.float64)


def step(program, tokens, optimizer=None):
    """One step of the loop; the loss of the whole batch."""
    rows = program.rows(tokens)
    loss = program.model(input_ids=rows, labels=rows).loss
    loss.backward()
    if optimizer:
        optimizer.step()
        optimizer.zero_grad()
    return program.loss(loss)


def compared(library, mesh, folder, reference):
    """Loss and gradients of one step, against one device's, by name: (relative difference of the loss, of the worst gradient)."""
    import torch
    program = made(library, folder, mesh)
    torch.manual_seed(7)
    loss = step(program, batch_of(0))
    gradients = program.whole_gradients()
    if library == "plain":
        torch.save((loss, gradients), reference)
        return 0, 0
    wanted_loss, wanted = torch.load(reference)
    worst = max(float((gradients[name].double() - w.double()).norm() / w.double().norm()) for name, w in wanted.items())
    return abs(loss - wanted_loss) / wanted_loss, worst


def timed(library, mesh, folder, steps):
    """Milliseconds of a step, the least."""
    import torch
    program, best = made(library, folder, mesh, torch.float32), float("inf")
    optimizer = torch.optim.AdamW(program.model.parameters(), 1e-3)
    for index in range(steps):
        tokens, begin = batch_of(index), time.perf_counter()
        step(program, tokens, optimizer)
        best = min(best, time.perf_counter() - begin)
    return 1e3 * best


def resumed(library, mesh, folder, checkpoint, begins):
    """The first half saves after two steps and says the next two losses; the second half loads and says them. Before them the milliseconds."""
    import torch
    is_tessera = library == "tessera"
    program = made(library, folder if begins or is_tessera else checkpoint, mesh)
    optimizer = torch.optim.AdamW(program.model.parameters(), 1e-3)
    if begins:
        for index in range(2):
            step(program, batch_of(index), optimizer)
    begin = time.perf_counter()
    (program.save if begins else program.load)(checkpoint, optimizer)
    took = 1e3 * (time.perf_counter() - begin)
    return [took, *(step(program, batch_of(index), optimizer) for index in (2, 3))]


def run_on_rank(library, task, mesh, arguments):
    warnings.simplefilter("ignore")
    import torch
    import transformers
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    result = {"compared": compared, "timed": timed, "resumed": resumed}[task](library, MESHES.get(mesh, {}), *arguments)
    if os.environ.get("RANK", "0") == "0":
        print("result " + json.dumps(result), flush=True)


def run(library, task, mesh, *arguments):
    """The result of a job, or the last line of what it said."""
    worker = [__file__, "--task", json.dumps([library, task, mesh, arguments])]
    ranks = 1
    for size in MESHES.get(mesh, {}).values():
        ranks *= size
    command = [sys.executable, *worker] if library == "plain" else [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *worker]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"})
    said = re.search(r"^result (.*)$", done.stdout, re.MULTILINE)
    if said:
        return json.loads(said[1])
    lines = [line for line in done.stderr.splitlines() if "Error" in line and "ChildFailed" not in line]
    return (lines or done.stderr.splitlines() or ["nothing"])[0 if lines else -1].strip()[-160:]


def lines_of(library, mesh, with_checkpoint):
    """How many lines of this file a program has beyond the one of one device."""
    count, inside = 0, False
    for line in Path(__file__).read_text().splitlines():
        if marker := re.match(r"\s*# lines of (\w+)(?:, (\w+))?$", line):
            of = marker[2] or mesh
            inside = marker[1] == library and (of in mesh or of == "checkpoint" and with_checkpoint)
        elif line.strip() == "# end":
            inside = False
        else:
            count += inside
    return count


def shown(value, form="{:.1e}"):
    return form.format(value) if isinstance(value, (int, float)) else str(value)


def row_of(library, mesh, folder, widths, steps, plain_times):
    checkpoint = f"{folder}/checkpoint {library} {mesh}"
    numbers = []
    for dropout in (0.0, 0.1):
        result = run(library, "compared", mesh, f"{folder}/{widths[0]} {dropout}", f"{folder}/reference {dropout}.pt")
        numbers.append(result if isinstance(result, str) else f"{shown(result[0])}, {shown(result[1])}")
    times = []
    for width in widths:
        took = [run(library, "timed", mesh, f"{folder}/{width} 0.0", steps) for _ in range(ROUNDS)]
        failed = next((each for each in took if isinstance(each, str)), None)
        times.append(failed or f"{min(took):.1f} ({min(took) / plain_times[width]:.2f})")
    went_on = run(library, "resumed", mesh, f"{folder}/{widths[0]} 0.0", checkpoint, True)
    again = run(library, "resumed", OTHER[mesh], f"{folder}/{widths[0]} 0.0", checkpoint, False)
    failed = next((each for each in (went_on, again) if isinstance(each, str)), None)
    resume = [failed, ""] if failed else [f"on {OTHER[mesh]}: losses differ by {max(abs(a - b) for a, b in zip(went_on[1:], again[1:], strict=True)):.1e}",
                                          f"{went_on[0]:.0f}, {again[0]:.0f}"]
    return [f"{library}, {mesh}", f"{lines_of(library, mesh, False)}, {lines_of(library, mesh, True)}", *numbers, *times, *resume]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--folder")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        library, task, mesh, rest = json.loads(arguments.task)
        return run_on_rank(library, task, mesh, rest)
    import torch
    import transformers
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for width in arguments.width:
            for dropout in (0.0, 0.1):
                torch.manual_seed(0)
                transformers.LlamaForCausalLM(config_of(width, dropout)).save_pretrained(f"{folder}/{width} {dropout}")
        for dropout in (0.0, 0.1):
            run("plain", "compared", "", f"{folder}/{arguments.width[0]} {dropout}", f"{folder}/reference {dropout}.pt")
        plain_times = {width: min(run("plain", "timed", "", f"{folder}/{width} 0.0", arguments.steps) for _ in range(ROUNDS)) for width in arguments.width}
        print(f"transformers {transformers.__version__}, torch {torch.__version__}; one device: "
              + ", ".join(f"{took:.1f} ms at width {width}" for width, took in plain_times.items()))
        print("| | lines, with a checkpoint | loss, worst gradient | ... with dropout | " + " | ".join(f"ms at {width} (of one device's)" for width in arguments.width) + " | resumed | ms to save, to load |")
        print("|---" * (6 + len(arguments.width)) + "|")
        for mesh in MESHES:
            for library in LIBRARIES:
                print("| " + " | ".join(row_of(library, mesh, folder, arguments.width, arguments.steps, plain_times)) + " |", flush=True)


if __name__ == "__main__":
    main()
