"""Forks programs in Python from a process that has imported what they import.

Usage: warm_server.py start|end FOLDER

Tests of Python run in such forks (warm_client.py), and so do the programs that they start (warm_python.py). A program finds itself as an interpreter would
start it, with arguments, environment, folder, streams and exit code of its own; a program's `sys.executable` is FOLDER/python, which asks for a fork, so
the ranks of a launcher are forks too; a test's is the interpreter. What this does not show: that modules import in the program's environment, and that no
order of a set matters, which is that of one hash seed here. Without a client for IDLE seconds a server ends.
"""

import array
import faulthandler
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import types
from pathlib import Path

import warm_client
import warm_python

IDLE = 900
# What tests and their programs import, where it is installed; the two of PyTorch come with a first optimizer and a launcher. Not tessera, which reads
# the environment when it is imported.
MODULES = ("torch", "torch._dynamo", "torch.distributed.launcher.api", "transformers", "transformers.trainer", "transformers.models.llama.modeling_llama",
           "transformers.models.gpt2.modeling_gpt2", "transformers.models.t5.modeling_t5", "peft", "accelerate", "trl", "datasets", "pytorch_lightning")


def listen(folder):
    """A socket in the folder, and beside it `python`, which asks for forks."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "socket").unlink(missing_ok=True)  # that of a server whose end nobody asked for
    python = Path(folder) / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{warm_client.__file__}" "{folder}" program "$@"\n')
    python.chmod(0o755)
    listening = socket.socket(socket.AF_UNIX)
    opened = os.open(folder, os.O_PATH)
    listening.bind(f"/proc/self/fd/{opened}/socket")
    os.close(opened)
    listening.listen(64)
    return listening


def serve(listening, folder, modules, alive=None):
    """Imports the modules, then forks what clients ask for, until nobody holds the other end of `alive`; does not return."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError:
            pass  # the programs that need it say so
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    assert set(threads[1:]) <= {"jemalloc_bg_thd"}, threads  # that of pyarrow, which knows of forks
    gc.collect()
    gc.freeze()
    become(f"{folder}/python", *Server(listening, alive).serve())


class Server:
    def __init__(self, listening, alive):
        self.listening = listening
        self.ready = selectors.DefaultSelector()
        self.ready.register(listening, selectors.EVENT_READ, self.start)
        self.fixed = 1 if alive is None else 2  # what is waited for beside programs
        if alive is not None:
            self.ready.register(alive, selectors.EVENT_READ, lambda: os._exit(0))

    def serve(self):
        """Returns in a fork alone, with what its program was given."""
        while True:
            ready = self.ready.select(IDLE)
            if not ready and len(self.ready.get_map()) == self.fixed:
                os._exit(0)
            for key, _ in ready:
                if given := key.data():
                    return given

    def start(self):
        client, _ = self.listening.accept()
        given, streams = received(client)
        if given is None:
            os._exit(0)
        if child := os.fork():
            for stream in streams:
                os.close(stream)
            client.sendall(child.to_bytes(8, "little"))
            end = os.pidfd_open(child)
            self.ready.register(end, selectors.EVENT_READ, lambda: self.report(child, end, client))
            self.ready.register(client, selectors.EVENT_READ, lambda: self.kill(child, client))
            return None
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for each in {*streams, client.detach(), *(key.fd for key in self.ready.get_map().values())} - {0, 1, 2}:
            os.close(each)
        self.ready.close()
        self.listening.detach()
        return given

    def kill(self, child, client):
        """The client was killed: so is its program."""
        self.ready.unregister(client)
        os.kill(child, signal.SIGKILL)

    def report(self, child, end, client):
        self.ready.unregister(end)
        os.close(end)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if client.fileno() in self.ready.get_map():
            self.ready.unregister(client)
            try:
                client.sendall(code.to_bytes(8, "little", signed=True))
            except OSError:
                pass
        client.close()


def received(client):
    """Kind, words, environment and folder that a client hands over, and its streams; None of one that asks for the end."""
    head, rights, _, _ = client.recvmsg(8, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    given, length = b"", int.from_bytes(head, "little")
    if not length:
        return None, []
    while len(given) < length:
        given += client.recv(length - len(given))
    return json.loads(given), list(array.array("i", rights[0][2]))


def become(python, kind, words, environment, folder):
    """The test or program of an interpreter that was started with these words; ends with it."""
    if kind == "test":
        warm_python.begun(python)
    else:
        sys.executable = python
    faulthandler.enable()  # one that is killed by what it did to its memory says where it was
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for module, draws in (("torch", lambda torch: torch.default_generator.seed()), ("numpy", lambda numpy: numpy.random.seed())):
        if module in sys.modules:
            draws(sys.modules[module])  # from another seed than the other programs
    while words[0] == "-u":
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)
        words = words[1:]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [folder, *paths, *(path for path in sys.path[1:] if path not in paths)]
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy._run_module_as_main(words[1])
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv, sys.path[0], main.__file__ = words, str(Path(words[0]).resolve().parent), words[0]
        exec(compile(Path(words[0]).read_bytes(), words[0], "exec"), main.__dict__)
    sys.exit()


def start(folder):
    """Leaves a server behind, which clients may ask at once and which answers when it has imported."""
    listening = listen(folder)
    if os.fork():
        return
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    serve(listening, folder, MODULES)


def end(folder):
    try:
        warm_client.connected(folder).sendall(bytes(8))
    except OSError:
        pass  # it is no more
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    {"start": start, "end": end}[sys.argv[1]](sys.argv[2])
