"""PyTorch's own samples of an operator (`op_db`) on DTensors, compared with plain torch: values on every rank, and gradients.

`judge` runs one variant in one mode. A combination is one sample with a placement for each tensor in it.
"""

import collections
import importlib.util
import itertools
import random
import re
import sys
import time
import types
import unittest

import tessera
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

# op_db's module imports a package whose test case is the base of one that is not used here.
if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase)
import torch.testing._internal.common_methods_invocations as invocations  # noqa: E402

DEADLINE = 20.0
COMBINATIONS_OF_A_SAMPLE = 64
EXAMPLES = 3

# What an outcome may be, the worst first. A variant is what its worst combination is; random and skipped ones are not judged.
VERDICTS = ("wrong value", "wrong gradient", "raw error", "refused", "random", "pass", "skipped")

# Where the values of the result are whatever was in memory.
UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}

# The variants that are refused, and why.
REFUSED = {
    "resize_": "a DTensor has no storage to resize",
    "resize_as_": "a DTensor has no storage to resize",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "a kernel that scaled_dot_product_attention chooses; torch 2.15 has samples of it",
}

# The factors of a partial sum's terms by their coordinate: they add up to one, and no sum on the way is rounded.
TERMS = {2: (2.0, -1.0), 3: (1.0, 1.0, -1.0), 4: (1.0, 1.0, -2.0, 1.0)}


class Mode:
    """A mesh, and the placements that a tensor may have there."""

    def __init__(self, mesh, sizes, cuts, partial):
        self.mesh, self.sizes, self.cuts, self.partial = tessera.Mesh(mesh), sizes, cuts, partial

    def on_axis(self, tensor, axis):
        ranks = self.mesh.shape[axis]
        kinds = [tessera.Replicate()]
        if tensor.dtype == torch.bool:
            return kinds
        kinds += [tessera.Shard(d) for d, size in enumerate(tensor.shape) if size > 1 and self.cuts(size, ranks)]
        return kinds + [tessera.Partial()] * (self.partial and tensor.dtype.is_floating_point)

    def placements(self, tensor):
        return list(itertools.product(*(self.on_axis(tensor, axis) for axis in range(self.mesh.ndim))))

    def concerns(self, combination):
        """Whether a combination is what the mode is for."""
        return any(not p.is_replicate() for placements in combination for p in placements)


def divides(size, ranks):
    return size % ranks == 0


def does_not_divide(size, ranks):
    return size % ranks != 0


def always(size, ranks):
    return True


def never(size, ranks):
    return False


# op_db's names of its sizes, as it has them itself, and for four ranks.
OWN_SIZES, EVEN_SIZES = {"L": 20, "M": 10, "S": 5, "XS": 3}, {"L": 24, "M": 12, "S": 4, "XS": 2}
MODES = {
    "even": Mode("tp=4", EVEN_SIZES, divides, partial=False),
    "uneven": Mode("tp=3", OWN_SIZES, does_not_divide, partial=False),
    "partial": Mode("tp=4", EVEN_SIZES, never, partial=True),
    "2x2": Mode("dp=2,tp=2", EVEN_SIZES, always, partial=True),
    "2x3": Mode("dp=2,tp=3", OWN_SIZES, always, partial=True),
}


def variants():
    """op_db's variants in float32 on the CPU, by name."""
    return {op.full_name: op for op in invocations.op_db if torch.float32 in op.supported_dtypes("cpu")}


def is_dense(tensor):
    return tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_nested or tensor.is_neg() or tensor.is_conj())


def term(value, factor):
    """A partial sum's term: infinities and numbers that are none cannot be split, and stand in every term."""
    return torch.where(value.isfinite(), value * factor, value)


def place(value, mesh, placements):
    whole = [tessera.Replicate() if p.is_partial() else p for p in placements]
    placed = tessera.distribute_tensor(value.detach().clone(), mesh, whole)
    if whole == list(placements):
        return placed.detach()
    rank, factor = tessera.rank(), 1.0
    for axis in reversed(range(mesh.ndim)):
        rank, coordinate = divmod(rank, mesh.shape[axis])
        if placements[axis].is_partial():
            factor *= TERMS[mesh.shape[axis]][coordinate]
    return tessera.from_local(term(placed.to_local(), factor), mesh, list(placements), shape=list(value.shape)).detach()


def elsewhere(tensor):
    """The same values, with others behind them in memory: an operator that reads beyond the end gives something else."""
    if not tensor.is_contiguous():
        return tensor.clone()
    behind = torch.full((64,), float("nan") if tensor.is_floating_point() or tensor.is_complex() else 1, dtype=tensor.dtype)
    return torch.cat([tensor.flatten(), behind])[:tensor.numel()].view(tensor.shape)


def whole(value):
    return value.full_tensor() if isinstance(value, tessera.DTensor) else value


def tolerances(dtype):
    """Wide on purpose: what fails is wrong, not rounded."""
    return {torch.float16: (1e-2, 1e-3), torch.bfloat16: (5e-2, 1e-2)}.get(dtype, (1e-3, 1e-4))


def difference(got, want):
    """How two results differ, empty if they do not."""
    if isinstance(want, (bool, int, float, complex)):
        return "" if got == want or got != got and want != want or isinstance(got, type(want)) and abs(got - want) <= 1e-3 * abs(want) else f"{got} instead of {want}"
    if not isinstance(want, torch.Tensor):
        return ""
    if not isinstance(got, torch.Tensor):
        return f"{type(got).__name__} instead of a tensor"
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{tuple(got.shape)} instead of {want.dtype}{tuple(want.shape)}"
    if not (want.is_floating_point() or want.is_complex()):
        return "" if torch.equal(got, want) else "other values"
    rtol, atol = tolerances(want.dtype)
    if torch.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True):
        return ""
    return f"off by {(got - want).abs().max().item():.3g}"


def differentiable(outputs):
    return [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad and (o.is_floating_point() or o.is_complex())]


def gradients(outputs, leaves):
    """Of one number made of all outputs."""
    loss = 0
    for output in differentiable(outputs):
        real = output.real + output.imag if output.is_complex() else output
        loss = loss + (real * torch.arange(real.numel(), dtype=real.dtype).cos().reshape(real.shape)).sum()
    return torch.autograd.grad(loss, [x for x in leaves if x.requires_grad], allow_unused=True)


class Sample:
    """One call of op_db's."""

    def __init__(self, op, sample):
        self.op = op
        self.values, self.structure = tree_flatten(([sample.input, *sample.args], dict(sample.kwargs)))
        self.places = [i for i, value in enumerate(self.values) if isinstance(value, torch.Tensor)]
        self.tensors = [self.values[i].detach() for i in self.places]
        self.wants = [self.values[i].requires_grad for i in self.places]
        self.outputs = None

    def call(self, tensors):
        """The outputs. Leaves are copied first, so that an operator may write into its operand."""
        values = list(self.values)
        for i, tensor in zip(self.places, tensors):
            values[i] = tensor.clone() if tensor.requires_grad and self.writes() else tensor
        args, kwargs = tree_unflatten(values, self.structure)
        return tree_leaves(self.op.op(*args, **kwargs))

    def writes(self):
        return self.op.name.endswith("_") or self.op.name in ("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "uniform")

    def leaves(self, tensors):
        return [x.requires_grad_(wants) for x, wants in zip(tensors, self.wants)]

    def run_plainly(self):
        """What plain torch gives, and whether that is random. Raises what plain torch raises, and where it reads what is not its own."""
        torch.manual_seed(0)
        leaves = self.leaves([x.clone() for x in self.tensors])
        outputs = self.call(leaves)
        torch.manual_seed(0)
        there = self.call([elsewhere(x) for x in self.tensors])
        if self.op.name not in UNINITIALISED and any(difference(a, b) for a, b in zip(there, [whole_of(o) for o in outputs])):
            raise RuntimeError("its result depends on what lies beyond its operands in memory")
        self.is_steady = self.op.name in UNINITIALISED or not any(self.differs(outputs, seed=0) for _ in range(4))
        self.is_random = self.differs(outputs, seed=1)
        try:
            self.gradients = gradients(outputs, leaves) if differentiable(outputs) else None
        except RuntimeError:
            self.gradients = None  # plain torch has none of these numbers
        self.outputs = [whole_of(output) for output in outputs]

    def differs(self, outputs, seed):
        """Whether another call after `seed` gives other values."""
        torch.manual_seed(seed)
        again = self.call([x.clone() for x in self.tensors])
        return len(outputs) != len(again) or any(difference(a, b) for a, b in zip(again, [whole_of(o) for o in outputs]))

    def compare(self, mesh, combination):
        """(verdict, why) of this rank."""
        if not self.is_steady:  # what ranks found would differ by chance, and they would part
            return "random", "plain torch gives other values at every call"
        torch.manual_seed(0)
        leaves = self.leaves([place(x, mesh, placements) for x, placements in zip(self.tensors, combination)])
        outputs = [whole(output) for output in self.call(leaves)]
        if len(outputs) != len(self.outputs):
            return "wrong value", f"{len(outputs)} outputs instead of {len(self.outputs)}"
        for i, (got, want) in enumerate(zip(outputs, self.outputs)):
            why = difference(whole_of(got), want)
            if why and not (self.op.name in UNINITIALISED and got.shape == want.shape and got.dtype == want.dtype):
                return ("random" if self.is_random and "instead" not in why else "wrong value"), f"output {i} is {why}"
        if self.gradients is None or self.op.name in UNINITIALISED:
            return "pass", ""
        for i, (got, want) in enumerate(zip(gradients(outputs, leaves), self.gradients)):
            if got is None or want is None:
                rest = whole(want if got is None else got)
                why = "missing on one side" if rest is not None and bool((rest != 0).any()) else ""
            else:
                why = difference(whole(got).detach(), want)
            if why:
                return "wrong gradient", f"gradient {i} is {why}"
        return "pass", ""

    def describe(self, combination):
        operands = ", ".join(f"{tuple(x.shape)} {' '.join(map(str, placements))}" for x, placements in zip(self.tensors, combination))
        rest = [value for value in self.values if not isinstance(value, torch.Tensor)]
        return f"{operands}" + (f"; {str(rest)[:120]}" if rest else "")


def whole_of(output):
    return output.detach() if isinstance(output, torch.Tensor) else output


def is_refusal(error):
    """A sentence of tessera's own: it begins with the call that it refuses."""
    return not isinstance(error, tessera.CommError) and bool(re.match(r"\[[\w:.]+\b|\w+: a DTensor |torch\.", str(error))) and "INTERNAL ASSERT" not in str(error)


def outcome_of_error(error):
    return "refused" if is_refusal(error) else "raw error", f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


class RankLog:
    """What one rank found, pair by pair, until its communicator broke."""

    def __init__(self):
        self.outcomes, self.broke = [], False

    def run(self, mode, pairs):
        tessera.set_generator("stock")
        for sample, combination in pairs:
            try:
                self.outcomes.append(sample.compare(mode.mesh, combination))
            except Exception as error:
                self.outcomes.append(outcome_of_error(error))
                self.broke = isinstance(error, (tessera.CommError, torch.distributed.DistBackendError))
                if self.broke:
                    return


def together(outcomes):
    """One outcome of the ranks': the worst. Ranks that do not all refuse have parted."""
    verdict, why = min(outcomes, key=lambda outcome: VERDICTS.index(outcome[0]))
    if verdict == "refused" and any(other != "refused" for other, _ in outcomes):
        return "raw error", f"the ranks parted: {why}"
    return verdict, why


def on_ranks(work, mode):
    """The outcomes of pairs (sample, combination), one after the other."""
    outcomes = []
    while len(outcomes) < len(work):
        logs = [RankLog() for _ in range(mode.mesh.size())]
        try:
            tessera.run_ranks(lambda: logs[tessera.rank()].run(mode, work[len(outcomes):]), mode.mesh.size(), deadline=DEADLINE)
        except Exception as error:
            return outcomes + [outcome_of_error(error)] * (len(work) - len(outcomes))
        found = list(itertools.zip_longest(*(log.outcomes for log in logs), fillvalue=("raw error", "the ranks parted")))
        if any(log.broke for log in logs) and len(found) > 1:
            found.pop()  # what broke may be what the pair before left behind: it runs again, alone
        outcomes += map(together, found)
    return outcomes


def combinations_of(sample, mode, seed):
    """Some of the sample's, in an order of the seed's."""
    choices = [mode.placements(x) for x in sample.tensors]
    all_of_them = itertools.islice(itertools.product(*choices), 4096)
    wanted = [combination for combination in all_of_them if mode.concerns(combination)]
    random.Random(seed).shuffle(wanted)
    return wanted[:COMBINATIONS_OF_A_SAMPLE]


def rounds(samples, mode, seed):
    """Pairs (sample, combination): each sample's first, then each one's second, and so on."""
    lists = [[(sample, combination) for combination in combinations_of(sample, mode, seed)] for sample in samples]
    random.Random(seed).shuffle(lists)
    return [pair for of_round in itertools.zip_longest(*lists) for pair in of_round if pair is not None]


def listed(op, sizes):
    """op_db's samples of the variant, made with these sizes and the same numbers each time."""
    for name, size in sizes.items():
        setattr(invocations, name, size)
    torch.manual_seed(0)
    random.seed(0)
    return list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))


def samples_of(op, sizes, counts):
    """Those that can be judged: of dense tensors that are not empty, which plain torch computes."""
    try:
        samples = listed(op, sizes)
    except (IndexError, RuntimeError):  # argwhere, cumprod and prod name places that only op_db's own sizes have
        samples = listed(op, OWN_SIZES)
    found = []
    for sample in samples:
        sample = Sample(op, sample)
        if not sample.tensors or not all(map(is_dense, sample.tensors)) or any(x.numel() == 0 for x in sample.tensors):
            counts["skipped"] += 1
        else:
            found.append(sample)
    return found


def judge(op, mode, seconds, seed=0):
    """The record of one variant in one mode: as many combinations as `seconds` of this process allow, and at least one."""
    counts, examples = collections.Counter(), {}
    work = rounds(samples_of(op, mode.sizes, counts), mode, seed)
    begin, done, step = time.process_time(), 0, 1
    while done < len(work) and (done == 0 or time.process_time() - begin < seconds):
        chunk = [pair for pair in work[done:done + step] if can_run_plainly(pair[0], counts)]
        for (sample, combination), (verdict, why) in zip(chunk, on_ranks(chunk, mode)):
            counts[verdict] += 1
            if verdict != "pass" and len(examples.setdefault(verdict, [])) < EXAMPLES:
                examples[verdict].append(f"{sample.describe(combination)} :: {why}")
        done, step = done + step, min(2 * step, 32)
    return {"combinations": len(work), "counts": dict(counts), "examples": examples, "seconds": round(time.process_time() - begin, 2)}


def can_run_plainly(sample, counts):
    if sample.outputs is not None:
        return True
    try:
        sample.run_plainly()
    except Exception:
        counts["skipped"] += 1
        return False
    return True


def verdict_of(record):
    """Of a variant: its worst."""
    judged = [verdict for verdict in VERDICTS if record["counts"].get(verdict)]
    return judged[0] if judged else "skipped"
