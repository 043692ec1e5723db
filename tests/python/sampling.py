"""Of many cells a test runs some, drawn anew in each run: all of them with TESSERA_FULL=1 or TESSERA_CELLS=all, and the same
again with the TESSERA_SEED that is printed."""

import os
import random
import sys

IS_FULL = "TESSERA_FULL" in os.environ or "TESSERA_CELLS" in os.environ
SEED = int(os.environ.get("TESSERA_SEED", random.randrange(2**32)))
if not IS_FULL:
    print(f"sampled with TESSERA_SEED={SEED}", file=sys.stderr)


def sampled(cells, count, key=""):
    """So many of the cells in their order; `key` tells apart draws that should not be of the same places."""
    cells = list(cells)
    if IS_FULL or count >= len(cells):
        return cells
    chosen = random.Random(f"{SEED} {key}").sample(range(len(cells)), count)
    return [cells[i] for i in sorted(chosen)]
