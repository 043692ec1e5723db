"""A training step inside of one call of a model: forward and backward of its micro-batches, in the order of the plan's schedule."""

import functools
import threading
import warnings

import torch
from torch.nn import functional

from tessera import _C
from tessera._arguments import named_tensors, with_tensors
from tessera._explain import line_of
from tessera._random import has_drawn_since, stream_of_rank

_running = threading.local()  # .step: the step whose micro-batch this thread computes the loss of


class StepOutput:
    """What a model's forward gives that was a whole training step: its `loss`, and the outputs that parallelize was told to keep, each a list with one
    tensor for each micro-batch. `output.loss`, `output["loss"]` and `output[0]` are the same."""

    def __init__(self, loss, kept):
        self.loss = loss
        vars(self).update(kept)

    def __getitem__(self, key):
        return tuple(vars(self).values())[key] if isinstance(key, (int, slice)) else getattr(self, key)

    def __contains__(self, name):
        return name in vars(self)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"[parallelize] `{name}` of a training step in micro-batches: each had its own, which went with its backward pass. Accepted: "
                             f"parallelize(..., keep_outputs=(\"{name}\",)), which keeps a list of them; a call under torch.no_grad()")

    def __repr__(self):
        return f"StepOutput({', '.join(f'{name}={value}' for name, value in vars(self).items())})"


class StepForward:
    """The forward of a placed model, in its place. Where it is called with gradients and computes its loss, the call is a whole step."""

    def __init__(self, model, step, micro_batches, keep):
        functools.update_wrapper(self, model.forward)
        self.model, self.forward = model, model.forward
        self.step, self.micro_batches, self.keep = step, micro_batches, keep
        self.passes = None  # the forward passes that are no steps, for as long as a call is one
        self._gives_loss = {}  # by what a call was given
        self._has_told = False

    def __call__(self, *args, **kwargs):
        return self.forward(*args, **kwargs) if self.passes is None else self._run(args, kwargs)

    def takes(self, passes, model, args, kwargs):
        """Whether a call with these arguments is a step."""
        if not torch.is_grad_enabled():
            return False
        tensors = [tensor for _, tensor in named_tensors(args, kwargs)]
        if not any(tensor.dim() > 0 for tensor in tensors):
            return False
        if any(tensor.requires_grad or _C.is_dtensor(tensor) for tensor in tensors):
            return self._tell(model, "is given tensors that are on the mesh already, or want a gradient")
        key = (len(args), model.training, *sorted(name for name, value in kwargs.items() if value is not None))
        if key not in self._gives_loss:
            self._gives_loss[key] = self._tries(passes, model, args, kwargs)
        return self._gives_loss[key] or self._tell(model, "does not return a loss")

    def _tries(self, passes, model, args, kwargs):
        """Whether it gives a loss: asks it for that of a few samples, once, before the first step."""
        stream, buffers = _C.rng_state(), {buffer: (buffer._version, buffer.clone()) for buffer in model.buffers()}
        named = list(named_tensors(args, kwargs))
        count = next(tensor.shape[0] for _, tensor in named if tensor.dim() > 0)
        few = [(name, tensor[:-(-count // self.micro_batches)] if tensor.dim() > 0 and tensor.shape[0] == count else tensor) for name, tensor in named]
        try:
            output = self._asked(passes, args, kwargs, few, torch.no_grad())
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            output = self._asked(passes, args, kwargs, few, torch.enable_grad())  # it takes derivatives itself
        with torch.no_grad():
            for buffer, (version, before) in buffers.items():
                if buffer._version != version:
                    buffer.copy_(before)
        passes.step = passes.step  # no evaluation was among the passes
        _C.set_rng_state(stream)
        if _loss_in(output) is None:
            return False
        _verify_norms(model, self.micro_batches)
        return True

    def _asked(self, passes, args, kwargs, few, mode):
        with mode:
            args, kwargs = with_tensors((args, kwargs), iter(passes.begin(few)))
            try:
                return self.forward(*args, **kwargs)
            finally:
                passes.end()

    def _tell(self, model, why):
        if not self._has_told:
            self._has_told = True
            warnings.warn(f"[parallelize] microbatches={self.micro_batches}: {type(model).__name__} {why}, so all forwards run, then all backwards: the whole batch at once, "
                          "one stage after the other. A forward that returns the loss, or an output with `.loss` (models of transformers do, given labels), runs "
                          "as the micro-batches of a schedule", stacklevel=7)
        return False

    def _run(self, args, kwargs):
        passes, self.passes = self.passes, None
        kept = {}  # by the first sample of the micro-batch
        stream = stream_of_rank() if self.micro_batches > 1 and _C.is_exact() else None
        outer, _running.step = getattr(_running, "step", None), self.step
        is_alone = False
        shares = kwargs.get("num_items_in_batch") is not None

        def forward(given):
            nonlocal is_alone
            if shares:
                self.step.tell_share()
            own_args, own_kwargs = with_tensors((args, kwargs), iter(given))
            output = _with_line(self.forward, own_args, own_kwargs)
            is_alone = isinstance(output, torch.Tensor)
            self._keep(output, kept)
            loss = _loss_in(output)
            if loss is None:
                raise ValueError(f"[parallelize] {type(self.model).__name__} gave no loss for a micro-batch ({type(output).__name__}), and did before; accepted: a forward "
                                 "whose arguments alone say what it gives")
            return loss

        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        try:
            loss = self.step.run(passes.give_step(), list(named_tensors(args, kwargs)), parameters, forward)
        finally:
            _running.step = outer
        if stream is not None and has_drawn_since(stream):
            warnings.warn(f"[parallelize] numerics exact, microbatches={self.micro_batches}: this step draws random numbers as plain PyTorch does, one micro-batch after the "
                          "other. They are the same for every schedule, and others for another number of micro-batches or of data ranks; "
                          "tessera.set_generator(\"counter\") gives a sample the same ones in any micro-batch", stacklevel=6)
        if is_alone:
            return loss
        return StepOutput(loss, {name: [of_batch[name] for _, of_batch in sorted(kept.items())] for name in self.keep})

    def _keep(self, output, kept):
        for name in self.keep:
            value = output.get(name) if isinstance(output, dict) else getattr(output, name, None)
            if not isinstance(value, torch.Tensor):
                raise ValueError(f"[parallelize] keep_outputs: `{name}` of {type(output).__name__} is no tensor ({type(value).__name__}); accepted: names of tensors in it")
            of_batch, value = kept.setdefault(self.step.first_sample, {}), value.detach()
            if name not in of_batch or _C.is_noted(value):  # of the walks over a micro-batch one has it
                of_batch[name] = value


def _loss_in(output):
    """The loss that a forward gives, alone, first, or by this name; None if there is none."""
    if isinstance(output, dict):
        value = output.get("loss")
    elif isinstance(output, (list, tuple)):
        value = output[0] if output else None
    else:
        value = output if isinstance(output, torch.Tensor) else getattr(output, "loss", None)
    return value if isinstance(value, torch.Tensor) and value.dim() == 0 and value.is_floating_point() else None


def _verify_norms(model, micro_batches):
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.training:
            raise ValueError(f"[parallelize] microbatches={micro_batches}: `{name}` ({type(module).__name__}) takes the statistics of each micro-batch, which are not "
                             "the batch's; accepted: such modules in eval(), another norm, or microbatches=1 without a schedule")


def _with_line(forward, args, kwargs):
    """Runs it. Where it reads a value that a schedule cannot give, the error says in which line."""
    try:
        return forward(*args, **kwargs)
    except RuntimeError as error:
        if type(error) is not RuntimeError or "inside of a pipeline's schedule" not in str(error):
            raise
        raise RuntimeError(f"{error}\n  in {line_of(error)}") from error


def _tell_of(name):
    """Has a mean loss of torch.nn.functional tell the step whose micro-batch it is of which targets it is a mean."""
    plain = getattr(functional, name)

    @functools.wraps(plain)
    def loss(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean", **options):
        step = getattr(_running, "step", None)
        if step is not None and reduction == "mean" and _C.is_dtensor(target) and not target.is_floating_point():
            if weight is not None:
                raise NotImplementedError(f"[{name}] weights of classes in a step of micro-batches, whose mean is over the weights of each one's targets; accepted: a "
                                          "mean without weights, or microbatches=1")
            step.tell_targets(target, ignore_index)
        return plain(input, target, weight, size_average, ignore_index, reduce, reduction, **options)

    setattr(functional, name, loss)


for _name in ("cross_entropy", "nll_loss"):
    _tell_of(_name)
