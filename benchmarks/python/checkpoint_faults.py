#!/usr/bin/env python3
"""What tessera, torch.distributed.checkpoint and torch.save make of faults, in one run: a table of what is found, named, and left of the checkpoint before.

Usage: python benchmarks/python/checkpoint_faults.py build/bin/bench_checkpoint [--flips 20] [--mebibytes 16]

Each saves two steps, each to a place of its own. Then a fault is made, and the newest step is loaded. A fault is *found* if the load fails, *missed* if it
succeeds with other values than were saved, *harmless* if the values are right; it is *named* if the message has the file or a tensor. The full and the
read-only disk are a small tmpfs, for which the program must be root in a mount namespace of its own: `unshare -m` before the command; else they are left out.
"""

import argparse
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

TENSORS, COLUMNS = 64, 1024


def state_of(mebibytes, plus):
    rows = mebibytes * 2**20 // TENSORS // COLUMNS // 4
    return {f"tensor {index}": torch.full((rows, COLUMNS), float(index + plus)) for index in range(TENSORS)}


def is_right(state, step):
    return all((state[f"tensor {index}"] == index + step).all() for index in range(TENSORS))


class Side:
    """One way to save. A step's place is a folder or a file below `run`."""

    def __init__(self, program, mebibytes):
        self.program, self.mebibytes = program, mebibytes

    def start(self, run, step):
        """A process that saves the step."""
        return subprocess.Popen([sys.executable, __file__, "--save", self.name, str(run), str(step), "--mebibytes", str(self.mebibytes)],
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def save(self, run, step):
        """The message of the error; empty if there is none."""
        process = self.start(run, step)
        said = process.communicate()[1]
        return said[-4000:] if process.returncode else ""

    def load(self, run, step):
        """(message of the error, whether the values are right)."""
        state = state_of(self.mebibytes, -1000)
        try:
            state = self.read(self.place(run, step), state)
        except BaseException as error:
            causes = getattr(error, "failures", {}).values()  # of ranks, by DCP
            return " ".join([str(error), *(str(each) for each in causes)]) or type(error).__name__, False
        return "", is_right(state, step)


class Tessera(Side):
    name = "tessera"

    def place(self, run, step):
        return Path(run) / f"step_{step:06}"

    def start(self, run, step):
        return subprocess.Popen([self.program, "save", str(run), str(self.mebibytes), "2"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                start_new_session=True)

    def load(self, run, step):
        done = subprocess.run([self.program, "load", str(self.place(run, step)), str(self.mebibytes), "1"], capture_output=True, text=True)
        if "[bench] other values" in done.stderr:
            return "", False
        return (done.stderr if done.returncode else ""), done.returncode == 0

    def verify(self, run, step):
        done = subprocess.run([self.program, "verify", str(self.place(run, step))], capture_output=True, text=True)
        return done.stdout if done.returncode else ""


class Distributed(Side):
    name = "torch.distributed.checkpoint"

    def place(self, run, step):
        return Path(run) / f"step_{step}"

    def write(self, run, step):
        dcp.save(state_of(self.mebibytes, step), checkpoint_id=self.place(run, step), no_dist=True)

    def read(self, place, state):
        dcp.load(state, checkpoint_id=place, no_dist=True)
        return state


class TorchSave(Side):
    name = "torch.save"

    def place(self, run, step):
        return Path(run) / f"step_{step}.pt"

    def write(self, run, step):
        torch.save(state_of(self.mebibytes, step), self.place(run, step))

    def read(self, place, state):
        return torch.load(place)


def files_of(place):
    return sorted(path for path in place.iterdir() if path.is_file()) if place.is_dir() else [place]


def data_files_of(place):
    """Those with tensors."""
    return [path for path in files_of(place) if path.suffix in (".safetensors", ".distcp", ".pt")]


def names(message, path):
    return path.name in message or "tensor " in message.replace("tensor that", "").replace("tensor named", "")


def judge(side, run, path, older=True):
    """What a load says of step 2 with a fault in `path`: words of the table."""
    message, right = side.load(run, 2)
    outcome = "found" if message else "harmless" if right else "MISSED"
    if message and path is not None:
        outcome += ", named" if names(message, path) else ", not named"
    return outcome + (", older intact" if side.load(run, 1)[1] else ", OLDER LOST") if older else outcome


def fresh(side, folder):
    run = Path(folder) / "run"
    shutil.rmtree(run, ignore_errors=True)
    if not isinstance(side, Tessera):
        run.mkdir()
    for step in (1, 2):
        if error := side.save(run, step):
            sys.exit(f"{side.name} cannot save: {error}")
    return run


def flips(side, folder, count, draw):
    """Each bit flipped by itself and back."""
    run, counts = fresh(side, folder), {}
    for _ in range(count):
        path = draw.choices(files_of(side.place(run, 2)), [path.stat().st_size for path in files_of(side.place(run, 2))])[0]
        at, bit = draw.randrange(path.stat().st_size), 1 << draw.randrange(8)
        content = path.read_bytes()
        path.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1:])
        outcome = judge(side, run, path, older=False)
        if isinstance(side, Tessera) and not (path.name in side.verify(run, 2)):
            outcome += ", NOT by verify"
        path.write_bytes(content)
        counts[outcome] = counts.get(outcome, 0) + 1
    return "; ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))


def missing(side, folder):
    run = fresh(side, folder)
    path = data_files_of(side.place(run, 2))[0]
    path.unlink()
    return judge(side, run, path)


def cut(side, folder):
    run = fresh(side, folder)
    path = data_files_of(side.place(run, 2))[0]
    os.truncate(path, path.stat().st_size - 100_000)
    return judge(side, run, path)


def swapped(side, folder):
    """The file of the same name of the step before."""
    run = fresh(side, folder)
    path, other = data_files_of(side.place(run, 2))[0], data_files_of(side.place(run, 1))[0]
    shutil.copyfile(other, path)
    return judge(side, run, path)


def killed(side, folder):
    """Killed as soon as the third save has a file with tensors."""
    run = fresh(side, folder)
    place = side.place(run, 3)
    process = side.start(run, 3)
    while process.poll() is None and not (place.exists() and any(path.stat().st_size > 0 for path in data_files_of(place))):
        time.sleep(0.0005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    message, right = side.load(run, 3)
    outcome = "found" if message else "was complete" if right else "MISSED"
    return outcome + (", older intact" if side.load(run, 2)[1] else ", OLDER LOST")


def two_jobs(side, folder):
    """Both save step 3, to one place."""
    run = fresh(side, folder)
    processes = [side.start(run, 3) for _ in range(2)]
    said = [process.communicate()[1] for process in processes]
    failed = [text for process, text in zip(processes, said, strict=True) if process.returncode]
    message, right = side.load(run, 3)
    result = "the result is right" if right else "the result is not whole" if message else "THE RESULT IS OTHER VALUES"
    refused = f"{len(failed)} of 2 refused" if failed else "both go on"
    return f"{refused}, {result}" + (", older intact" if side.load(run, 2)[1] else ", OLDER LOST")


def again(side, folder):
    """A save to the place of one that is there."""
    run = fresh(side, folder)
    if isinstance(side, Tessera):  # whose program takes the next step: one that was claimed
        shutil.copytree(side.place(run, 2), side.place(run, 3))
        (side.place(run, 3) / "manifest.json").unlink()
        return ("refused" if side.save(run, 3) else "OVERWRITES") + (", older intact" if side.load(run, 2)[1] else ", OLDER LOST")
    process = side.start(run, 2)
    before = {path: path.stat().st_mtime_ns for path in files_of(side.place(run, 2))}
    while process.poll() is None and all(path.exists() and path.stat().st_mtime_ns == when for path, when in before.items()):
        time.sleep(0.0005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return "overwrites" + (", older intact" if side.load(run, 2)[1] else ", and a kill then: OLDER LOST")


def on_small_disk(side, folder, size, body):
    disk = Path(folder) / "disk"
    disk.mkdir(exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", disk], capture_output=True).returncode:
        return "not measured: no mount"
    try:
        run = fresh(side, disk)
        message = body(disk, run)
        outcome = "found" if message else "MISSED"
        if message:
            outcome += ", said" if "No space" in message or "Read-only" in message or "read-only" in message else ", not said why"
        return outcome + (", older intact" if side.load(run, 2)[1] else ", OLDER LOST")
    finally:
        subprocess.run(["umount", disk], check=True)


def full_disk(side, folder):
    return on_small_disk(side, folder, int(side.mebibytes * 2.6), lambda disk, run: side.save(run, 3))


def read_only(side, folder):
    def save(disk, run):
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        return side.save(run, 3)
    return on_small_disk(side, folder, side.mebibytes * 4, save)


FAULTS = [("a file missing", missing), ("a file cut", cut), ("a file of another save", swapped), ("killed in mid-save", killed), ("two jobs, one folder", two_jobs),
          ("a save where one is", again), ("a full disk", full_disk), ("a read-only disk", read_only)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?")
    parser.add_argument("--flips", type=int, default=20)
    parser.add_argument("--mebibytes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--save", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    logging.disable()  # what DCP tells beside the error that it throws
    warnings.simplefilter("ignore")
    sides = [kind(given.program and str(Path(given.program).resolve()), given.mebibytes) for kind in (Tessera, Distributed, TorchSave)]
    if given.save:
        name, run, step = given.save
        return next(side for side in sides if side.name == name).write(run, int(step))
    print(f"torch {torch.__version__}, {given.mebibytes} MiB, seed {given.seed}\n")
    print("| fault | " + " | ".join(side.name for side in sides) + " |\n|---" + "|---" * len(sides) + "|")
    rows = [(f"{given.flips} bits flipped", lambda side, folder: flips(side, folder, given.flips, random.Random(given.seed)))] + FAULTS
    for name, fault in rows:
        outcomes = []
        for side in sides:
            with tempfile.TemporaryDirectory() as folder:
                outcomes.append(fault(side, folder))
        print(f"| {name} | " + " | ".join(outcomes) + " |", flush=True)


if __name__ == "__main__":
    main()
