"""Programs in Python that start at once: each is a fork of a test as it was when it began, which has imported what programs import.

After `begin`, `run(words)` is subprocess.run([sys.executable, *words]). A program finds itself as an interpreter would start it, with arguments,
environment, folder, streams and exit code of its own; `sys.executable` is `executable()` there, so the ranks of a launcher are such forks too. What this
does not show: that modules import in the program's environment, and that no order of a set matters, which is that of one hash seed here. Tests of a
launcher start it as users do.
"""

import array
import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import types
from pathlib import Path

# Stands for the interpreter: hands all that a program gets to the process that forks, and ends as the program does.
CLIENT = """#!{python} -IS
import array, json, os, signal, socket, sys
at = socket.socket(socket.AF_UNIX)
at.connect({address!r})
given = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
at.sendmsg([len(given).to_bytes(8, "little")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
at.sendall(given)
program = int.from_bytes(at.recv(8), "little")
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(program, number))
code = int.from_bytes(at.recv(8), "little", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""

_begun = {}


def executable():
    """What starts programs: forks after `begin`, new interpreters without it."""
    return _begun.get("executable", sys.executable)


def run(words, **options):
    """subprocess.run of a program, its output captured as text."""
    return subprocess.run([executable(), *map(str, words)], **{"capture_output": True, "text": True, **options})


def torchrun(ranks, words, **options):
    return run(["-m", "torch.distributed.run", "--nproc-per-node", ranks, *words], **options)


def begin(*modules):
    """Before any test, since a process with threads or ranks cannot be forked. Programs have imported what the test has, these modules, and what PyTorch
    imports with the first optimizer."""
    for module in ("torch._dynamo", "torch.distributed.launcher.api", *modules):
        importlib.import_module(module)
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    assert set(threads[1:]) <= {"jemalloc_bg_thd"}, threads  # that of pyarrow, which knows of forks
    folder = tempfile.mkdtemp()
    path, address = (f"{folder}/{name}" for name in ("python", "socket"))
    Path(path).write_text(CLIENT.format(python=sys.executable, address=address))
    os.chmod(path, 0o755)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    alive, lives = os.pipe()
    server = os.fork()
    if not server:
        os.close(lives)
        sys.executable = path
        gc.collect()
        gc.freeze()
        become(*Server(listening, alive).serve())
    listening.close()
    os.close(alive)
    _begun["executable"] = path

    @atexit.register
    def end():
        os.close(lives)
        os.waitpid(server, 0)
        shutil.rmtree(folder, ignore_errors=True)


class Server:
    """Forks what clients ask for, until nobody holds the other end of `alive`."""

    def __init__(self, listening, alive):
        self.listening = listening
        self.ready = selectors.DefaultSelector()
        self.ready.register(listening, selectors.EVENT_READ, self.start)
        self.ready.register(alive, selectors.EVENT_READ, lambda: os._exit(0))

    def serve(self):
        """Returns in a fork alone, with what its program was given."""
        while True:
            for key, _ in self.ready.select():
                if given := key.data():
                    return given

    def start(self):
        client, _ = self.listening.accept()
        given, streams = received(client)
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
    """The words, environment and folder that a client hands over, and its streams."""
    head, rights, _, _ = client.recvmsg(8, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    given, length = b"", int.from_bytes(head, "little")
    while len(given) < length:
        given += client.recv(length - len(given))
    return json.loads(given), list(array.array("i", rights[0][2]))


def become(words, environment, folder):
    """The program of an interpreter that was started with these words; ends with it."""
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
