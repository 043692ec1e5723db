"""Models of transformers are loaded by one rank thread at a time. Importing this module is enough.

While `from_pretrained` builds a model it replaces functions and settings of torch for the whole process (initialisers, how
parameters are registered, the default dtype), and puts back what it found. So rank threads load together: each in its turn, while
the others do nothing else.
"""

import functools
import sys
import threading
from importlib.machinery import PathFinder

from tessera import _C

MODULE = "transformers.modeling_utils"

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


def _replace(cls, name):
    plain = getattr(cls, name).__func__

    @functools.wraps(plain)
    def method(cls, *args, **kwargs):
        if not _C.in_rank_thread() or getattr(_mine, "inside", False):
            return plain(cls, *args, **kwargs)
        return _together(lambda: plain(cls, *args, **kwargs))

    setattr(cls, name, classmethod(method))


def _install(module):
    for name in ("from_pretrained", "_from_config"):
        _replace(module.PreTrainedModel, name)


class _Finder:
    """Finds the module as Python does, and has its loading replaced once it was imported."""

    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec:
            run = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (run(module), _install(module))
        return spec


if MODULE in sys.modules:
    _install(sys.modules[MODULE])
else:
    sys.meta_path.insert(0, _Finder())
