"""accelerate, on which the Trainer of transformers stands, told of one device."""

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from tessera._ranks import rank


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
