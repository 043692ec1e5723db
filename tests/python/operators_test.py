#!/usr/bin/env python3
"""A sample of the sweep over PyTorch's `op_db` (operator_sweep.py): nothing is wrong, and no error is another's than ours.

Usage: operators_test.py [--seed N] [--seconds 12]
"""

import argparse
import collections
import random
import sys
import time
import warnings

import torch
from op_samples import MODES, REFUSED, judge, variants, verdict_of

OF_A_VARIANT = 0.15  # seconds
SAMPLES = 0  # the seed of values and combinations, which is that of the whole sweep


def failure_of(name, record):
    """Why the record may not be, if it may not."""
    verdict = verdict_of(record)
    if verdict in ("pass", "random", "skipped") or verdict == "refused" and name in REFUSED:
        return ""
    return f"{verdict}: {record['examples'][verdict][0]}"


def main():
    parser = argparse.ArgumentParser(usage=__doc__.partition("Usage: ")[2])
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="chooses variants and modes")
    parser.add_argument("--seconds", type=float, default=12, help="of processor time for all")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)  # should the process not live to the end
    pairs = [(name, op, mode) for name, op in variants().items() for mode in MODES]
    random.Random(options.seed).shuffle(pairs)
    counts, failures = collections.Counter(), []
    begin = time.process_time()
    for name, op, mode in pairs:
        if time.process_time() - begin > options.seconds:
            break
        record = judge(op, MODES[mode], OF_A_VARIANT, SAMPLES)
        counts[verdict_of(record)] += 1
        if why := failure_of(name, record):
            failures.append(f"{name} ({mode}): {why}")
    print(f"{sum(counts.values())} of {len(pairs)} variants and modes: {dict(counts)}")
    print("\n".join(failures))
    sys.exit(bool(failures) or not counts["pass"])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main()
