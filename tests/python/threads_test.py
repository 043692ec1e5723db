#!/usr/bin/env python3
"""How many threads libtorch has enters no bit: of an operator in `exact`, of an initialiser, of linear algebra.

Usage: threads_test.py [unittest's arguments]
"""

import itertools
import os
import subprocess
import sys
import unittest
import warnings

import tessera
import torch
from torch import nn
from torch.nn import functional as F

THREADS = (1, 2, 4)
LONG = 3 * 32768 + 5  # libtorch cuts a loop of more than 32768 elements


def wild(*sizes, salt=1):
    """Reals of both signs over many orders, so that another order of additions changes bits."""
    index = torch.arange(torch.Size(sizes).numel()) * 2654435761 + salt * 40503
    exponent = index.div(64, rounding_mode="floor").remainder(17) - 8
    return ((index.remainder(100003) / 50001.5 - 1) * exponent.double().exp2()).float().reshape(sizes)


def rows():
    return dict(x=wild(LONG), y=wild(LONG, salt=2), m=wild(300, 400), n=wild(400, 300, salt=3), image=wild(8, 4, 64, 64), ids=torch.arange(3000) % 97,
                table=wild(97, 64), positive=wild(LONG).abs() + 0.01, unit=wild(LONG).remainder(1) * 0.9)


# Of the exact table, one for each kind of kernel, and all functions of elements.
ELEMENTS = ("abs acos asin atan ceil cos cosh erf erfc erfinv exp exp2 expm1 floor frac log log10 log1p log2 neg reciprocal relu round rsqrt sgn sigmoid sign sin sinh "
            "sqrt tan tanh trunc").split()
MODULES = ("celu elu gelu hardshrink hardsigmoid hardswish leaky_relu logsigmoid mish silu softplus").split()
OPERATORS = {
    "add": lambda t: torch.add(t["x"], t["y"], alpha=0.3), "addcmul": lambda t: torch.addcmul(t["x"], t["y"], t["unit"], value=0.3),
    "amax": lambda t: t["x"].amax(), "argmax": lambda t: t["x"].argmax(), "atan2": lambda t: torch.atan2(t["x"], t["y"]), "cat": lambda t: torch.cat([t["x"], t["y"]]),
    "conv2d": lambda t: F.conv2d(t["image"], t["m"][:8, :36].reshape(8, 4, 3, 3)), "cumsum": lambda t: t["x"].cumsum(0), "div": lambda t: t["x"] / t["positive"],
    "embedding": lambda t: F.embedding(t["ids"], t["table"]), "layer_norm": lambda t: F.layer_norm(t["m"], (400,)), "lerp": lambda t: torch.lerp(t["x"], t["y"], 0.3),
    "log_softmax": lambda t: t["m"].log_softmax(0), "logsumexp": lambda t: t["x"].logsumexp(0), "masked_fill": lambda t: t["x"].masked_fill(t["y"] > 0, 1.0),
    "matmul": lambda t: t["m"] @ t["n"], "mean": lambda t: t["x"].mean(), "mse": lambda t: F.mse_loss(t["x"], t["y"]), "norm": lambda t: t["x"].norm(),
    "pool": lambda t: F.avg_pool2d(t["image"], 3), "pow": lambda t: t["positive"] ** t["unit"], "prod": lambda t: t["unit"].add(1).prod(0), "softmax": lambda t: t["m"].softmax(-1),
    "sum": lambda t: t["x"].sum(), "sum of rows": lambda t: t["m"].sum(0), "t": lambda t: t["m"].t().contiguous(), "var": lambda t: t["x"].var(), "where": lambda t: torch.where(t["x"] > 0, t["x"], t["y"]),
} | {name: lambda t, name=name: getattr(torch, name)(t["unit" if name in ("acos", "asin", "erfinv") else "positive"]) for name in ELEMENTS} \
  | {name: lambda t, name=name: getattr(F, name)(t["x"]) for name in MODULES}

LINEAR_ALGEBRA = {
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.T / 300 + torch.eye(300).to(x.dtype)), "eigh": lambda x: torch.linalg.eigh(x + x.T)[1], "inv": torch.linalg.inv,
    "lu": lambda x: torch.linalg.lu(x)[2], "matrix_exp": lambda x: torch.linalg.matrix_exp(x / 1e3), "pinv": torch.linalg.pinv, "qr": lambda x: torch.linalg.qr(x)[0],
    "solve": lambda x: torch.linalg.solve(x, x[:, :3]), "svd": lambda x: torch.linalg.svd(x)[0],
}

INITIALISERS = {
    "kaiming": nn.init.kaiming_uniform_, "normal": nn.init.normal_, "orthogonal": nn.init.orthogonal_, "trunc_normal": nn.init.trunc_normal_, "uniform": nn.init.uniform_,
    "xavier": nn.init.xavier_normal_,
}


def on(threads, numerics, body):
    def on_rank():
        torch.set_num_threads(threads)  # the rank's share of the cores
        tessera.numerics(numerics)
        return body()

    return tessera.run_ranks(on_rank, 1)


class ThreadsTest(unittest.TestCase):
    def check(self, body, name, numerics="exact"):
        """`body` gives the same bits on any number of threads."""
        first, *others = [on(threads, numerics, body) for threads in THREADS]
        for threads, other in zip(THREADS[1:], others, strict=True):
            self.assertTrue(torch.equal(first.nan_to_num(), other.nan_to_num()), f"{name}, {threads} threads")

    def test_operators_in_exact(self):
        mesh = tessera.Mesh("1")
        values = rows()

        def distributed():
            return {name: tessera.distribute_tensor(value, mesh, []) for name, value in values.items()}

        for name, operator in OPERATORS.items():
            with self.subTest(name=name):
                self.check(lambda operator=operator: tessera.full_tensor(operator(distributed())), name)

    def test_plain_tensors_in_exact(self):
        values = rows()
        for name, operator in OPERATORS.items():
            with self.subTest(name=name):
                self.check(lambda operator=operator: operator(values), name)

    def test_a_plain_sum_depends_on_them_in_fast(self):
        """The control."""
        sums = [on(threads, "fast", lambda: wild(LONG).sum()) for threads in THREADS]
        self.assertGreater(len({each.item() for each in sums}), 1)

    def test_linear_algebra(self):
        matrix = wild(300, 300).double() + 300 * torch.eye(300, dtype=torch.float64)
        for numerics in ("fast", "exact"):
            for name, operator in LINEAR_ALGEBRA.items():
                with self.subTest(name=name, numerics=numerics):
                    self.check(lambda operator=operator: operator(matrix), name, numerics)

    def test_a_limit_of_openmp(self):
        """Under OMP_THREAD_LIMIT a rank takes no threads that do not come: oneDNN would leave the parts of a product in bfloat16 that they were given."""
        env = {**os.environ, "OMP_THREAD_LIMIT": "1", "OMP_NUM_THREADS": "1"}
        said = subprocess.run([sys.executable, __file__, "--under-a-limit"], env=env, capture_output=True, text=True, timeout=120)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertEqual(said.stdout.split(), ["1", "0"], said.stderr)

    def test_initialisers(self):
        def filled(initialise):
            torch.manual_seed(11)
            return torch.cat([initialise(torch.empty(sizes)).flatten() for sizes in ((30, 20), (300, 400), (400, 300))])

        for numerics in ("fast", "exact"):
            for name, initialise in INITIALISERS.items():
                with self.subTest(name=name, numerics=numerics):
                    self.check(lambda initialise=initialise: filled(initialise), name, numerics)


def under_a_limit():
    """Prints the threads of the only rank of a job, and how many of 24 products in bfloat16 are not those of one thread."""

    def on_rank():
        threads = torch.get_num_threads()
        wrong = 0
        for m, k, n in itertools.product((16, 101), (64, 128), (32, 48)):
            a, b = wild(m, k).bfloat16(), wild(k, n, salt=3).bfloat16()
            right = a.double() @ b.double()
            for product in (a @ b, a.T.contiguous().T @ b, a @ b.T.contiguous().T):
                wrong += not torch.allclose(product.double(), right, rtol=0.01, atol=0.01 * float(right.abs().max()))
        return threads, wrong

    print(*tessera.run_ranks(on_rank, 1))


if __name__ == "__main__":
    if sys.argv[1:] == ["--under-a-limit"]:
        under_a_limit()
        sys.exit()
    warnings.simplefilter("ignore")
    unittest.main()
