#!/usr/bin/env python3
"""What a run leaves to watch it: curves, profiles and, when it fails, the last collectives of its ranks; as threads and as processes.

Usage: watch_test.py TESSERA     (the program)
"""

import json
import os
import signal
import struct
import subprocess
import sys
import time
import unittest
from pathlib import Path

from program import PROGRAM, ProgramTest, environment


def crc32c(data):
    """Bit by bit: another way than the program's."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (0x82F63B78 if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    """The records of a TFRecord file, checksums verified."""
    while data:
        (length,), (crc,) = struct.unpack("<Q", data[:8]), struct.unpack("<I", data[8:12])
        assert crc == masked(data[:8]), "a length's checksum"
        body, (crc,) = data[12:12 + length], struct.unpack("<I", data[12 + length:16 + length])
        assert len(body) == length and crc == masked(body), "a record's checksum"
        yield body
        data = data[16 + length:]


def fields(message):
    """{number: [value, ...]} of a protobuf message."""
    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value
    found, at = {}, 0
    while at < len(message):
        number, wire = divmod(varint(), 8)
        if wire == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4}[wire] if wire != 2 else varint()
            value, at = message[at:at + size], at + size
            value = {1: lambda: struct.unpack("<d", value)[0], 5: lambda: struct.unpack("<f", value)[0], 2: lambda: value}[wire]()
        found.setdefault(number, []).append(value)
    return found


def curves(path):
    """{tag: {step: value}}, and the first event."""
    first, *events = [fields(record) for record in records(path.read_bytes())]
    found = {}
    for event in events:
        for value in fields(event[5][0])[1]:
            point = fields(value)
            found.setdefault(point[1][0].decode(), {})[event[2][0]] = point[2][0]
    return found, first


class Watch(ProgramTest):
    train = "steps = 6\nwarmup = 3\naccumulate = 2"

    def setUp(self):
        super().setUp()
        self.out = self.folder / "run"

    def run_program(self, *words, code=0):
        return self.run_command(PROGRAM, *words, code=code)

    def runs(self):
        """The same training as threads and as processes."""
        for name, words in (("threads", []), ("processes", ["launch", "-n", 4, "--"])):
            with self.subTest(ranks=name):
                yield [*words, "train", self.config, "--mesh", "dp=2,tp=2", "--out", self.out, "--replace"]

    def test_curves_are_those_of_the_metrics(self):
        for words in self.runs():
            for _ in range(2):  # the second run takes the place of the first
                begin = time.time()
                self.run_program(*words, "--quiet")
            metrics = [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]
            files = list((self.out / "tb").iterdir())
            self.assertEqual([file.name.startswith("events.out.tfevents.") for file in files], [True])
            found, first = curves(files[0])
            self.assertEqual(first[3], [b"brain.Event:2"])
            self.assertTrue(begin - 1 < first[1][0] < time.time() + 1)
            self.assertEqual(set(found), {"loss", "grad_norm", "lr", "tokens_per_s", "held_out/loss"})
            for tag in ("loss", "grad_norm", "lr"):
                self.assertEqual(found[tag], {line["step"]: struct.unpack("f", struct.pack("f", line[tag]))[0] for line in metrics})
            self.assertEqual(sorted(found["tokens_per_s"]), [1, 2, 3, 4, 5, 6])
            self.assertEqual(list(found["held_out/loss"]), [6])

    def test_a_broken_event_file_is_found(self):
        self.run_program("train", self.config, "--quiet", "--out", self.out)
        file = next((self.out / "tb").iterdir())
        data = bytearray(file.read_bytes())
        data[100] ^= 1
        with self.assertRaises(AssertionError):
            list(records(bytes(data)))

    def test_profile_has_nested_lanes_with_both_kinds(self):
        for words in self.runs():
            self.run_program(*words, "--quiet", "--steps", 5)
            plain = self.numbers()
            self.run_program(*words, "--quiet", "--steps", 5, "--profile", "3-4")
            self.assertEqual(self.numbers(), plain)  # watching changes no bit
            events = json.loads((self.out / "trace/steps_3-4.json").read_text())["traceEvents"]
            names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
            self.assertEqual(names, {rank: f"rank {rank}" for rank in range(4)})
            for rank in range(4):
                self.check_lane([event for event in events if event["ph"] == "X" and event["tid"] == rank])

    def numbers(self):
        return [[json.loads(line)[key] for key in ("step", "loss", "grad_norm", "lr")] for line in (self.out / "metrics.jsonl").read_text().splitlines()]

    def check_lane(self, spans):
        self.assertEqual({span["cat"] for span in spans}, {"pass", "phase", "compute", "communication"})
        ns = [(round(span["ts"] * 1000), round((span["ts"] + span["dur"]) * 1000), span) for span in spans]
        self.assertEqual([begin for begin, _, _ in ns], sorted(begin for begin, _, _ in ns))
        self.assertTrue(all(begin >= 0 for begin, _, _ in ns))
        open_spans, paths = [], []
        for begin, end, span in ns:
            while open_spans and open_spans[-1][0] <= begin:
                open_spans.pop()
            if open_spans:
                self.assertLessEqual(end, open_spans[-1][0], f"{span} is not inside of {open_spans[-1][1]}")
            open_spans.append((end, span["name"]))
            paths.append([name for _, name in open_spans])
        self.assertEqual([path[0] for path in paths if len(path) == 1], ["step 3", "step 4"])
        # Two micro-batches, then the update.
        self.assertEqual([path[1] for path in paths if len(path) == 2], ["0F0", "0B0", "0F1", "0B1", "backward", "update"] * 2)
        self.assertEqual({tuple(path[1:3]) for path in paths if len(path) == 3 and path[1][1] in "FB"},
                         {("0F0", "forward"), ("0B0", "backward"), ("0F1", "forward"), ("0B1", "backward")})
        for phase, name in (("forward", "aten::embedding"), ("backward", "aten::embedding_dense_backward"), ("update", "aten::sqrt")):
            inside = [{"forward", "backward", "update"}.intersection(path) for path in paths if name in path]
            self.assertTrue(inside and all(phases == {phase} for phases in inside), name)
        self.assertTrue(any(path[-1].endswith(" dp") for path in paths) and any(path[-1].endswith(" tp") for path in paths))

    def test_profiles_that_cannot_be_meant(self):
        for steps, out, says in (("3-5", [], "without --out"), ("5-9", ["--out", self.out], "of a run of 6 steps"), ("2-x", ["--out", self.out], "are no steps"),
                                 ("0", ["--out", self.out], "are no steps"), ("4-3", ["--out", self.out], "are no steps")):
            self.assertIn(says, self.run_program("train", self.config, *out, "--profile", steps, code=1).stderr)

    def test_an_error_leaves_flights(self):
        for words in self.runs():
            done = self.run_program(*words, "--set", "train.lr=1e30", code=1)
            self.assertIn(f"where the ranks parted: tessera trace {self.out}/trace", done.stderr)
            for given in (self.out, self.out / "trace"):
                told = self.run_program("trace", given).stdout
                self.assertIn("of 4 ranks left their collectives", told)
                self.assertRegex(told, r"rank [0-3]: in .*\n  ended by: .*of step 2 is -?nan")
            self.check_layouts()
            self.run_program(*words, "--quiet")
            self.assertEqual(list(self.out.glob("trace/flight*")), [])  # of the earlier run

    def check_layouts(self):
        """Exact merges of tensors say from which layout to which: of the axis, and no longer a sum."""
        for file in self.out.glob("trace/flight*"):
            left = json.loads(file.read_text())
            merges = [record for record in left["records"] if record["kind"] == "merge" and record["op"] != "squared_norm"]
            self.assertEqual({left["groups"][record["group"]]["name"] for record in merges}, {"dp", "tp"})
            for record in merges:
                axis = left["groups"][record["group"]]["name"]
                self.assertRegex(record["from"], rf"{axis}: P\b")
                self.assertNotRegex(record["to"], rf"{axis}: P\b")

    def test_a_stop_leaves_flights_in_the_log_folder(self):
        words = ["launch", "-n", 3, "--log-dir", "logs", "--", "train", self.config, "--steps", 100000000, "--metrics", "running.jsonl"]
        running = subprocess.Popen([str(PROGRAM), *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   env=environment(), cwd=self.folder)
        self.addCleanup(running.kill)
        for _ in range(2000):
            if (self.folder / "running.jsonl").exists() and (self.folder / "running.jsonl").read_text().count("\n") > 2:
                break
            time.sleep(0.01)
        running.send_signal(signal.SIGTERM)
        _, errors = running.communicate(timeout=20)
        self.assertEqual(running.returncode, 130, errors)
        told = self.run_program("trace", "logs").stdout
        self.assertIn("3 of 3 ranks left their collectives\n", told)
        self.assertEqual(told.count("stopped by a signal"), 3)

    def test_a_killed_rank_left_nothing(self):
        words = ["launch", "-n", 3, "--", "train", self.config, "--steps", 100000000, "--out", self.out, "--quiet"]
        running = subprocess.Popen([str(PROGRAM), *map(str, words)], stderr=subprocess.PIPE, text=True, env=environment(), cwd=self.folder)
        self.addCleanup(running.kill)
        metrics = self.out / "metrics.jsonl"
        for _ in range(2000):
            if metrics.exists() and metrics.read_text().count("\n") > 2:
                break
            time.sleep(0.01)
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        victim = next(child for child in children if b"\0RANK=1\0" in b"\0" + Path(f"/proc/{child}/environ").read_bytes())
        os.kill(int(victim), signal.SIGKILL)
        running.communicate(timeout=20)
        told = self.run_program("trace", self.out).stdout
        self.assertIn("2 of 3 ranks left their collectives; rank 1 did not: finished, killed, or on another disk\n", told)
        self.assertRegex(told, "rank 2: in .* over .*\n  ended by: .*rank 1 failed: its process")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
