"""What errors_test.py runs on two ranks that are processes: rank 0 prints what it gets, waiting for rank 1.

Usage: errors_program.py fails | is_late | has_ended
"""

import sys
import time

import tessera
from waits import WAYS, outcome


def main(other):
    if other == "is_late":
        tessera.join(deadline=3.0)
    wait = WAYS["backward"]()
    if tessera.rank() == 0:
        kind, rank, message = outcome(wait)
        print(f"rank 0: {kind.__name__} {rank}: {message}", flush=True)
    elif other == "fails":
        raise ValueError("on purpose")
    elif other == "is_late":
        time.sleep(6)


main(*sys.argv[1:])
