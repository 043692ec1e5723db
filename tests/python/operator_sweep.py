#!/usr/bin/env python3
"""PyTorch's `op_db` (float32, with gradients) on DTensors in five modes: every variant is run by a process of its own.

The records stand in FILE, one line of JSON for each variant and mode: a sweep that was stopped goes on where it was. Ends with
the table of docs/measured/operators.md.

Usage: operator_sweep.py FILE [--modes even,uneven,partial,2x2,2x3] [--only REGEX] [--again] [--seconds 1] [--seed 0] [--table]
"""

import argparse
import collections
import json
import os
import re
import select
import signal
import sys
import time
import traceback
import warnings

import tessera
import torch
from op_samples import MODES, VERDICTS, judge, variants, verdict_of

WAIT = 600.0  # seconds beyond ten times those asked for: a variant that takes longer hangs


def in_child(op, mode, seconds, seed, to):
    """Writes the record to the pipe `to`, and ends the process."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        record = judge(op, MODES[mode], seconds, seed)
    except BaseException:
        record = {"counts": {"skipped": 1}, "examples": {"skipped": [traceback.format_exc()[-400:]]}}
    os.write(to, json.dumps(record).encode())
    os._exit(0)


def read_all(pipe, deadline):
    text = b""
    while time.monotonic() < deadline and select.select([pipe], [], [], deadline - time.monotonic())[0]:
        more = os.read(pipe, 1 << 16)
        if not more:
            break
        text += more
    return text


def record_of(name, op, mode, seconds, seed):
    """What the child found; of one that died or hung, that."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        in_child(op, mode, seconds, seed, writing)
    os.close(writing)
    text = read_all(reading, time.monotonic() + 10 * seconds + WAIT)
    os.close(reading)
    if not text:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    record = json.loads(text) if text else {"counts": {"raw error": 1}, "examples": {"raw error": [f"the process ended with status {status}"]}}
    return {"variant": name, "mode": mode, **record}


def read_records(path):
    """The last record of each variant and mode."""
    records = {}
    if os.path.exists(path):
        with open(path) as lines:
            for line in lines:
                record = json.loads(line)
                records[record["mode"], record["variant"]] = record
    return records


def print_counts(records, modes):
    rows = {mode: collections.Counter(verdict_of(record) for (of, _), record in records.items() if of == mode) for mode in modes}
    print("| mode | variants | judged | " + " | ".join(VERDICTS) + " | passing | combinations |\n|" + "---|" * (len(VERDICTS) + 5))
    for mode, counts in rows.items():
        judged = sum(counts.values()) - counts["random"] - counts["skipped"]
        combinations = sum(sum(n for verdict, n in record["counts"].items() if verdict not in ("skipped", "random"))
                           for (of, _), record in records.items() if of == mode)
        share = f"{100 * counts['pass'] / judged:.2f} %" if judged else "-"
        print(f"| {mode} | {sum(counts.values())} | {judged} | " + " | ".join(str(counts[verdict]) for verdict in VERDICTS) +
              f" | {share} | {combinations} |")


def print_others(records):
    """Every variant that does not pass, with an example."""
    for verdict in VERDICTS[:VERDICTS.index("random")]:
        of_variant = collections.defaultdict(dict)
        for (mode, name), record in sorted(records.items()):
            if verdict_of(record) == verdict:
                of_variant[name][mode] = record
        if of_variant:
            print(f"\n{verdict}: {len(of_variant)} variants\n")
        for name, by_mode in of_variant.items():
            example = next(iter(by_mode.values()))["examples"][verdict][0]
            print(f"- `{name}` ({', '.join(by_mode)}): {example}")


def options_of(arguments):
    parser = argparse.ArgumentParser(usage=__doc__.partition("Usage: ")[2])
    parser.add_argument("file")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--only", default="", help="variants whose whole name this regular expression matches")
    parser.add_argument("--again", action="store_true", help="also those that have a record")
    parser.add_argument("--seconds", type=float, default=1.0, help="of processor time for each variant and mode")
    parser.add_argument("--seed", type=int, default=0, help="chooses the combinations where not all are run")
    parser.add_argument("--table", action="store_true", help="only print what FILE holds")
    return parser.parse_args(arguments)


def sweep(options, modes):
    records = {} if options.again else read_records(options.file)
    chosen = {name: op for name, op in variants().items() if not options.only or re.fullmatch(options.only, name)}
    wanted = [(name, op, mode) for name, op in chosen.items() for mode in modes if (mode, name) not in records]
    print(f"{len(wanted)} of {len(chosen) * len(modes)} variants and modes, seed {options.seed}", flush=True)
    tessera.run_ranks(lambda: None, 1)  # what is made once for a process is there before the children
    with open(options.file, "a") as file:
        for number, (name, op, mode) in enumerate(wanted, 1):
            record = record_of(name, op, mode, options.seconds, options.seed)
            file.write(json.dumps(record) + "\n")
            file.flush()
            verdict = verdict_of(record)
            if verdict not in ("pass", "random", "skipped") or number % 100 == 0:
                print(f"{number}/{len(wanted)} {name} ({mode}): {verdict}", flush=True)


def main():
    options = options_of(sys.argv[1:])
    modes = options.modes.split(",")
    if not options.table:
        sweep(options, modes)
    records = {key: record for key, record in read_records(options.file).items() if key[0] in modes}
    print_counts(records, modes)
    print_others(records)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main()
