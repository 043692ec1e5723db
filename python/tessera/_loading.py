"""What libraries keep for the whole process, where several of its threads are ranks. Importing this module is enough.

While `from_pretrained` of transformers builds a model it replaces functions and settings of torch for the whole process (initialisers,
how parameters are registered, the default dtype), and puts back what it found. So rank threads load together: each in its turn, while
the others do nothing else.

What accelerate knows of a program (whether this micro-batch ends a step, devices, precision), and the Trainer of transformers by it, is
one dict for the process. A rank that sets it would change it for another that is a line behind; so each rank thread has its own.

What saves the tensors of a model is told of those on a mesh (_save_pretrained, _torch_checkpoint).
"""

import functools
import sys
import threading
from importlib.machinery import PathFinder

import torch

from tessera import _C
from tessera._other_ways import refuse_fully_shard, refuse_resize
from tessera._save_pretrained import save_adapters_once, save_models_once
from tessera._torch_checkpoint import stage_parts

_turn = threading.Lock()
_changed = threading.Condition()
_loading = [0, 0]  # ranks in their even and odd calls: a rank may be in its next call before another has left this one
_mine = threading.local()


def _together(load):
    """What load() returns, on every rank of the job. Collective."""
    parity = _mine.calls = 1 - getattr(_mine, "calls", 1)
    _count(parity, 1)
    try:
        _C.barrier()
        with _turn:
            _mine.inside = True
            result = load()
    finally:
        _mine.inside = False
        _count(parity, -1)
    with _changed:
        while _loading[parity]:
            _changed.wait(0.1)
    return result


def _count(parity, ranks):
    with _changed:
        _loading[parity] += ranks
        _changed.notify_all()


def _is_deferring():
    """Whether `deferred` runs a constructor on this thread."""
    return _C.is_deferred(torch.empty(0))


def _replace(cls, name):
    plain = getattr(cls, name).__func__

    @functools.wraps(plain)
    def method(cls, *args, **kwargs):
        if name == "from_pretrained" and _is_deferring():
            raise NotImplementedError(f"[deferred] {cls.__name__}.from_pretrained reads values, which a model without values has no place for; accepted: "
                                      "tessera.deferred(lambda: AutoModelForCausalLM.from_config(config)), tessera.parallelize, and then tessera.load(folder, "
                                      "model), by which each rank reads its part")
        if not _C.in_rank_thread() or getattr(_mine, "inside", False):
            return plain(cls, *args, **kwargs)
        return _together(lambda: plain(cls, *args, **kwargs))

    setattr(cls, name, classmethod(method))


def _load_in_turns(module):
    for name in ("from_pretrained", "_from_config"):
        _replace(module.PreTrainedModel, name)


class _OfRank:
    """Stands for a dict in a class: one for each rank thread, and one for all other threads."""

    def __init__(self, of_others):
        self._of_others = of_others
        self._own = threading.local()

    def __get__(self, instance, owner=None):
        if not _C.in_rank_thread():
            return self._of_others
        if not hasattr(self._own, "state"):
            self._own.state = {}
        return self._own.state


def _keep_apart(module):
    for cls in (module.PartialState, module.AcceleratorState, module.GradientState):
        cls._shared_state = _OfRank(cls._shared_state)


# Modules, and what is done to each once it was imported.
_MODULES = {
    "accelerate.state": (_keep_apart,),
    "peft.peft_model": (save_adapters_once,),
    "torch.distributed.checkpoint._state_dict_stager": (stage_parts,),
    "torch.distributed.fsdp._fully_shard._fully_shard": (refuse_fully_shard,),
    "transformers.modeling_utils": (_load_in_turns, save_models_once, refuse_resize),
}


def _change(module):
    for change in _MODULES[module.__name__]:
        change(module)


class _Finder:
    """Finds these modules as Python does, and has their loading followed by that."""

    def find_spec(self, name, path, target=None):
        spec = PathFinder.find_spec(name, path, target) if name in _MODULES else None
        if spec:
            run = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (run(module), _change(module))
        return spec


for _name in _MODULES:
    if _name in sys.modules:
        _change(sys.modules[_name])
sys.meta_path.insert(0, _Finder())
