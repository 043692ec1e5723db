#!/usr/bin/env python3
"""What saving and loading cost, beside raw files and torch.distributed.checkpoint, in one run: medians, ratios, and what was asked for.

Usage: python benchmarks/python/checkpoint_bench.py build/bin/bench_checkpoint [--mebibytes 1024] [--rounds 5] [--ranks 1 2 4] [--folder DIR]

64 float32 tensors cut over all ranks, which are processes over Gloo on both sides; a third of them are parameters, which tessera writes whole (`whole`) or
in slices. Everything synchronises its files; reads come from the disk. The two take turns round by round. DIR is on the disk to measure.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rank_processes import run_ranks

TENSORS, COLUMNS = 64, 1024
DEADLINE = 300  # seconds of one round

# Name, what is divided by what, and at most what was asked for, if anything was.
ASKED = [("save, whole / raw write", "save_whole", "raw_write", 1.2), ("save, whole / theirs", "save_whole", "dcp_save", 1.05),
         ("save, whole / their consolidated safetensors", "save_whole", "dcp_consolidated", 0.7), ("blocked, slices / raw write", "blocked_slices", "raw_write", 0.25),
         ("blocked, whole / raw write", "blocked_whole", "raw_write", 0.5), ("load, same mesh / theirs", "load_same_of_whole", "dcp_load_same", 1.0),
         ("load, other mesh / theirs", "load_other_of_whole", "dcp_load_other", 1.0),
         ("load, same mesh / theirs of consolidated safetensors", "load_same_of_whole", "dcp_load_same_of_consolidated", None),
         ("load, other mesh / theirs of consolidated safetensors", "load_other_of_whole", "dcp_load_other_of_consolidated", None),
         ("load of slices, same mesh / theirs", "load_same_of_slices", "dcp_load_same", 1.0),
         ("load of slices, other mesh / theirs", "load_other_of_slices", "dcp_load_other", 1.0)]


def state_of(mebibytes, is_other, plus):
    """The tensors as PyTorch's DTensors."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    ranks = int(os.environ["WORLD_SIZE"])
    two_axes = is_other and ranks == 4
    mesh = init_device_mesh("cpu", (2, 2) if two_axes else (ranks,))
    rows = mebibytes * 2**20 // TENSORS // COLUMNS // 4
    state = {}
    for index in range(TENSORS):
        cut = Shard((index + is_other) % 2)
        whole = torch.full((rows, COLUMNS), index + plus, dtype=torch.float32)
        state[f"tensor {index}"] = distribute_tensor(whole, mesh, [Replicate(), cut] if two_axes else [cut], src_data_rank=None)
    return state


def seconds_of(body):
    """Of the slowest rank."""
    import torch
    import torch.distributed as dist
    dist.barrier()
    if dist.get_rank() == 0:  # a disk at rest
        os.sync()
        time.sleep(0.5)
    dist.barrier()
    begin = time.perf_counter()
    result = body()
    most = torch.tensor(time.perf_counter() - begin)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return most.item(), result


def remove(folder):
    """What is written next has the memory of its cache again."""
    import torch.distributed as dist
    if dist.get_rank() == 0:
        shutil.rmtree(folder)


def forget(folder):
    """The next reads come from the disk, into memory that is there: see the program's own."""
    import torch.distributed as dist
    if dist.get_rank() == 0:
        for path in Path(folder).rglob("*"):
            if path.is_file():
                with open(path, "rb", buffering=0) as file:
                    while file.read(4 * 2**20):
                        pass
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_theirs(folder, mebibytes):
    """One round by this rank; rank 0 prints a line a figure."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    say = print if dist.get_rank() == 0 else lambda *_: None
    state = state_of(mebibytes, False, 0)
    say("dcp_first_save", seconds_of(lambda: dcp.save(state, checkpoint_id=f"{folder}/first"))[0])
    remove(f"{folder}/first")
    say("dcp_save", seconds_of(lambda: dcp.save(state, checkpoint_id=f"{folder}/save"))[0])
    apart = dist.new_group(backend="gloo")  # its thread must not meet in this one's collectives
    blocked, future = seconds_of(lambda: dcp.async_save(state, checkpoint_id=f"{folder}/async", process_group=apart))
    say("dcp_blocked", blocked)
    say("dcp_async", blocked + seconds_of(future.result)[0])
    remove(f"{folder}/async")
    writer = dcp.HuggingFaceStorageWriter(f"{folder}/consolidated", save_distributed=True, enable_consolidation=True)
    say("dcp_consolidated", seconds_of(lambda: dcp.save(state, storage_writer=writer))[0])
    readers = {"": lambda: dcp.FileSystemReader(f"{folder}/save"), "_of_consolidated": lambda: dcp.HuggingFaceStorageReader(f"{folder}/consolidated")}
    for kind, reader in readers.items():
        for is_other in (False, True):
            loaded = state_of(mebibytes, is_other, -1000)
            forget(reader().path)
            say(f"dcp_load_{'other' if is_other else 'same'}{kind}", seconds_of(lambda: dcp.load(loaded, storage_reader=reader()))[0])
            for index in range(TENSORS):
                assert (loaded[f"tensor {index}"].to_local() == index).all(), index
    dist.destroy_process_group()


def run_theirs(folder, mebibytes, ranks):
    """The lines of rank 0."""
    return run_ranks([__file__, "--theirs", folder, "--mebibytes", mebibytes], ranks, DEADLINE, "torch.distributed.checkpoint")[0]


def run_ours(program, folder, mebibytes, ranks):
    done = subprocess.run([program, "measure", folder, str(mebibytes), str(ranks)], stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=DEADLINE)
    if done.returncode:
        sys.exit(f"{program} on {ranks} processes failed")
    return done.stdout.replace("[0] ", "")


def figures_of(text):
    return {name: float(seconds) for name, seconds in (line.split() for line in text.splitlines())}


def compare(program, mebibytes, rounds, ranks, place):
    """Rounds of both in turn; every figure of each."""
    all_figures = {}
    for _ in range(rounds):
        for run in (lambda folder: run_ours(program, folder, mebibytes, ranks), lambda folder: run_theirs(folder, mebibytes, ranks)):
            with tempfile.TemporaryDirectory(dir=place) as folder:
                for name, seconds in figures_of(run(folder)).items():
                    all_figures.setdefault(name, []).append(seconds)
    return all_figures


def print_table(ranks, mebibytes, rounds, figures):
    print(f"{ranks} processes, {mebibytes} MiB, {rounds} rounds: seconds, median (least to most)")
    median = {name: statistics.median(all_seconds) for name, all_seconds in figures.items()}
    for name, all_seconds in figures.items():
        print(f"  {name:24}{median[name]:8.3f}  ({min(all_seconds):.3f} to {max(all_seconds):.3f})")
    for name, ours, base, most in ASKED:
        ratio = median[ours] / median[base]
        print(f"  {name:56}{ratio:6.2f}" + (f"  asked: {most}{'' if ratio <= most else '  MORE'}" if most else ""))
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?")
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--theirs", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.theirs:
        return measure_theirs(given.theirs, given.mebibytes)
    for ranks in given.ranks:
        print_table(ranks, given.mebibytes, given.rounds, compare(given.program, given.mebibytes, given.rounds, ranks, given.folder))


if __name__ == "__main__":
    main()
