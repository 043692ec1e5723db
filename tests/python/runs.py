"""Runs of a program, dataclasses with a mesh: on rank threads, and by processes of torchrun (warm_python.py), which are given them as JSON."""

import dataclasses
import json
import sys
import warnings

import tessera
import warm_python


def on_threads(main, run):
    """What `main(run)` gives on rank 0 of its mesh."""
    return tessera.run_ranks(lambda: main(run), tessera.Mesh(run.mesh).size())


def run_given(main, kind):
    """The program's end of lines_of: `main` of the runs on the command line, one after the other. Rank 0 prints what each gave, as JSON."""
    warnings.simplefilter("ignore")
    for text in sys.argv[1:]:
        log = main(kind(**json.loads(text)))
        if not tessera.in_rank() or tessera.rank() == 0:
            print(json.dumps(log), flush=True)


def lines_of(program, *runs, timeout):
    """What rank 0 of `program` prints, which is given these runs, one after the other in one job."""
    ranks = tessera.Mesh(runs[0].mesh).size()
    texts = [json.dumps(dataclasses.asdict(run)) for run in runs]
    done = warm_python.torchrun(ranks, [program, *texts], timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
