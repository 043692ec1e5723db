#!/usr/bin/env python3
"""Lists of actions go both ways between `tessera schedule` and torch.distributed.pipelining: each side reads the other's rows and finds them right, the
same schedule is the same list, and PyTorch's executor trains with ours, over Gloo, to one device's gradients.

Usage: pipeline_lists_test.py TESSERA [unittest's arguments]      TESSERA: the program
"""

import csv
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path

import torch
from pipeline_lists_program import batch, loss_of, part
from torch.distributed.pipelining import schedules

PROGRAM = Path(__file__).parent / "pipeline_lists_program.py"
TESSERA = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None
# Ours, PyTorch's, stages a rank there, whether in a V.
SAME = [("gpipe", schedules.ScheduleGPipe, 1, False), ("1f1b", schedules.Schedule1F1B, 1, False), ("interleaved", schedules.ScheduleInterleaved1F1B, 2, False),
        ("zbv", schedules.ScheduleZBVZeroBubble, 2, True), ("dualpipe-v", schedules.ScheduleDualPipeV, 2, True)]
OTHERS = [(None, schedules.ScheduleLoopedBFS, 2, False), (None, schedules.ScheduleInterleavedZeroBubble, 2, False)]
OURS = ["1f1b", "interleaved", "zbv", "v-half", "zb-h1", "zb-h2", "1f1b-v", "v-min", "gpipe", "dualpipe-v"]
LOWERED = OURS[:4]  # with sends and receives, too
COMMUNICATION = "--waits" if hasattr(schedules, "WAIT_SEND_F") else "--communication"
SIZES = [(4, 8), (3, 7)]


def tessera(*arguments):
    return subprocess.run([TESSERA, "schedule", *map(str, arguments)], capture_output=True, text=True, timeout=60)


def ours(name, ranks, micro_batches, *flags):
    """Our rows as text."""
    shown = tessera("show", name, "--stages", ranks, "--microbatches", micro_batches, "--csv", *flags)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


def stage(index, rank, ranks, count):
    """What PyTorch's schedules ask of a stage before anything runs."""
    return types.SimpleNamespace(stage_index=index, group_rank=rank, group_size=ranks, num_stages=count, has_backward=True, submod=torch.nn.Identity(),
                                 stage_index_to_group_rank={}, is_first=index == 0, is_last=index == count - 1)


def theirs(cls, per_rank, is_v, ranks, micro_batches):
    """PyTorch's schedule, as rank 0 makes it."""
    count = ranks * per_rank
    own = [0] if per_rank == 1 else [0, count - 1] if is_v else [0, ranks]
    stages = [stage(index, 0, ranks, count) for index in own]
    return cls(stages if issubclass(cls, schedules.PipelineScheduleMulti) else stages[0], micro_batches, loss_fn=loss_of)


def counted_from_zero(order):
    """The order, with the forwards of a rank that begins with micro-batch 1 one lower: the last rank of PyTorch 2.13's 1F1B, which no executor reads."""
    def lowered(action):
        return action._replace(microbatch_index=action.microbatch_index - 1) if action is not None and action.computation_type == schedules.F else action

    first = {rank: next(action.microbatch_index for action in actions if action is not None) for rank, actions in order.items()}
    return {rank: [lowered(action) for action in actions] if first[rank] == 1 else actions for rank, actions in order.items()}


def passes_of(order):
    """{rank: the texts of its passes}, pairs one after the other."""
    rows = {}
    for rank, actions in order.items():
        flat = [part for action in actions if action is not None for part in (action.sub_actions or (action,))]
        rows[rank] = [str(action) for action in flat if action.is_compute_op]
    return rows


class PipelineListsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def verify(self, path, wants=0):
        verified = tessera("verify", path)
        self.assertEqual(verified.returncode, wants, verified.stderr)
        return verified.stdout + verified.stderr

    def test_we_read_their_lists(self):
        read = 0
        for name, cls, per_rank, is_v in SAME + OTHERS:
            for ranks, micro_batches in SIZES:
                if (cls is schedules.ScheduleDualPipeV and micro_batches < 2 * ranks) or (not is_v and per_rank > 1 and micro_batches % ranks):
                    continue
                with self.subTest(cls.__name__, ranks=ranks, micro_batches=micro_batches):
                    schedule = theirs(cls, per_rank, is_v, ranks, micro_batches)
                    path = self.folder / "theirs.csv"
                    if per_rank == 1:
                        schedule.pipeline_order = counted_from_zero(schedule._get_pipeline_order())
                        with open(path, "w", newline="") as file:
                            csv.writer(file).writerows(schedule.pipeline_order.values())
                        self.verify(path)
                    else:
                        for form in ("compute_only", "compute_comms") if name is not None else ("compute_comms",):
                            schedule._dump_csv(path, format=form)
                            self.verify(path)
                    read += 1
                    if name is not None:
                        rows = [row.split(",") for row in ours(name, ranks, micro_batches).splitlines()]
                        self.assertEqual(dict(enumerate(rows)), passes_of(schedule.pipeline_order))
        self.assertGreater(read, 8)

    def test_they_read_ours(self):
        ranks, micro_batches = SIZES[0]
        for name in OURS:
            with self.subTest(name):
                path = self.folder / "ours.csv"
                path.write_text(ours(name, ranks, micro_batches))
                with open(path, newline="") as file:
                    cells = [cell for row in csv.reader(file) for cell in row]
                actions = [schedules._Action.from_str(cell) for cell in cells]
                self.assertEqual([str(action) for action in actions], cells)
                count = 1 + max(action.stage_index for action in actions)
                runtime = schedules._PipelineScheduleRuntime([stage(0, 0, ranks, count)], micro_batches, loss_fn=loss_of)
                runtime._load_csv(str(path))  # validates, and adds their sends and receives
                if name in LOWERED:
                    runtime._dump_csv(self.folder / "lowered.csv", format="compute_comms")
                    self.verify(self.folder / "lowered.csv")
                    path.write_text(ours(name, ranks, micro_batches, COMMUNICATION))
                    runtime._load_csv(str(path), format="compute_comms")
                    runtime._simulate()  # as we order sends and receives, ranks come to an end

    def test_both_refuse_what_is_wrong(self):
        path = self.folder / "wrong.csv"
        path.write_text("0B0,0F0\n1F0,1B0\n")
        self.assertIn("rank 0, action 0 (0B0)", self.verify(path, wants=1))
        runtime = schedules._PipelineScheduleRuntime([stage(0, 0, 2, 2)], 1, loss_fn=loss_of)
        with self.assertRaises(AssertionError):
            runtime._load_csv(str(path))

    def test_their_executor_trains_with_our_lists(self):
        ranks, micro_batches = 2, 5
        tasks = []
        for name in ("1f1b", "interleaved", "zbv", "zb-h1", "v-half"):
            (self.folder / f"{name}.csv").write_text(ours(name, ranks, micro_batches))
            (self.folder / f"{name}+.csv").write_text(ours(name, ranks, micro_batches, COMMUNICATION))
            tasks += [f"{name}:compute_only", f"{name}+:compute_comms"]
        processes = [subprocess.Popen([sys.executable, PROGRAM, str(rank), str(ranks), self.folder, *tasks], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                     for rank in range(ranks)]
        said = [process.communicate(timeout=150)[0] for process in processes]
        self.assertEqual([process.returncode for process in processes], [0] * ranks, "\n".join(said))
        for task in tasks:
            got = {}
            for rank in range(ranks):
                got.update(torch.load(self.folder / f"{task.replace(':', '.')}.{rank}.pt"))
            want = self.one_device(1 + max(int(name.split(".")[0]) for name in got), micro_batches)
            self.assertEqual(sorted(got), sorted(want), task)
            for name in want:
                torch.testing.assert_close(got[name], want[name], rtol=1e-12, atol=1e-12, msg=f"{task} {name}")

    def one_device(self, count, micro_batches):
        model = torch.nn.ModuleList(part(stage) for stage in range(count))
        inputs, target = batch(micro_batches)
        for module in model:
            inputs = module(inputs)
        loss_of(inputs, target).backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}


if __name__ == "__main__":
    unittest.main()
