"""A job of processes of one machine, as a launcher starts them."""

import os
import socket
import subprocess
import sys


def start_ranks(arguments, ranks, **options):
    """`ranks` processes of Python with these arguments, one thread each, that find each other; what they print is read from their `stdout`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(ranks):
        variables = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                     "OMP_NUM_THREADS": 1}
        started.append(subprocess.Popen([sys.executable, *map(str, arguments)], stdout=subprocess.PIPE, text=True,
                                        env=os.environ | {variable: str(value) for variable, value in variables.items()}, **options))
    return started


def run_ranks(arguments, ranks, deadline, name):
    """What each of `ranks` processes of Python with these arguments printed, one thread each. Ends the program, with the name, where one fails or they take longer."""
    started = start_ranks(arguments, ranks)
    try:
        outputs = [process.communicate(timeout=deadline)[0] for process in started]
    except subprocess.TimeoutExpired:
        for process in started:
            process.kill()
        sys.exit(f"{name} on {ranks} processes took more than {deadline} s")
    if any(process.returncode for process in started):
        sys.exit(f"{name} on {ranks} processes failed")
    return outputs
