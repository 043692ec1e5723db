"""Stands for an interpreter: the program runs in a fork of one that has imported (warm_server.py), and this ends as the program does.

Usage: python -IS warm_client.py FOLDER test|program WORDS...

Hands words, environment, folder and streams to the server that listens in FOLDER; where none does, becomes an interpreter that runs them.
"""

import array
import json
import os
import signal
import socket
import sys


def connected(folder):
    """The server of a folder, whose path may be longer than that of a socket."""
    at = socket.socket(socket.AF_UNIX)
    opened = os.open(folder, os.O_PATH)
    try:
        at.connect(f"/proc/self/fd/{opened}/socket")
    finally:
        os.close(opened)
    return at


def hand_over(server, kind, words):
    """The exit status of the program; sends on to it what interrupts this one."""
    given = json.dumps([kind, words, dict(os.environ), os.getcwd()]).encode()
    server.sendmsg([len(given).to_bytes(8, "little")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
    server.sendall(given)
    program = int.from_bytes(server.recv(8), "little")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os.kill(program, number))
    return int.from_bytes(server.recv(8), "little", signed=True)


if __name__ == "__main__":
    folder, kind, words = sys.argv[1], sys.argv[2], sys.argv[3:]
    try:
        server = connected(folder)
    except OSError:
        os.execv(sys.executable, [sys.executable, *words])
    code = hand_over(server, kind, words)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
