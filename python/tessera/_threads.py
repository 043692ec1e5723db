"""What the interpreter needs where several of its threads are ranks. Importing this module is enough."""

import ctypes
import functools
import itertools
import os
import sys
import threading
import time
from importlib import _bootstrap

import _imp

from tessera import _C

# How long a fork waits for the imports of other threads, in seconds.
FORK_DEADLINE = 60.0


def _get_cached(self, instance, owner=None):
    """functools.cached_property as Python 3.12 has it: no lock of all threads while a rank computes, and may wait for another."""
    if instance is None:
        return self
    if self.attrname not in instance.__dict__:
        instance.__dict__[self.attrname] = self.func(instance)
    return instance.__dict__[self.attrname]


def _are_others_importing() -> bool:
    locks = [reference() for reference in list(_bootstrap._module_locks.values())]
    return any(lock is not None and lock.owner != threading.get_ident() for lock in locks)


def _hold_imports():
    """Before a fork: the child (a worker of a DataLoader) inherits the lock of a module that another thread is importing, and
    nobody there to release it. Waits for such threads, and holds the lock that an import takes first."""
    until = time.monotonic() + FORK_DEADLINE
    _imp.acquire_lock()
    while _are_others_importing() and time.monotonic() < until:
        _imp.release_lock()
        time.sleep(0.001)
        _imp.acquire_lock()


def _forget_dummy():
    """Before a fork: the thread of a rank, which Python did not start, is a dummy in `threading` once something has asked for it. As the main thread of the
    child it would fail at its end, with exit code 1: without it the child gets a main thread of its own."""
    if isinstance(threading._active.get(threading.get_ident()), threading._DummyThread):
        del threading._active[threading.get_ident()]


def _adding_to_new_arrays(plain):
    """os.putenv. Adding a name takes glibc before 2.41 to free the array of names, which other ranks may be reading, as libtorch asks for names while it
    computes: a rank thread adds it in a new array, and the old one stays."""
    names = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ")
    kept = []

    @functools.wraps(plain)
    def putenv(name, value):
        name, value = os.fsencode(name), os.fsencode(value)
        if not _C.in_rank_thread() or os.getenvb(name) is not None or not names.value:
            plain(name, value)
            return
        old = ctypes.cast(names.value, ctypes.POINTER(ctypes.c_void_p))
        entries = list(itertools.takewhile(bool, (old[i] for i in itertools.count())))
        added = ctypes.create_string_buffer(name + b"=" + value)
        array = (ctypes.c_void_p * (len(entries) + 2))(*entries, ctypes.addressof(added), None)
        kept.append((added, array))
        names.value = ctypes.addressof(array)

    return putenv


if sys.version_info < (3, 12):
    functools.cached_property.__get__ = _get_cached
os.register_at_fork(before=_forget_dummy)
os.register_at_fork(before=_hold_imports, after_in_parent=_imp.release_lock, after_in_child=_imp.release_lock)
os.putenv = _adding_to_new_arrays(os.putenv)
