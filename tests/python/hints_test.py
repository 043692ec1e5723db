#!/usr/bin/env python3
"""Lines to write that messages show are Python, and do what they promise when they are pasted into the program.

Usage: hints_test.py [unittest's arguments]
"""

import json
import re
import time
import unittest
import warnings

import tessera
import torch
from zoo import ZOO

RANKS = 4


def placed(value, layout):
    return tessera.redistribute(tessera.distribute_tensor(value, tessera.Mesh([("tp", RANKS)])), layout)


def values(count):
    return list(torch.randn(count, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64))


# What a program computes of variables that have the names of the operator's arguments, and how those lie.
PROGRAMS = {
    "self + other": {"self": "{tp: S(0)}", "other": "{tp: S(1)}"},
    "torch.mm(self, mat2)": {"self": "{tp: S(0)}", "mat2": "{tp: S(1)}"},
    "torch.cat(tensors)": {"tensors": ["{tp: S(1)}", "{tp: S(1)}", "{tp: P}"]},
    "self.cumsum(0)": {"self": "{tp: S(0)}"},
    "torch.nonzero(x)": {"x": "{tp: P}"},
}


def variables(layouts, place):
    """`place(value, layout)` of a tensor each, or a list of them."""
    rest = values(3)
    return {name: [place(rest.pop(), one) for one in layout] if isinstance(layout, list) else place(rest.pop(), layout)
            for name, layout in layouts.items()}


def run_strictly(program, names):
    """In explicit mode, with the lines written that it asks for: the result and the lines."""
    lines = []
    while len(lines) < 5:
        try:
            with tessera.explicit():
                return eval(program, names), lines
        except RuntimeError as error:
            line, = re.findall(r"needs a redistribution that the program did not write: .* Write: (.+)$", str(error))
            exec(line, names)
            lines.append(line)
    raise AssertionError(f"{program} still needs a line after {lines}")


def explained(program, names, line="", times=3):
    """What `program` sends with a line of explain's before it."""
    names = {"torch": torch, "tessera": tessera, **names}
    with tessera.explain() as report:
        exec(line, names)
        for _ in range(times):
            eval(program, names)
    return report.data()


def with_line(plan, line):
    """The plan with a line of explain's in it."""
    pattern, what, layout = re.fullmatch(r'plan: "(.+)" (output )?(\{.*\})', line).groups()
    data = json.loads(plan.json())
    entry, = (entry for entry in data["parameters"] if entry["pattern"] == pattern)
    entry["output" if what else "storage"] = layout
    return tessera.Plan.from_json(json.dumps(data))


class Scan(torch.nn.Module):
    """Reads its weight whole along the dim that the plan cuts."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(values(1)[0])

    def forward(self):
        return self.weight.cumsum(1)


# What is refused, and the line that the refusal shows.
REFUSED = {
    "resize_": (lambda x: x.clone().resize_(2), "tessera.distribute_tensor(value, mesh, placements) or tessera.from_local(part, mesh, placements)"),
    "deferred": (lambda x: tessera.deferred(Scan)(), "Call tessera.parallelize(model, plan, optimizer) first"),
    "to_local": (lambda x: tessera.to_local(values(1)[0]), "tessera.distribute_tensor(x, mesh, placements) or tessera.from_local(part, mesh, placements)"),
    "distribute_tensor": (lambda x: tessera.distribute_tensor(x, tessera.Mesh("tp=4")), "tessera.redistribute(x, placements)"),
    "from_local": (lambda x: tessera.from_local(torch.ones(2), tessera.Mesh("tp=4"), "{tp: S(0)}", shape=[16]), "pass shape=, the global one"),
    "plan": (lambda x: tessera.Plan.from_json("{"), "Plan.json()"),
}


# What an operator inside of the call would have to move in explicit mode, of x cut in columns.
INSIDE = {
    "torch.cdist(x, x)": "[cdist -> _cdist_forward ",
    "torch.nn.functional.layer_norm(x, (8,))": "[layer_norm -> native_layer_norm ",
    "torch.nn.functional.log_softmax(x, 1)": "[log_softmax -> ",
    "x.cumsum(1)": "[cumsum {",
}


class HintsTest(unittest.TestCase):
    def test_refusals_name_the_call(self):
        for program, begin in INSIDE.items():
            def body():
                with tessera.explicit():
                    eval(program, {"torch": torch, "x": placed(values(1)[0], "{tp: S(1)}")})

            with self.subTest(program=program), self.assertRaises(RuntimeError) as caught:
                tessera.run_ranks(body, RANKS)
            self.assertIn(begin, str(caught.exception))

    def test_refusals_in_backward_lead_to_the_line(self):
        def body():
            x = placed(values(1)[0], "{tp: S(1)}").requires_grad_()
            y = torch.layer_norm(x, x.shape[1:])
            with tessera.explicit():
                y.sum().backward()

        with warnings.catch_warnings(record=True) as told, torch.autograd.set_detect_anomaly(True), self.assertRaises(RuntimeError) as caught:
            warnings.simplefilter("always")
            tessera.run_ranks(body, RANKS)
        self.assertIn("[NativeLayerNormBackward0 -> native_layer_norm_backward", str(caught.exception))
        self.assertIn("torch.autograd.set_detect_anomaly(True)", str(caught.exception))
        self.assertTrue(any("y = torch.layer_norm(x, x.shape[1:])" in str(warning.message) for warning in told), told)

    def test_lines_of_explicit_mode(self):
        def on_ranks():
            answers = {}
            for program, layouts in PROGRAMS.items():
                got, lines = run_strictly(program, {"torch": torch, "tessera": tessera, **variables(layouts, placed)})
                answers[program] = tessera.full_tensor(got), lines
            return answers

        answers = tessera.run_ranks(on_ranks, RANKS)
        for program, (got, lines) in answers.items():
            with self.subTest(program=program, lines=lines):
                want = eval(program, {"torch": torch, **variables(PROGRAMS[program], lambda value, layout: value)})
                torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
                self.assertTrue(lines)
        self.assertTrue(any(line.startswith("tensors[") for line in answers["torch.cat(tensors)"][1]), answers)

    def compare(self, program, layouts, times=3):
        """The line that explain shows first, and what is sent without and with it, on rank 0."""

        def on_ranks():
            bad = explained(program, variables(layouts, placed), times=times)
            line = bad["worst"][0]["text"]
            return line, bad, explained(program, variables(layouts, placed), line, times)

        return tessera.run_ranks(on_ranks, RANKS)

    def test_explains_line_for_an_operand(self):
        for program, layouts in (("self.clone().cumsum(1)", {"self": "{tp: S(1)}"}),
                                 ("torch.cat([x.clone() for x in tensors], 1)", {"tensors": ["{tp: S(1)}", "{tp: S(0)}"]})):
            line, bad, good = self.compare(program, layouts)
            with self.subTest(line=line):
                self.assertIn("# once, before these 3 operators", line)
                self.assertEqual(good["bytes"] * 3, bad["bytes"])
                self.assertEqual(good["worst"], [])

    def test_explains_line_for_a_sum(self):
        line, bad, good = self.compare("self.exp()", {"self": "{tp: P}"}, times=1)
        self.assertIn("# merged into parts: half of the bytes", line)
        self.assertEqual(good["bytes"] * 2, bad["bytes"])

    def test_explains_line_for_a_gradient(self):
        """It comes in parts of another dim than the value that it meets."""

        def step(line=""):
            names = {"tessera": tessera, "x": placed(values(1)[0], "{tp: S(1)}").requires_grad_()}
            with tessera.explain() as report:
                exec(line, names)
                names["x"].exp().redistribute("{tp: S(0)}").square().sum().backward()
            return report.data()

        def on_ranks():
            bad = step()
            return bad, step(bad["worst"][0]["text"])

        bad, good = tessera.run_ranks(on_ranks, RANKS)
        self.assertIn("# in forward: what is computed from it then stays where it is", bad["worst"][0]["text"])
        self.assertLess(good["bytes"], bad["bytes"])
        self.assertEqual(good["worst"], [])

    def test_explains_line_for_a_parameter(self):
        """A parameter that its reader gathers is kept whole."""

        def explained_on(plan):
            model = tessera.parallelize(Scan(), plan)
            with torch.no_grad(), tessera.explain() as report:
                model()
            return report.data()

        def on_ranks():
            entry = {"pattern": "weight", "storage": "{tp: S(1)}"}
            plan = tessera.Plan.from_json(json.dumps({"version": 1, "mesh": f"tp={RANKS}", "batch_axes": [], "parameters": [entry], "keep_gathered_bytes": 0}))
            bad = explained_on(plan)
            return bad, explained_on(with_line(plan, bad["worst"][0]["line"]))

        bad, good = tessera.run_ranks(on_ranks, RANKS)
        self.assertGreater(bad["bytes"], 0)
        self.assertEqual(bad["worst"][0]["saved"], bad["bytes"])
        self.assertEqual(good["bytes"], 0)

    def test_explains_lines_for_a_model(self):
        """They make the plan sequence parallel: as many bytes, the same loss."""

        def explained_on(plan):
            model = tessera.parallelize(ZOO["llama"].make(), plan)
            with tessera.explain() as report:
                loss = model(**ZOO["llama"].batch(4)).loss
            return report.data(), loss.item()

        def on_ranks():
            plan = tessera.generate_plan(ZOO["llama"].make(), mesh="tp=2")
            before = explained_on(plan)
            for one in before[0]["worst"]:
                plan = with_line(plan, one["line"])
            wanted = tessera.generate_plan(ZOO["llama"].make(), mesh="tp=2", sequence_parallel=True)
            return before, explained_on(plan), plan, wanted

        (before, loss), (after, same_loss), plan, wanted = tessera.run_ranks(on_ranks, 2)
        self.assertEqual(plan, wanted)
        self.assertEqual(after["bytes"], before["bytes"])
        self.assertAlmostEqual(same_loss, loss, delta=1e-6)
        self.assertTrue(all("half of them here" in one["text"] for one in before["worst"]), before["worst"])
        self.assertFalse(any(one["line"].startswith("plan:") for one in after["worst"]), after["worst"])

    def test_the_line_of_ignored_targets(self):
        """A step of two micro-batches in exact numerics, some of whose targets are ignored."""
        scores = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
        labels = torch.tensor([0, 1, -100, 2, 3, 4, -100, 1])

        class Loss(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.bias = torch.nn.Parameter(torch.zeros(5))

            def forward(self, scores, labels):
                return torch.nn.functional.cross_entropy(scores + self.bias, labels)

        def step(model):
            for part in zip(scores.chunk(2), labels.chunk(2)):
                (model(*part) / 2).backward()
            return model.bias.grad

        def on_ranks():
            tessera.numerics("exact", "batch=8")
            model = Loss()
            tessera.parallelize(model, tessera.generate_plan(model, mesh="dp=2", lattice="batch=8"), accumulate=2)
            try:
                step(model)
            except RuntimeError as error:
                line, = re.findall(r"Announce them: (.+), or use", str(error))
                model = tessera.parallelize(Loss(), tessera.generate_plan(Loss(), mesh="dp=2", lattice="batch=8"), accumulate=2)
                exec(line, {"tessera": tessera, "n": int((labels != -100).sum())})
                return line, tessera.full_tensor(step(model))

        line, got = tessera.run_ranks(on_ranks, 2)
        bias = torch.zeros(5, requires_grad=True)
        torch.nn.functional.cross_entropy(scores + bias, labels).backward()
        self.assertEqual(line, "tessera.set_step_tokens(n)")
        torch.testing.assert_close(got, bias.grad)

    def test_the_deadline_that_a_timeout_names(self):
        def on_ranks():
            if tessera.rank() == 1:
                time.sleep(1.0)
            return placed(values(1)[0], "{tp: P}").full_tensor()

        with self.assertRaisesRegex(tessera.CommError, r"a longer deadline: run_ranks\(body, n, deadline=seconds\)"):
            tessera.run_ranks(on_ranks, RANKS, deadline=0.2)
        tessera.run_ranks(on_ranks, RANKS, deadline=30.0)

    def test_refusals_speak_python(self):
        def on_ranks():
            x = placed(values(1)[0], "{tp: S(0)}")
            said = {}
            for name, (action, _) in REFUSED.items():
                try:
                    action(x)
                except (RuntimeError, ValueError) as error:
                    said[name] = str(error)
            return said

        said = tessera.run_ranks(on_ranks, RANKS)
        for name, (_, wanted) in REFUSED.items():
            with self.subTest(name=name):
                self.assertIn(wanted, said[name])
                self.assertNotRegex(said[name], r"tessera::|GeneratorKind|->")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    unittest.main()
