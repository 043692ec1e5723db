"""What errors_test.py runs on two ranks that are processes: rank 0 prints what it gets, waiting for rank 1.

Usage: errors_program.py fails | is_late | has_ended FOLDER      (FOLDER: where the ranks tell each other how far they are)
"""

import signal
import sys
import time
from pathlib import Path

import tessera
from waits import WAYS, outcome


def wait_for(file):
    end = time.monotonic() + 60
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.01)


def main(other, folder):
    waits, left = Path(folder) / "waits", Path(folder) / "left"
    if other == "is_late":
        tessera.join(deadline=3.0)
    wait = WAYS["backward"]()
    if tessera.rank() == 0:
        waits.touch()
        kind, rank, message = outcome(wait)
        left.touch()
        print(f"rank 0: {kind.__name__} {rank}: {message}", flush=True)
        return
    wait_for(waits)
    if other == "fails":
        raise ValueError("on purpose")
    if other == "is_late":
        wait_for(left)


signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of torchrun, once a process has failed: the others are to hear of it by themselves
main(*sys.argv[1:])
