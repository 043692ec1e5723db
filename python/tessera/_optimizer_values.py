"""What a torch.optim optimizer keeps and is set to, as named tensors and values of a checkpoint.

A tensor that is kept for a parameter is the moment `exp_avg/<name of the parameter>`. The rest is the value `optimizer`, as C++ programs write it:
its kind, the options of each group with the names of its parameters, and of each parameter's state what is no tensor. Of libtorch's
optimizers and PyTorch's of one name each reads what the other wrote.
"""

import json
import math

import torch

from tessera import _C
from tessera._owned import for_checkpoint, kind_of


def named(tensors):
    """{name: parameter or buffer}, with the names of tied ones too."""
    return {name: each.tensor for each in tensors for name in (each.name, *each.aliases)}


def _names(optimizer, tensors):
    """Of each group the names of its parameters."""
    names = {id(each.tensor): each.name for each in tensors}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise ValueError(f"[checkpoint] the optimizer has a parameter of sizes {list(parameter.shape)} that is none of the model's; accepted: an "
                                 "optimizer of model.parameters()")
    return [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


def _parameters(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def to_json(value, what):
    """The text of a value; throws with what it is where it is no JSON."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"[checkpoint] {what} cannot be kept: {error}; accepted: what JSON has (numbers that are finite, texts, lists, dicts, None)") from None


# --- into a checkpoint

class _Packer:
    """Of one optimizer: moments, and the dtype of its step counts, which are numbers in a checkpoint."""

    def __init__(self):
        self.moments, self.step_dtype = [], None

    def state(self, parameter, state):
        packed = {key: self.value(value, key, parameter) for key, value in state.items() if not self.is_moment(key, value)}
        self.moments += [(f"{key}/{parameter}", value) for key, value in state.items() if self.is_moment(key, value)]
        return packed

    def is_moment(self, key, value):
        if not isinstance(value, torch.Tensor):
            return False
        if key != "step" or value.dim() > 0:
            return True
        self.step_dtype = self.step_dtype or value.dtype
        return value.dtype != self.step_dtype

    def value(self, value, path, parameter):
        if path == "step" and isinstance(value, torch.Tensor):
            return _C.full_tensor(value).item() if _C.is_dtensor(value) else value.item()
        if isinstance(value, torch.Tensor):
            self.moments.append((f"{path}/{parameter}", value))
            return {"tensor": path}
        if isinstance(value, (list, tuple)):
            return {type(value).__name__: [self.value(item, f"{path}.{i}", parameter) for i, item in enumerate(value)]}
        return value


def _option(value):
    if isinstance(value, torch.Tensor):
        return _C.full_tensor(value).item() if _C.is_dtensor(value) else value.item()
    return list(value) if isinstance(value, tuple) else value


def _options(group):
    options = {key: _option(value) for key, value in group.items() if key not in ("params", "param_names")}
    betas = options.get("betas")
    return {**options, "beta1": betas[0], "beta2": betas[1]} if isinstance(betas, list) and len(betas) == 2 else options


def pack(optimizer, tensors):
    """The optimizer's moments by name, and the text of its value. Collective."""
    optimizer = for_checkpoint(optimizer)
    groups, packer, state = _names(optimizer, tensors), _Packer(), {}
    parameters = dict(zip((name for names in groups for name in names), _parameters(optimizer)))
    if strangers := [key for key in optimizer.state if not any(key is parameter for parameter in parameters.values())]:
        raise ValueError(f"[checkpoint] the optimizer keeps state of {len(strangers)} things that are no parameters of its groups; accepted: state of "
                         "parameters")
    for name, parameter in parameters.items():
        if kept := optimizer.state.get(parameter):
            state[name] = packer.state(name, kept)
    value = {"kind": kind_of(optimizer), "state": state, "step": str(packer.step_dtype or "").removeprefix("torch."),
             "groups": [{"options": _options(group), "parameters": names} for group, names in zip(optimizer.param_groups, groups)]}
    return packer.moments, to_json(value, f"the state of the optimizer {value['kind']}")


# --- out of one

class StateToLoad:
    """Of an optimizer: tensors that are to be loaded, and how it gets them. Nothing is changed before restore()."""

    def __init__(self, optimizer, tensors, found):
        self.owned, self.optimizer, self.source = optimizer, for_checkpoint(optimizer, is_empty=True), found.folder
        self.value = self._value_of(found)
        self.names = _names(self.optimizer, tensors)
        self.parts = {}  # (parameter's id, path): tensor
        self.moments = []
        own, by_name = set(map(id, _parameters(optimizer))), named(tensors)
        for name in found.moments:
            path, _, parameter = name.partition("/")
            parameter = by_name.get(parameter)
            if parameter is not None and id(parameter) in own:
                self.parts[id(parameter), path] = self._part(found, name, parameter)
                self.moments.append((name, self.parts[id(parameter), path]))

    def _value_of(self, found):
        if "optimizer" not in found.values:
            raise RuntimeError(f'[checkpoint] "{self.source}" was saved without an optimizer; accepted: load(folder, model), to load the model alone')
        value = json.loads(found.values["optimizer"])
        if value["kind"] != kind_of(self.optimizer):
            raise RuntimeError(f'[checkpoint] "{self.source}" has the state of {value["kind"]}, the optimizer is {kind_of(self.optimizer)}; accepted: '
                               "the same kind of optimizer, or load(folder, model), to load the model alone; nothing was changed")
        return value

    def _part(self, found, name, parameter):
        """The tensor that is there, or a new one."""
        dtype, sizes = found.moments[name]
        kept = (self.optimizer.state.get(parameter) or {}).get(name.partition("/")[0])
        fits = isinstance(kept, torch.Tensor) and list(kept.shape) == sizes and kept.dtype == dtype
        return kept if fits else _C.empty_moment(found, name, parameter)

    def verify_groups(self):
        then = [group["parameters"] for group in self.value["groups"]]
        if then != self.names:
            pairs = enumerate(zip(_with_ends(then), _with_ends(self.names)))
            was, is_now = next((pair for _, pair in pairs if pair[0] != pair[1]), ("another number", "this one"))
            raise RuntimeError(f'[checkpoint] "{self.source}" has other groups of parameters: {was} where the optimizer has {is_now}; accepted: the same '
                               "groups; nothing was changed")

    def restore(self):
        step = self.value.get("step", "")
        for group, saved, names in zip(self.optimizer.param_groups, self.value["groups"], self.names):
            for parameter, name in zip(group["params"], names):
                self._restore_state(parameter, self.value["state"].get(name, {}), getattr(torch, step) if step else None)
            _restore_options(group, saved["options"])
        if not step:  # of C++, where steps are plain numbers: PyTorch makes of them what it does of its own old files
            self.optimizer.__setstate__({"state": self.optimizer.state, "param_groups": self.optimizer.param_groups})
        if self.owned is not self.optimizer:
            self.owned.take_shared(self.optimizer.state)

    def _restore_state(self, parameter, values, step_dtype):
        kept = self.optimizer.state.pop(parameter, {})
        state = {key: self._unpacked(parameter, value) for key, value in values.items()}
        state.update({path: tensor for (owner, path), tensor in self.parts.items() if owner == id(parameter) and "." not in path})
        if "step" in values and step_dtype:
            before = kept.get("step")
            is_same = isinstance(before, torch.Tensor) and before.dtype == step_dtype
            state["step"] = before.fill_(values["step"]) if is_same else torch.tensor(values["step"], dtype=step_dtype)
        if state:
            self.optimizer.state[parameter] = state

    def _unpacked(self, parameter, value):
        if isinstance(value, dict):
            (kind, content), = value.items()
            if kind == "tensor":
                return self.parts[id(parameter), content]
            return {"list": list, "tuple": tuple}[kind](self._unpacked(parameter, item) for item in content)
        return value


def _with_ends(groups):
    """Names one after the other, and what stands between two groups and behind the last."""
    return [name for group in groups for name in (*group, "the end of a group")] + ["nothing more"] * 2


@torch.no_grad()
def _restore_options(group, options):
    options = dict(options)
    betas = options.pop("beta1", None), options.pop("beta2", None)
    if "betas" in group and "betas" not in options and None not in betas:
        options["betas"] = betas
    for key, value in options.items():
        before = group.get(key)
        if isinstance(before, torch.Tensor):
            before.fill_(value)
        else:
            group[key] = tuple(value) if isinstance(before, tuple) or key == "betas" else value
