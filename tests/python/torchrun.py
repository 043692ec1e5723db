"""Programs as processes of torchrun."""

import dataclasses
import json
import subprocess
import sys

import tessera


def lines_of(program, *runs, timeout):
    """What rank 0 of `program` prints, which is given these runs, dataclasses with a mesh, one after the other in one job."""
    ranks = tessera.Mesh(runs[0].mesh).size()
    texts = [json.dumps(dataclasses.asdict(run)) for run in runs]
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), program, *texts], capture_output=True, text=True,
                          timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
