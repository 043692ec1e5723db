#!/usr/bin/env python3
"""fully_shard on a script of the shape of FSDP2's tutorial: one device's losses, in `exact` one rank's bits, on rank threads and as processes,
beside PyTorch's own.

Usage: fully_shard_test.py [unittest's arguments]
"""

import copy
import tempfile
import unittest
from pathlib import Path

import tessera
import torch
import toy_transformer
import warm_python
from tessera._parallel import passes_of
from toy_transformer import make, shard, tokens_of, train

PROGRAM = Path(__file__).parent / "fully_shard_program.py"
DEADLINE = 30.0
MESHES = {None: 4, "fsdp=2": 2, "fsdp=3": 3, "dp_replicate=2,dp_shard=2": 4}


def own(tokens):
    """The calling rank's rows, some ranks with one more than others."""
    return tokens.tensor_split(tessera.world_size())[tessera.rank()]


def run(ranks, body):
    return tessera.run_ranks(body, ranks, deadline=DEADLINE)


def plan_group(line):
    return line.split('"group": "')[1].split('"')[0]


def torchrun(library, *mesh, ranks=2):
    done = warm_python.torchrun(ranks, [PROGRAM, library, *mesh], timeout=200)
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    lines = done.stdout.split()
    return torch.tensor([float.fromhex(line) for line in lines[:2 * toy_transformer.STEPS]], dtype=torch.float64), lines[2 * toy_transformer.STEPS:]


class FullyShardTest(unittest.TestCase):
    def test_one_devices_numbers(self):
        want = train(make(), lambda tokens: tokens)
        for mesh, ranks in MESHES.items():
            for reshard in (True, False):
                with self.subTest(mesh=mesh, reshard=reshard):
                    got = run(ranks, lambda mesh=mesh, reshard=reshard: train(
                        shard(make(), tessera.fully_shard, mesh=mesh, reshard_after_forward=reshard), own, tessera.full_tensor))
                    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)

    def test_near_ranks_share_a_copy(self):
        want = train(make(), lambda tokens: tokens)
        for mesh in (None, "dp_shard=2,fsdp=2"):
            with self.subTest(mesh=mesh):
                got = run(4, lambda mesh=mesh: train(shard(make(), tessera.fully_shard, mesh=mesh, reshard_after_forward=2), own, tessera.full_tensor))
                torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)

    def test_one_ranks_bits(self):
        def body(mesh):
            tessera.numerics("exact", "batch=4")
            tessera.manual_seed(11)
            model = shard(make(torch.float32, dropout=0.2), tessera.fully_shard, mesh=mesh)
            return train(model, own, tessera.full_tensor), tessera.full_state_dict(model, rank=None)

        losses, values = run(1, lambda: body("fsdp=1"))
        for mesh, ranks in MESHES.items():
            with self.subTest(mesh=mesh):
                got, state = run(ranks, lambda mesh=mesh: body(mesh))
                self.assertTrue(torch.equal(got, losses))
                self.assertTrue(all(torch.equal(state[name], value) for name, value in values.items()))

    def test_processes_beside_pytorch(self):
        want = train(make(tied=False), lambda tokens: tokens)
        names = list(make().state_dict())
        for mesh, ranks in (((), 2), (("2x2",), 4)):
            with self.subTest(mesh=mesh):
                got, own_names = torchrun("tessera", *mesh, ranks=ranks)
                torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
                self.assertEqual(own_names, names)
        theirs, their_names = torchrun("torch")
        torch.testing.assert_close(theirs, want, rtol=1e-9, atol=1e-9)
        self.assertEqual(their_names, names)

    def test_each_block_is_a_group(self):
        def body():
            model = make()
            tessera.fully_shard(model.layers[1].feed_forward)
            shard(model, tessera.fully_shard, ignored_params={model.norm.weight})
            self.assertIsInstance(model.layers[0], tessera.FSDPModule)
            kinds = {name: isinstance(p, tessera.DTensor) and p.placements[0].is_shard() for name, p in model.named_parameters()}
            self.assertEqual([name for name, is_cut in kinds.items() if not is_cut], ["norm.weight"])
            plan, = (passes.plan for passes in passes_of(model))
            losses = train(model, own, tessera.full_tensor, steps=2)
            return {plan_group(line) for line in plan.json().splitlines() if '"group"' in line}, losses

        groups, losses = run(2, body)
        self.assertEqual(groups, {"layers.*", "layers.*.feed_forward", "tok_embeddings", "pos_embeddings", "norm"})
        torch.testing.assert_close(losses, train(make(), lambda tokens: tokens, steps=2), rtol=1e-12, atol=1e-12)

    def test_a_rank_keeps_its_share(self):
        def body():
            model = shard(tessera.deferred(lambda: make(torch.float32)), tessera.fully_shard)
            parameters = list(model.parameters())
            train(model, own, tessera.full_tensor, steps=1)
            return sum(tessera.to_local(p).nbytes for p in parameters), sum(p.nbytes for p in parameters), sum(4 * p[0].numel() for p in parameters)

        share, whole, rows = run(4, body)
        self.assertLessEqual(share, whole / 4 + rows)

    def test_precision(self):
        """As the plan's words for it; PyTorch's own policy says the same."""
        def body(way):
            model = make(torch.float32, tied=False)
            if way == "plan":
                dtypes = {"compute_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
                tessera.parallelize(model, tessera.generate_plan(model, mesh="fsdp=2", **dtypes), batch="local")
            else:
                library = {"ours": tessera, "torch": torch.distributed.fsdp}[way]
                shard(model, tessera.fully_shard, mp_policy=library.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
            self.assertEqual(model(own(tokens_of(0))).dtype, torch.bfloat16)
            self.assertEqual({p.dtype for p in model.parameters()}, {torch.float32})
            return train(model, own, tessera.full_tensor, steps=3)

        want = run(2, lambda: body("plan"))
        for way in ("ours", "torch"):
            self.assertTrue(torch.equal(run(2, lambda way=way: body(way)), want))
        self.assertFalse(torch.equal(want, train(make(torch.float32, tied=False), lambda tokens: tokens, steps=3)))

    def test_states(self):
        """Saved by one layout and loaded by another, before either was called; a whole state_dict loads as it does on one device."""
        def save(folder):
            model = shard(make(), tessera.fully_shard)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
            return tessera.save(folder, model, optimizer, step=0), tessera.full_state_dict(model, rank=None)

        def load(folder):
            model = shard(toy_transformer.Transformer().double(), tessera.fully_shard)
            tessera.load(folder, model, torch.optim.Adam(model.parameters()))
            other = shard(toy_transformer.Transformer().double(), tessera.fully_shard)
            other.load_state_dict(make().state_dict())
            return [tessera.full_state_dict(each, rank=None) for each in (model, other)]

        with tempfile.TemporaryDirectory() as folder:
            step, saved = run(2, lambda: save(folder))
            for loaded in run(3, lambda: load(step)):
                self.assertTrue(all(torch.equal(loaded[name], value) for name, value in saved.items()))
        self.assertEqual(list(saved), list(make().state_dict()))

    def test_copies(self):
        """Made before the model is placed, and after."""
        def body():
            model = shard(make(), tessera.fully_shard, mesh=tessera.Mesh("fsdp=2"))
            before = copy.deepcopy(model)
            losses = [train(each, own, tessera.full_tensor, steps=1) for each in (model, before)]
            self.assertEqual(type(model).__name__, toy_transformer.Transformer.__name__)
            return losses + [train(each, own, tessera.full_tensor, steps=1) for each in (copy.deepcopy(model), model)]

        first, second, third, fourth = run(2, body)
        self.assertTrue(torch.equal(first, second))
        torch.testing.assert_close(third, fourth, rtol=1e-12, atol=0)  # the gradients of a copy lie otherwise
        self.assertFalse(torch.equal(first, third))

    def test_methods_of_fsdp2(self):
        def body():
            model = shard(make(), tessera.fully_shard)
            model.set_requires_gradient_sync(False)
            model.set_is_last_backward(True)
            model.unshard(async_op=True).wait()
            for name in ("set_reshard_after_forward", "set_all_reduce_hook", "set_gradient_divide_factor"):
                with self.assertRaisesRegex(NotImplementedError, rf"\[fully_shard\] {name} is not there; accepted: "):
                    getattr(model, name)(True)
            return train(model, own, tessera.full_tensor, steps=1)

        torch.testing.assert_close(run(2, body), train(make(), lambda tokens: tokens, steps=1), rtol=1e-12, atol=1e-12)

    def test_what_is_refused(self):
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

        def refusal(make_call, of=ValueError):
            with self.assertRaises(of) as caught:
                run(2, lambda: make_call(make()))
            return str(caught.exception)

        def too_late(model):
            tessera.fully_shard(model.layers[0])
            model.layers[0](torch.zeros(2, 3, 12).double())
            tessera.fully_shard(model)

        def two_meshes(model):
            tessera.fully_shard(model.layers[0], mesh="dp=2,fsdp=1")
            tessera.fully_shard(model, mesh="fsdp=2").state_dict()

        def without_values(model):
            with torch.device("meta"):
                model = toy_transformer.Transformer()
            shard(model, tessera.fully_shard)(tokens_of(0))

        for call, expected in (
            (lambda model: tessera.fully_shard(model, reshard_after_forward=2).state_dict(), "groups of 2 near ranks on mesh fsdp=2; accepted: a number above 1 that divides"),
            (lambda model: tessera.fully_shard(model, offload_policy=CPUOffloadPolicy()), "nothing is offloaded so far; accepted: None, OffloadPolicy()"),
            (lambda model: tessera.fully_shard(model, mp_policy=MixedPrecisionPolicy(output_dtype=torch.float32)), "accepted: output_dtype=None"),
            (lambda model: tessera.fully_shard(model, mesh="dp=2"), 'no axis of mesh dp=2 shards parameters; accepted: one with an axis named fsdp or dp_shard'),
            (lambda model: tessera.fully_shard(model.layers), "[fully_shard] a ModuleList; accepted: a module with a forward of its own, one a call"),
            (lambda model: tessera.fully_shard(tessera.fully_shard(model)), "Transformer: it was passed before"),
            (too_late, "Transformer: its part `layers.0` is placed already, as a model of its own, since it was called"),
            (two_meshes, "its parts are on the meshes ['dp=2,fsdp=1', 'fsdp=2']; accepted: one"),
        ):
            with self.subTest(expected=expected):
                self.assertIn(expected, refusal(call))
        self.assertIn("is called while its parameters have no values (meta)", refusal(without_values, RuntimeError))


if __name__ == "__main__":
    warm_python.begin()
    unittest.main()
