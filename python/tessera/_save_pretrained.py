"""Has `save_pretrained` of transformers and peft write a model on a mesh once."""

import functools
import inspect

import torch

from tessera import _C
from tessera._whole_state import WholeState, whole_state


def save_models_once(module):
    """PreTrainedModel.save_pretrained: rank 0 writes the whole values, the others wait for it."""
    plain = module.PreTrainedModel.save_pretrained
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def save_pretrained(self, *args, **kwargs):
        call = signature.bind(self, *args, **kwargs)
        given = call.arguments.get("state_dict")
        if isinstance(given, WholeState):
            return plain(self, *args, **kwargs) if given.is_here else None
        state = self.state_dict(keep_vars=True) if given is None else given
        if not _has_parts(state):
            return plain(self, *args, **kwargs)
        whole = whole_state(state, 0)
        if whole.is_here:
            call.arguments["state_dict"] = whole
            plain(*call.args, **call.kwargs)
        _C.barrier()

    module.PreTrainedModel.save_pretrained = save_pretrained


def _has_parts(state):
    return any(isinstance(value, torch.Tensor) and _C.is_dtensor(value) for value in state.values())
