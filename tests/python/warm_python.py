"""Programs in Python that start at once: after `begin`, `run(words)` is subprocess.run([sys.executable, *words]) in a fork of a process that has imported
what programs import (warm_server.py). Tests of a launcher start it as users do."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile

_begun = {}


def executable():
    """What starts programs: forks after `begin`, new interpreters without it."""
    return _begun.get("executable", sys.executable)


def begun(python):
    """In a test that is a fork itself: programs are forks of the same server."""
    _begun["executable"] = python


def run(words, **options):
    """subprocess.run of a program, its output captured as text."""
    return subprocess.run([executable(), *map(str, words)], **{"capture_output": True, "text": True, **options})


def torchrun(ranks, words, **options):
    return run(["-m", "torch.distributed.run", "--nproc-per-node", ranks, *words], **options)


def begin(*modules):
    """Before any test, since a process with threads or ranks cannot be forked. Programs have imported what the test has, these modules, and what PyTorch
    imports with the first optimizer and with a launcher."""
    if _begun:
        return
    import warm_server

    folder = tempfile.mkdtemp()
    listening = warm_server.listen(folder)
    alive, lives = os.pipe()
    server = os.fork()
    if not server:
        os.close(lives)
        warm_server.serve(listening, folder, ("torch._dynamo", "torch.distributed.launcher.api", *modules), alive)
    listening.close()
    os.close(alive)
    begun(f"{folder}/python")

    @atexit.register
    def end():
        os.close(lives)
        os.waitpid(server, 0)
        shutil.rmtree(folder, ignore_errors=True)
