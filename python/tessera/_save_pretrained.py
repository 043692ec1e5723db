"""Has `save_pretrained` of transformers and peft write a model on a mesh once: rank 0 writes whole values, the others wait for it."""

import contextlib
import functools
import inspect
import threading

from tessera import _C
from tessera._whole_state import WholeState, whole_state


_of_thread = threading.local()  # whole states of models that are gathered already, by the models' ids


@contextlib.contextmanager
def these_are_whole(states):
    """Within, a model's save_pretrained writes the whole state that is here for it, and waits for no other rank. `states`: pairs of both."""
    _of_thread.states = {id(model): state for model, state in states}
    try:
        yield
    finally:
        _of_thread.states = {}


def _has_parts(state):
    return any(map(_C.is_dtensor, state.values()))


def _replace(cls, write):
    """Has cls.save_pretrained be `write`, which is called with what it was and a call's arguments."""
    plain = cls.save_pretrained
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def save_pretrained(*args, **kwargs):
        return write(plain, signature.bind(*args, **kwargs))

    cls.save_pretrained = save_pretrained


def _write_model(plain, call):
    model, given = call.arguments["self"], call.arguments.get("state_dict")
    if given is None:
        given = getattr(_of_thread, "states", {}).get(id(model))
    if isinstance(given, WholeState):
        call.arguments["state_dict"] = given.copy()  # transformers takes out of it what it has written
        return plain(*call.args, **call.kwargs) if given.is_here else None
    state = model.state_dict(keep_vars=True) if given is None else given
    if not _has_parts(state):
        return plain(*call.args, **call.kwargs)
    whole = whole_state(state, 0)
    if whole.is_here:
        call.arguments["state_dict"] = whole
        plain(*call.args, **call.kwargs)
    _C.barrier()


def save_models_once(module):
    """For transformers.modeling_utils."""
    _replace(module.PreTrainedModel, _write_model)


def _write_adapters(plain, call):
    if not _has_parts(call.arguments["self"].state_dict()):
        return plain(*call.args, **call.kwargs)
    if call.arguments.get("path_initial_model_for_weight_conversion") is not None:
        raise NotImplementedError("save_pretrained(path_initial_model_for_weight_conversion=...) loads another adapter into the model, which rank 0 cannot "
                                  "do alone: convert the saved adapter on one device")
    call.arguments["is_main_process"] = _C.rank() == 0
    plain(*call.args, **call.kwargs)  # on every rank: which values it writes is found there, by the function below
    _C.barrier()


def save_adapters_once(module):
    """For peft.peft_model."""
    plain = module.get_peft_model_state_dict

    @functools.wraps(plain)
    def get_peft_model_state_dict(*args, **kwargs):
        state = plain(*args, **kwargs)
        return whole_state(state, 0) if _has_parts(state) else state

    module.get_peft_model_state_dict = get_peft_model_state_dict
    _replace(module.PeftModel, _write_adapters)
