"""The program under test, and a folder with a text and a configuration of a model that trains in no time."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "python"))
from sampling import sampled as sampled  # noqa: E402: for the tests here

PROGRAM = Path(sys.argv[1]).resolve()

MODEL = """
[model]
kind = "llama"
dim = 16
layers = 1
heads = 4
hidden = 24
[data]
file = "text.txt"
sequence = 8
[train]
batch = 12
lr = 1e-2
eval_batches = 1
"""


def environment(**more):
    """This one's, without what a launcher may have left in it."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOG_RANK", "MASTER_ADDR", "MASTER_PORT", "TESSERA_LOG_DIR")
    own = {name: value for name, value in os.environ.items() if name not in names and not name.startswith(("OMPI_", "PMI", "SLURM_"))}
    return {**own, "OMP_NUM_THREADS": "1", **more}


def processes_with(text):
    """Ids of the processes whose command line has `text`, without those that have ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            pass
    return found


class ProgramTest(unittest.TestCase):
    train = ""  # further fields of [train]

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "text.txt").write_text("".join(f"line {i} of a text that repeats itself\n" for i in range(300)))
        self.config = self.folder / "small.toml"
        self.config.write_text(MODEL + self.train)

    def run_command(self, *command, code=0, **more):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, env=environment(**more), cwd=self.folder)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done
