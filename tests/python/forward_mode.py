"""Derivatives in forward mode of DTensors against those of plain tensors. Every rank is a process: libtorch counts levels once a process."""

import itertools

import tessera
import torch
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

LAYOUTS = ("S(0)", "S(1)", "R", "P")
A, B, ALONG_A, ALONG_B = torch.randn(4, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def heads(x):
    return x.reshape(2, 2, 2, 3).transpose(1, 2)


def attention(a, b):
    with sdpa_kernel(SDPBackend.MATH):  # of the plain tensors: the others have no forward mode
        return functional.scaled_dot_product_attention(heads(a), heads(b), heads(a * b), is_causal=True)


def written(a, b):
    c = a * 2
    c[1] = b[1]
    c.mul_(b)
    return c


# Of `a` [4, 6] and `b` [4, 6].
FUNCTIONS = {
    "elementwise": lambda a, b: torch.tanh(a) * b - a / (b.square() + 1),
    "matmul": lambda a, b: (a @ b.T).sin() @ a,
    "linear": lambda a, b: functional.linear(a, b, b[:, 0]),
    "einsum": lambda a, b: torch.einsum("ik,jk->ij", a, b),
    "sums": lambda a, b: a.sum(0) * b.mean() + a.amax(),
    "softmax": lambda a, b: (a * b).softmax(-1).log(),
    "layer_norm": lambda a, b: functional.layer_norm(a, (6,), b[0], b[1]),
    "views": lambda a, b: torch.cat([a.T, b.reshape(6, 4)])[2:9].flip(0).cumsum(0),
    "writes": written,
    "indices": lambda a, b: functional.embedding(torch.tensor([0, 3, 3]), a) * b.gather(0, torch.tensor([[0, 1, 2, 3, 2, 1]])),
    "cross_entropy": lambda a, b: functional.cross_entropy(a @ b.T, torch.tensor([0, 3, 1, 2])),
    "attention": attention,
    "detached": lambda a, b: a.detach() * b,
    "backward": lambda a, b: torch.func.grad(lambda x: (x @ b.T).tanh().sum())(a),
}


# Derivatives of a function of `a`, made with forward mode.
TRANSFORMS = {
    "jacfwd": torch.func.jacfwd,
    "hessian": torch.func.hessian,
    "jacrev_of_jvp": lambda function: torch.func.jacrev(lambda a: by_jvp(function, (a,), (ALONG_A,))[1]),
}


MESH = tessera.Mesh("tp=2")


def moving(layout, operation):
    """Redistributed to a layout inside of operations."""
    return lambda a: operation(operation(a).redistribute(placements=f"{{tp: {layout}}}"))


# Of a DTensor, what moves its value; beside it the same of a plain tensor, and where the result lies, if it is this rank's part: None
# for that of the operand. The terms of a Partial are computed with linearly.
MOVES = {
    **{f"redistribute to {layout}": (moving(layout, torch.sin), lambda a: a.sin().sin(), "R") for layout in LAYOUTS},
    "full_tensor": (lambda a: (a * 2).full_tensor().sin(), lambda a: (a * 2).sin(), "R"),
    "to_local": (lambda a: (a * 2).to_local() * 3, lambda a: a * 6, None),
    "to_local of what is cut": (lambda a: a.redistribute(placements="{tp: S(1)}").to_local().sin(), torch.sin, "S(1)"),
}

# Made of all of them: how it is differentiated, and what.
MOVED = {
    "jacfwd": (torch.func.jacfwd, lambda a, move, whole: whole(move(a.sin())).sin().sum(0)),
    "hessian": (torch.func.hessian, lambda a, move, whole: whole(move(a.sin())).sin().sum()),
    "jacrev": (torch.func.jacrev, lambda a, move, whole: whole(move(a.sin())).sin().sum(0)),
    "grad_of_grad": (lambda f: torch.func.grad(lambda a: torch.func.grad(f)(a).square().sum()), lambda a, move, whole: whole(move(a.sin())).sin().sum()),
}


def by_jvp(function, primals, tangents):
    return torch.func.jvp(function, primals, tangents)


def by_levels(function, primals, tangents):
    with forward_ad.dual_level():
        result = function(*(forward_ad.make_dual(p, t) if t is not None else p for p, t in zip(primals, tangents)))
        return tuple(forward_ad.unpack_dual(result))


def placed(tensor, layout):
    return tensor if layout == "plain" else tessera.distribute_tensor(tensor, MESH, f"{{tp: {layout}}}")


def check_close(name, got, want):
    assert isinstance(got, tessera.DTensor), f"{name}: no DTensor"
    torch.testing.assert_close(tessera.full_tensor(got.detach()), want, rtol=1e-12, atol=1e-12, msg=lambda text: f"{name}: {text}")


def check(name, way, layouts):
    """Value and derivative of a function; `layouts` are those of both operands, then of their tangents, None for one that has none."""
    function, tangents = FUNCTIONS[name], (ALONG_A, ALONG_B)
    want = way(function, (A, B), tuple(t if layout else None for t, layout in zip(tangents, layouts[2:])))
    got = way(function, tuple(map(placed, (A, B), layouts)), tuple(placed(t, layout) if layout else None for t, layout in zip(tangents, layouts[2:])))
    for value, right in zip(got, want):
        check_close(f"{way.__name__} of {name}, {layouts}", value, right)


def check_whole(name, got, want, layout):
    """`got` is plain, a rank's part in this layout, or a DTensor."""
    if not isinstance(got, tessera.DTensor):
        got = tessera.from_local(got.detach(), MESH, f"{{tp: {layout}}}")
    check_close(name, got, want)


def times(a, b):
    return (a * b.redistribute(placements="{tp: R}")).full_tensor()


def check_moves():
    """redistribute, to_local and full_tensor."""
    for (name, (function, plain, result)), way, layout, along in itertools.product(MOVES.items(), (by_jvp, by_levels), LAYOUTS, (*LAYOUTS, "plain")):
        for got, want in zip(way(function, (placed(A, layout),), (placed(ALONG_A, along),)), way(plain, (A,), (ALONG_A,))):
            check_whole(f"{way.__name__} of {name}, {layout} along {along}", got, want, result or layout)
    yield "moves"
    for (name, (transform, function)), layout, to in itertools.product(MOVED.items(), LAYOUTS, LAYOUTS):
        got = transform(lambda a: function(a, lambda b: b.redistribute(placements=f"{{tp: {to}}}"), tessera.full_tensor))(placed(A, layout))
        check_whole(f"{name}, {layout} to {to}", got, transform(lambda a: function(a, lambda b: b, lambda b: b))(A), "R")
    for layout in LAYOUTS:
        got = torch.func.jacfwd(lambda a: a.to_local() * 3)(placed(A, layout))
        check_whole(f"jacfwd of to_local, {layout}", got, torch.func.jacfwd(lambda a: a * 3)(A), layout)
        for dim, other in ((0, A[0]), (1, A[:, 0])):
            got = torch.func.vmap(lambda a: times(a.sin().redistribute(placements="{tp: S(0)}"), placed(other, "S(0)")), dim)(placed(A, layout))
            check_whole(f"vmap over {dim}, {layout}", got, torch.func.vmap(lambda a: a.sin() * other, dim)(A), "R")
    yield "moved"


def check_refusals():
    """What has no derivative, and what vmap hides."""
    for name, function, words in (
        ("terms of a maximum", lambda: by_jvp(lambda a: a.to_local(), (placed(A, "P(max)"),), (placed(ALONG_A, "R"),)), "no derivative of their own"),
        ("a sample's part", lambda: torch.func.vmap(lambda a: a.to_local())(placed(A, "S(1)")), "outside of vmap"),
    ):
        try:
            function()
        except RuntimeError as error:
            assert words in str(error), f"{name}: {error}"
        else:
            raise AssertionError(f"{name}: not refused")
    yield "refusals"


def check_all():
    """Throws at the first that is wrong; yields the name of what is right."""
    for name in FUNCTIONS:
        for layout in LAYOUTS:
            check(name, by_jvp, (layout,) * 4)
            check(name, by_levels, (layout,) * 4)
            check(name, by_levels, (layout, layout, None, layout))
        yield name
    for of_a, of_b, along_a in itertools.product(LAYOUTS, LAYOUTS, (*LAYOUTS, "plain")):
        check("matmul", by_jvp, (of_a, of_b, along_a, of_a))
        check("writes", by_levels, (of_a, of_b, along_a, of_a))
    yield "layouts"
    for name, transform in TRANSFORMS.items():
        derivative = transform(lambda a: ((a @ B.T).tanh() * a[:, :4]).sum(0))
        for layout in LAYOUTS:
            check_close(f"{name}, {layout}", derivative(placed(A, layout)), derivative(A))
        yield name
    yield from check_moves()
    yield from check_refusals()
    tessera.numerics("exact")
    for layout in ("S(0)", "R"):
        check("attention", by_levels, (layout,) * 4)
    yield "exact"
