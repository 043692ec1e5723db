#!/usr/bin/env python3
"""`tessera.explain` and `tessera.find_nan` on a Llama of transformers.

Usage: explain_test.py [unittest's arguments]
"""

import inspect
import re
import unittest
import warnings
from pathlib import Path

import tessera
import torch
from zoo import ZOO, tf

LLAMA_FILE = "transformers/models/llama/modeling_llama.py"
LLAMA_LINES = Path(inspect.getsourcefile(tf.LlamaForCausalLM)).read_text().splitlines()
OWN_LINES = Path(__file__).read_text().splitlines()
LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def placed(layout):
    """The Llama on a mesh, in a rank, and its batch."""
    model = ZOO["llama"].make()
    return tessera.parallelize(model, tessera.generate_plan(model, mesh=layout)), ZOO["llama"].batch(4)


def explained(layout):
    """One step on `layout`: the report's data and text, and the loss."""

    def on_ranks():
        model, batch = placed(layout)
        with tessera.explain() as report:
            loss = model(**batch).loss
            loss.backward()
        return report.data(), str(report), loss.item()

    return tessera.run_ranks(on_ranks, tessera.Mesh(layout).size())


def calls_of(data, **wanted):
    return [call for call in data["calls"] if all(call[key] == value for key, value in wanted.items())]


def text_of_line(call):
    """What stands in the program where an operator is said to."""
    name, _, number = call["line"].rpartition(":")
    if name == LLAMA_FILE:
        return LLAMA_LINES[int(number) - 1]
    return OWN_LINES[int(number) - 1] if Path(name).name == Path(__file__).name else ""


class Own(torch.nn.Module):
    """A module of the program's own."""

    def forward(self, x):
        y = torch.tanh(x)
        return y.cumsum(0)


class ExplainTest(unittest.TestCase):
    def test_modules_are_those_of_the_model(self):
        data, text, _ = explained("tp=2")
        names = {name for name, _ in ZOO["llama"].make().named_modules()}
        modules = {call["module"] for call in data["calls"] if call["phase"] != "update"}
        self.assertEqual(modules - names - {"LlamaForCausalLM", ""}, set())
        for layer in range(2):
            for linear in LINEARS:
                module = f"model.layers.{layer}.{linear}"
                forward = calls_of(data, module=module, op="tessera::contract", phase="forward")
                self.assertEqual(sum(call["calls"] for call in forward), 1, module)
                backward = calls_of(data, module=module, op="tessera::contract", phase="backward")
                self.assertEqual(sum(call["calls"] for call in backward), 2, module)
                for call in forward + backward:
                    self.assertIn(f"self.{linear.split('.')[1]}(", text_of_line(call), call)
        self.assertIn("model.layers.*.mlp.down_proj", text)
        self.assertNotIn("model.layers.0", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 160)
        self.assertNotIn("...", text)

    def test_lines_are_those_of_the_programs_own_module(self):
        def on_ranks():
            x = tessera.distribute_tensor(torch.ones(4, 4), tessera.Mesh("tp=2"), "{tp: S(1)}").requires_grad_()
            with tessera.explain() as report:
                Own()(x).exp().sum().backward()
            return report.data()

        data = tessera.run_ranks(on_ranks, 2)
        for phase, op, text in (("forward", "aten::tanh", "torch.tanh(x)"), ("backward", "aten::tanh_backward", "torch.tanh(x)"),
                                ("forward", "aten::cumsum", "y.cumsum(0)"), ("forward", "aten::exp", "Own()(x).exp()")):
            call, = calls_of(data, phase=phase, op=op)
            self.assertIn(text, text_of_line(call), call)

    def test_totals_are_those_of_the_calls(self):
        data, _, _ = explained("dp=2,tp=2")
        self.assertGreater(data["bytes"], 0)
        for total in ("calls", "modules"):
            self.assertEqual(sum(row["bytes"] for row in data[total]), data["bytes"])
            self.assertEqual(sum(row["redistributions"] if total == "modules" else sum(move["count"] for move in row["redistributions"])
                                 for row in data[total]), data["redistributions"])
        self.assertEqual(len(data["worst"]), 3)
        self.assertTrue(all(one["line"] and one["bytes"] > 0 for one in data["worst"]))
        self.assertEqual(data["worst"], sorted(data["worst"], key=lambda one: (-one["saved"], -one["bytes"])))

    def test_nothing_changes_and_nothing_stays(self):
        def on_ranks():
            model, batch = placed("tp=2")
            before = model(**batch).loss.item()
            with tessera.explain():
                during = model(**batch).loss.item()
            return before, during

        before, during = tessera.run_ranks(on_ranks, 2)
        self.assertEqual(before, during)
        self.assertEqual(len(torch.nn.modules.module._global_forward_pre_hooks), 0)
        self.assertEqual(len(torch.nn.modules.module._global_forward_hooks), 0)

    def test_the_line_to_write(self):
        """A redistribution that the program needs three times, and once when it writes the line."""

        def on_ranks():
            x = tessera.distribute_tensor(torch.randn(8, 16), tessera.Mesh("tp=4"), "{tp: S(1)}")
            with tessera.explain() as bad:
                for _ in range(3):
                    x.clone().cumsum(1)
            worst, = bad.data()["worst"]
            scope = {"tessera": tessera, worst["argument"]: x}
            with tessera.explain() as good:
                exec(worst["text"], scope)
                for _ in range(3):
                    scope[worst["argument"]].clone().cumsum(1)
            return worst, bad.data(), good.data()

        worst, bad, good = tessera.run_ranks(on_ranks, 4)
        self.assertEqual(worst["operators"], 3)
        self.assertIn("before these 3 operators", worst["text"])
        self.assertEqual(worst["saved"], bad["bytes"])
        self.assertEqual(good["bytes"] * 3, bad["bytes"])
        self.assertEqual(good["worst"], [])


class FindNanTest(unittest.TestCase):
    def test_what_a_weight_holds_is_no_operators_doing(self):
        def on_ranks():
            model, batch = placed("tp=4")
            part = model.model.layers[1].mlp.up_proj.weight.detach().to_local()
            if tessera.rank() == 2:
                part[0, 0] = float("nan")
            return self.found(model, batch)

        self.assertIsNone(tessera.run_ranks(on_ranks, 4))

    def found(self, model, batch):
        with tessera.find_nan(report_only=True) as finder:
            model(**batch).loss.backward()
        return finder.first

    def broken(self, report_only):
        """The Llama whose activation function takes a logarithm of a negative number on rank 2 alone."""

        class Broken(torch.nn.Module):
            def forward(self, x):
                x.to_local().fill_(-1.0 if tessera.rank() == 2 else 1.0)
                return torch.log(x)

        model, batch = placed("tp=4")
        model.model.layers[1].mlp.act_fn = Broken()
        with torch.no_grad(), tessera.find_nan(report_only) as finder:
            model(**batch)
        return finder.first

    def test_raises_at_the_operator(self):
        with self.assertRaisesRegex(RuntimeError, r"\[find_nan\] aten::log gave NaN on rank 2 .*forward, model\.layers\.1\.mlp\.act_fn at "
                                                  r"\S*explain_test\.py:\d+\); .*self Float\[4, 12, 64\] .*tp: S\(2\)"):
            tessera.run_ranks(lambda: self.broken(False), 4)

    def test_names_the_line_of_the_model(self):
        """A norm that takes the root of a negative number."""

        def on_ranks():
            model, batch = placed("tp=2")
            model.model.norm.variance_epsilon = -100.0
            return self.found(model, batch)

        found = tessera.run_ranks(on_ranks, 2)
        self.assertRegex(found, r"^aten::rsqrt gave NaN .*forward, model\.norm at ")
        place, = re.findall(rf" at {LLAMA_FILE}:(\d+)\)", found)
        self.assertIn("torch.rsqrt(", LLAMA_LINES[int(place) - 1])

    def test_reports_the_first_of_all_ranks(self):
        self.assertRegex(tessera.run_ranks(lambda: self.broken(True), 4), r"^aten::log gave NaN on rank 2 ")

    def test_a_healthy_step_has_none(self):
        def on_ranks():
            model, batch = placed("dp=2,tp=2")
            return self.found(model, batch)

        self.assertIsNone(tessera.run_ranks(on_ranks, 4))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    unittest.main()
