"""accelerate, on which the Trainer of transformers stands, told of one device."""

import threading

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, GradientAccumulationPlugin, KwargsHandler, clear_environment

from tessera._ranks import rank

_fields_by_kind = {}  # of settings as they are made in an empty environment
_making_fields = threading.Lock()


def _default_fields(kind):
    """accelerate empties the environment of the whole process for a moment to make them, which other ranks' threads may read just then: once for each kind."""
    with _making_fields:
        if kind not in _fields_by_kind:
            with clear_environment():
                _fields_by_kind[kind] = kind().to_dict()
        return _fields_by_kind[kind]


def _changed_fields(settings):
    """accelerate's: those that are not the default."""
    default = _default_fields(type(settings))
    return {name: value for name, value in settings.to_dict().items() if default[name] != value}


KwargsHandler.to_kwargs = _changed_fields
_default_fields(GradientAccumulationPlugin)  # which every Accelerator asks for


def tell_of_one_device():
    """By what accelerate knows there is one process; which rank this is says who writes and prints, and nothing else. On a rank only."""
    AcceleratorState._reset_state()
    state = PartialState(cpu=True)
    state.distributed_type, state.num_processes, state.backend = DistributedType.NO, 1, None
    state.process_index = state.local_process_index = rank()
    return state


def optimizer_in(prepared):
    """The optimizer in accelerate's."""
    return getattr(prepared, "optimizer", prepared)
