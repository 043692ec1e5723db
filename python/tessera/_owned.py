"""Any matrix-wise optimizer on whole matrices, each at one rank."""

import pickle

import torch

from tessera import _C

__all__ = ["Owned", "for_checkpoint", "kind_of"]


class Owned(torch.optim.Optimizer):
    """What `owned` gives: its groups are those of the optimizer that it runs, `optimizer`, and its state is plain, on the owner of a parameter alone."""

    def __init__(self, optimizer, over):
        if optimizer.state:
            raise ValueError(f"[owned] the optimizer {type(optimizer).__name__} has state already; accepted: one that took no step")
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.optimizer, self._over = optimizer, over
        optimizer.param_groups = self.param_groups
        self._wholes = None  # once parameters are on a mesh

    @torch.no_grad()
    def step(self, closure=None):
        """One step of the optimizer on whole tensors, each at its owner. Collective over the parameters' mesh."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        parameters = self._parameters()
        if not any(map(_C.is_dtensor, parameters)):
            self._run(parameters, parameters)
            return loss
        if self._wholes is None:
            self._wholes = _C.Wholes(self._over)
            self._wholes.plan(parameters)
            self._take(dict(self.state))
        wholes = self._wholes.lend(parameters)
        with _C.PlainScope():
            self._run(parameters, wholes)
        self._wholes.take_back()
        return loss

    def _parameters(self):
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _run(self, parameters, stepped):
        """Runs the optimizer on `stepped` instead of the parameters, but for those of None."""
        groups = [group["params"] for group in self.param_groups]
        rest = iter(stepped)
        try:
            for group in self.param_groups:
                group["params"] = [whole for whole in (next(rest) for _ in group["params"]) if whole is not None]
            pairs = [(parameter, whole) for parameter, whole in zip(parameters, stepped, strict=True) if whole is not None]
            self.optimizer.state.clear()
            self.optimizer.state.update((whole, self.state[parameter]) for parameter, whole in pairs if self.state.get(parameter))
            self.optimizer.step()
            self.state.update((parameter, self.optimizer.state[whole]) for parameter, whole in pairs if whole in self.optimizer.state)
        finally:
            self.optimizer.state.clear()
            for group, own in zip(self.param_groups, groups, strict=True):
                group["params"] = own

    # --- state that every rank sees

    def shared_state(self):
        """{parameter: its state}, on every rank alike: tensors are DTensors that their owner holds. Collective."""
        if self._wholes is None:
            return dict(self.state)
        parameters = self._parameters()
        own = {i: _mapped(self.state[parameter], _Sort.of) for i, parameter in enumerate(parameters) if self._wholes.is_here(i) and self.state.get(parameter)}
        described = {}
        for text in self._wholes.exchange(pickle.dumps(own)):
            described = {**pickle.loads(text), **described}
        return {parameters[i]: self._shared(i, described[i]) for i in sorted(described)}

    def _shared(self, place, described):
        tensors = iter(_tensors_in(self.state.get(self._parameters()[place]) if self._wholes.is_here(place) else None))
        return _mapped(described, lambda sort: self._wholes.from_owner(place, next(tensors, None), sort.sizes, sort.dtype), _Sort)

    def _take(self, state):
        """Makes state that every rank sees, or plain state that all have alike, that of the owners. Collective."""
        self.state.clear()
        for place, parameter in enumerate(self._parameters()):
            if kept := state.get(parameter):
                whole = _mapped(kept, lambda value, place=place: self._wholes.to_owner(place, value) if _C.is_dtensor(value) else value)
                if self._wholes.is_here(place):
                    self.state[parameter] = whole

    def take_shared(self, state):
        """The state from now on is `state`, as shared_state gives it. Collective."""
        parameters = self._parameters()
        if not any(map(_C.is_dtensor, parameters)):
            self.state.clear()
            self.state.update(state)
            return
        if self._wholes is None:
            self._wholes = _C.Wholes(self._over)
        self._wholes.plan(parameters)
        self._take(state)

    def state_dict(self):
        """As of any optimizer on a mesh, with tensors that are DTensors, each at its owner. Collective."""
        return _Shared(self).state_dict()

    def load_state_dict(self, state_dict):
        """Whole, plain tensors, the same on every rank, or DTensors. Collective."""
        shared = _Shared(self, {})
        shared.load_state_dict(state_dict)
        self.take_shared(shared.state)


class _Shared(torch.optim.Optimizer):
    """An owned optimizer as files see it: its groups, and state that every rank sees."""

    def __init__(self, owned, state=None):
        super().__init__(owned.param_groups, owned.defaults)
        self.owned, self.kind = owned, type(owned.optimizer).__name__
        self.state.update(owned.shared_state() if state is None else state)

    def __setstate__(self, state):
        super().__setstate__(state)
        for own, loaded in zip(self.owned.param_groups, self.param_groups, strict=True):
            own.update(loaded)


def for_checkpoint(optimizer, is_empty=False):
    """The optimizer itself, or of an owned one what files see of it; with no state yet if it is to be loaded."""
    return _Shared(optimizer, {} if is_empty else None) if isinstance(optimizer, Owned) else optimizer


def kind_of(optimizer):
    """The name under which files keep the optimizer's state: an owned one's is that of the optimizer which it runs."""
    return getattr(optimizer, "kind", type(optimizer).__name__)


class _Sort:
    """Sizes and dtype of a tensor that another rank has."""

    def __init__(self, sizes, dtype):
        self.sizes, self.dtype = sizes, dtype

    @staticmethod
    def of(tensor):
        return _Sort(list(tensor.shape), tensor.dtype)


def _mapped(value, change, kind=torch.Tensor):
    """The same dicts, lists and tuples with what `change` makes of those of a kind."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(item, change, kind) for key, item in value.items()}
    return type(value)(_mapped(item, change, kind) for item in value) if type(value) in (list, tuple) else value


def _tensors_in(value):
    """The tensors in dicts, lists and tuples, in the order of _mapped."""
    found = []
    _mapped(value, found.append)
    return found
