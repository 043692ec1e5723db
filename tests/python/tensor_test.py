#!/usr/bin/env python3
"""What people do to tensors, done to DTensors of four layouts: the answer of a plain tensor, or a refusal that says what to write.

Usage: tensor_test.py [unittest's arguments]
"""

import copy
import io
import pickle
import unittest
import warnings

import numpy
import tessera
import torch
from torch.utils.checkpoint import checkpoint

RANKS = 4
LAYOUTS = ("{tp: S(0)}", "{tp: S(1)}", "{tp: R}", "{tp: P}")
VALUE = torch.arange(24.0).reshape(4, 6) / 7


def full(value):
    """Without layouts, so that both answers can be compared."""
    if isinstance(value, torch.Tensor):
        return tessera.full_tensor(value.detach())
    if isinstance(value, (tuple, list)):
        return [full(item) for item in value]
    return value


def written(x, index, value):
    y = x.clone()
    y[index] = value(y) if callable(value) else value
    return y


def into_plain(write):
    """A buffer that every rank makes for itself, once `write(buffer, x)` wrote into it."""
    def run(x):
        buffer = VALUE.cos()
        write(buffer, x)
        return buffer

    return run


def assigned(index, of_x=...):
    """buffer[index] = x[of_x]"""
    return into_plain(lambda buffer, x: buffer.__setitem__(index, x[of_x]))


def gradient(x, compute):
    """Of `compute`'s sum at x."""
    y = x.clone().requires_grad_()
    compute(y).sum().backward()
    return y.grad


def linear(x):
    """A layer; on a mesh, if x is."""
    layer = torch.nn.Linear(6, 6)
    layer.load_state_dict({"weight": torch.eye(6) * 2 + 0.1, "bias": torch.ones(6)})
    return tessera.parallelize(layer, tessera.generate_plan(layer, mesh=x.device_mesh)) if isinstance(x, tessera.DTensor) else layer


def rotated(x):
    """Rotary embeddings as Llama's first code had them."""
    turns = torch.polar(torch.ones(4, 3), torch.outer(torch.arange(4.0), torch.arange(1.0, 4.0)))
    return torch.view_as_real(torch.view_as_complex(x.reshape(4, 3, 2)) * turns).flatten(1)


def packed(x):
    """A recurrent layer on sequences of four lengths, and its gradients."""
    layer = torch.nn.LSTM(3, 2, batch_first=True)
    layer.load_state_dict({name: torch.arange(1.0, value.numel() + 1.0).sin().reshape(value.shape) for name, value in layer.state_dict().items()})
    rows = x.clone().requires_grad_()
    inputs = torch.nn.utils.rnn.pack_padded_sequence(rows.reshape(4, 2, 3), [2, 1, 2, 1], batch_first=True, enforce_sorted=False)
    outputs, lengths = torch.nn.utils.rnn.pad_packed_sequence(layer(inputs)[0], batch_first=True)
    outputs.square().sum().backward()
    return [outputs, lengths, rows.grad, *(parameter.grad for parameter in layer.parameters())]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        gradient.sum().item()  # a collective under Python's lock
        return gradient * 2 * x


def load_state(x):
    layer = linear(x)
    layer.load_state_dict({name: tessera.full_tensor(value) + 1 for name, value in layer.state_dict().items()})
    return list(layer.state_dict().values())


def clip(x):
    layer = linear(x)
    layer(x).square().sum().backward()
    return [torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0), layer.weight.grad]


def module_hooks(x):
    layer, seen = linear(x), []
    layer.register_forward_hook(lambda module, inputs, output: seen.append(output.sum().item()))
    layer.register_full_backward_hook(lambda module, inputs, outputs: seen.append(outputs[0].sum().item()))
    layer(x.clone().requires_grad_()).sum().backward()
    return seen


def hooked(x):
    y = x.clone().requires_grad_()
    y.register_hook(lambda g: g * g.sum().item())
    (y * y).sum().backward()
    return y.grad


def retained(x):
    y = x.clone().requires_grad_()
    z = y * 2
    z.retain_grad()
    (z * z).sum().backward()
    return z.grad


def twice(x):
    y = x.clone().requires_grad_()
    (first,) = torch.autograd.grad((y**3).sum(), y, create_graph=True)
    return torch.autograd.grad((first**2).sum(), y)[0]


def amp(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.T
    return [str(y.dtype), y.float()]


def restored():
    state = torch.get_rng_state()
    first = torch.rand(3)
    torch.set_rng_state(state)
    return torch.equal(first, torch.rand(3))


def forked():
    torch.manual_seed(3)
    with torch.random.fork_rng():
        torch.rand(5)
    first = torch.rand(3)
    torch.manual_seed(3)
    return torch.equal(first, torch.rand(3))


def dropout_again(x):
    """The masks of a checkpointed forward are those of the first run: a gradient is 0 where the output is."""
    y = x.clone().requires_grad_()
    z = checkpoint(lambda a: torch.nn.functional.dropout(a + 1, 0.5), y, use_reentrant=False)
    z.sum().backward()
    return bool(((z == 0) == (y.grad == 0)).all())


def mixed_groups(x, **kind):
    """An optimizer of a parameter on the mesh and a plain one."""
    mine, plain = torch.nn.Parameter(x.clone()), torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([{"params": [mine]}, {"params": [plain], "lr": 0.1}], 1e-2, **kind)
    for _ in range(2):
        optimizer.zero_grad()
        ((mine**2).sum() + (plain**2).sum()).backward()
        optimizer.step()
    return [mine, plain]


def optimized(kind):
    def run(x):
        parameter = torch.nn.Parameter(x.clone())
        optimizer = kind([parameter])
        for _ in range(2):
            optimizer.zero_grad()
            (parameter**2).sum().backward()
            optimizer.step()
        return parameter

    return run


RIGHT = {
    "repr": lambda x: bool(repr(x)), "str": lambda x: bool(str(x)), "format": lambda x: f"{x.sum():.3f}", "format whole": lambda x: bool(f"{x}"),
    "copy": copy.copy, "deepcopy": copy.deepcopy, "numpy": lambda x: x.numpy().tolist(), "asarray": lambda x: numpy.asarray(x).tolist(),
    "tolist": lambda x: x.tolist(), "item": lambda x: x.sum().item(), "iteration": list, "len": len, "bool": lambda x: bool(x.sum() > 0),
    "float": lambda x: float(x.max()), "int": lambda x: int(x.max()), "contains": lambda x: 0.0 in x, "hash": lambda x: bool(hash(x)),
    "x[1]": lambda x: x[1], "x[1:3, ::2]": lambda x: x[1:3, ::2], "x[..., -1]": lambda x: x[..., -1], "x[mask]": lambda x: x[x > 1],
    "x[list]": lambda x: x[[0, 2]], "x[None]": lambda x: x[None], "x[:, index]": lambda x: x[:, torch.tensor([1, 0])],
    "x[0:2, 1] =": lambda x: written(x, (slice(0, 2), 1), 5.0), "x[mask] =": lambda x: written(x, VALUE > 1, 0.0),
    "x[0] = x[1]": lambda x: written(x, 0, lambda y: y[1]), "half": lambda x: x.half(), "to dtype": lambda x: x.to(torch.float64),
    "to device": lambda x: x.to("cpu"), "cpu": lambda x: x.cpu(), "dtype": lambda x: x.dtype, "type": lambda x: x.type(), "shape": lambda x: tuple(x.shape),
    "stride": lambda x: x.stride(), "numel": lambda x: x.numel(), "is_contiguous": lambda x: x.is_contiguous(), "device": lambda x: str(x.device),
    "nbytes": lambda x: x.nbytes, "is_leaf": lambda x: x.is_leaf, "is_pinned": lambda x: x.is_pinned(), "T": lambda x: x.T, "data": lambda x: x.data,
    "detach": lambda x: x.detach(), "equal": lambda x: torch.equal(x, x), "allclose": lambda x: torch.allclose(x, VALUE),
    "buffer += x": into_plain(lambda buffer, x: buffer.__iadd__(x)), "buffer[1:3] *= x[:2]": into_plain(lambda buffer, x: buffer[1:3].__imul__(x[:2])),
    "buffer[:, 1] = x[:, 0]": assigned((slice(None), 1), (slice(None), 0)), "buffer[0] = x[3]": assigned(0, 3), "buffer[...] = x": assigned(...),
    "buffer[list] = x": assigned([2, 0, 3, 1]), "buffer[:, -1:] = x[:, :1]": assigned((slice(None), slice(-1, None)), (slice(None), slice(0, 1))),
    "buffer[mask] = x[mask]": assigned(VALUE > 1, VALUE > 1), "buffer[x > 1] = 0": into_plain(lambda buffer, x: buffer.__setitem__(x > 1, 0.0)),
    "buffer.copy_": into_plain(lambda buffer, x: buffer.copy_(x)), "buffer.zero_() += x": into_plain(lambda buffer, x: buffer.zero_().__iadd__(x)),
    "buffer.index_copy_": into_plain(lambda buffer, x: buffer.index_copy_(0, torch.tensor([2, 0, 3, 1]), x)),
    "buffer.scatter_": into_plain(lambda buffer, x: buffer.scatter_(1, torch.tensor([[2], [0], [3], [1]]), x)),
    "out=buffer": into_plain(lambda buffer, x: torch.mul(x, 2, out=buffer)), "out= of no elements": lambda x: torch.mul(x, 2, out=torch.empty(0)),
    "gradient into a buffer": lambda x: gradient(x, lambda y: assigned(([2, 0, 3, 1], slice(None)))(y * y) * VALUE),
    "new_zeros": lambda x: x.new_zeros(3), "new_tensor": lambda x: x.new_tensor([1, 2]), "zeros_like": torch.zeros_like, "2 ** x": lambda x: 2**x,
    "x @ x.T": lambda x: x @ x.T, "unbind": lambda x: x.unbind(), "split": lambda x: x.split(2), "chunk": lambda x: x.chunk(3, 1),
    "cat": lambda x: torch.cat([x, x], 1), "sort": lambda x: x.sort(descending=True)[0], "topk": lambda x: x.topk(2)[0],
    "cumsum": lambda x: x.cumsum(1), "einsum": lambda x: torch.einsum("ij,kj->ik", x, x), "flip": lambda x: x.flip(0), "roll": lambda x: x.roll(1),
    "meshgrid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij"), "unique": lambda x: x.long().unique(), "bincount": lambda x: x.long().flatten().bincount(),
    "gather": lambda x: x.gather(1, torch.tensor([[0], [1], [2], [3]])), "as_strided": lambda x: x.as_strided((2, 2), (6, 1)),
    "t_": lambda x: x.clone().t_(), "unsqueeze_": lambda x: x.clone().unsqueeze_(0).squeeze_(0), "quantile": lambda x: x.quantile(0.3, dim=1),
    "quantiles": lambda x: gradient(x, lambda y: y.quantile(torch.tensor([0.2, 0.9]), keepdim=True)),
    "nanquantile": lambda x: torch.where(x > 1, x, torch.nan).nanquantile(torch.tensor([0.0, 0.4]), 0, interpolation="nearest"),
    "gradient of t_": lambda x: gradient(x, lambda y: (y * 2)[:, 1:5].t_().mul_(VALUE[:, :4])), "fft": lambda x: gradient(x, lambda y: torch.fft.fft2(y).real * VALUE),
    "rfft and back": lambda x: torch.fft.irfft(torch.fft.rfft(x), n=6), "rotary embeddings": lambda x: gradient(x, lambda y: rotated(y) * VALUE),
    "complex": lambda x: [x * 1j, (x * 1j + x).conj().imag, torch.complex(x, -x).abs()], "packed sequences": packed, "corrcoef": lambda x: x[0].corrcoef(),
    "loss * loss": lambda x: (lambda loss: loss * loss)(x.sum()), "Parameter": lambda x: torch.nn.Parameter(x.clone()), "Parameter deepcopy": lambda x: copy.deepcopy(torch.nn.Parameter(x.clone())),
    "Parameter repr": lambda x: bool(repr(torch.nn.Parameter(x.clone()))), "gradient": lambda x: gradient(x, lambda y: y * y),
    "register_hook": hooked, "retain_grad": retained, "double backward": twice, "no_grad": torch.no_grad()(lambda x: x * 2),
    "inference_mode": torch.inference_mode()(lambda x: x * 2), "Function": lambda x: gradient(x, Square.apply), "autocast": amp,
    "checkpoint": lambda x: gradient(x, lambda y: checkpoint(lambda a: (a * a).sin(), y, use_reentrant=False)),
    "checkpoint reentrant": lambda x: gradient(x, lambda y: checkpoint(lambda a: (a * a).sin(), y, use_reentrant=True)),
    "checkpointed dropout": dropout_again, "vmap": torch.func.vmap(lambda a: (a * a).sum()), "func.grad": torch.func.grad(lambda a: (a**3).sum()),
    "jacrev": torch.func.jacrev(lambda a: (a**2).sum(1)), "get and set rng state": lambda x: restored(), "fork_rng": lambda x: forked(),
    "state_dict": lambda x: list(linear(x).state_dict().values()), "load_state_dict": load_state, "clip_grad_norm_": clip, "module hooks": module_hooks,
    "parametrize": lambda x: torch.nn.utils.parametrizations.weight_norm(linear(x))(x), "mixed groups": mixed_groups,
    "mixed groups foreach": lambda x: mixed_groups(x, foreach=True), "mixed groups fused": lambda x: mixed_groups(x, fused=True),
    "SGD": optimized(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)), "Adam": optimized(torch.optim.Adam), "AdamW": optimized(torch.optim.AdamW),
    "Adam foreach": optimized(lambda p: torch.optim.Adam(p, foreach=True)), "Adam fused": optimized(lambda p: torch.optim.Adam(p, fused=True)),
    "RMSprop": optimized(torch.optim.RMSprop), "Adagrad": optimized(torch.optim.Adagrad), "Adadelta": optimized(torch.optim.Adadelta),
    "Adamax": optimized(torch.optim.Adamax), "NAdam": optimized(torch.optim.NAdam), "RAdam": optimized(torch.optim.RAdam),
    "ASGD": optimized(torch.optim.ASGD), "Rprop": optimized(torch.optim.Rprop),
}

# Name: what to do, and what the refusal says.
REFUSED = {
    "pickle": (pickle.dumps, "torch.save\\(tessera.full_tensor"),
    "torch.save": (lambda x: torch.save(x, io.BytesIO()), "torch.save\\(tessera.full_tensor"),
    "data_ptr": (lambda x: x.data_ptr(), "to_local"), "storage": (lambda x: x.untyped_storage(), "to_local"),
    "a model's storage": (lambda x: linear(x).weight.untyped_storage(), r"tessera\.save\('model\.safetensors', model\).*tessera\.full_state_dict\(model\)"),
    "share_memory_": (lambda x: x.share_memory_(), "to_local"), "apply_": (lambda x: x.apply_(abs), "to_local"),
    "resize_": (lambda x: x.clone().resize_(2), "from_local"), "compile": (lambda x: torch.compile(lambda a: a * 2, backend="eager")(x), "uncompiled"),
    "compile a model": (lambda x: torch.compile(linear(x)), "Linear is on a mesh.*uncompiled"), "a model's compile": (lambda x: linear(x).compile(), "uncompiled"),
    "export": (lambda x: torch.export.export(linear(VALUE), (x,)), "uncompiled"), "trace": (lambda x: torch.jit.trace(lambda a: a * 2, x), "untraced"),
    "sparse": (lambda x: x.to_sparse(), "full_tensor"), "nested": (lambda x: torch.nested.nested_tensor([x, x]), "full_tensor"),
    "jvp": (lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),)), "torchrun"),
    "DTensor()": (lambda x: tessera.DTensor(x), "distribute_tensor"),
}


def attempt(action, x):
    try:
        return full(action(x))
    except Exception as error:
        return error


def are_alike(got, want):
    if isinstance(want, torch.Tensor):
        limit = 0.02 if want.dtype in (torch.half, torch.bfloat16) else 1e-5
        return isinstance(got, torch.Tensor) and got.dtype == want.dtype and torch.allclose(got, want, rtol=limit, atol=limit)
    if isinstance(want, list) and isinstance(got, list):
        return len(got) == len(want) and all(map(are_alike, got, want))
    return abs(got - want) <= 1e-5 if isinstance(want, float) and isinstance(got, float) else got == want


def answers(actions, layout):
    """Of rank 0."""

    def on_ranks():
        whole = tessera.distribute_tensor(VALUE, tessera.Mesh([("tp", RANKS)]))
        # a new one for each: what reads a Partial merges it
        return {name: attempt(action, tessera.redistribute(whole, layout)) for name, action in actions.items()}

    return tessera.run_ranks(on_ranks, RANKS, deadline=30)


class TensorTest(unittest.TestCase):
    def test_the_answers_of_a_plain_tensor(self):
        want = {name: full(action(VALUE)) for name, action in RIGHT.items()}
        for layout in LAYOUTS:
            for name, got in answers(RIGHT, layout).items():
                with self.subTest(layout=layout, what=name):
                    # bfloat16 inside keeps 8 bits of 52: a Partial is merged in another place
                    self.assertTrue(are_alike(got, want[name]) or name == "autocast" and (got[1] - want[name][1]).abs().max() <= 0.25,
                                    f"{got!r} instead of {want[name]!r}")
        print(f"{len(RIGHT)} ways to use a tensor, in {len(LAYOUTS)} layouts: right; {len(REFUSED)} refused")

    def test_refusals_say_what_to_write(self):
        actions = {name: action for name, (action, _) in REFUSED.items()}
        for layout in LAYOUTS:
            for name, got in answers(actions, layout).items():
                with self.subTest(layout=layout, what=name):
                    self.assertIsInstance(got, Exception)
                    self.assertRegex(str(got), REFUSED[name][1])

    def test_a_data_loader_with_forked_workers(self):
        data = torch.utils.data.TensorDataset(torch.arange(40.0).reshape(20, 2))

        def on_ranks():
            total = 0.0
            for (rows,) in torch.utils.data.DataLoader(data, batch_size=5, num_workers=2):
                total += tessera.distribute_tensor(rows, tessera.Mesh([("dp", RANKS)]), tessera.Shard(0)).sum().item()
            return total

        self.assertEqual(tessera.run_ranks(on_ranks, RANKS, deadline=30), 780.0)

    def test_layouts_inside_of_torch_func(self):
        """A tensor inside of a derivative answers as the DTensor that it stands for; one inside of vmap, which lacks a dim, says where to ask."""
        grad, vmap = torch.func.grad, torch.func.vmap

        def layout(a, seen):
            seen.append((a.placements, a.device_mesh))
            return a.sum()

        def on_ranks():
            mesh, seen, refused = tessera.Mesh("tp=4"), [], []
            x = tessera.distribute_tensor(VALUE, mesh, tessera.Shard(1))
            for transform in (grad, lambda f: grad(lambda a: grad(f)(a).sum()), lambda f: lambda a: torch.func.vjp(f, a)):
                transform(lambda a: layout(a, seen))(x)
            for transform in (vmap, lambda f: grad(lambda a: vmap(f)(a).sum()), lambda f: vmap(grad(f))):
                refused.append(attempt(transform(lambda a: layout(a, seen)), x))
            return seen == [((tessera.Shard(1),), mesh)] * 3, refused, attempt(grad(lambda a: layout(a, seen)), VALUE)

        answered, refused, plain = tessera.run_ranks(on_ranks, RANKS, deadline=30)
        self.assertTrue(answered)
        for error in refused:
            self.assertIsInstance(error, AttributeError)
            self.assertRegex(str(error), r"inside torch.func.vmap a tensor has no `placements`: .*\{tp: S\(1\)\}.*; ask outside of vmap")
        self.assertRegex(str(plain), "a plain tensor has no `placements`")

    def test_ragged_cuts(self):
        value = torch.arange(32.0).reshape(8, 4)

        def on_ranks():
            x = tessera.distribute_tensor(value, tessera.Mesh("fsdp=3"), [tessera.RaggedShard((-2,), (3, 0, 5))])
            placement = x.placements[0]
            self.assertIsInstance(placement, tessera.RaggedShard)
            self.assertIsInstance(placement, tessera.Shard)
            self.assertEqual((placement.kind, placement.dim, placement.unit, placement.sizes), ("ragged shard", 0, 1, (3, 0, 5)))
            self.assertEqual(placement, tessera.RaggedShard([0], [3, 0, 5]))
            y = (x.t() * 2).relu()
            self.assertEqual(repr(y.placements[0]), "S(1|3,0,5)")
            self.assertTrue(torch.equal(y.full_tensor(), (value.t() * 2).relu()))
            moved = tessera.redistribute(x, "{fsdp: S(0|2*4,0)}")
            return tessera.to_local(x).shape[0], tessera.to_local(moved).shape[0], tessera.Shard(0).sizes

        self.assertEqual(tessera.run_ranks(on_ranks, 3), (3, 4, None))
        with self.assertRaisesRegex(RuntimeError, "gives 7 elements of dim 0 to 3 ranks; accepted: 3 sizes that add up to 8"):
            tessera.run_ranks(lambda: tessera.distribute_tensor(value, tessera.Mesh("fsdp=3"), [tessera.RaggedShard((0,), (3, 0, 4))]), 3)
        with self.assertRaisesRegex(RuntimeError, "accepted: one dim, or the leading ones"):
            tessera.RaggedShard((1, 2), (3, 5))

    def test_cuts_of_dims_taken_together(self):
        value = torch.arange(24.0).reshape(2, 3, 4)

        def on_ranks():
            x = tessera.distribute_tensor(value, tessera.Mesh("fsdp=3"), [tessera.RaggedShard((0, 1), (1, 0, 5))])
            placement = x.placements[0]
            self.assertIsInstance(placement, tessera.RaggedShard)
            self.assertEqual((placement.kind, placement.dim, placement.sizes, repr(placement)), ("spanning shard", 1, (1, 0, 5), "S(0-1|1,0,5)"))
            y = x * 2 + value
            self.assertEqual(y.placements, x.placements)
            self.assertTrue(torch.equal(y.full_tensor(), value * 3))
            self.assertTrue(torch.equal(x[1].full_tensor(), value[1]))
            return tuple(tessera.to_local(x).shape)

        self.assertEqual(tessera.run_ranks(on_ranks, 3), (1, 1, 4))

    def test_placements_as_python_writes_them(self):
        """Each prints as in the notation; a dim may count from the end, which is known where the tensor is."""
        for placement, text in ((tessera.Shard(1, unit=2), "S(1;2)"), (tessera.InterleavedShard(0, 3), "S(0/3)"), (tessera.RaggedShard((0,), (3, 0, 5)), "S(0|3,0,5)"), (tessera.Partial("max"), "P(max)"), (tessera.On(1), "On(1)")):
            self.assertEqual(repr(placement), text)

        def on_ranks():
            x = tessera.distribute_tensor(VALUE, tessera.Mesh("tp=2"), [tessera.Shard(-1)])
            return x.placements, tuple(tessera.to_local(x).shape)

        self.assertEqual(tessera.run_ranks(on_ranks, 2), ((tessera.Shard(1),), (4, 3)))

    def test_meshes_as_text(self):
        def on_ranks():
            x = tessera.distribute_tensor(VALUE, "dp=1,tp=2", [tessera.Replicate(), tessera.Shard(0)])
            self.assertEqual(x.device_mesh, tessera.Mesh("dp=1,tp=2"))
            y = tessera.from_local(x.to_local(), "tp=2", [tessera.Shard(0)])
            moved = y.redistribute("tp=2", [tessera.Replicate()])
            for wrong in (2, ("tp", 2), {"tp": 2}):
                with self.assertRaisesRegex(TypeError, r"\[mesh\] .*; accepted: text"):
                    y.redistribute(wrong, [tessera.Replicate()])
            with self.assertRaisesRegex(ValueError, "\"tp=two\" is no mesh"):
                tessera.from_local(VALUE, "tp=two", [tessera.Shard(0)])
            return torch.equal(moved.to_local(), VALUE)

        self.assertTrue(tessera.run_ranks(on_ranks, 2))

    def test_on_one_coordinate(self):
        """The others hold nothing; what reads it runs there, and its gradient is there."""

        def on_ranks():
            mesh = tessera.Mesh("pp=2")
            x = tessera.distribute_tensor(VALUE.double(), mesh, [tessera.On(1)]).requires_grad_()
            y = (x * 2).sum()
            y.backward()
            self.assertIsInstance(x.placements[0], tessera.On)
            self.assertEqual((x.placements[0].coordinate, x.placements[0].dim), (1, None))
            return x.grad.placements, tessera.to_local(x).numel(), tessera.full_tensor(y).item(), tessera.redistribute(x, [tessera.On(0)]).placements

        placements, numel, total, moved = tessera.run_ranks(on_ranks, 2)
        self.assertEqual((placements, numel, moved), ((tessera.On(1),), 0, (tessera.On(0),)))
        self.assertAlmostEqual(total, 2 * VALUE.double().sum().item())

    def test_outside_of_a_rank(self):
        x = tessera.run_ranks(lambda: tessera.distribute_tensor(VALUE, tessera.Mesh("tp=2"), tessera.Shard(0)), 2)
        self.assertIsInstance(x, tessera.DTensor)
        with self.assertRaisesRegex(RuntimeError, "outside of a rank"):
            x + 1


def network():
    """The same on every rank."""
    layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6)).double()
    with torch.no_grad():
        for i, parameter in enumerate(layers.parameters()):
            parameter.copy_(torch.arange(1.0 + i, parameter.numel() + 1.0 + i).sin().reshape(parameter.shape) / 2)
    return layers


def train_averaged(model):
    """The parameters after three steps, their averages, and what the averaged model answers."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    rows = VALUE.double()
    for _ in range(3):
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
        averaged.update_parameters(model)
    return full([*model.parameters(), *averaged.parameters(), averaged(rows)])


class ModelTest(unittest.TestCase):
    def check(self, got, want):
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)

    def test_copies_train_and_are_averaged(self):
        def on_ranks():
            model = tessera.parallelize(network(), "dp=2,tp=2")
            return [train_averaged(copy.deepcopy(model)), train_averaged(copy.deepcopy(model)), train_averaged(model)]

        want = train_averaged(network())
        for got in tessera.run_ranks(on_ranks, RANKS, deadline=30):
            self.check(got, want)

    def test_the_forward_of_a_copy_inside_of_the_models(self):
        class Student(torch.nn.Linear):
            def forward(self, x):
                before = isinstance(torch.zeros(1), tessera.DTensor)
                for teacher in self.teachers:
                    teacher(x)
                return before, isinstance(torch.zeros(1), tessera.DTensor)

        def on_ranks():
            model = Student(6, 6)
            model.teachers = []
            tessera.parallelize(model, "tp=4")
            model.teachers = [copy.deepcopy(model)]
            return model(VALUE)

        self.assertEqual(tessera.run_ranks(on_ranks, RANKS, deadline=30), (True, True))

    def test_a_mesh_stands_for_its_plan(self):
        def on_ranks():
            mesh = "dp=2,tp=2"
            plans = [tessera.generate_plan(network(), mesh=mesh), mesh, tessera.Mesh(mesh)]
            return [[parameter.placements for parameter in tessera.parallelize(network(), plan).parameters()] for plan in plans]

        by_plan, *by_mesh = tessera.run_ranks(on_ranks, RANKS)
        self.assertIn((tessera.Replicate(), tessera.Shard(0)), by_plan)
        self.assertEqual(by_mesh, [by_plan, by_plan])

    def test_deferred_models(self):
        def on_ranks():
            model = tessera.deferred(lambda: torch.nn.Linear(6, 8))
            before = tessera.is_deferred(model), tessera.is_deferred(model.weight)
            tessera.parallelize(model, "tp=4")
            return *before, tessera.is_deferred(model), tessera.is_deferred(model.weight), tessera.is_deferred(torch.nn.ReLU())

        self.assertEqual(tessera.run_ranks(on_ranks, RANKS), (True, True, False, False, False))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    unittest.main()
