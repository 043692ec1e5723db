"""Optimizer state in files: the same bits, and memory that falls by what the optimizer keeps."""

import ctypes
import gc
import os
import subprocess
import sys
import tempfile
import unittest

import torch

import tessera

WIDTH, STEPS = 512, 4
OPTIMIZERS = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 1e-2),
    "fused AdamW": lambda parameters: torch.optim.AdamW(parameters, 1e-2, fused=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, 1e-2, momentum=0.9),
    "Lion": lambda parameters: tessera.optim.Lion(parameters, 1e-3),
    "AdamW8bit": lambda parameters: tessera.optim.AdamW8bit(parameters, 1e-2),
    "owned Muon": lambda parameters: tessera.optim.owned(torch.optim.Muon([p for p in parameters if p.dim() == 2], 1e-2)),
}


def make_model(width=WIDTH, layers=2):
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))


def train(mesh, make_optimizer, folder, save_to=None, load_from=None):
    """The parameters after some steps, and after as many more where it loads."""
    model = make_model()
    tessera.parallelize(model, mesh)
    optimizer = make_optimizer(list(model.parameters()))
    if folder:
        tessera.optim.offload_state(optimizer, folder)
    if load_from:
        tessera.load(load_from, model, optimizer)
    x = torch.arange(float(8 * WIDTH)).reshape(8, WIDTH).sin()
    for _ in range(STEPS):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if save_to:
        tessera.save(save_to, model, optimizer, step=STEPS)
    return [tessera.full_tensor(parameter.detach()) for parameter in model.parameters()]


def resident_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) * 1024


def measure(folder):
    """Prints what is resident between steps."""
    model = make_model(2048, 4)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=False)
    if folder:
        tessera.optim.offload_state(optimizer, folder)
    for _ in range(3):
        model(torch.ones(2, 2048)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed
    print(resident_bytes(), sum(value.nbytes for kept in optimizer.state.values() for value in kept.values()))


class OffloadTest(unittest.TestCase):
    def test_bits_are_those_of_state_in_memory(self):
        for mesh, ranks in {"fsdp=2": 2, "dp=2,tp=2": 4}.items():
            for name, make_optimizer in OPTIMIZERS.items():
                with self.subTest(mesh=mesh, optimizer=name), tempfile.TemporaryDirectory() as folder:
                    kept = tessera.run_ranks(train, ranks, args=(mesh, make_optimizer, None))
                    filed = tessera.run_ranks(train, ranks, args=(mesh, make_optimizer, folder))
                    for a, b in zip(kept, filed, strict=True):
                        self.assertTrue(torch.equal(a, b))
                    self.assertEqual(os.listdir(folder), [])

    def test_a_checkpoint_goes_on_with_and_without(self):
        make = OPTIMIZERS["AdamW"]
        with tempfile.TemporaryDirectory() as folder:
            runs = [f"{folder}/memory", f"{folder}/file"]
            tessera.run_ranks(train, 2, args=("fsdp=2", make, None, runs[0]))
            tessera.run_ranks(train, 2, args=("fsdp=2", make, folder, runs[1]))
            ends = [tessera.run_ranks(train, 2, args=("fsdp=2", make, where, None, run)) for run in runs for where in (None, folder)]
        for end in ends[1:]:
            for a, b in zip(ends[0], end, strict=True):
                self.assertTrue(torch.equal(a, b))

    def test_what_is_resident_falls_by_the_state(self):
        with tempfile.TemporaryDirectory() as folder:
            found = []
            for where in ("", folder):
                done = subprocess.run([sys.executable, __file__, "measure", where], stdout=subprocess.PIPE, text=True, check=True, timeout=300)
                found.append([int(number) for number in done.stdout.split()])
        (kept, state), (filed, _) = found
        self.assertGreater(state, 100e6)
        self.assertAlmostEqual((kept - filed) / state, 1, delta=0.02)

    def test_a_folder_that_is_not_there_is_named(self):
        with self.assertRaisesRegex(RuntimeError, "cannot make a file in \"/nowhere\".*No such file.*accepted: a folder"):
            tessera.optim.offload_state(torch.optim.SGD(make_model().parameters(), 1e-2), "/nowhere")


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        measure(sys.argv[2])
    else:
        unittest.main()
